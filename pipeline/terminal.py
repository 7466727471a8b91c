"""The terminal side of the command line: consoles, log lines, exit codes and error messages."""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import logging
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Generator
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import IO, Annotated, Any, NoReturn

import typer
from typer.core import TyperGroup

from terminal_output import escape, escape_output
from terminal_output.console import SafeConsole

DONE = 0
FAILED = 1
WRONG_USAGE = 2
TOO_MUCH_QUARANTINED = 3
DIFFERENT = 4
INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM

RunAddress = Annotated[
    str,
    typer.Argument(
        help="Folder of a run, or s3://bucket/folder for a run in a bucket.", metavar="RUN"
    ),
]
OUR_PACKAGES = ("pipeline", "stages", "shardwriter", "storage", "config_files")

# Commands that go on where they were stopped. Others only read, or leave nothing behind.
RESUMABLE = ("run", "export", "retract", "clean")
RESUME_HINT = "finished tasks are kept, run the same command again to continue"

# A pipe has no width; 140 columns hold every table.
console = SafeConsole(width=None if sys.stdout.isatty() else 140)
errors = SafeConsole(stderr=True)


@dataclass
class _Output:
    """What the options of all commands say.

    Attributes:
        stdout: where JSON is printed; None: to sys.stdout.
    """

    is_json: bool = False
    is_quiet: bool = False
    is_verbose: bool = False
    stdout: IO[str] | None = None


_output = _Output()


_OPTIONS = {
    "is_json": Annotated[
        bool,
        typer.Option(
            "--json", help="Print the answer as JSON, alone on stdout; messages on stderr."
        ),
    ],
    "is_quiet": Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Print only warnings, errors and the answer."),
    ],
    "is_verbose": Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", help="Print more messages, with times, and tracebacks."
        ),
    ],
}


def with_output_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that all commands have: --json, --quiet and --verbose.

    The command itself does not see them: it prints messages on `console`, and its answer with
    `answer`.
    """

    @functools.wraps(command)
    def run_command(**arguments: Any) -> None:
        _set_output(**{name: arguments.pop(name) for name in _OPTIONS})
        command(**arguments)

    own = inspect.signature(command, eval_str=True)
    added = [
        inspect.Parameter(
            name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=kind
        )
        for name, kind in _OPTIONS.items()
    ]
    signature = own.replace(parameters=[*own.parameters.values(), *added])
    # Typer reads the parameters here.
    run_command.__dict__["__signature__"] = signature
    return run_command


def _set_output(*, is_json: bool, is_quiet: bool, is_verbose: bool) -> None:
    """Print from now on as the options of a command say."""
    _output.is_json, _output.is_quiet, _output.is_verbose = is_json, is_quiet, is_verbose
    console.stderr, console.quiet = is_json, is_quiet
    if is_verbose:
        for package in OUR_PACKAGES:
            logging.getLogger(package).setLevel(logging.DEBUG)


def answer(value: Any, show: Callable[[], object]) -> None:
    """Print the answer of a command: as JSON with --json, else as text.

    Args:
        value: the answer, of JSON values and dataclasses, or the function that returns it; a text is printed as it is.
        show: prints the answer on `console`. It is also shown with --quiet.
    """
    if _output.is_json:
        value = value() if callable(value) else value
        if not isinstance(value, str):
            value = json.dumps(value, indent=1, ensure_ascii=False, default=_convert)
        text = escape(value)
        stdout = _output.stdout or sys.stdout
        stdout.write(text if text.endswith("\n") else f"{text}\n")
        stdout.flush()
        return
    console.quiet = False
    show()
    console.quiet = _output.is_quiet


def _convert(value: object) -> object:
    """Return a dataclass as a JSON object, and what JSON does not have as text."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)


class CommandGroup(TyperGroup):
    """Turn the expected errors of a command into a message and an exit code.

    The interrupt is handled here, because Typer ends the process without a message when it
    sees a KeyboardInterrupt.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        with reporting_errors():
            return super().invoke(ctx)


@contextlib.contextmanager
def reporting_errors() -> Generator[None]:
    """Turn an expected error of the block into a message and SystemExit with its code."""
    try:
        yield
    except KeyboardInterrupt:
        fail(_describe_stop("interrupted"), INTERRUPTED)
    except Exception as error:
        if _output.is_verbose:
            errors.print(traceback.format_exc())
        package = type(error).__module__.partition(".")[0]
        if package not in OUR_PACKAGES and not isinstance(error, OSError):
            raise  # a usage error, which Typer prints, or a bug
        fail(*_describe(error))


def describe_resume() -> str:
    """Return what is kept when a run ends early, and the command that continues it."""
    is_installed_command = Path(sys.argv[0]).stem == "corpusmill"
    program = "corpusmill" if is_installed_command else "python -m pipeline"
    return f"{RESUME_HINT}: {program} {shlex.join(sys.argv[1:])}"


def _describe_stop(how: str) -> str:
    """Return why the command ends, and how to continue it if that is possible."""
    is_resumable = sys.argv[1:2] and sys.argv[1] in RESUMABLE
    return f"{how}: {describe_resume()}" if is_resumable else how


def print_to(stdout: int, stderr: int) -> None:
    """Print on these file descriptors from now on. Later changes of sys.stdout have no effect."""
    files = [
        os.fdopen(number, "w", encoding=sys.stdout.encoding, errors="backslashreplace")
        for number in (stdout, stderr)
    ]
    _output.stdout, errors.file = files
    console.file = files[1] if _output.is_json else files[0]


def flush_output() -> None:
    """Write what is still buffered for the terminal; it may be closed."""
    for file in (sys.stdout, sys.stderr, console.file, errors.file):
        with contextlib.suppress(OSError, ValueError):
            file.flush()


def fail(message: str, code: int) -> NoReturn:
    """Print a message on stderr and end the process."""
    errors.print(message, style="red")
    raise SystemExit(code)


def _describe(error: Exception) -> tuple[str, int]:
    """Return the message and the exit code for an expected error, or raise it again."""
    # These modules are imported only now, because `--help` must not wait for them.
    from config_files.reader import ConfigError
    from pipeline.errors import EngineLost, RunAborted
    from pipeline.models.corpus import TextUnreadable, TrainingFailed
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
        line = record.getMessage()
        if _output.is_verbose:
            line = f"{time.strftime('%H:%M:%S')} {record.name}: {line}"
        target.print(line, style="yellow" if is_problem else None)


def _end_on_sigterm(*_: object) -> NoReturn:
    """End by an exception, so that open files and Ray are closed.

    `ray job stop`, a pod that is removed and `kill` send SIGTERM. The message bypasses Python's
    buffers, because the sender may kill the process before it has ended.
    """
    message = _describe_stop("stopped by SIGTERM")
    os.write(errors.file.fileno(), f"{message}\n".encode())
    raise SystemExit(TERMINATED)
