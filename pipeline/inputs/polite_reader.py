"""Read ranges of files on a public server, at a limited rate for the whole cluster.

reader = PoliteReader("https://data.commoncrawl.org/", settings, requests_per_s=10 / num_tasks)
reader.read_range("crawl-data/.../CC-MAIN-...warc.gz", 1_000, 4_000)
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import BinaryIO, TypeVar, cast

from pipeline.config import RunConfig
from storage import StorageSettings, open_store
from storage.errors import AccessRefused, Unreachable
from storage.object_file import ObjectFile
from storage.retries import RetriesExhausted, RetryPolicy

log = logging.getLogger(__name__)

T = TypeVar("T")

# Common Crawl asks clients that get 403 or 503 to wait; its blocks last minutes.
REFUSAL_RETRIES = RetryPolicy(timeout_s=1_800.0, first_wait_s=1.0, longest_wait_s=120.0)

# After a refusal the time between requests doubles, up to this factor. Each answer takes a part
# of it back.
_LARGEST_SLOWDOWN = 64.0
_RECOVERY = 0.95


class PoliteReader:
    """Reads ranges, one request at a time, and slows down when the server refuses one."""

    def __init__(
        self, address: str, storage: StorageSettings, requests_per_s: float
    ) -> None:
        """Create a reader. Sends no request.

        Args:
            address: of the server, or of a bucket.
            storage: how it is reached.
            requests_per_s: of this reader.
        """
        # One attempt of a request at a time: each attempt waits for its turn.
        self._folder = open_store(address, replace(storage, retry_timeout_s=0.0))
        self._address = address.rstrip("/") + "/"
        self._is_public = not address.startswith("s3://")
        self._interval_s = 1 / requests_per_s
        self._slowdown = 1.0
        # Short tasks follow each other, so the first request waits too.
        self._next_s = time.monotonic() + self._interval_s

    def get_name(self, location: str) -> str:
        """Return the name of a file at an address, as the other methods take it."""
        return location.removeprefix(self._address)

    def read_range(self, name: str, start: int, stop: int) -> memoryview:
        """Return bytes start..stop-1 of a file.

        Raises:
            NotFound: there is no such file.
            ObjectChanged: it is shorter.
            StorageError: the server refuses the request, or does not answer for half an hour.
        """
        return self._request(lambda: self._folder.read_range(name, start, stop))

    def open(self, name: str) -> BinaryIO:
        """Open a file for reading. It can seek, and fetches only the ranges that are read."""

        def read_tail(num_bytes: int) -> tuple[bytes, int, str | None]:
            size = self._request(lambda: self._folder.get_size(name))
            start = max(0, size - num_bytes)
            return bytes(self.read_range(name, start, size)), size, None

        def read_range(start: int, stop: int, version: str | None) -> memoryview:
            del version  # files of a snapshot do not change
            return self.read_range(name, start, stop)

        file = ObjectFile(self._folder.locate(name), read_tail, read_range)
        return cast("BinaryIO", file)

    def _request(self, send: Callable[[], T]) -> T:
        """Return the result of a request, which is repeated after refusals."""

        def attempt() -> T:
            self._wait_for_turn()
            return send()

        try:
            found = REFUSAL_RETRIES.call(
                attempt, is_temporary=self._is_temporary, on_retry=self._slow_down
            )
        except RetriesExhausted as error:
            raise error.cause from error
        self._slowdown = max(1.0, self._slowdown * _RECOVERY)
        return found

    def _wait_for_turn(self) -> None:
        now_s = time.monotonic()
        time.sleep(max(0.0, self._next_s - now_s))
        self._next_s = max(now_s, self._next_s) + self._interval_s * self._slowdown

    def _is_temporary(self, error: BaseException) -> bool:
        # A public server answers 403 to clients that are too fast; in a bucket it is final.
        is_refusal = isinstance(error, AccessRefused) and self._is_public
        return is_refusal or isinstance(error, Unreachable)

    def _slow_down(self, error: BaseException, wait_s: float) -> None:
        self._slowdown = min(2 * self._slowdown, _LARGEST_SLOWDOWN)
        log.info("%s; trying again in %.0f s, then more slowly", error, wait_s)


def count_readers(config: RunConfig, num_splits: int) -> int:
    """Return how many tasks of `extract` can run at a time, at most, over all machines.

    Each task gets this share of the rate, so the limit holds without messages between tasks.
    """
    ray = sys.modules.get("ray")
    if ray is None or not ray.is_initialized():
        return 1  # tasks run in this process, one after the other
    resources = config.engine.phases.get("extract")
    num_cpus = (
        1.0 if resources is None or resources.num_cpus is None else resources.num_cpus
    )
    slots = ray.cluster_resources().get("CPU", 1.0) / num_cpus if num_cpus else num_splits
    return max(1, min(num_splits, int(slots)))
