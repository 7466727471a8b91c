"""What a person sees while a run works: a bar per phase with rate and end estimate, or plain lines when nobody watches.

Promises: on a terminal one live bar per phase; elsewhere a line when a phase starts, every PLAIN_LINE_S seconds, and
when it ends. Failures are printed at once, with their cause.
Leaves to others: the closing summary (report.py).
"""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from pipeline.execution.engine import Event, PhaseFinished, PhaseStarted, TaskFinished

PLAIN_LINE_S = 10.0


class RunProgress:
    """Shows the events of a run."""

    def __init__(self, console: Console) -> None:
        self.num_tasks = 0  # done by this run
        self._console = console
        self._bars = Progress(
            TextColumn("{task.description:<13}"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID | None = None
        self._started_s = self._printed_s = 0.0
        self._total = self._before = self._now = 0

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bars.stop()

    def show(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, PhaseStarted):
            self._start(event)
        elif isinstance(event, TaskFinished):
            self._advance(event)
        else:
            self._finish(event)

    def _start(self, event: PhaseStarted) -> None:
        self._started_s = self._printed_s = time.monotonic()
        self._total, self._before, self._now = event.num_tasks, event.num_done, event.num_done
        self._task = self._bars.add_task(
            event.phase, total=event.num_tasks, completed=event.num_done, rate=""
        )
        resumed = f", {event.num_done} done before" if event.num_done else ""
        self._plain(f"{event.phase}: {event.num_tasks} pieces of work{resumed}")

    def _advance(self, event: TaskFinished) -> None:
        if event.failed is not None:
            self._bars.console.print(
                f"{event.phase} {event.task_id} failed: {event.failed}", markup=False, style="red"
            )
            return
        self.num_tasks += 1
        self._now += 1
        elapsed = time.monotonic() - self._started_s
        rate = (self._now - self._before) / max(elapsed, 1e-9)
        assert self._task is not None
        self._bars.update(self._task, completed=self._now, rate=f"{rate:.1f}/s")
        if time.monotonic() - self._printed_s > PLAIN_LINE_S:
            self._printed_s = time.monotonic()
            left = (self._total - self._now) / rate
            self._plain(
                f"{event.phase}: {self._now} of {self._total}, {rate:.1f}/s, about {left:.0f} s left"
            )

    def _finish(self, event: PhaseFinished) -> None:
        if event.was_complete:
            self._console.print(f"{event.phase}: complete already", markup=False)
        else:
            self._plain(f"{event.phase}: done in {time.monotonic() - self._started_s:.1f} s")

    def _plain(self, line: str) -> None:
        if not self._console.is_terminal:
            self._console.print(line, markup=False)
