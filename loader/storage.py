"""Bytes of files by range: from a folder, or from https and S3 through a cache that the ranks of a node share.

Promises: a read gives exactly the bytes asked for, or raises within `stall_timeout_s` an error that names file, byte
range and cause. What a broken connection delivered is kept and only the rest is asked for again. The cache stays within
`cache_bytes`, and one rank fetches while the others wait for its file; a rank may die at any moment.
Leaves to others: whether the bytes are right (`reader` checks the format's own checksums), obstore the protocols.

    store = open_store("s3://bucket/dataset", ReadSettings(store_options={"region": "eu-west-1"}))
    store.read("manifest.json")
    store.fetch("shard-000003.tar", 640, 131_712)              # bytes 640 .. 131_711
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import random
import threading
import time
import zlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeVar

Buffer = mmap.mmap | memoryview | bytes
_T = TypeVar("_T")


@dataclass(frozen=True)
class ReadSettings:
    """How shards are read. Only `on_corrupt` concerns local folders too.

    on_corrupt:        'stop' raises ShardCorrupt; 'skip_and_count' blanks the rows that touch damaged bytes
    cache_dir:         folder that the ranks of a node share; ~/.cache/corpusmill/loader unless set
    cache_bytes:       the most it holds, plus 1/64 of it for each rank that is just adding
    block_bytes:       what is fetched at a time: whole samples, up to about this much
    fetch_threads:     requests at a time, of one rank
    ahead_bytes:       blocks are fetched so far ahead of what is read, over all ranks: a block for each of 64 lanes,
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


class ReadFailed(OSError):
    """Bytes could not be had. Kept: `where` (file and byte range), `cause` (what the storage said last), `remedy`."""

    def __init__(self, where: str, cause: str, remedy: str) -> None:
        super().__init__(where, cause, remedy)
        self.where, self.cause, self.remedy = where, cause, remedy

    def __str__(self) -> str:
        return f"{self.where}: {self.cause}; {self.remedy}"


class Counters:
    """Numbers that several threads add to: cache_hits, cache_misses, retries, refetches, fetched_bytes, ..."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}

    def add(self, name: str, num: int = 1) -> None:
        """Add to one of them."""
        with self._lock:
            self._counts[name] = self._counts.get(name, 0) + num

    def __getitem__(self, name: str) -> int:
        return self._counts.get(name, 0)


def open_store(
    address: str | Path, settings: ReadSettings, counters: Counters | None = None
) -> Folder | Remote:
    """What reads the files below a path, a file:// address, or one that obstore knows (https, s3, gs, az)."""
    text = str(address).rstrip("/")
    if text.startswith("file://"):
        return Folder(Path(text.removeprefix("file://")))
    if "://" in text:
        return Remote(text, settings, counters or Counters())
    return Folder(Path(text))


# -------------------------------------------------------------------------------------------------------------- folder


class Folder:
    """Files of a local or mounted folder, memory-mapped."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def where(self, name: str) -> str:
        """What errors call a file."""
        return str(self.path / name)

    def read(self, name: str) -> bytes:
        """A whole file."""
        with _named(self.where(name)):
            return (self.path / name).read_bytes()

    def size(self, name: str) -> int:
        """Bytes of a file."""
        with _named(self.where(name)):
            return (self.path / name).stat().st_size

    def map(self, name: str) -> Buffer:
        """A file's bytes, read when they are touched."""
        with _named(self.where(name)):
            return _map(self.path / name)


def _map(path: Path) -> Buffer:
    with path.open("rb") as file:
        is_empty = not os.fstat(file.fileno()).st_size  # what mmap refuses
        return b"" if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


@contextlib.contextmanager
def _named(where: str) -> Generator[None]:
    try:
        yield
    except FileNotFoundError as error:
        raise ReadFailed(
            where, "there is no such file", "copy the dataset whole, or correct the address"
        ) from error
    except OSError as error:
        raise ReadFailed(
            where, error.strerror or str(error), "look at the disk and at the file's rights"
        ) from error


# -------------------------------------------------------------------------------------------------------------- remote


