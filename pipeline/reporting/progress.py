"""The progress of a run on the terminal: a bar per phase, or plain lines where stdout is a file."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Self

from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from pipeline.execution.engine import (
    Event,
    OutputDamaged,
    PhaseFinished,
    PhaseStarted,
    TaskFinished,
)
from pipeline.reporting.tables import format_duration, format_rate
from terminal_output import format_count
from terminal_output.console import SafeConsole

# Without a terminal: seconds until the first line of a phase. The pauses between later lines
# grow with the age of the phase, so that the log of a long run stays short.
MIN_PAUSE_S = 10.0
MAX_PAUSE_S = 300.0
PAUSE_PER_AGE = 0.1

# No time left is shown before. Compiling and loading take the first seconds.
MIN_BASIS_S = 3.0
# The plan's figure weighs as much as this many planned seconds that took as long as planned, or as
# this share of a short run.
PRIOR_S = 20.0
PRIOR_SHARE = 0.25


class PhaseProgress:
    """How much of the current phase is done, measured by the sizes of its tasks.

    Attributes:
        num_done: tasks that are done, by this driver or an earlier one.
        share_before: share of the work that an earlier driver has done.
    """

    def __init__(
        self,
        started: PhaseStarted,
        documents_per_phase: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start to measure.

        Args:
            started: the event.
            documents_per_phase: documents in all tasks, known from earlier phases; 0 if unknown.
            clock: returns seconds.
        """
        self.name = started.phase
        self.num_tasks = started.num_tasks
        self.num_done = self._num_done_before = started.num_done
        self._num_finished = 0.0
        self._num_in_tasks: dict[str, float] = {}  # of the running ones
        self.share_before = self._share = started.share_done
        self._expected = documents_per_phase
        self._clock = clock
        self._started_s = clock()

    @property
    def age_s(self) -> float:
        """Seconds since the start."""
        return self._clock() - self._started_s

    @property
    def num_documents(self) -> float:
        """Documents that this driver has read, those of running tasks included."""
        return self._num_finished + sum(self._num_in_tasks.values())

    @property
    def documents_per_phase(self) -> float:
        """Documents in all tasks, estimated from the finished ones; 0 if unknown."""
        share = self._share - self.share_before
        if not share:
            return self._expected
        return self._num_finished / share

    @property
    def share_done(self) -> float:
        """The share of the work that is done, from 0 to 1. It is estimated for running tasks."""
        expected = self.documents_per_phase
        num_in_tasks = sum(self._num_in_tasks.values())
        in_tasks = num_in_tasks / expected if expected else 0.0
        return min(1.0, self._share + in_tasks)

    def set_documents(self, task_id: str, number: float) -> None:
        """Count the documents that a running task has read so far."""
        self._num_in_tasks[task_id] = number

    def finish_task(self, event: TaskFinished) -> None:
        """Count a task that is committed, or take back what a failed one had read."""
        self._num_in_tasks.pop(event.task_id, None)
        if event.failed is None:
            self._num_finished += event.num_documents
            self.num_done += 1
            self._share += event.share

    def format_rate(self) -> str:
        """Return documents per time, or tasks per time where tasks count no documents.

        While nothing is done, the text is empty.
        """
        if self.share_done == self.share_before:
            return ""
        if self.num_documents:
            return format_rate(self.num_documents, self.age_s, "documents")
        return format_rate(self.num_done - self._num_done_before, self.age_s, "tasks")


class TimeLeft:
    """Estimate the time to the end of a run: what the plan gives for the rest, times the plan's error so far.

        left = (elapsed + prior) / (planned for what is done + prior) * planned for the rest

    The prior keeps the start of processes and the compilation of kernels, which the first seconds
    consist of, out of the estimate.

    Attributes:
        prior_s: the weight of the plan, in planned seconds.
    """

    def __init__(self, planned_s: Mapping[str, float]) -> None:
        """Start with the estimated seconds of each phase of the run."""
        self._planned_s = dict(planned_s)
        self.prior_s = min(PRIOR_S, PRIOR_SHARE * sum(planned_s.values()))
        self._done_s = 0.0  # planned for the phases that this driver has finished
        self._elapsed_s = 0.0  # that they took
        self._moved_s = 0.0  # age of the running phase when its share last changed
        self._share = 0.0

    def compute_s(self, phase: PhaseProgress) -> float | None:
        """Return the seconds left while a phase runs; None: there is no basis yet."""
        if phase.share_done != self._share:
            self._share, self._moved_s = phase.share_done, phase.age_s
        planned_s = self._planned_s.get(phase.name, 0.0)
        done_s = self._done_s + planned_s * (self._share - phase.share_before)
        elapsed_s = self._elapsed_s + self._moved_s
        if not done_s or elapsed_s < MIN_BASIS_S:
            return None
        later_s = sum(self._planned_s.values()) - planned_s
        rest_s = planned_s * (1 - self._share) + later_s
        error = (elapsed_s + self.prior_s) / (done_s + self.prior_s)
        return max(0.0, error * rest_s - (phase.age_s - self._moved_s))

    def finish(self, name: str, phase: PhaseProgress | None) -> None:
        """Count a phase that has ended; None: it had nothing to do."""
        planned_s = self._planned_s.pop(name, 0.0)
        self._share = self._moved_s = 0.0
        if phase is not None:
            self._done_s += planned_s * (1 - phase.share_before)
            self._elapsed_s += phase.age_s


