"""Checkpoints with pickles that run a command. All digests fit, as an attacker makes them."""

from __future__ import annotations

import pickle
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

from training.checkpoint.block_digests import DigestWriter
from training.checkpoint.marker import Marker, read_marker, write_marker
from training.checkpoint.tensor_files import METADATA

SHARD = "__0_0.distcp"


class CreateFile:
    """Creates a file when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return subprocess.call, (("touch", str(self._file)),)


def replace_file(checkpoint: Path, name: str, content: bytes) -> None:
    """Replace a file, and make all digests fit."""
    with (checkpoint / name).open("wb") as file:
        writer = DigestWriter(file)
        writer.write(content)
        digest = writer.finish()
    marker = read_marker(checkpoint)
    write_marker(checkpoint, Marker(marker.progress, {**marker.files, name: digest}))


def read_index(checkpoint: Path) -> Metadata:
    """Return the index of a checkpoint that this process has saved."""
    return pickle.loads((checkpoint / METADATA).read_bytes())


def plant_in_index(checkpoint: Path, command: CreateFile) -> None:
    """Store the command in the index itself."""
    index = read_index(checkpoint)
    index.planner_data = command
    replace_file(checkpoint, METADATA, pickle.dumps(index))


def plant_in_shard(checkpoint: Path, command: CreateFile) -> None:
    """Store the command in place of the tensors."""
    # Protocol 2, because torch warns about others.
    content = pickle.dumps(command, protocol=2)
    index = read_index(checkpoint)
    for stored in (index.storage_data or {}).values():
        stored.offset, stored.length = 0, len(content)
    replace_file(checkpoint, METADATA, pickle.dumps(index))
    replace_file(checkpoint, SHARD, content)


def plant_as_bytes(checkpoint: Path, command: CreateFile) -> None:
    """Store the command behind the tensors, and index the random state as bytes.

    torch.distributed.checkpoint unpickles entries of this kind with all that they contain.
    """
    num_bytes = read_marker(checkpoint).files[SHARD].num_bytes
    tensors, content = (checkpoint / SHARD).read_bytes()[:num_bytes], pickle.dumps(command)
    name, index = "random.0.cpu", read_index(checkpoint)
    index.state_dict_metadata[name] = BytesStorageMetadata()
    entries = index.storage_data or {}
    (key,) = [key for key in entries if key.fqn == name]
    stored = entries.pop(key)
    stored.offset, stored.length = num_bytes, len(content)
    entries[type(key)(name)] = stored
    replace_file(checkpoint, METADATA, pickle.dumps(index))
    replace_file(checkpoint, SHARD, tensors + content)


PLANTS: tuple[Callable[[Path, CreateFile], None], ...] = (
    plant_in_index,
    plant_in_shard,
    plant_as_bytes,
)
