"""What a piece of work takes of its machine: seconds, seconds of CPU, memory, and in which process it was done.

Promises: reading costs microseconds; where the system does not tell (no /proc), the answer is None, never a guess.
Leaves to others: writing it down (engine.py, into log.jsonl), and what may be concluded from it (cost.py).

    watch = Stopwatch()
    with watch:
        ...
    watch.seconds, watch.cpu_seconds     # 2.0, 1.7: the rest was waiting, or another's turn
"""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path


class Stopwatch:
    """Seconds by the clock, and of CPU over all threads of this process, summed over the times that it ran."""

    def __init__(self) -> None:
        self.seconds = self.cpu_seconds = 0.0
        self._started = (0.0, 0.0)

    def __enter__(self) -> None:
        self._started = time.perf_counter(), time.process_time()

    def __exit__(self, *exc: object) -> None:
        started, cpu_started = self._started
        self.seconds += time.perf_counter() - started
        self.cpu_seconds += time.process_time() - cpu_started


def worker() -> str:
    """The name of this process among all of a cluster: the first work that one does is dearer, it loads the models."""
    return f"{socket.gethostname()}:{os.getpid()}"


def reset_peak_memory() -> None:
    """Let the peak of resident memory begin again at what is resident now (proc(5), clear_refs)."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except (
        OSError
    ):  # no Linux, or a container that forbids it: peaks are then those since the process began
        return


def peak_mb() -> float | None:
    """The most memory (MiB) that was resident since `forget_peak`, pages of mapped files included."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next(
        (round(int(line.split()[1]) / 1024, 1) for line in lines if line.startswith("VmHWM:")), None
    )
