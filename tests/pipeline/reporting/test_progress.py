"""The progress of a run: how much is done, how fast, and how long it will take."""

from __future__ import annotations

import io
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.execution.engine import PhaseFinished, PhaseStarted, TaskFinished
from pipeline.reporting.progress import PRIOR_S, PhaseProgress, RunProgress, TimeLeft
from pipeline.reporting.tables import format_duration, format_rate
from stages.counters import Counters
from terminal_output.console import SafeConsole

TASK_ID = "000000-ab"


@dataclass
class Clock:
    """A clock that tests set."""

    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


def finish(share: float, *, documents: int = 0, failed: str | None = None) -> TaskFinished:
    """Return the event of a task."""
    return TaskFinished(
        "annotate", TASK_ID, {}, failed, num_documents=documents, share=share
    )


@pytest.mark.parametrize(
    ("number", "seconds", "text"),
    [
        (81_200, 100, "812 documents/s"),
        (150, 100, "1.5 documents/s"),
        (3, 60, "3.0 documents/min"),
        (0, 60, "0.0 documents/min"),
        (5, 0.0, "5,000,000,000 documents/s"),
    ],
)
def test_a_slow_rate_is_given_per_minute(number: int, seconds: float, text: str) -> None:
    """Rates below one per second would be shown as 0.0/s."""
    assert format_rate(number, seconds, "documents") == text


def test_the_documents_of_a_running_task_move_the_share_and_count_once() -> None:
    """After one task of four with 100 documents, 50 documents are half of the next task."""
    clock = Clock()
    phase = PhaseProgress(PhaseStarted("annotate", 4, 0), clock=clock)
    phase.set_documents(TASK_ID, 100)
    assert phase.share_done == 0.0  # the size of a task in documents is not known yet
    phase.finish_task(finish(0.25, documents=100))
    assert phase.num_documents == 100
    phase.set_documents(TASK_ID, 20)
    phase.set_documents(TASK_ID, 50)
    clock.now_s = 30.0
    assert phase.share_done == pytest.approx(0.375)
    assert phase.format_rate() == "5.0 documents/s"
    phase.finish_task(finish(0.25, documents=100))
    assert (phase.num_documents, phase.share_done) == (200, 0.5)


def test_tasks_that_run_at_the_same_time_add_up() -> None:
    """One ends with 100 documents while another has read 50 of as many."""
    phase = PhaseProgress(PhaseStarted("annotate", 4, 0), documents_per_phase=400)
    phase.set_documents("000001-cd", 50)
    phase.set_documents(TASK_ID, 90)
    assert (phase.num_documents, phase.share_done) == (140, pytest.approx(0.35))
    phase.finish_task(finish(0.25, documents=100))
    assert (phase.num_documents, phase.share_done) == (150, pytest.approx(0.375))


def test_the_first_task_moves_by_the_documents_of_an_earlier_phase() -> None:
    """An earlier phase counted 400 documents in all tasks."""
    phase = PhaseProgress(PhaseStarted("annotate", 4, 0), documents_per_phase=400)
    phase.set_documents(TASK_ID, 50)
    assert phase.share_done == pytest.approx(0.125)
    phase.set_documents(TASK_ID, 10_000)
    assert phase.share_done == 1.0


def test_documents_of_a_failed_task_do_not_count() -> None:
    """Nothing of it is committed."""
    phase = PhaseProgress(PhaseStarted("annotate", 2, 0), documents_per_phase=100)
    phase.set_documents(TASK_ID, 30)
    phase.finish_task(finish(0.5, failed="no space left"))
    assert (phase.num_documents, phase.num_done, phase.share_done) == (0, 0, 0.0)


def test_no_time_left_is_shown_while_a_run_starts() -> None:
    """Half a phase of 8 planned seconds took 4 s, after 60 s in which kernels were compiled: 10 s follow."""
    clock = Clock()
    phase = PhaseProgress(PhaseStarted("annotate", 4, 0), clock=clock)
    left = TimeLeft({"annotate": 8.0, "select": 6.0})
    clock.now_s = 2.0
    assert left.compute_s(phase) is None
    clock.now_s = 64.0
    phase.finish_task(finish(0.5))
    wanted_s = (64 + left.prior_s) / (4 + left.prior_s) * 10
    assert left.compute_s(phase) == pytest.approx(wanted_s)
    clock.now_s = 65.0  # nothing has moved since
    assert left.compute_s(phase) == pytest.approx(wanted_s - 1)


