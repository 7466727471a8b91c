"""Copies of checkpoints in an object store (`checkpoint.upload`)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from storage import StorageSettings, Store, open_store
from storage.errors import InvalidAddress
from training.errors import IncompatibleConfig

# Written last. A checkpoint without it is ignored.
MARKER = "complete.json"

# The index of torch.distributed.checkpoint. Listings leave it out, because it is hidden.
METADATA = ".metadata"


def upload_files(files: Sequence[Path], address: str, checkpoint_name: str) -> None:
    """Upload files in the given order. Each file appears when it is complete."""
    folder = _open_store(address).child(checkpoint_name)
    for file in files:
        folder.upload(file, file.name)


def remove_checkpoint(address: str, checkpoint_name: str) -> None:
    """Remove a checkpoint, its marker first, so that it is never taken for complete."""
    folder = _open_store(address).child(checkpoint_name)
    folder.delete(MARKER)
    folder.delete_all()


def download_newest(address: str, folder: Path) -> Path | None:
    """Download the newest complete checkpoint into a folder.

    Returns:
        Its path on this disk, or None if the store has no complete checkpoint.

    Raises:
        IncompatibleConfig: the address cannot be used.
    """
    store = _open_store(address)
    try:
        names = store.list_folders()
    except InvalidAddress as error:
        raise IncompatibleConfig(f"checkpoint.upload: {error}") from error
    # Step numbers have eight digits, so the order of names is the order of steps.
    for name in reversed(names):
        checkpoint = store.child(name)
        if checkpoint.exists(MARKER):
            return _download(checkpoint, folder / name)
    return None


def _download(checkpoint: Store, target: Path) -> Path:
    target.mkdir(parents=True, exist_ok=True)
    names = [name for name in checkpoint.list_names() if name != MARKER]
    # The marker comes last: a download that is cut short is not complete.
    for name in (*names, METADATA, MARKER):
        with checkpoint.open(name) as source, (target / name).open("wb") as file:
            shutil.copyfileobj(source, file, length=1 << 20)
    return target


def _open_store(address: str) -> Store:
    # A private network may have an http endpoint.
    return open_store(address.rstrip("/"), StorageSettings(allow_http=True))
