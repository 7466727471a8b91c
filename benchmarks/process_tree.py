"""CPU time of a program and of everything it starts, whoever reaps it.

`getrusage(RUSAGE_CHILDREN)` does not see Ray's workers: their parent ignores SIGCHLD, and what nobody waits for is not
added up. So /proc is read: every process that descends from this one, while it lives and as a zombie. This process
becomes the "subreaper", so that daemons whose parent has ended stay its descendants (prctl(2)). What a process does
after the last sample before its end is lost: sample often, and where nothing moves.

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
_Process = tuple[int, int]  # id and time of start, since ids are used again


class ProcessTree:
    """All descendants of this process from `__enter__` on."""

    def __init__(self) -> None:
        self._ticks: dict[_Process, int] = {}
        self.names: dict[_Process, str] = {}

    def __enter__(self) -> Self:
        _set_subreaper(True)
        return self

    def __exit__(self, *exc: object) -> None:
        """Reap the orphans that have ended."""
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        _set_subreaper(False)

    def cpu_seconds(self) -> float:
        """User and system time of all descendants so far, in steps of 10 ms per process."""
        for process, name, ticks in _descendants(os.getpid()):
            self._ticks[process] = ticks
            self.names[process] = name
        return sum(self._ticks.values()) / _TICKS_PER_SECOND

    def by_name(self) -> dict[str, float]:
        """The same by the name of the program, as of the last sample."""
        seconds: dict[str, float] = {}
        for process, ticks in self._ticks.items():
            name = self.names[process].partition(":")[0]
            seconds[name] = seconds.get(name, 0.0) + ticks / _TICKS_PER_SECOND
        return dict(sorted(seconds.items(), key=lambda item: -item[1]))


def _set_subreaper(on: bool) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) != 0:
        raise OSError(
            ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed: Linux 3.4 or later is needed"
        )


def _descendants(root: int) -> Iterator[tuple[_Process, str, int]]:
    """Process, name and ticks of everything that descends from `root`, `root` itself not counted."""
    children: dict[int, list[int]] = {}
    stats: dict[int, tuple[_Process, str, int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                head, _, tail = (entry / "stat").read_text(errors="replace").rpartition(")")
                fields = tail.split()  # proc_pid_stat(5), from the third field on
                pid = int(entry.name)
                children.setdefault(int(fields[1]), []).append(pid)
                stats[pid] = (
                    (pid, int(fields[19])),
                    head.partition("(")[2],
                    int(fields[11]) + int(fields[12]),
                )
    found = list(children.get(root, ()))
    while found:
        pid = found.pop()
        found += children.get(pid, ())
        yield stats[pid]