@given(
    planned_s=st.lists(st.floats(10, 1e5), min_size=1, max_size=4),
    error=st.floats(0.1, 10),
    share_before=st.sampled_from([0.0, 0.25]),
)
def test_the_time_left_converges(
    planned_s: list[float], error: float, share_before: float
) -> None:
    """A plan that is wrong by a factor for all phases is corrected while they run."""
    names = [f"phase{number}" for number in range(len(planned_s))]
    left = TimeLeft(dict(zip(names, planned_s, strict=True)))
    clock = Clock()
    for name, each_s in zip(names, planned_s, strict=True):
        phase = PhaseProgress(PhaseStarted(name, 4, 0, share_before), clock=clock)
        while phase.share_done < 1:
            clock.now_s += error * each_s / 8
            phase.finish_task(finish(0.125))
            estimate_s = left.compute_s(phase)
            later = planned_s[names.index(name) + 1 :]
            true_s = error * (each_s * (1 - phase.share_done) + sum(later))
            if estimate_s is not None:
                assert true_s * min(1, 1 / error) <= estimate_s + 1e-6
                assert estimate_s <= true_s * max(1, 1 / error) + 1e-6
                share = clock.now_s / (clock.now_s + left.prior_s * error)
                assert (
                    abs(estimate_s - true_s)
                    <= (1 - share) * abs(1 / error - 1) * true_s + 1e-6
                )
        left.finish(name, phase)


def test_a_short_run_soon_shows_what_it_takes() -> None:
    """A run of 4 planned seconds on a busy machine: a quarter of it corrects the plan."""
    clock = Clock()
    phase = PhaseProgress(PhaseStarted("annotate", 4, 0), clock=clock)
    left = TimeLeft({"annotate": 4.0})
    clock.now_s = 8.0
    phase.finish_task(finish(0.25))
    assert left.compute_s(phase) == pytest.approx((8 + 1) / (1 + 1) * 3)
    assert TimeLeft({"annotate": 1e5}).prior_s == PRIOR_S


def test_a_log_has_few_lines_of_a_long_phase() -> None:
    """The pauses between lines grow; phases without tasks are not mentioned."""
    out, clock = io.StringIO(), Clock()
    progress = RunProgress(
        SafeConsole(file=out, width=140), {"annotate": 36_000.0}, clock=clock
    )
    with progress:
        progress.show(PhaseStarted("exact_dedup", 0, 0))
        progress.show(PhaseFinished("exact_dedup", Counters(), was_complete=False))
        progress.show(PhaseStarted("annotate", 1_000, 0))
        for _ in range(1_000):
            clock.now_s += 36.0
            progress.show(finish(0.001, documents=9))
        progress.show(PhaseFinished("annotate", Counters(), was_complete=False))
    first, *lines, last = out.getvalue().splitlines()
    assert first == "annotate: 1,000 tasks"
    assert lines[0] == "annotate: 1/1,000 tasks, 15 documents/min, about 9:59:24 left"
    assert 100 < len(lines) < 150
    assert last == f"annotate: done in {format_duration(36_000)}"
    assert progress.num_tasks == 1_000


def test_a_window_of_80_columns_shows_whole_columns() -> None:
    """The bar is shortened: tasks, times and rate are not cut."""
    out, clock = io.StringIO(), Clock()
    console = SafeConsole(file=out, width=80, force_terminal=True)
    with RunProgress(console, {"signal_percentiles": 600.0}, clock=clock) as progress:
        progress.show(PhaseStarted("signal_percentiles", 1_000, 0))
        clock.now_s = 300.0
        event = TaskFinished(
            "signal_percentiles", TASK_ID, {}, None, num_documents=99_000, share=0.5
        )
        progress.show(event)
    shown = out.getvalue()
    for cell in (
        "signal_percentiles",
        "1/1,000",
        "0:00:00",
        "330 documents/s",
        "about 0:05:00 left",
    ):
        assert cell in shown
    assert "…" not in shown
