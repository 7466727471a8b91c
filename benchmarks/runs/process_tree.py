"""CPU time of a program and of all processes that it starts.

`getrusage(RUSAGE_CHILDREN)` misses Ray's workers: their parent ignores SIGCHLD, and the kernel adds up only processes
that are waited for. This module asks psutil instead, for every descendant of this process, zombies included. This
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
from typing import Self

import psutil

_PR_SET_CHILD_SUBREAPER = 36


class ProcessTree:
    """All descendants of this process, from `__enter__` to `__exit__`."""

    def __init__(self) -> None:
        # Ids are reused by the kernel, so a process is also known by its start time.
        self._seconds: dict[psutil.Process, float] = {}

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
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                self._seconds[process] = times.user + times.system
        return sum(self._seconds.values())


def _set_subreaper(on: bool) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, int(on), 0, 0, 0) != 0:
        message = "prctl(PR_SET_CHILD_SUBREAPER) failed: Linux 3.4 or later is needed"
        raise OSError(ctypes.get_errno(), message)
