"""The statistics of a task: wall time, CPU time and peak memory of its steps."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import numpy as np
import pytest

from pipeline.execution.task_stats import StepTimer, peak_mb, reset_peak_memory


def test_a_step_that_waits_has_wall_time_and_no_cpu_time() -> None:
    """A step sums the wall time and the CPU time of all its blocks."""
    timer = StepTimer()
    for _ in range(2):
        with timer.step("wait"):
            time.sleep(0.2)
    assert timer.seconds["wait"] >= 0.4
    assert timer.cpu_seconds["wait"] < 0.4


def test_iterating_measures_the_source_and_not_the_consumer() -> None:
    """Of a generator, only the time that it takes to yield is measured."""

    def slow() -> Iterator[int]:
        time.sleep(0.1)
        yield 1

    timer, began = StepTimer(), time.perf_counter()
    for _ in timer.iterate("read", slow()):
        time.sleep(0.2)
    assert 0.1 <= timer.seconds["read"] <= time.perf_counter() - began - 0.2


def test_start_and_end_of_a_context_manager_are_one_step() -> None:
    """The block between them is not measured, and its error reaches the context manager."""
    seen: list[bool] = []

    @contextlib.contextmanager
    def slow() -> Iterator[str]:
        time.sleep(0.1)
        try:
            yield "value"
        except ValueError:
            seen.append(True)
            raise

    timer, began = StepTimer(), time.perf_counter()
    with timer.wrap("write", slow()) as value:
        time.sleep(0.2)
    assert value == "value"
    assert 0.1 <= timer.seconds["write"] <= time.perf_counter() - began - 0.2
    with pytest.raises(ValueError, match="bad"), timer.wrap("write", slow()):
        raise ValueError("bad")
    assert seen == [True]


def test_peak_memory_includes_freed_memory_until_it_is_reset() -> None:
    """200 MB that were allocated and freed count until the reset, and not after it."""
    reset_peak_memory()
    before = peak_mb()
    assert before is not None
    held = np.ones(25_000_000)
    del held
    peak = peak_mb()
    assert peak is not None
    assert peak - before > 150
    reset_peak_memory()
    after = peak_mb()
    assert after is not None
    assert after < peak - 100
