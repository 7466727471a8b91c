"""The processes that this one has started, read from /proc.

    raylets = [each for each in list_descendants() if each.name == "raylet"]
    ...
    [each for each in raylets if not each.is_running()]

On systems without /proc there are no descendants, as far as this module can see.
"""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass, field
from pathlib import Path

# States of a process that has ended: zombie, dead (proc_pid_stat(5)).
_ENDED = "ZX"


@dataclass(frozen=True)
class Process:
    """A process. The start time distinguishes it from a later process with the same id.

    Attributes:
        pid: the process id.
        name: the first 15 characters of the program's name, which a program may change.
        start_ticks: the start time, in clock ticks since boot.
    """

    pid: int
    name: str = field(compare=False)
    start_ticks: int

    def is_running(self) -> bool:
        """Return whether the process has not ended."""
        found = _read_stat(self.pid)
        return found is not None and found.process == self and found.state not in _ENDED

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""
        if self.is_running():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


@dataclass(frozen=True)
class _Stat:
    process: Process
    parent: int
    state: str


def list_descendants(root: int | None = None) -> list[Process]:
    """Return the running descendants of a process, parents before their children.

    Args:
        root: the process id; None is this process.
    """
    children: dict[int, list[_Stat]] = {}
    for stat in _read_all():
        children.setdefault(stat.parent, []).append(stat)
    waiting = [os.getpid() if root is None else root]
    found: list[Process] = []
    while waiting:
        for stat in children.get(waiting.pop(), ()):
            waiting.append(stat.process.pid)
            if stat.state not in _ENDED:
                found.append(stat.process)
    return found


def _read_all() -> list[_Stat]:
    proc = Path("/proc")
    if not proc.is_dir():
        return []
    pids = [int(entry.name) for entry in proc.iterdir() if entry.name.isdigit()]
    return [stat for pid in pids if (stat := _read_stat(pid)) is not None]


def _read_stat(pid: int) -> _Stat | None:
    """Return the fields of `/proc/PID/stat`; None if there is no such process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name is in parentheses and can contain blanks and parentheses.
    head, _, tail = text.rpartition(")")
    fields = tail.split()  # from the third field of the manual page
    process = Process(pid, head.partition("(")[2], int(fields[19]))
    return _Stat(process, int(fields[1]), fields[0])
