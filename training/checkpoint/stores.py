"""Checkpoints of a run in a folder or an object store: copies (`checkpoint.upload`), and verification."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from storage import StorageSettings, Store, open_store
from storage.errors import InvalidAddress
from training.checkpoint.block_digests import (
    BLOCK_BYTES,
    FileDigest,
    open_verified,
)
from training.checkpoint.marker import MARKER, is_step_name, parse_step, read_marker
from training.checkpoint.tensor_files import METADATA, load_metadata
from training.errors import CheckpointDamaged, IncompatibleConfig


def upload_files(files: Sequence[Path], address: str, checkpoint_name: str) -> None:
    """Upload files in the given order. Each file appears when it is complete."""
    folder = open_checkpoint_store(address).child(checkpoint_name)
    for file in files:
        folder.upload(file, file.name)


def remove_checkpoint(address: str, checkpoint_name: str) -> None:
    """Remove a checkpoint, its marker first, so that it is never taken for complete."""
    folder = open_checkpoint_store(address).child(checkpoint_name)
    folder.delete(MARKER)
    folder.delete_all()


def download_newest(
    address: str, folder: Path, before_step: int | None = None
) -> Path | None:
    """Download the newest complete checkpoint into a folder.

    Args:
        address: of `checkpoint.upload`.
        folder: the checkpoints of the run on this disk.
        before_step: take only checkpoints of earlier steps.

    Returns:
        Its path on this disk, or None if the store has no such checkpoint.

    Raises:
        IncompatibleConfig: the address cannot be used.
    """
    store = open_checkpoint_store(address)
    try:
        names = store.list_folders()
    except InvalidAddress as error:
        raise IncompatibleConfig(f"checkpoint.upload: {error}") from error
    # Step numbers have eight digits, so the order of names is the order of steps.
    for name in filter(is_step_name, reversed(names)):
        is_earlier = before_step is None or parse_step(Path(name)) < before_step
        if is_earlier and store.child(name).exists(MARKER):
            return _download(store.child(name), folder / name)
    return None


def open_checkpoint_store(address: str) -> Store:
    """Return the folder of the checkpoints of one run, on a disk or in an object store."""
    # A private network may have an http endpoint.
    return open_store(address.rstrip("/"), StorageSettings(allow_http=True))


def _download(checkpoint: Store, target: Path) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    names = [name for name in checkpoint.list_names() if name != MARKER]
    # Listings leave the index out, because its name begins with a dot. The marker comes last: a
    # download that is cut short is not complete.
    for name in (*names, METADATA, MARKER):
        with checkpoint.open(name) as source, (target / name).open("wb") as file:
            shutil.copyfileobj(source, file, length=1 << 20)
    return target


# ---- verification ----


@dataclass(frozen=True)
class Verified:
    """The result for one checkpoint.

    Attributes:
        name: path or address.
        num_bytes: size of its files.
        damage: the first damage of each file; empty if the checkpoint is whole.
    """

    name: str
    num_bytes: int
    damage: tuple[str, ...]


def verify_checkpoint(store: Store, *, rank: int = 0, world_size: int = 1) -> Verified:
    """Read files of a checkpoint, and compare them with their digests.

    Several ranks share the files. Each also reads complete.json.
    """
    try:
        files = read_marker(store).files
    except (CheckpointDamaged, IncompatibleConfig) as error:
        return Verified(str(store), 0, (str(error),))
    damage: list[str] = []
    num_bytes = 0
    for name in sorted(files)[rank::world_size]:
        num_bytes += files[name].file_bytes
        try:
            _verify_file(store, name, files[name])
        except CheckpointDamaged as error:
            damage.append(str(error))
    return Verified(str(store), num_bytes, tuple(damage))


def find_checkpoints(source: str) -> Sequence[Store]:
    """Return the complete checkpoints of a run_dir or of an address, the oldest first.

    Args:
        source: a run_dir, one checkpoint, or the address of `checkpoint.upload`.

    Raises:
        IncompatibleConfig: there are none, or the address cannot be used.
    """
    store = open_checkpoint_store(source)
    try:
        if store.exists(MARKER):
            return [store]
        # An address has the checkpoints themselves, a run_dir has a folder of them.
        found = [*_list_complete(store), *_list_complete(store.child("checkpoints"))]
    except InvalidAddress as error:
        raise IncompatibleConfig(str(error)) from error
    if not found:
        raise IncompatibleConfig(
            f"{source} has no complete checkpoint; give a run_dir, a checkpoint such as "
            f"runs/a/checkpoints/step-00000100, or the address of checkpoint.upload"
        )
    return found


def _list_complete(folder: Store) -> list[Store]:
    children = [folder.child(name) for name in folder.list_folders() if is_step_name(name)]
    return [child for child in children if child.exists(MARKER)]


def _verify_file(store: Store, name: str, expected: FileDigest) -> None:
    where = store.locate(name)
    with open_verified(lambda: store.open(name), where, expected) as file:
        while file.read(BLOCK_BYTES):
            pass
        if name == METADATA:
            file.seek(0)
            load_metadata(file, where)