class RunProgress:
    """Show the events of a run. Failures are printed at once, with their cause.

    Attributes:
        num_tasks: tasks that this run has finished.
    """

    def __init__(
        self,
        console: SafeConsole,
        planned_s: Mapping[str, float],
        num_documents: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start to show a run.

        Args:
            console: where to print.
            planned_s: estimated seconds of each phase.
            num_documents: estimated documents of the input.
            clock: returns seconds.
        """
        self.num_tasks = 0
        self._console = console
        self._clock = clock
        self._bars = Progress(
            TextColumn("{task.description:<18}"),
            # Of what the other columns leave, so that they are whole in a window of 80 columns.
            BarColumn(bar_width=None, table_column=Column(max_width=24)),
            TextColumn("{task.fields[tasks]:>9}"),
            TimeElapsedColumn(table_column=Column(no_wrap=True)),
            TextColumn("{task.fields[rate]}"),
            TextColumn("{task.fields[left]}"),
            console=console,
            disable=not console.is_terminal,
            # rich would interpret escape sequences in what other code prints.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._bar: TaskID | None = None
        self._phase: PhaseProgress | None = None
        self._documents_per_phase = num_documents  # of the latest phase that counted them
        self._time_left = TimeLeft(planned_s)
        self._next_line_s = 0.0

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bars.stop()

    def show(self, event: Event) -> None:
        """Show an event."""
        if isinstance(event, PhaseStarted):
            self._start_phase(event)
        elif isinstance(event, TaskFinished):
            self._finish_task(event)
        elif isinstance(event, OutputDamaged):
            self._warn(format_damage(event))
        else:
            self._finish_phase(event)

    def show_documents(self, task_id: str, number: float) -> None:
        """Show the number of documents that a running task has read so far."""
        if self._phase is not None:
            self._phase.set_documents(task_id, number)
            self._update(self._phase)

    def _start_phase(self, event: PhaseStarted) -> None:
        if not event.num_tasks:  # the phase is off, or has nothing to do
            return
        self._phase = PhaseProgress(event, self._documents_per_phase, self._clock)
        self._next_line_s = MIN_PAUSE_S
        self._bar = self._bars.add_task(event.phase, total=1.0, tasks="", rate="", left="")
        self._update(self._phase)
        resumed = f", {event.num_done} done before" if event.num_done else ""
        self._print_plain(
            f"{event.phase}: {format_count(event.num_tasks, 'task')}{resumed}"
        )

    def _finish_task(self, event: TaskFinished) -> None:
        assert self._phase is not None
        self._phase.finish_task(event)
        if event.failed is not None:
            message = f"{event.phase} {event.task_id} failed: {event.failed}"
            self._bars.console.print(message, style="red")
        else:
            self.num_tasks += 1
        self._update(self._phase)

    def _finish_phase(self, event: PhaseFinished) -> None:
        phase, self._phase = self._phase, None
        self._time_left.finish(event.phase, phase)
        if event.was_complete:
            self._console.print(f"{event.phase}: done before")
        elif phase is not None:
            self._documents_per_phase = (
                phase.documents_per_phase or self._documents_per_phase
            )
            assert self._bar is not None
            self._bars.update(self._bar, left="")
            self._print_plain(f"{event.phase}: done in {format_duration(phase.age_s)}")

    def _update(self, phase: PhaseProgress) -> None:
        assert self._bar is not None
        tasks = f"{phase.num_done:,}/{phase.num_tasks:,}"
        left_s = self._time_left.compute_s(phase)
        left = "" if left_s is None else f"about {format_duration(left_s)} left"
        rate = phase.format_rate()
        self._bars.update(
            self._bar, completed=phase.share_done, tasks=tasks, rate=rate, left=left
        )
        if rate and phase.age_s > self._next_line_s:
            pause_s = max(MIN_PAUSE_S, PAUSE_PER_AGE * phase.age_s)
            self._next_line_s = phase.age_s + min(MAX_PAUSE_S, pause_s)
            self._print_plain(
                ", ".join(filter(None, [f"{phase.name}: {tasks} tasks", rate, left]))
            )

    def _warn(self, line: str) -> None:
        self._bars.console.print(line, style="yellow")

    def _print_plain(self, line: str) -> None:
        if not self._console.is_terminal:
            self._console.print(line)


def format_damage(event: OutputDamaged) -> str:
    """Return one line about a damaged file."""
    aside = "" if event.moved_to is None else f"; the file was moved to {event.moved_to}"
    return f"damaged: {event.fault}{aside}; {event.phase} makes it again"
