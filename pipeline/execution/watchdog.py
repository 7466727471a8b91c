"""End this process when one document takes too long.

Native code cannot be interrupted from within: a signal handler of Python runs only after the call
has returned, and the thread in the call may hold the GIL. So a small second process reads the CPU
time of this one. After the limit it writes a note about the documents, and kills this process. The
supervisor of `run`, or Ray, then starts a new process, and the task is repeated without the document.

    enable()                                   # in a process that is started again when it dies
    watchdog = get_watchdog(limit_s=300)
    with watchdog.watch(request, first, last):
        ...                                    # a call that may not return

This file also is the program of the second process. Until it writes a note, that one imports only
the standard library.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import site
import struct
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Generator
from pathlib import Path

# Kills a process that took too long. Its default action is to end the process without a core dump,
# and no other program sends it.
TOO_SLOW_SIGNAL = signal.SIGVTALRM

# How often the CPU time is read. It takes 50 us.
_POLL_S = 1.0

# The shared memory begins with a number that changes with each step and is 0 between steps, the
# first and the last document, and the length of the request. The request follows.
_HEAD = struct.Struct("<QQQQ")
_SHARED_BYTES = 1 << 16

_REPOSITORY = Path(__file__).parents[2]


class Watchdog:
    """The second process, and the memory in which it sees the current step."""

    def __init__(self, limit_s: int) -> None:
        self.limit_s = limit_s
        self._num_steps = 0
        file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        file.truncate(_SHARED_BYTES)
        self._file, self._shared = file, mmap.mmap(file.fileno(), _SHARED_BYTES)
        # Isolated and without site-packages it starts in 15 ms.
        program = [sys.executable, "-I", "-S", __file__]
        arguments = [str(os.getpid()), str(file.fileno()), str(limit_s)]
        self._process = subprocess.Popen(
            [*program, *arguments], stdin=subprocess.PIPE, pass_fds=[file.fileno()]
        )

    @contextlib.contextmanager
    def watch(self, request: bytes, first: int, last: int) -> Generator[None]:
        """Limit the CPU time of the block.

        Args:
            request: how to write a note if the block takes too long; see `_write_note`.
            first: the smallest doc_id.
            last: the largest doc_id.
        """
        end = _HEAD.size + len(request)
        self._shared[_HEAD.size : end] = request
        self._num_steps += 1
        _HEAD.pack_into(self._shared, 0, self._num_steps, first, last, len(request))
        try:
            yield
        finally:
            _HEAD.pack_into(self._shared, 0, 0, 0, 0, 0)

    def close(self) -> None:
        """End the second process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._shared.close()
        self._file.close()


_is_enabled = False
_watchdogs: list[Watchdog] = []


def enable(is_enabled: bool = True) -> None:
    """Allow that this process is killed, because it is then started again and repeats the task."""
    global _is_enabled  # noqa: PLW0603 - a property of the process
    _is_enabled = is_enabled


def get_watchdog(limit_s: int | None) -> Watchdog | None:
    """Return the watchdog of this process; None without a limit, or where `enable` was not called.

    Systems without /proc have none.
    """
    if limit_s is None or not _is_enabled or not Path("/proc/self/stat").exists():
        return None
    if _watchdogs and _watchdogs[0].limit_s != limit_s:
        close()
    if not _watchdogs:
        _watchdogs.append(Watchdog(limit_s))
    return _watchdogs[0]


def close() -> None:
    """End the second process, if there is one."""
    while _watchdogs:
        _watchdogs.pop().close()


# ----------------------------------------------------------------------- the second process


def _read_cpu_s(pid: int) -> float:
    """Return the CPU time of all threads of a process (proc_pid_stat(5)).

    Raises:
        OSError: the process has ended.
    """
    with open(f"/proc/{pid}/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _watch_process(pid: int, descriptor: int, limit_s: int) -> None:
    """Kill a process when it spends more CPU time on one step than the limit."""
    shared = mmap.mmap(descriptor, _SHARED_BYTES)
    seen, started_s = b"", 0.0
    # The other end of stdin is closed when the process ends.
    while not select.select([sys.stdin], [], [], _POLL_S)[0]:
        step, cpu_s = shared[:], _read_cpu_s(pid)
        if step != seen:
            seen, started_s = step, cpu_s
        elif _HEAD.unpack_from(step)[0] and cpu_s - started_s > limit_s:
            os.kill(pid, signal.SIGSTOP)
            if shared[:] == step:  # else it has just finished
                is_noted = _write_note(step, cpu_s - started_s)
                # Without a note, the task would be repeated with the document, again and again.
                os.kill(pid, TOO_SLOW_SIGNAL if is_noted else signal.SIGKILL)
            os.kill(pid, signal.SIGCONT)


def _write_note(step: bytes, cpu_s: float) -> bool:
    """Write the note about a step; return whether it is written.

    The request of the step has `phase`, the address of the folder; `storage`, the fields of
    StorageSettings; `task_id`; and `note`, the fields of SlowDocuments besides the documents.
    """
    _, first, last, num_bytes = _HEAD.unpack_from(step)
    request = json.loads(step[_HEAD.size : _HEAD.size + num_bytes])
    # It may need the client of an object store, and the process was started without packages.
    paths = [str(_REPOSITORY), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    sys.path[:0] = filter(None, paths)
    site.main()
    try:
        from pipeline.runs.slow_documents import SlowDocuments, write_note
        from storage import StorageSettings, open_store

        phase = open_store(request["phase"], StorageSettings(**request["storage"]))
        note = SlowDocuments(first=first, last=last, **request["note"])
        write_note(phase, request["task_id"], note, cpu_s)
    except Exception:  # noqa: BLE001 - the stopped process must not stay stopped
        traceback.print_exc()
        return False
    return True


if __name__ == "__main__":
    with contextlib.suppress(OSError):  # the process has ended
        _watch_process(*map(int, sys.argv[1:]))
