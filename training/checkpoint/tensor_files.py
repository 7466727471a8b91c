"""Writes and reads the files of torch.distributed.checkpoint (DCP), with digests.

DCP writes one file of tensors per rank and an index, `.metadata`, which is a pickle. The index is
read without executing anything: only the classes that DCP itself stores are allowed in it.
"""

from __future__ import annotations

import io
import os
import pathlib
import pickle
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import (
    FileSystem,
    FileSystemReader,
    FileSystemWriter,
    _StorageInfo,  # pyright: ignore[reportPrivateUsage]
)
from torch.distributed.checkpoint.metadata import (
    _MEM_FORMAT_ENCODING,  # pyright: ignore[reportPrivateUsage]
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import save as save_state
from torch.serialization import (
    _get_layout,  # pyright: ignore[reportPrivateUsage]
)

from training.checkpoint.block_digests import DigestWriter, FileDigest, open_verified
from training.errors import CheckpointDamaged, CheckpointFailed

# The index of DCP.
METADATA = ".metadata"


def save_tensors(
    tensors: dict[str, Any], path: Path, group: dist.ProcessGroup
) -> dict[str, FileDigest]:
    """Write the tensors of all ranks.

    Args:
        tensors: shards (DTensor) or whole tensors of this rank, by name.
        path: an empty folder, or one that does not exist.
        group: all ranks.

    Returns:
        The digests of the files that this rank wrote, by name.

    Raises:
        CheckpointException: a rank could not write; raised on all ranks.
    """
    writer = _Writer(path)
    save_state(tensors, storage_writer=writer, process_group=group)
    return writer.fs.written


class TensorFiles:
    """The tensors of a checkpoint that exists. Creating it reads the index.

    Attributes:
        shapes: shape of each tensor by name.

    Raises:
        CheckpointDamaged: the index is missing, differs from its digest, or is no index.
    """

    def __init__(self, path: Path, files: Mapping[str, FileDigest]) -> None:
        self._path = path
        self._reader = _Reader(path, files)
        stored = self._reader.read_metadata().state_dict_metadata
        self.shapes: dict[str, tuple[int, ...]] = {}
        for name, entry in stored.items():
            self.shapes[name] = tuple(getattr(entry, "size", ()))

    def load(self, tensors: dict[str, Any], group: dist.ProcessGroup | None = None) -> None:
        """Load into live tensors, in place. Each rank reads and verifies what it needs.

        Without a group, this process loads alone.

        Raises:
            CheckpointDamaged: a file is missing, differs from its digest, or holds something else
                than tensors. Raised on all ranks.
            CheckpointFailed: a rank could not read; raised on all ranks.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message=".*intent is to load in a single process"
            )
            try:
                load_state(
                    tensors,
                    storage_reader=self._reader,
                    process_group=group,
                    no_dist=group is None,
                )
            except CheckpointException as error:
                raise self._describe(error) from error

    def _describe(self, error: CheckpointException) -> Exception:
        """Return why loading failed: damage only if it is certain."""
        for _, (cause, _) in sorted(error.failures.items()):
            if isinstance(cause, CheckpointDamaged):
                return CheckpointDamaged(str(cause))
            # torch loads tensors without executing code. Its own message advises to allow execution.
            if isinstance(cause, pickle.UnpicklingError):
                return CheckpointDamaged(f"{self._path} holds something else than tensors")
        return CheckpointFailed(f"{self._path} could not be loaded: {list_causes(error)}")


def list_causes(error: BaseException) -> str:
    """Return the message of an error; of several ranks, with their numbers."""
    if not isinstance(error, CheckpointException):
        return str(error)
    causes: list[str] = []
    for rank, (cause, _) in sorted(error.failures.items()):
        causes.append(f"rank {rank}: {cause}")
    return "; ".join(causes)


# ---- files with digests ----


class _DigestingFiles(FileSystem):
    """Adds digests to files that are written, and verifies files that are read."""

    def __init__(self, folder: Path, files: Mapping[str, FileDigest]) -> None:
        self._folder, self._files = folder, files
        self.written: dict[str, FileDigest] = {}

    @contextmanager
    def create_stream(
        self, path: str | os.PathLike[str], mode: str
    ) -> Generator[io.IOBase]:
        """Open a file for DCP."""
        path = Path(path)
        if mode == "rb":
            with self.open(path) as file:
                yield file
            return
        with path.open("wb") as file:
            writer = DigestWriter(file)
            try:
                yield writer
            except RuntimeError as error:
                # torch's writer of zip files hides why a write failed.
                raise (writer.error or error) from error
            self.written[path.name] = writer.finish()

    def open(self, path: Path) -> io.BufferedReader:
        """Open a file of the checkpoint. Every byte that it returns is verified."""
        # The index names the files of tensors. It must not lead out of the folder.
        expected = self._files.get(path.name)
        if expected is None or path.parent != self._folder:
            raise CheckpointDamaged(
                f"{self._folder}: the index names {str(path)!r}, which is not among the files of "
                f"complete.json"
            )

        def open_file() -> BinaryIO:
            return path.open("rb")

        return open_verified(open_file, str(path), expected)

    def rename(
        self, path: str | os.PathLike[str], new_path: str | os.PathLike[str]
    ) -> None:
        """Rename a file that was written: DCP writes the index under another name first."""
        super().rename(path, new_path)
        self.written[Path(new_path).name] = self.written.pop(Path(path).name)


class _Writer(FileSystemWriter):
    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.fs: _DigestingFiles = _DigestingFiles(path, {})


class _Reader(FileSystemReader):
    def __init__(self, path: Path, files: Mapping[str, FileDigest]) -> None:
        super().__init__(path)
        self.fs: _DigestingFiles = _DigestingFiles(path, files)
        self._index_file = path / METADATA
        self._metadata: Metadata | None = None

    def read_metadata(self) -> Metadata:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Return the index, which is read once. DCP's own method would execute its pickle.

        It has no `kwargs`. DCP would otherwise call it again after an error, and hide the error.
        """
        if self._metadata is None:
            with self.fs.open(self._index_file) as file:
                self._metadata = load_metadata(file, str(self._index_file))
        return self._metadata


# ---- the index ----


def load_metadata(file: BinaryIO, name: str) -> Metadata:
    """Read the index of DCP from an open file. No code that it may contain is run.

    Raises:
        CheckpointDamaged: it is no index, or contains anything else.
    """
    try:
        metadata = _MetadataUnpickler(file).load()
    except CheckpointDamaged:
        raise
    except Exception as error:  # a damaged pickle can raise almost anything
        raise CheckpointDamaged(
            f"{name} is not an index of torch.distributed.checkpoint: {error}"
        ) from error
    if not isinstance(metadata, Metadata):
        raise CheckpointDamaged(
            f"{name} holds {type(metadata).__name__!r} instead of the index of a checkpoint"
        )
    try:
        _check_chunks(metadata)
    except Exception as error:  # values of any type may be where DCP stores its own
        raise CheckpointDamaged(f"{name} is a damaged index: {error}") from error
    metadata.storage_meta = StorageMeta()
    return metadata


def _check_chunks(metadata: Metadata) -> None:
    """Raise an error if a tensor is not covered by its chunks, or a chunk is in no file."""
    for name, entry in metadata.state_dict_metadata.items():
        if not isinstance(entry, TensorStorageMetadata):
            raise TypeError(f"{name!r} is no tensor")
        num_values = 0
        for chunk in entry.chunks:
            ends = (o + s for o, s in zip(chunk.offsets, chunk.sizes, strict=True))
            is_inside = all(e <= size for e, size in zip(ends, entry.size, strict=True))
            place = metadata.storage_data.get(MetadataIndex(name, chunk.offsets))
            if not is_inside or not isinstance(place, _StorageInfo):
                raise ValueError(f"the chunk of {name!r} at {tuple(chunk.offsets)} is lost")
            num_values += chunk.sizes.numel()
        if num_values != entry.size.numel():
            raise ValueError(f"{name!r} has {num_values} of {entry.size.numel()} values")


# Without BytesStorageMetadata: DCP unpickles what it describes. Our checkpoints hold tensors only.
_ALLOWED_CLASSES = (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
    _MEM_FORMAT_ENCODING,
    _StorageInfo,
    _get_layout,
    torch.Size,
    pathlib.PosixPath,
)


class _MetadataUnpickler(pickle.Unpickler):
    """Finds the classes of an index, and refuses all others."""

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        """Return the allowed class of that name, or a dtype of torch."""
        for allowed in _ALLOWED_CLASSES:
            if global_name == allowed.__name__ and module_name == allowed.__module__:
                return allowed
        dtype = getattr(torch, global_name, None)
        if module_name == "torch" and isinstance(dtype, torch.dtype):
            return dtype
        # The class is in `pathlib` or in a submodule of it, depending on the version of Python.
        if module_name.partition(".")[0] == "pathlib" and global_name == "PosixPath":
            return pathlib.PosixPath
        raise pickle.UnpicklingError(
            f"{module_name}.{global_name} does not belong into an index"
        )
