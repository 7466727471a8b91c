"""Copies of checkpoints in an object store (`checkpoint.upload`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training.errors import IncompatibleConfig

MARKER = "complete.json"
"""Written last. A checkpoint without it is ignored."""


def upload_files(files: Sequence[Path], address: str, checkpoint_name: str) -> None:
    """Upload files in the given order.

    A file appears whole or not at all: obstore completes a multipart upload only at its end.
    """
    store = _open_store(address)
    for file in files:
        with file.open("rb") as source:
            store.put(f"{checkpoint_name}/{file.name}", source)


def remove_checkpoint(address: str, checkpoint_name: str) -> None:
    """Remove a checkpoint, its marker first, so that it is never taken for complete."""
    store = _open_store(address)
    paths = _list_paths(store, checkpoint_name)
    store.delete(sorted(paths, key=lambda path: not path.endswith(MARKER)))


def download_newest(address: str, folder: Path) -> Path | None:
    """Download the newest complete checkpoint into a folder.

    Returns:
        Its path on this disk, or None if the store has no complete checkpoint.
    """
    store = _open_store(address)
    paths = _list_paths(store)
    complete = sorted(path.rpartition("/")[0] for path in paths if path.endswith(f"/{MARKER}"))
    if not complete:
        return None
    newest = complete[-1]
    target = folder / newest.rpartition("/")[2]
    target.mkdir(parents=True, exist_ok=True)
    files = [path for path in paths if path.startswith(f"{newest}/")]
    # The marker comes last: a download that is cut short is not complete.
    for path in sorted(files, key=lambda path: path.endswith(MARKER)):
        with (target / path.rpartition("/")[2]).open("wb") as file:
            for chunk in store.get(path):
                file.write(chunk)
    return target


def _list_paths(store: Any, prefix: str | None = None) -> list[str]:
    paths: list[str] = []
    for entries in store.list(prefix):
        paths += [entry["path"] for entry in entries]
    return paths


def _open_store(address: str) -> Any:
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise IncompatibleConfig(
            f"checkpoint.upload is {address}, which needs obstore: pip install 'corpusmill[s3]'"
        ) from error
    if os.environ.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        return from_url(address, client_options={"allow_http": True})
    return from_url(address)
