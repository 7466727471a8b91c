"""Copies of checkpoints in an object store (`checkpoint.upload`)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from storage import StorageSettings, Store, open_store
from storage.errors import InvalidAddress
from training.checkpoint.marker import MARKER, is_step_name, parse_step
from training.checkpoint.tensor_files import METADATA
from training.errors import IncompatibleConfig


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
