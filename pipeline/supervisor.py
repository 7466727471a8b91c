"""Running a command in a child process, so that each of its ends has a message and an exit code.

Native code can end a process without Python: Ray's driver calls `abort` or `exit` when its
cluster dies, and Linux kills a process when memory runs out. The parent loads no native code,
waits for the child, and reports how it ended.

    supervise()              # returns in the child only
    plan = read_kept_plan() or ...
    keep_plan(plan)          # after a document that takes too long, the command is started again
    ...                      # the command
    report_exit(code)        # its message is printed; what follows only closes what is open
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import logging
import math
import os
import pickle
import select
import signal
import sys
import tempfile
import time
from types import FrameType
from typing import Any, BinaryIO, NoReturn

from pipeline.execution import watchdog
from pipeline.execution.on_ray.failures import read_raylet_errors
from pipeline.execution.watchdog import TOO_SLOW_SIGNAL
from pipeline.processes import list_descendants
from pipeline.terminal import (
    FAILED,
    INTERRUPTED,
    TERMINATED,
    describe_resume,
    errors,
    flush_output,
    print_to,
)
from terminal_output import escape_output

# After SIGINT or SIGTERM, the child has this long to stop its tasks and Ray. Kubernetes kills
# a pod 30 s after SIGTERM.
STOP_GRACE_S = 20

# After its report the child only closes what is open. Ray takes 1.4 s on a quiet machine.
END_GRACE_S = 5

# From prctl(2).
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

# Times of files are those of the last tick of the kernel's clock, up to 10 ms ago.
FILE_CLOCK_LAG_S = 0.02

_FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_STOPPED = {signal.SIGINT: "interrupted", signal.SIGTERM: "stopped by SIGTERM"}

# Text that Ray's native code prints -> the cause. The first match counts: a raylet ends
# itself when one of its agents dies, and 0.1 s later the driver.
_RAY_CAUSES = {
    b"agent_name = dashboard_agent": "Ray's dashboard agent died",
    b"agent_name = runtime_env_agent": "Ray's runtime environment agent died",
    b"Failed to connect to GCS": "Ray's control store (GCS) could not be reached",
    b"Raylet is terminated": "Ray's raylet died",
    b"has been marked dead because": "a machine of Ray, or its raylet, died",
}

# In the child: the pipe to which it writes its exit code, and the code that it has written.
_report_pipes: list[int] = []
_reported: list[int] = []

# Descriptor of the file with the plan, for a command that is started again.
_PLAN_VARIABLE = "CORPUSMILL_PLAN_DESCRIPTOR"
# The file with the plan: its content is there if the command is started again.
_plan_files: list[BinaryIO] = []


def supervise() -> None:
    """Fork. The child returns; the parent waits for it and ends with its exit code.

    In the child, stdout and stderr of libraries and native code go to a log file. `console` and
    `errors` of `pipeline.terminal` still print on the terminal.
    """
    # Without a name, so that nothing is left when both processes are killed.
    log = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - both processes use it to their end
    # What dies without its children leaves them to the parent, which ends them.
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    _open_plan_file()
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    # Before the fork: the child may write files before this process runs again.
    started_at = time.time() - FILE_CLOCK_LAG_S
    # A signal waits until both processes have set their handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, _FORWARDED)
    child = os.fork()
    if child:
        os.close(writer)
        _Supervisor(child, reader, log, started_at).wait()
    os.close(reader)
    _enter_child(parent, writer, log)


def report_exit(code: int) -> None:
    """Tell the parent the exit code. Later calls, and calls without `supervise`, do nothing."""
    for descriptor in _report_pipes:
        # It stays open. The parent waits for its end, which is the end of this process.
        os.write(descriptor, str(code).encode())
        _reported.append(code)
    _report_pipes.clear()


def _open_plan_file() -> None:
    descriptor = os.environ.pop(_PLAN_VARIABLE, None)
    if descriptor is None:
        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115 - used until the process ends
    else:
        file = os.fdopen(int(descriptor), "r+b", buffering=0)
    _plan_files.append(file)


def keep_plan(plan: object) -> None:
    """Keep the plan in case the command is started again. Without `supervise`, do nothing."""
    for file in _plan_files:
        file.write(pickle.dumps(plan))


def read_kept_plan() -> Any:
    """Return the plan of this command if it was started again, else None.

    So the config and the list of input files stay as they were when the run was planned.
    """
    for file in _plan_files:
        file.seek(0)
        if content := file.read():
            return pickle.loads(content)  # noqa: S301 - written by `keep_plan`, without a name
    return None


def _enter_child(parent: int, report_descriptor: int, log: BinaryIO) -> None:
    _report_pipes.append(report_descriptor)
    atexit.register(_end_at_once)
    # The terminal's signals reach the parent alone, which forwards each of them once.
    os.setpgid(0, 0)
    signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # may print although in the background
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os.kill(os.getpid(), signal.SIGKILL)
    print_to(os.dup(1), os.dup(2))
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    _report_errors()
    _report_sigterm()
    watchdog.enable()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)


def _end_at_once() -> None:
    """End without freeing each object of the process, which takes 0.07 CPU seconds.

    The exit functions of libraries that were imported after `supervise` have run before this one.
    """
    if _reported:
        logging.shutdown()
        flush_output()
        os._exit(_reported[0])


def _report_errors() -> None:
    """Print the traceback of a bug on the terminal, and report the exit code."""
    print_traceback = sys.excepthook

    def report_error(*error: Any) -> None:
        sys.stderr = errors.file
        escape_output()
        print_traceback(*error)
        report_exit(FAILED)

    sys.excepthook = report_error


def _report_sigterm() -> None:
    """Report SIGTERM before the command ends, because Ray may crash while it is closed."""
    on_terminate = signal.getsignal(signal.SIGTERM)
    assert callable(on_terminate)

    def report_and_end(number: int, frame: FrameType | None) -> None:
        report_exit(TERMINATED)
        on_terminate(number, frame)

    signal.signal(signal.SIGTERM, report_and_end)


def _prctl(option: int, value: int) -> None:
    """Set an attribute of this process. Only Linux has it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


