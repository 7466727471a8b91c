"""The retry policy: how often a failing request is repeated, and when it is given up."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from storage.retries import RequestCounters, RetriesExhausted, RetryPolicy


class Temporary(Exception):
    """An error that another attempt may mend."""


def fail_times(count: int, error: Exception) -> Callable[[], int]:
    """Return a request that fails so often and then returns the number of its calls."""
    calls = 0

    def request() -> int:
        nonlocal calls
        calls += 1
        if calls <= count:
            raise error
        return calls

    return request


class Clock:
    """Replaces `time` in storage.retries: only failing requests take time."""

    def __init__(self) -> None:
        self.now = 0.0
        self.num_requests = 0

    def monotonic(self) -> float:
        return self.now

    def fail(self, seconds: float) -> None:
        """Fail temporarily after this time."""
        self.now += seconds
        self.num_requests += 1
        raise Temporary(f"request {self.num_requests}")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("storage.retries.time", clock)
    return clock


def is_temporary(error: BaseException) -> bool:
    return isinstance(error, Temporary)


def test_a_temporary_error_is_retried_with_growing_waits() -> None:
    """Waits double up to the longest one, less up to half at random."""
    waits: list[float] = []
    policy = RetryPolicy(timeout_s=60, first_wait_s=0.01, longest_wait_s=0.05)
    calls = policy.call(
        fail_times(5, Temporary()),
        is_temporary=is_temporary,
        on_retry=lambda _, wait_s: waits.append(wait_s),
    )
    assert calls == 6
    for wait_s, longest_s in zip(waits, [0.01, 0.02, 0.04, 0.05, 0.05], strict=True):
        assert longest_s / 2 <= wait_s <= longest_s


def test_a_final_error_is_not_retried() -> None:
    """It is raised as it is."""
    request = fail_times(1, KeyError("final"))
    with pytest.raises(KeyError, match="final"):
        RetryPolicy(timeout_s=60).call(request, is_temporary=is_temporary)
    assert request() == 2


def test_the_time_counts_from_the_first_failure(clock: Clock) -> None:
    """A slow first request does not use it up. The last error is kept."""
    policy = RetryPolicy(timeout_s=0.2, first_wait_s=0.001, timeout_text="tried for 0.2 s")

    def request() -> None:
        clock.fail(0.05 if clock.num_requests else 0.3)

    with pytest.raises(RetriesExhausted) as caught:
        policy.call(request, is_temporary=is_temporary)
    assert clock.num_requests == 1 + 4
    assert str(caught.value.cause) == "request 5"
    assert caught.value.limit == "tried for 0.2 s"


def test_with_a_request_timeout_the_time_counts_from_the_start(clock: Clock) -> None:
    """A request that could take longer than the rest of the time is not started."""
    policy = RetryPolicy(timeout_s=0.5, first_wait_s=0.01, request_timeout_s=0.4)
    with pytest.raises(RetriesExhausted):
        policy.call(lambda: clock.fail(0.03), is_temporary=is_temporary)
    # The fourth request could end at 0.09 s + a wait of 0.02 s or more + 0.4 s.
    assert clock.num_requests == 3


def test_progress_restarts_time_and_waits(clock: Clock) -> None:
    """The time counts from the last new byte."""
    policy = RetryPolicy(timeout_s=0.2, first_wait_s=0.001)
    waits: list[float] = []
    with pytest.raises(RetriesExhausted):
        policy.call(
            lambda: clock.fail(0.1),
            is_temporary=is_temporary,
            progress=lambda: min(clock.num_requests, 10),
            progressed_at=lambda: clock.now,
            on_retry=lambda _, wait_s: waits.append(wait_s),
        )
    assert len(waits) == 10 + 1
    assert max(waits[:10]) <= 0.001


def test_threads_count_without_losing_any() -> None:
    """Counters are shared by the threads of a reader."""
    counters = RequestCounters()
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda _: counters.add("get"), range(10_000)))
    assert (counters["get"], counters["put"]) == (10_000, 0)
    assert counters.copy() == {"get": 10_000}


class Download:
    """Counts the bytes that it has received."""

    def count(self) -> int:
        return 0


def test_received_bytes_are_not_kept_after_a_call() -> None:
    """Otherwise each range would stay in memory until the next garbage collection."""
    download = Download()
    remaining = weakref.ref(download)
    gc.disable()
    try:
        RetryPolicy(timeout_s=1.0).call(
            lambda: None, is_temporary=lambda _: True, progress=download.count
        )
        del download
        assert remaining() is None
    finally:
        gc.enable()
