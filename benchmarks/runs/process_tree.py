"""CPU time of a program and of all processes that it starts.

`getrusage(RUSAGE_CHILDREN)` misses Ray's workers: their parent ignores SIGCHLD, and the kernel adds up only processes
that are waited for. This module reads /proc instead, for every descendant of this process, zombies included. This
process becomes the "subreaper" (prctl(2)), because daemons whose parent has ended must remain its descendants. CPU time
that a process uses after its last sample is lost: take samples often, and when no process is running.

    with ProcessTree() as tree:
        program = subprocess.Popen(...)
        while program.poll() is None:
            time.sleep(0.2)
            tree.cpu_seconds()
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

_PR_SET_CHILD_SUBREAPER = 36
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_Process = tuple[int, int]  # (id, start time), because the kernel reuses ids


class ProcessTree:
    """All descendants of this process, from `__enter__` to `__exit__`."""

    def __init__(self) -> None:
        self._ticks: dict[_Process, int] = {}
        self.names: dict[_Process, str] = {}

    def __enter__(self) -> Self:
        _set_subreaper(True)
        return self

    def __exit__(self, *exc: object) -> None:
        """Reap the orphans that have ended, and stop being the subreaper."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        _set_subreaper(False)

    def cpu_seconds(self) -> float:
        """Take a sample, and return user and system seconds of all descendants until now, in steps of 10 ms per process."""
        for process, name, ticks in _descendants(os.getpid()):
            self._ticks[process] = ticks
            self.names[process] = name
        return sum(self._ticks.values()) / _TICKS_PER_SECOND

    def seconds_by_name(self) -> dict[str, float]:
        """Return CPU seconds by program name, as of the last sample."""
        seconds: dict[str, float] = {}
        for process, ticks in self._ticks.items():
            name = self.names[process].partition(":")[0]
            seconds[name] = seconds.get(name, 0.0) + ticks / _TICKS_PER_SECOND
        return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def _set_subreaper(on: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) != 0:
        message = "prctl(PR_SET_CHILD_SUBREAPER) failed: Linux 3.4 or later is needed"
        raise OSError(ctypes.get_errno(), message)


def _descendants(root: int) -> Iterator[tuple[_Process, str, int]]:
    """Yield process, name and CPU ticks of every descendant of `root`, without `root`."""
    children: dict[int, list[int]] = {}
    stats: dict[int, tuple[_Process, str, int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            pid = int(entry.name)
            parent, stats[pid] = _read_stat(entry)
            children.setdefault(parent, []).append(pid)
    waiting = list(children.get(root, ()))
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, ())
        yield stats[pid]


def _read_stat(entry: Path) -> tuple[int, tuple[_Process, str, int]]:
    """Return the parent's id, and process, name and CPU ticks, from `/proc/PID/stat` (proc_pid_stat(5))."""
    # The name is in parentheses and can contain blanks and parentheses: split at the last one.
    head, _, tail = (entry / "stat").read_text(errors="replace").rpartition(")")
    fields = tail.split()  # from the third field of the manual page
    process = (int(entry.name), int(fields[19]))
    ticks = int(fields[11]) + int(fields[12])
    return int(fields[1]), (process, head.partition("(")[2], ticks)
