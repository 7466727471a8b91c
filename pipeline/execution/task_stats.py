"""What a task takes of its machine: wall time, CPU time and peak memory.

Reading them takes microseconds. A value that the system does not report is None.

    timer = StepTimer()
    with timer.step("language"):
        ...
    timer.seconds       # {"language": 2.0}
    timer.cpu_seconds   # {"language": 1.7}: the difference is waiting, or other processes' CPU time
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


class StepTimer:
    """Sums wall time, and CPU time over all threads of this process, per named step.

    Steps must not overlap.
    """

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.cpu_seconds: dict[str, float] = {}

    @contextlib.contextmanager
    def step(self, name: str) -> Generator[None]:
        """Add the time of the block to a step."""
        started, cpu_started = time.perf_counter(), time.process_time()
        try:
            yield
        finally:
            spent, cpu_spent = (
                time.perf_counter() - started,
                time.process_time() - cpu_started,
            )
            self.seconds[name] = self.seconds.get(name, 0.0) + spent
            self.cpu_seconds[name] = round(self.cpu_seconds.get(name, 0.0) + cpu_spent, 6)

    def iterate(self, name: str, items: Iterable[T]) -> Iterator[T]:
        """Yield the items; add the time that the iterable takes to a step."""
        iterator = iter(items)
        while True:
            with self.step(name):
                try:
                    item = next(iterator)
                except StopIteration:
                    return
            yield item

    @contextlib.contextmanager
    def wrap(self, name: str, manager: AbstractContextManager[T]) -> Generator[T]:
        """Enter a context manager; add the time of its start and its end to a step."""
        with contextlib.ExitStack() as stack:
            with self.step(name):
                value = stack.enter_context(manager)
            yield value
            with self.step(name):
                stack.close()


def worker_name() -> str:
    """Return host and process id. The first task of a process is slower, because it loads the models."""
    return f"{socket.gethostname()}:{os.getpid()}"


def reset_peak_memory() -> None:
    """Set the peak of the resident memory back to its current value (proc(5), clear_refs)."""
    # Without Linux, or in a container that forbids it, peaks are those since the start of the process.
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def peak_mb() -> float | None:
    """Return the peak of the resident memory (MiB) since `reset_peak_memory`, pages of mapped files included."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    for line in lines:
        if line.startswith("VmHWM:"):
            return round(int(line.split()[1]) / 1024, 1)
    return None