class _Supervisor:
    """The parent, while the child runs the command."""

    def __init__(self, child: int, reader: int, log: BinaryIO, started_at: float) -> None:
        self._child = child
        self._reader = reader
        self._log = log
        self._started_at = started_at
        self._stopped_by: signal.Signals | None = None
        # When the child is killed, by time.monotonic().
        self._deadline = math.inf
        # A signal writes to this pipe: one that comes just before `select` is not overlooked.
        self._wakeups, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer)
        for number in _FORWARDED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
                signal.signal(number, self._forward)
        signal.signal(signal.SIGTSTP, self._pause)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _FORWARDED)

    def wait(self) -> NoReturn:
        """Wait for the child, end its other processes, and end with its exit code."""
        report = self._read()
        code = int(report) if report else None
        self._kill_after(STOP_GRACE_S if code in (INTERRUPTED, TERMINATED) else END_GRACE_S)
        self._read()  # until the child has ended, which closes the other end
        _, status = os.waitpid(self._child, 0)
        _kill_descendants()
        is_too_slow = -os.waitstatus_to_exitcode(status) == TOO_SLOW_SIGNAL
        if is_too_slow and code is None and self._stopped_by is None:
            _start_again()
        sys.exit(self._conclude(code, status))

    def _read(self) -> bytes:
        """Return what the child writes; empty when it has ended."""
        while True:
            left_s = self._deadline - time.monotonic()
            timeout_s = None if left_s == math.inf else max(0.0, left_s)
            ready, _, _ = select.select([self._reader, self._wakeups], [], [], timeout_s)
            if not ready:
                self._kill_child()
                self._deadline = math.inf
            if self._wakeups in ready:
                os.read(self._wakeups, 512)
            if self._reader in ready:
                return os.read(self._reader, 16)

    def _kill_after(self, grace_s: float) -> None:
        self._deadline = min(self._deadline, time.monotonic() + grace_s)

    def _forward(self, number: int, _: object) -> None:
        """Pass on the first signal; the second one ends the child at once."""
        if self._stopped_by is not None:
            self._kill_child()
            return
        is_interrupt = number == signal.SIGINT
        self._stopped_by = signal.SIGINT if is_interrupt else signal.SIGTERM
        os.kill(self._child, self._stopped_by)
        self._kill_after(STOP_GRACE_S)

    def _pause(self, *_: object) -> None:
        """Stop with the child on Ctrl-Z, and continue with it."""
        os.killpg(self._child, signal.SIGSTOP)
        os.kill(os.getpid(), signal.SIGSTOP)
        os.killpg(self._child, signal.SIGCONT)

    def _kill_child(self) -> None:
        os.kill(self._child, signal.SIGKILL)

    def _conclude(self, code: int | None, status: int) -> int:
        """Return the exit code, and print a message if the child could not.

        Args:
            code: the exit code that the child has reported.
            status: how it has ended, as of waitpid(2).
        """
        # While Ray starts, its own handler of SIGTERM exits with the signal's number.
        if self._stopped_by is not None and code in (None, self._stopped_by):
            errors.print(f"{_STOPPED[self._stopped_by]}: {describe_resume()}", style="red")
            code = 128 + self._stopped_by
        elif code is None:
            message = f"{self._find_cause(status)}; {describe_resume()}"
            errors.print(message, style="red")
            return FAILED
        return code

    def _find_cause(self, status: int) -> str:
        number = -os.waitstatus_to_exitcode(status)
        if number == signal.SIGKILL:
            return "the run was killed by SIGKILL, by a user or because memory ran out"
        self._log.seek(0)
        printed = self._log.read() + read_raylet_errors(self._child, self._started_at)
        causes = [cause for text, cause in _RAY_CAUSES.items() if text in printed]
        ending = signal.Signals(number).name if number > 0 else f"exit code {-number}"
        causes.append(f"native code ended the run with {ending}")
        return f"{causes[0]}, details are in {_save_log(printed)}"


def _start_again() -> NoReturn:
    """Run the same command in this process: it continues the run."""
    errors.print(
        "a document took longer than engine.document_timeout_s; the run continues without it",
        style="yellow",
    )
    sys.stdout.flush()
    sys.stderr.flush()
    for file in _plan_files:
        os.set_inheritable(file.fileno(), True)
        os.environ[_PLAN_VARIABLE] = str(file.fileno())
    # The command line of this process, which the user has chosen.
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606


def _save_log(printed: bytes) -> str:
    """Write a file that only this user can read, and return its path."""
    descriptor, path = tempfile.mkstemp(prefix="corpusmill-run-", suffix=".log")
    with os.fdopen(descriptor, "wb") as file:
        file.write(printed)
    return path


def _kill_descendants() -> None:
    """Kill what the child has left behind: workers of Ray whose raylet died before them."""
    deadline = time.monotonic() + END_GRACE_S
    with contextlib.suppress(ChildProcessError):  # none is left
        while time.monotonic() < deadline:
            for process in list_descendants():
                process.kill()
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
            time.sleep(0.02)
