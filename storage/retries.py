"""The retry policy of all remote requests, and counters of the requests."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

T = TypeVar("T")


class RequestCounters:
    """Counters that several threads may increment.

    Stores count requests by kind ("list", "head", "get", "put", "delete"), "retries" and
    "fetched_bytes".
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, name: str, count: int = 1) -> None:
        """Increase one counter."""
        with self._lock:
            self._counts[name] += count

    def copy(self) -> Counter[str]:
        """Return the present counts."""
        with self._lock:
            return self._counts.copy()

    def __getitem__(self, name: str) -> int:
        return self._counts[name]


# Requests of this process, except those of stores that were given other counters.
requests = RequestCounters()


class RetriesExhausted(Exception):
    """A request failed until a limit of its policy was reached."""

    def __init__(self, cause: Exception, limit: str) -> None:
        super().__init__(cause, limit)
        self.cause, self.limit = cause, limit


@dataclass(frozen=True)
class RetryPolicy:
    """How often, and for how long, a failing request is repeated.

    Waits double from `first_wait_s` to `longest_wait_s`. Each is shortened by up to half at
    random: tasks that failed at the same moment must not all return at the same moment. Progress
    (new bytes) restarts the time and the waits.

    Attributes:
        timeout_s: Give up this long after the first failure.
        request_timeout_s: Longest time that a request takes without receiving a byte. If set,
            `timeout_s` counts from the start of the first request, or from the last new byte, and
            a request that could take longer than the rest of it is not started. So the call fails
            at most `timeout_s` after the last new byte.
        timeout_text: The limit, for the error message.
    """

    timeout_s: float
    first_wait_s: float = 0.1
    longest_wait_s: float = 10.0
    request_timeout_s: float | None = None
    timeout_text: str = ""

    def call(
        self,
        request: Callable[[], T],
        *,
        is_temporary: Callable[[BaseException], bool],
        progress: Callable[[], int] = lambda: 0,
        progressed_at: Callable[[], float] = time.monotonic,
        on_retry: Callable[[BaseException, float], None] | None = None,
    ) -> T:
        """Return the result of `request`, which is repeated while it fails temporarily.

        Args:
            request: Sends the request; called once per attempt.
            is_temporary: Whether another attempt may succeed after this error.
            progress: Number of bytes received so far.
            progressed_at: When the last of them arrived, as `time.monotonic`.
            on_retry: Called with the error, and the seconds to wait, before each wait.

        Raises:
            RetriesExhausted: a limit was reached; the last error is its `cause`.
        """
        import tenacity

        limits = _Limits(self, progress, progressed_at)
        # tenacity calls `wait` before `stop`, so that `stop` can see the coming wait.
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(is_temporary),
            wait=limits.choose_wait,
            stop=limits.is_reached,
            before_sleep=_make_before_sleep(on_retry),
        )
        try:
            return retrying(request)
        except tenacity.RetryError as error:
            cause = error.last_attempt.exception()
            # Callers need the last error and the limit, not tenacity's error.
            assert isinstance(cause, Exception)
            raise RetriesExhausted(cause, self.timeout_text) from cause
        finally:
            limits.release()


class _Limits:
    """The time and the waits of one call."""

    def __init__(
        self,
        policy: RetryPolicy,
        progress: Callable[[], int],
        progressed_at: Callable[[], float],
    ) -> None:
        self._policy = policy
        self._progress, self._progressed_at = progress, progressed_at
        self._num_received = progress()
        self._num_failures = 0  # in a row, without progress
        self._deadline: float | None = None
        if policy.request_timeout_s is not None:
            self._deadline = time.monotonic() + policy.timeout_s

    def release(self) -> None:
        """Drop the callbacks, and with them the received bytes.

        tenacity's objects refer to each other and to this object until garbage collection.
        """
        del self._progress, self._progressed_at

    def choose_wait(self, state: Any) -> float:
        """Count a failure and return the seconds to wait after it."""
        del state
        num_received = self._progress()
        # Compared with the previous failure, not with the start of the request.
        has_progress = num_received > self._num_received
        self._num_received = num_received
        if has_progress:
            self._deadline = self._progressed_at() + self._policy.timeout_s
        elif self._deadline is None:
            self._deadline = time.monotonic() + self._policy.timeout_s
        self._num_failures = 1 if has_progress else self._num_failures + 1
        # The exponent is capped, because 2.0 ** 1024 overflows.
        doubled_s = self._policy.first_wait_s * 2.0 ** min(self._num_failures - 1, 60)
        wait_s = min(doubled_s, self._policy.longest_wait_s)
        return wait_s * random.uniform(0.5, 1.0)  # noqa: S311 - not for cryptography

    def is_reached(self, state: Any) -> bool:
        """Whether to give up instead of waiting for another attempt."""
        assert self._deadline is not None
        # Give up now rather than after a wait that cannot lead to a complete attempt.
        reserved_s = state.upcoming_sleep + (self._policy.request_timeout_s or 0.0)
        return time.monotonic() + reserved_s > self._deadline


def _make_before_sleep(
    on_retry: Callable[[BaseException, float], None] | None,
) -> Callable[[Any], None]:
    """Return a callback of tenacity that calls `on_retry` with the error and the wait."""

    def before_sleep(state: Any) -> None:
        if on_retry is not None:
            error = state.outcome.exception()
            assert error is not None
            on_retry(error, state.upcoming_sleep)

    return before_sleep
