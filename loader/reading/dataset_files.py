"""The files of one dataset: mapped into memory if local, fetched by range if remote."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from loader.storage import Buffer, Cache, Counters, ReadSettings, open_dataset


class ForkCheck:
    """Remembers the process that created it: threads do not survive os.fork()."""

    def __init__(self) -> None:
        self._process = os.getpid()

    def __call__(self) -> None:
        """Raise RuntimeError in another process: it would wait for threads that it does not have."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "the loader was opened before os.fork(), and this process does not have its "
                "threads: open a loader in this process, and load the state of the other one"
            )


class DatasetFiles:
    """Reads files of a dataset's folder by name. Safe for several threads.

    Byte ranges of remote files are kept in a cache on disk, which all ranks of a node share.
    Requests are counted in `counters`.
    """

    def __init__(
        self, folder: str, digest: str, settings: ReadSettings, counters: Counters
    ) -> None:
        """Open a folder.

        Args:
            folder: path or address.
            digest: identifies the content, so that a new dataset at the same address never gets
                old blocks from the cache.
            settings: how remote files are read.
            counters: where requests are counted.
        """
        self.counters = counters
        self._cache_key_prefix = digest[:16]
        self._store = open_dataset(folder, settings, counters)
        self._cache: Cache | None = None
        self._check_fork = ForkCheck()
        self._pool: ThreadPoolExecutor | None = None
        self._prefetch_pool: ThreadPoolExecutor | None = None
        if self._store.is_remote:
            self._cache = Cache(settings, counters)
            # Two pools: what is needed now must not wait behind what was requested ahead.
            self._pool, self._prefetch_pool = (
                ThreadPoolExecutor(settings.fetch_threads, thread_name_prefix=name)
                for name in ("loader-fetch", "loader-prefetch")
            )

    @property
    def is_remote(self) -> bool:
        """Whether files are fetched over a network."""
        return self._store.is_remote

    def where(self, name: str) -> str:
        """Return the path or address of a file, for error messages."""
        return self._store.locate(name)

    def size(self, name: str) -> int:
        """Return the number of bytes of a file."""
        return self._store.get_size(name)

    def map(self, name: str) -> Buffer:
        """Map a local file into memory."""
        return self._store.map(name)

    def read_bytes(self, name: str) -> bytes:
        """Return the content of a small file, without the cache."""
        return self._store.read_bytes(name)

    def open_ranges(self, name: str) -> Callable[[int, int], memoryview]:
        """Return a function that reads bytes start..stop - 1 of a file, without the cache."""
        store = self._store
        if store.is_remote:
            return lambda start, stop: store.read_range(name, start, stop)
        mapped = memoryview(store.map(name))
        return lambda start, stop: mapped[start:stop]

    def fetch(self, name: str, start: int, stop: int) -> Buffer:
        """Return bytes start..stop - 1 of a remote file, from the cache if they are in it."""
        store, cache = self._store, self._cache
        assert cache is not None
        key = self._cache_key(name, start, stop)
        return cache.get(key, stop - start, lambda: store.read_range(name, start, stop))

    def refetch(self, name: str, start: int, stop: int) -> Buffer:
        """Fetch bytes again whose checksum was wrong, and remove them from the cache."""
        assert self._cache is not None
        self.counters.add("refetches")
        # Drop only; the next `fetch` stores the block again. The bytes returned here may be damaged
        # too.
        self._cache.drop(self._cache_key(name, start, stop))
        return self._store.read_range(name, start, stop)

    def _cache_key(self, name: str, start: int, stop: int) -> str:
        return f"{self._cache_key_prefix}-{name}-{start}-{stop}"

    def run_all(self, act: Callable[[Any], Any], items: Sequence[Any]) -> None:
        """Call `act` on each item; in parallel threads if the files are remote."""
        if self._pool is None or len(items) < 2:
            for item in items:
                act(item)
        else:
            self._check_fork()
            # list() waits for all items and raises the first error.
            list(self._pool.map(act, items))

    def prefetch_all(self, act: Callable[[Any], Any], items: Iterable[Any]) -> None:
        """Start `act` on each item in threads and do not wait.

        The first error ends it and is ignored: reading the same item raises it.
        """
        assert self._prefetch_pool is not None
        self._check_fork()
        has_failed = threading.Event()

        def attempt(item: Any) -> None:
            if has_failed.is_set():
                # A server that does not answer costs a timeout per item.
                return
            try:
                act(item)
            except Exception:
                has_failed.set()
                raise  # the pool keeps the error, and nobody asks for it

        for item in items:
            self._prefetch_pool.submit(attempt, item)

    def close(self) -> None:
        """Stop the threads. Data that was read before stays valid."""
        for pool in (self._pool, self._prefetch_pool):
            if pool is not None:
                # Do not wait: a request in flight may take until its timeout.
                pool.shutdown(wait=False, cancel_futures=True)
