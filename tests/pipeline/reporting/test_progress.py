"""The progress of a run: how much is done, how fast, and how long it will take."""

from __future__ import annotations

import io
from dataclasses import dataclass

import pytest

from pipeline.execution.engine import PhaseFinished, PhaseStarted, TaskFinished
from pipeline.reporting.progress import PhaseProgress, RunProgress
from pipeline.reporting.rates import format_duration, format_rate
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
    assert phase.left_s is None
    phase.set_documents(TASK_ID, 100)
    assert phase.share_done == 0.0  # the size of a task in documents is not known yet
    phase.finish_task(finish(0.25, documents=100))
    assert phase.num_documents == 100
    phase.set_documents(TASK_ID, 20)
    phase.set_documents(TASK_ID, 50)
    clock.now_s = 30.0
    assert phase.share_done == pytest.approx(0.375)
    assert phase.left_s == pytest.approx(50.0)
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


def test_the_end_of_a_resumed_phase_is_estimated_from_the_tasks_of_this_driver() -> None:
    """Half was done before; a quarter took 10 s, so the last quarter takes 10 s."""
    clock = Clock()
    phase = PhaseProgress(PhaseStarted("select", 4, 2, share_done=0.5), clock=clock)
    clock.now_s = 10.0
    phase.finish_task(finish(0.25))
    assert phase.format_left() == "about 0:00:10 left"
    assert phase.format_rate() == "6.0 tasks/min"


def test_a_log_has_few_lines_of_a_long_phase() -> None:
    """The pauses between lines grow; phases without tasks are not mentioned."""
    out, clock = io.StringIO(), Clock()
    progress = RunProgress(SafeConsole(file=out, width=140), clock)
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
