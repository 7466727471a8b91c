"""How a dataset is read: settings, the store of its files, and the cache of remote blocks.

For example:

    settings = ReadSettings(store_options={"region": "eu-west-1"})
    store = open_dataset("s3://bucket/dataset", settings)
    store.map("manifest.json")
    store.read_range("shard-000003.tar", 640, 131_712)        # bytes 640 .. 131_711
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import threading
import time
import zlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from storage import StorageError, StorageSettings, Store, open_store
from storage.base import Buffer
from storage.errors import Unreachable
from storage.local import make_private_folder, map_file
from storage.retries import RequestCounters

# Lock files of the cache. Many, because a fetch also waits for others that share its lock.
_NUM_LOCKS = 1024

# Blocks, and blocks that a killed process was writing. Eviction leaves all other files alone.
_BLOCK_NAME = re.compile(r"[0-9a-f]{16}-.+-\d+-\d+(\.\d+\.\d+\.part)?")

# Bytes cannot be read. `where`, `cause` and `remedy` are the parts of the message.
ReadFailed = StorageError

# cache_hits, cache_misses, retries, refetches, fetched_bytes, ...
Counters = RequestCounters


@dataclass(frozen=True)
class ReadSettings:
    """How a dataset is read. Only `on_corrupt` applies to local folders too.

    Attributes:
        on_corrupt: "stop" raises ShardCorrupt; "skip_and_count" blanks the rows that contain
            damaged bytes.
        cache_dir: Folder that the ranks of a node share; default: ~/.cache/corpusmill/loader.
        cache_bytes: Largest size of the cache. Each rank may exceed it by 1/64, because the
            size is not checked at every block.
        block_bytes: Approximate size of a fetched block, which has only complete samples.
        fetch_threads: Requests at a time, per rank, for blocks ahead of the reads. As many again
            fetch blocks that were not ready in time.
        ahead_bytes: How far ahead of the reads blocks are fetched, over all ranks. Default: one
            block for each of the 64 sections of the row order, which reach the ends of their
            blocks at about the same time.
        stall_timeout_s: A read fails at most this long after its start or its last new byte. It
            also waits at most this long for another rank of the node that fetches the same block.
        request_timeout_s: A request is repeated when no new byte has arrived for this long. At
            most a third of `stall_timeout_s` is used.
        store_options: Options of obstore's stores: region, endpoint, access_key_id, ... The
            usual AWS_* variables are used too.
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
        sizes = ("cache_bytes", "block_bytes", "fetch_threads")
        for name in (*sizes, "stall_timeout_s", "request_timeout_s"):
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


