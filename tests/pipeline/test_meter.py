"""What a piece of work takes of its machine is what it took."""

from __future__ import annotations

import time

import numpy as np

from pipeline.execution.task_stats import Stopwatch, peak_mb, reset_peak_memory


def test_waiting_takes_time_and_no_cpu() -> None:
    """A stopwatch tells the clock from the processor, and sums what it is started for."""
    watch = Stopwatch()
    for _ in range(2):
        with watch:
            time.sleep(0.1)
    assert watch.seconds >= 0.2
    assert watch.cpu_seconds < 0.1


def test_the_peak_outlives_what_made_it_until_it_is_forgotten() -> None:
    """200 MB that were held for a moment are the peak of what went on meanwhile, not of what comes after."""
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
