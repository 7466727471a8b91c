"""A folder on the disk that is read like a bucket: by ranges, several at a time, and each request is counted.

with read_like_a_bucket(latency_s=0.025) as counts:
    list(run(plan))
counts["requests of ngrams.bin"], counts["bytes of ngrams.bin"]
"""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, TypeVar, cast

import pytest

from pipeline.phases import run_plan
from storage.local import LocalStore
from storage.object_file import ObjectFile
from storage.object_store import NUM_CONNECTIONS

K = TypeVar("K")
T = TypeVar("T")


class BucketLikeStore(LocalStore):
    """A LocalStore whose reads are requests that take some time, and no CPU.

    Attributes:
        latency_s: of each request.
        counts: requests, bytes and openings, by the end of the file's name.
    """

    latency_s: ClassVar[float] = 0.0
    counts: ClassVar[Counter[str]] = Counter()

    @property
    def is_remote(self) -> bool:
        """True."""
        return True

    def open(self, name: str) -> BinaryIO:
        """Open a file as objects are opened: its end is read first."""
        self._count("openings", name)
        size = self.get_size(name)

        def read_tail(num_bytes: int) -> tuple[bytes, int, str | None]:
            start = max(0, size - num_bytes)
            return bytes(self.read_range(name, start, size)), size, None

        read = partial(self.read_range, name)
        return cast("BinaryIO", ObjectFile(self.locate(name), read_tail, read))

    def read_range(
        self, name: str, start: int, stop: int, version: str | None = None
    ) -> memoryview:
        """Return bytes start..stop-1 by one request."""
        content = super().read_range(name, start, stop, version)
        self._request(name, len(content))
        return content

    def read_ranges(self, name: str, ranges: Sequence[tuple[int, int]]) -> list[memoryview]:
        """Return several ranges by one request each. A disk would open the file once."""
        self._count("openings", name)
        return [self.read_range(name, start, stop) for start, stop in ranges]

    def read_bytes(self, name: str) -> bytes:
        """Return the content of a file by one request."""
        content = super().read_bytes(name)
        self._request(name, len(content))
        return content

    def read_each(self, items: Iterable[K], read: Callable[[K], T]) -> Iterator[T]:
        """Yield `read(item)` of each item, in order, several at a time."""
        with ThreadPoolExecutor(NUM_CONNECTIONS) as threads:
            yield from threads.map(read, items)

    def _request(self, name: str, num_bytes: int) -> None:
        time.sleep(self.latency_s)
        self._count("requests", name)
        self._count("bytes", name, num_bytes)

    def _count(self, what: str, name: str, amount: int = 1) -> None:
        suffix = name.rsplit("/", maxsplit=1)[-1].split(".", maxsplit=1)[-1]
        self.counts[f"{what} of {suffix}"] += amount


@contextlib.contextmanager
def read_like_a_bucket(latency_s: float = 0.0) -> Generator[Counter[str]]:
    """Read the run folders of this process like buckets, and yield the counts."""

    def open_store(address: Any, settings: Any = None) -> BucketLikeStore:
        del settings
        return BucketLikeStore(Path(address))

    BucketLikeStore.counts.clear()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(BucketLikeStore, "latency_s", latency_s)
        patch.setattr(run_plan, "open_store", open_store)
        yield BucketLikeStore.counts