class Cache:
    """A folder of fetched blocks that all ranks of a node share.

    When it is full, the blocks that were used least recently are deleted. If the folder cannot be
    written, blocks are read without it.
    """

    def __init__(self, settings: ReadSettings, counters: Counters) -> None:
        home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        folder = settings.cache_dir or home / "corpusmill" / "loader"
        self._folder = _make_cache_folder(folder)
        self._settings, self._counters = settings, counters
        # Bytes added since the last eviction. The first addition always checks the size.
        self._added_bytes = settings.cache_bytes

    def get(self, key: str, num_bytes: int | None, fetch: Callable[[], Buffer]) -> Buffer:
        """Return the block of a key; fetch it if no rank has done so. Raises errors of `fetch`.

        A block of another size than `num_bytes` is fetched again; None: any size.
        """
        path = self._folder / key
        if (found := self._find(path, num_bytes)) is not None:
            return found
        # The ranks of a node often need the same block at the same time: only one fetches it.
        with self._lock_key(key):
            if (found := self._find(path, num_bytes)) is not None:
                return found
            self._counters.add("cache_misses")
            return self._add(path, fetch())

    def drop(self, key: str) -> None:
        """Delete a block whose checksum is wrong."""
        (self._folder / key).unlink(missing_ok=True)

    def _find(self, path: Path, num_bytes: int | None) -> Buffer | None:
        try:
            data = map_file(path)
            os.utime(path)  # the time of the last use
        except OSError:  # not there, or not a readable file: `_add` replaces it if it can
            return None
        # Another size: the block of an earlier dataset at this address, or the disk was full.
        if num_bytes not in (None, len(data)):
            return None
        self._counters.add("cache_hits")
        return data

    def _add(self, path: Path, data: Buffer) -> Buffer:
        # Listing the folder takes long for many blocks, so it happens once per 1/64 of the limit.
        self._added_bytes += len(data)
        if self._added_bytes >= self._settings.cache_bytes // 64:
            self._added_bytes = 0
            self._evict(len(data))
        # Process and thread in the name: two writers of one key must not share a file. A crash
        # leaves a .part file, which eviction deletes like a block.
        aside = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.part")
        try:
            aside.write_bytes(data)
            # Map before the rename: afterwards another rank may evict the file. A mapped file stays
            # readable after it was deleted.
            mapped = map_file(aside)
            aside.replace(path)
        except OSError:  # reading continues with a full disk
            self._counters.add("cache_write_failures")
            with contextlib.suppress(OSError):
                aside.unlink()
            return data
        # Ranks share the mapped pages, and the memory of `data` can be reused.
        return mapped

    def _evict(self, added_bytes: int) -> None:
        """Delete the blocks used least recently until `added_bytes` fit."""
        files: list[tuple[float, int, str]] = []  # time of the last use, bytes, path
        total_bytes = 0
        with os.scandir(self._folder) as entries:
            for entry in entries:
                if _BLOCK_NAME.fullmatch(entry.name):
                    with contextlib.suppress(FileNotFoundError):  # another rank deleted it
                        status = entry.stat()
                        files.append((status.st_mtime, status.st_size, entry.path))
                        total_bytes += status.st_size
        excess_bytes = total_bytes + added_bytes - self._settings.cache_bytes
        # Least recently used first: _find sets the time of each use.
        for _, num_bytes, path in sorted(files):
            if excess_bytes <= 0:
                break
            with contextlib.suppress(OSError):  # another rank deleted it, or it is a folder
                Path(path).unlink()
                excess_bytes -= num_bytes
                self._counters.add("cache_evictions")

    @contextlib.contextmanager
    def _lock_key(self, key: str) -> Generator[None]:
        """Let one process at a time fetch a key. Keys share a fixed number of locks.

        The operating system frees the lock of a process that dies.
        """
        path = self._folder / f"{zlib.crc32(key.encode()) % _NUM_LOCKS:04d}.lock"
        timeout_s = self._settings.stall_timeout_s
        gives_up_at = time.monotonic() + timeout_s
        with contextlib.ExitStack() as stack:
            try:
                file = stack.enter_context(path.open("ab"))
                while not (is_locked := _try_lock(file)) and time.monotonic() < gives_up_at:
                    time.sleep(0.002)
            except OSError:  # several processes may fetch the block then
                self._counters.add("cache_write_failures")
                is_locked = True
            if not is_locked:
                cause = (
                    f"another process of this node has been fetching it for {timeout_s:g} s"
                )
                raise Unreachable(key, cause, "see its error and the storage")
            yield


def _try_lock(file: IO[bytes]) -> bool:
    """Lock an open file until it is closed; return False if another process has locked it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make_cache_folder(folder: Path) -> Path:
    """Create the cache folder if it does not exist; return its path without symbolic links.

    Raises:
        StorageError: it cannot be created, or another user can change the files in it. Blocks are
            mapped into memory, and a mapped file that is cut ends the process with SIGBUS.
    """
    folder = folder.expanduser().resolve()
    remedy = "set ReadSettings.cache_dir to a new folder, or correct its owner and mode"
    user = os.getuid()
    try:
        make_private_folder(
            folder,
            forbidden=0o022,
            wanted=f"the cache must be a folder of user {user} that others cannot write",
            remedy=remedy,
        )
    except StorageError:
        raise
    except OSError as error:
        raise StorageError(str(folder), error.strerror or str(error), remedy) from error
    return folder