class Remote:
    """Files below an address, through obstore."""

    def __init__(self, address: str, settings: ReadSettings, counters: Counters) -> None:
        self.address, self._settings, self._counters = address, settings, counters
        self._store = _connect(address, settings)

    def where(self, name: str) -> str:
        """What errors call a file."""
        return f"{self.address}/{name}"

    def read(self, name: str) -> bytes:
        """A whole file."""
        return bytes(self.fetch(name, 0, self.size(name)))

    def size(self, name: str) -> int:
        """Bytes of a file."""
        import obstore

        return self._persist(
            self.where(name), lambda: int(obstore.head(self._store, name)["size"]), lambda: 0
        )

    def fetch(self, name: str, start: int, stop: int) -> memoryview:
        """Bytes start .. stop - 1; what came before a connection broke is kept. Raises ReadFailed."""
        received, is_first = bytearray(), True

        def request() -> memoryview:
            nonlocal is_first
            if is_first:
                is_first = False
                return self._receive_whole(name, start, stop)
            self._receive(name, start, stop, received)
            return memoryview(received)

        return self._persist(
            f"{self.where(name)}, bytes {start}..{stop - 1}", request, lambda: len(received)
        )

    def _receive_whole(self, name: str, start: int, stop: int) -> memoryview:
        """In one call: three times as fast as piece by piece, but what came is lost when the connection breaks."""
        import obstore

        data = memoryview(obstore.get_range(self._store, name, start=start, end=stop))
        self._counters.add("fetched_bytes", len(data))
        if start + len(data) != stop:
            raise OSError(f"the answer ended after {len(data)} of {stop - start} bytes")
        return data

    def _receive(self, name: str, start: int, stop: int, received: bytearray) -> None:
        import obstore

        if start + len(received) >= stop:
            return
        before = len(received)
        result = obstore.get(self._store, name, options={"range": (start + before, stop)})
        try:
            # as it comes: what obstore still holds is lost when it breaks
            for piece in result.stream(min_chunk_size=1):
                received += memoryview(piece)
        finally:
            self._counters.add("fetched_bytes", len(received) - before)
        if start + len(received) != stop:
            raise OSError(f"the answer ended after {len(received)} of {stop - start} bytes")

    def _persist(self, where: str, request: Callable[[], _T], progress: Callable[[], int]) -> _T:
        """What `request` gives, tried again until nothing has moved for `stall_timeout_s`."""
        deadline, seen, pause_s = time.monotonic() + self._settings.stall_timeout_s, progress(), 0.1
        while True:
            try:
                return request()
            except Exception as error:
                cause = _cause(error)
                if _is_final(error):
                    remedy = "correct the address or the credentials, or copy the dataset whole"
                    raise ReadFailed(where, cause, remedy) from error
                if progress() > seen:
                    deadline, seen, pause_s = (
                        time.monotonic() + self._settings.stall_timeout_s,
                        progress(),
                        0.1,
                    )
                # a request that could outlast the bound is not begun
                if time.monotonic() + pause_s + self._settings.request_timeout_s > deadline:
                    remedy = f"no byte came for {self._settings.stall_timeout_s:g} s (stall_timeout_s): see the storage"
                    raise ReadFailed(where, cause, remedy) from error
            self._counters.add("retries")
            time.sleep(pause_s * random.uniform(0.5, 1.0))  # noqa: S311 - jitter, so that ranks do not come at once
            pause_s = min(2 * pause_s, 5.0, self._settings.stall_timeout_s / 10)


def _connect(address: str, settings: ReadSettings) -> Any:
    try:
        from obstore.store import from_url
    except ImportError as error:
        raise ReadFailed(
            address, "remote addresses need obstore", "pip install 'corpusmill[s3]'"
        ) from error
    options = dict(settings.store_options)
    endpoint = str(options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL", ""))
    request = timedelta(seconds=settings.request_timeout_s)
    client: dict[str, Any] = {
        "connect_timeout": request,
        "read_timeout": request,
        "timeout": request
        * 20,  # of a whole request: a link that crawls gets a new connection now and then
        "allow_http": address.startswith("http://") or endpoint.startswith("http://"),
        **options.pop("client_options", {}),
    }
    connect: Callable[..., Any] = from_url  # its overloads spell out every option of every store
    return connect(address, client_options=client, retry_config={"max_retries": 0}, **options)


def _is_final(error: Exception) -> bool:
    """Whether trying again cannot help."""
    from obstore.exceptions import (
        InvalidPathError,
        NotSupportedError,
        PermissionDeniedError,
        UnauthenticatedError,
        UnknownConfigurationKeyError,
    )

    final = InvalidPathError, NotSupportedError, PermissionDeniedError, UnauthenticatedError
    return isinstance(error, (FileNotFoundError, UnknownConfigurationKeyError, TypeError, *final))


def _cause(error: Exception) -> str:
    """The first line that says something: obstore adds a dump of the error to its message."""
    lines = [
        line.strip()
        for line in str(error).split("\n\nDebug source:")[0].splitlines()
        if line.strip()
    ]
    return " ".join(lines)[:500] or type(error).__name__


# --------------------------------------------------------------------------------------------------------------- cache


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
        with self._alone(key):
            if (found := self._find(path, num_bytes)) is not None:
                return found
            self._counters.add("cache_misses")
            return self._add(path, fetch())

    def drop(self, key: str) -> None:
        """Forget a file that turned out to be wrong."""
        (self._folder / key).unlink(missing_ok=True)

    def _find(self, path: Path, num_bytes: int) -> Buffer | None:
        try:
            data = _map(path)
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
            mapped = _map(aside)
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
    def _alone(self, key: str) -> Generator[None]:
        """One process at a time per key (nearly: keys share 64 locks). The system frees the lock of one that dies."""
        deadline = time.monotonic() + self._settings.stall_timeout_s
        with (self._folder / f"{zlib.crc32(key.encode()) % 64:02d}.lock").open("w") as file:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError as error:
                    if time.monotonic() > deadline:
                        waited = f"{self._settings.stall_timeout_s:g} s"
                        cause = f"another process of this node has been fetching it for {waited}"
                        raise ReadFailed(key, cause, "see its error and the storage") from error
                    time.sleep(0.002)
            yield
