"""The terminal side of the command line: consoles, log lines, exit codes and error messages."""

from __future__ import annotations

import logging
import os
import shlex
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

from typer.core import TyperGroup

from terminal_output import escape_output
from terminal_output.console import SafeConsole

DONE = 0
FAILED = 1
WRONG_USAGE = 2
TOO_MUCH_QUARANTINED = 3
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM

OUR_PACKAGES = ("pipeline", "stages", "shardwriter", "storage", "config_files")

RESUME_HINT = "finished tasks are kept, run the same command again to continue"

# A pipe has no width; 140 columns hold every table.
console = SafeConsole(width=None if sys.stdout.isatty() else 140)
errors = SafeConsole(stderr=True)


class CommandGroup(TyperGroup):
    """Turn the expected errors of a command into a message and an exit code.

    The interrupt is handled here, because Typer ends the process without a message when it
    sees a KeyboardInterrupt.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            fail(f"interrupted: {describe_resume()}", INTERRUPTED)
        except Exception as error:
            package = type(error).__module__.partition(".")[0]
            if package not in OUR_PACKAGES and not isinstance(error, OSError):
                raise  # a usage error, which Typer prints, or a bug
            fail(*_describe(error))


def describe_resume() -> str:
    """Return what is kept when a run ends early, and the command that continues it."""
    is_installed_command = Path(sys.argv[0]).stem == "corpusmill"
    program = "corpusmill" if is_installed_command else "python -m pipeline"
    return f"{RESUME_HINT}: {program} {shlex.join(sys.argv[1:])}"


def print_to(stdout: int, stderr: int) -> None:
    """Print on these file descriptors from now on. Later changes of sys.stdout have no effect."""
    for target, descriptor in ((console, stdout), (errors, stderr)):
        target.file = os.fdopen(
            descriptor, "w", encoding=sys.stdout.encoding, errors="backslashreplace"
        )


def fail(message: str, code: int) -> NoReturn:
    """Print a message on stderr and end the process."""
    errors.print(message, style="red")
    raise SystemExit(code)


def _describe(error: Exception) -> tuple[str, int]:
    """Return the message and the exit code for an expected error, or raise it again."""
    # These modules are imported only now, because `--help` must not wait for them.
    from config_files.reader import ConfigError
    from pipeline.errors import EngineLost, RunAborted
    from pipeline.models.corpus import TextUnreadable
    from pipeline.models.kenlm_build import TrainingFailed
    from pipeline.runs.run_folder import RunNotFound
    from shardwriter.format import FormatError
    from stages.contract import DocumentCountError

    if isinstance(error, ConfigError):
        return "\n".join(error.faults), WRONG_USAGE
    if isinstance(error, RunNotFound):
        return str(error), WRONG_USAGE
    if isinstance(error, EngineLost):
        return f"{error}; {describe_resume()}", FAILED
    if isinstance(
        error,
        RunAborted | TrainingFailed | TextUnreadable | FormatError | DocumentCountError,
    ):
        return str(error), FAILED
    if isinstance(error, OSError):
        # Our own subclasses (AssetError, StorageError) have messages that need no class name.
        is_ours = type(error).__module__.partition(".")[0] in OUR_PACKAGES
        return str(error) if is_ours else f"{type(error).__name__}: {error}", FAILED
    raise error


def set_up_process() -> None:
    """Escape what is printed, print our packages' log lines, and end with a message on SIGTERM."""
    escape_output()
    handler = _TerminalHandler()
    for package in OUR_PACKAGES:
        logger = logging.getLogger(package)
        logger.setLevel(logging.INFO)
        logger.propagate = False  # Ray adds a handler to the root logger
        logger.handlers = [handler]
    signal.signal(signal.SIGTERM, _end_on_sigterm)


class _TerminalHandler(logging.Handler):
    """Prints records as plain lines: warnings and errors on stderr, others on stdout.

    It prints through the console, so that the lines do not break a progress bar.
    """

    def emit(self, record: logging.LogRecord) -> None:
        is_problem = record.levelno >= logging.WARNING
        target = errors if is_problem else console
        target.print(record.getMessage(), style="yellow" if is_problem else None)


def _end_on_sigterm(*_: object) -> NoReturn:
    """End by an exception, so that open files and Ray are closed.

    `ray job stop`, a pod that is removed and `kill` send SIGTERM. The message bypasses Python's
    buffers, because the sender may kill the process before it has ended.
    """
    message = f"stopped by SIGTERM: {describe_resume()}\n"
    os.write(errors.file.fileno(), message.encode())
    raise SystemExit(TERMINATED)
