"""Files on disks and in object stores behind one interface.

    folder = open_store("s3://bucket/runs/ccnet").child("extract-0f3a")    # or open_store("runs/x")
    folder.put("run.json", b"{}")
    with folder.open("000007.documents.parquet") as file:
        file.seek(-8, os.SEEK_END)

`import storage` needs the standard library alone. Remote addresses need the extra s3.
"""

from __future__ import annotations

from pathlib import Path

from storage.base import Store
from storage.errors import StorageError
from storage.local import LocalStore
from storage.retries import RequestCounters
from storage.settings import DEFAULT_SETTINGS, StorageSettings

__all__ = ["StorageError", "StorageSettings", "Store", "open_store"]


def open_store(
    address: str | Path | Store,
    settings: StorageSettings = DEFAULT_SETTINGS,
    counters: RequestCounters | None = None,
) -> Store:
    """Return the folder at a path, or at a file, s3, https, gs or az address. Sends no request.

    Args:
        address: The path or address; a Store is returned unchanged.
        settings: How object storage is reached.
        counters: Where requests are counted; None: `storage.retries.requests`.

    Raises:
        InvalidAddress: the address names no bucket, or obstore is not installed.
    """
    if isinstance(address, Store):
        return address
    text = str(address)
    if text.startswith("file://"):
        return LocalStore(Path(text.removeprefix("file://")), settings)
    if "://" not in text:
        return LocalStore(Path(text), settings)
    # Imported late, to keep `import storage` light for local folders.
    from storage.object_store import ObjectStore

    return ObjectStore.from_address(text, settings, counters)
