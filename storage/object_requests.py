"""Requests to an object store: their time limits, their repetition and their counts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from storage.client import connect, is_temporary, translate_errors
from storage.object_file import REQUEST_BYTES
from storage.retries import RequestCounters, RetryPolicy
from storage.settings import StorageSettings

T = TypeVar("T")


class Download(Protocol):
    """Bytes that are received in several attempts."""

    @property
    def num_received(self) -> int:
        """Number of bytes that were received."""
        ...

    @property
    def received_at(self) -> float:
        """When the last byte arrived, as `time.monotonic`."""
        ...


@dataclass(frozen=True)
class RequestSender:
    """Sends requests to one object store, and repeats them after temporary errors.

    Attributes:
        root: "s3://bucket", or an address of another protocol.
        settings: How the server is reached.
        counters: Where requests are counted.
    """

    root: str
    settings: StorageSettings
    counters: RequestCounters

    def send(
        self,
        kind: str,
        address: str,
        request: Callable[[Any], T],
        num_bytes: int = 0,
        download: Download | None = None,
        *,
        retries_parts: bool = False,
    ) -> T:
        """Return `request(client)`; call it again after temporary errors.

        Args:
            kind: Counted, and shown in errors.
            address: Shown in errors.
            request: Sends the request by a client of obstore.
            num_bytes: Bytes to transfer; the time limit depends on it.
            download: Keeps the bytes of failed attempts.
            retries_parts: Let obstore repeat the parts of an upload.

        Raises:
            StorageError: the request failed for good, or until the retry limit was reached.
        """
        timeout_s = self._scale_timeout(num_bytes)

        def attempt() -> T:
            self.counters.add(kind)
            client = connect(
                self.root, self.settings, timeout_s, retries_parts=retries_parts
            )
            return request(client)

        with translate_errors(f"{address} ({kind})"):
            return self._repeat(attempt, download)

    def _scale_timeout(self, num_bytes: int) -> float:
        # Large transfers get proportionally more time.
        return self.settings.request_timeout_s * max(
            1, math.ceil(num_bytes / REQUEST_BYTES)
        )

    def _repeat(self, attempt: Callable[[], T], download: Download | None) -> T:
        """Return `attempt()`; call it again after temporary errors."""
        progress: dict[str, Any] = {}
        if download is not None:
            progress["progress"] = lambda: download.num_received
            progress["progressed_at"] = lambda: download.received_at
        return _make_retry_policy(self.settings).call(
            attempt,
            is_temporary=is_temporary,
            on_retry=lambda *_: self.counters.add("retries"),
            **progress,
        )


def _make_retry_policy(settings: StorageSettings) -> RetryPolicy:
    """Return the retry policy of a store with these settings."""
    stall_s = settings.stall_timeout_s
    if stall_s is None:
        limit = f"tried again for {settings.retry_timeout_s:g} s (storage.advanced.retry_timeout_s)"
        if not settings.retry_timeout_s:
            limit = "the request was sent once"
        return RetryPolicy(timeout_s=settings.retry_timeout_s, timeout_text=limit)
    return RetryPolicy(
        timeout_s=stall_s,
        longest_wait_s=min(5.0, stall_s / 10),
        request_timeout_s=settings.connect_timeout_s + settings.byte_timeout_s,
        timeout_text=f"no byte came for {stall_s:g} s (stall_timeout_s)",
    )
