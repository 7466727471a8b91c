"""The progress of a run on the terminal: a bar per phase, or plain lines where stdout is a file."""

from __future__ import annotations

import time
from typing import Self

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pipeline.execution.engine import (
    Event,
    OutputDamaged,
    PhaseFinished,
    PhaseStarted,
    TaskFinished,
)
from terminal_output.console import SafeConsole

# Without a terminal, print a line this often.
PLAIN_LINE_S = 10.0


class RunProgress:
    """Show the events of a run. Failures are printed at once, with their cause.

    Attributes:
        num_tasks: tasks that this run has finished.
    """

    def __init__(self, console: SafeConsole) -> None:
        self.num_tasks = 0
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description:<16}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
            # rich would interpret escape sequences in what other code prints.
            redirect_stdout=False,
            redirect_stderr=False,
        )
        self._bar: TaskID | None = None
        self._started_s = 0.0
        self._printed_s = 0.0
        # Of the current phase:
        self._num_planned = 0
        self._num_done_before = 0
        self._num_done = 0

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

    def _start_phase(self, event: PhaseStarted) -> None:
        self._started_s = self._printed_s = time.monotonic()
        self._num_planned = event.num_tasks
        self._num_done_before = self._num_done = event.num_done
        if not event.num_tasks:  # the phase is off, or has nothing to do
            return
        self._bar = self._bars.add_task(
            event.phase, total=event.num_tasks, completed=event.num_done, rate=""
        )
        resumed = f", {event.num_done} done before" if event.num_done else ""
        self._print_plain(f"{event.phase}: {event.num_tasks} tasks{resumed}")

    def _finish_task(self, event: TaskFinished) -> None:
        if event.failed is not None:
            message = f"{event.phase} {event.task_id} failed: {event.failed}"
            self._bars.console.print(message, style="red")
            return
        self.num_tasks += 1
        self._num_done += 1
        now_s = time.monotonic()
        elapsed_s = max(now_s - self._started_s, 1e-9)
        # Tasks of earlier drivers are not part of the rate.
        rate = (self._num_done - self._num_done_before) / elapsed_s
        assert self._bar is not None
        self._bars.update(self._bar, completed=self._num_done, rate=f"{rate:.1f}/s")
        if now_s - self._printed_s > PLAIN_LINE_S:
            self._printed_s = now_s
            left_s = (self._num_planned - self._num_done) / rate
            self._print_plain(
                f"{event.phase}: {self._num_done} of {self._num_planned} tasks, {rate:.1f}/s, "
                f"about {left_s:.0f} s left"
            )

    def _finish_phase(self, event: PhaseFinished) -> None:
        if event.was_complete:
            self._console.print(f"{event.phase}: done before")
        elif self._num_planned:
            elapsed_s = time.monotonic() - self._started_s
            self._print_plain(f"{event.phase}: done in {elapsed_s:.1f} s")

    def _warn(self, line: str) -> None:
        self._bars.console.print(line, style="yellow")

    def _print_plain(self, line: str) -> None:
        if not self._console.is_terminal:
            self._console.print(line)


def format_damage(event: OutputDamaged) -> str:
    """Return one line about a damaged file."""
    aside = "" if event.moved_to is None else f"; the file was moved to {event.moved_to}"
    return f"damaged: {event.fault}{aside}; {event.phase} makes it again"
