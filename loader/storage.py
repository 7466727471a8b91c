"""How a dataset is read: settings, the store of its files, and the cache of remote blocks.

store = open_dataset("s3://bucket/dataset", ReadSettings(store_options={"region": "eu-west-1"}))
read_whole(store, "manifest.json")
store.read_range("shard-000003.tar", 640, 131_712)              # bytes 640 .. 131_711
"""

from __future__ import annotations

import contextlib
import os
import threading
import zlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from storage import StorageError, StorageSettings, Store, open_store
from storage.base import Buffer
from storage.errors import Unreachable
from storage.local import map_file
from storage.retries import RequestCounters

ReadFailed = StorageError
"""Bytes cannot be read. Its attributes `where`, `cause` and `remedy` are the parts of the message."""

Counters = RequestCounters
"""cache_hits, cache_misses, retries, refetches, fetched_bytes, ..."""


@dataclass(frozen=True)
class ReadSettings:
    """How shards are read. Only `on_corrupt` concerns local folders too.

    on_corrupt:        'stop' raises ShardCorrupt; 'skip_and_count' blanks the rows that touch damaged bytes
    cache_dir:         folder that the ranks of a node share; ~/.cache/corpusmill/loader unless set
    cache_bytes:       the most it holds, plus 1/64 of it for each rank that is just adding
    block_bytes:       what is fetched at a time: whole samples, up to about this much
    fetch_threads:     requests at a time, of one rank
    ahead_bytes:       blocks are fetched so far ahead of what is read, over all ranks: a block for each of 64 sections,
                       which come to the ends of their blocks at about the same time
    stall_timeout_s:   how long a read may go on without a new byte before it fails
    request_timeout_s: how long one request may go on without a new byte before it is repeated
    store_options:     for obstore's `from_url`: region, endpoint, access_key_id, ...; S3's usual environment counts too
    """

    on_corrupt: Literal["stop", "skip_and_count"] = "stop"
    cache_dir: Path | None = None
    cache_bytes: int = 16 * 2**30
    block_bytes: int = 4 * 2**20
    fetch_threads: int = 8
    ahead_bytes: int = 256 * 2**20
    stall_timeout_s: float = 90.0
    request_timeout_s: float = 15.0
    store_options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if self.on_corrupt not in ("stop", "skip_and_count"):
            raise ValueError(
                f"on_corrupt is {self.on_corrupt!r}, must be 'stop' or 'skip_and_count'"
            )
        for name in (
            "cache_bytes",
            "block_bytes",
            "fetch_threads",
            "stall_timeout_s",
            "request_timeout_s",
        ):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be above 0")


def open_dataset(
    address: str | Path, settings: ReadSettings, counters: Counters | None = None
) -> Store:
    """Return the folder at a path, or at a file, https, s3, gs or az address."""
    request_settings = StorageSettings(
        allow_http=True,  # the reader of a dataset checks what it reads
        request_timeout_s=settings.request_timeout_s,
        stall_timeout_s=settings.stall_timeout_s,
        options=settings.store_options,
    )
    return open_store(str(address).rstrip("/"), request_settings, counters or Counters())


def read_whole(store: Store, name: str) -> bytes:
    """Return the content of a file of any size. What arrives before a connection breaks is kept."""
    return bytes(store.read_range(name, 0, store.get_size(name)))


class Cache:
    """Files of a folder that all ranks of a node use; the oldest go when it is full."""

    def __init__(self, settings: ReadSettings, counters: Counters) -> None:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._folder = settings.cache_dir or home / "corpusmill" / "loader"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._settings, self._counters = settings, counters
        self._added_bytes = (
            settings.cache_bytes
        )  # so that the first addition looks at what is there

    def get(self, key: str, num_bytes: int, fetch: Callable[[], Buffer]) -> Buffer:
        """The file of this key; `fetch` makes it where no rank has. Raises what fetch raises."""
        path = self._folder / key
        if (found := self._find(path, num_bytes)) is not None:
            return found
        with self._lock_key(key):
            if (found := self._find(path, num_bytes)) is not None:
                return found
            self._counters.add("cache_misses")
            return self._add(path, fetch())

    def drop(self, key: str) -> None:
        """Forget a file that turned out to be wrong."""
        (self._folder / key).unlink(missing_ok=True)

    def _find(self, path: Path, num_bytes: int) -> Buffer | None:
        try:
            data = map_file(path)
            os.utime(path)  # used just now: goes last
        except FileNotFoundError:
            return None
        if (
            len(data) != num_bytes
        ):  # of a dataset that stood at this address before, or a disk that was full
            return None
        self._counters.add("cache_hits")
        return data

    def _add(self, path: Path, data: Buffer) -> Buffer:
        self._added_bytes += len(data)
        if self._added_bytes >= self._settings.cache_bytes // 64:
            self._added_bytes = 0
            self._evict(len(data))
        aside = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.part")
        try:
            aside.write_bytes(data)
            mapped = map_file(aside)
            aside.replace(path)
        except OSError:  # a full disk must not stop the reading
            self._counters.add("cache_write_failures")
            aside.unlink(missing_ok=True)
            return data
        return mapped  # pages that all ranks share; the memory it came in is used again for what comes next

    def _evict(self, coming_bytes: int) -> None:
        files: list[tuple[float, int, str]] = []
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if not entry.name.endswith(".lock"):
                    with contextlib.suppress(FileNotFoundError):  # another rank evicts too
                        status = entry.stat()
                        files.append((status.st_mtime, status.st_size, entry.path))
        excess = (
            sum(num_bytes for _, num_bytes, _ in files) + coming_bytes - self._settings.cache_bytes
        )
        for _, num_bytes, path in sorted(files):
            if excess <= 0:
                break
            Path(path).unlink(missing_ok=True)
            excess -= num_bytes
            self._counters.add("cache_evictions")

    @contextlib.contextmanager
    def _lock_key(self, key: str) -> Generator[None]:
        """Let one process at a time fetch a key. Keys share 64 locks.

        The operating system frees the lock of a process that dies.
        """
        import filelock

        path = self._folder / f"{zlib.crc32(key.encode()) % 64:02d}.lock"
        timeout_s = self._settings.stall_timeout_s
        # A soft lock would outlive a killed process.
        lock = filelock.FileLock(path, timeout_s, poll_interval=0.002, fallback_to_soft=False)
        try:
            lock.acquire()
        except filelock.Timeout as error:
            cause = f"another process of this node has been fetching it for {timeout_s:g} s"
            raise Unreachable(key, cause, "see its error and the storage") from error
        try:
            yield
        finally:
            lock.release()
