"""The command line as a process: what `--help` loads, the version, completion, and Ctrl-C."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

import pytest

from pipeline.cli import postpone_garbage_collection
from tests.conftest import REPOSITORY, wet_record
from tests.pipeline.conftest import Small
from tests.processes import run_command, run_python

HEAVY_LIBRARIES = ("numba", "pyarrow", "ray", "torch", "pandas", "scipy", "kenlm", "numpy")

PRINT_LOADED = """
import sys
sys.argv = ["python -m pipeline", *{words!r}]
from pipeline.cli import main
try:
    main()
finally:
    print([name for name in {libraries!r} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.parametrize(
    "words",
    [["--help"], ["run", "--help"], ["models", "train", "lm", "--help"], ["--version"]],
)
def test_help_loads_no_heavy_library(words: list[str]) -> None:
    """Help and version are printed without numba, Arrow, Ray or torch."""
    code = PRINT_LOADED.format(words=words, libraries=HEAVY_LIBRARIES)
    done = run_python("-c", code, check=True)
    assert done.stdout
    assert done.stderr.strip() == "[]"


def test_version_is_that_of_the_package() -> None:
    """`--version` prints the version of the installed package."""
    done = run_command("--version")
    assert done.returncode == 0
    assert done.stdout.strip() == f"corpusmill {metadata.version('corpusmill')}"


def test_help_names_every_command() -> None:
    """The help lists the commands and the exit codes."""
    done = run_command("--help")
    commands = "run plan init schema status report explain preview verify export models sample-crawl"
    for name in commands.split():
        assert f"\n  {name} " in done.stdout
    assert "Exit codes: 0 done" in done.stdout
    assert "--install-completion" in done.stdout


def test_completion_offers_the_commands() -> None:
    """The shell completes the first letters of a command."""
    asked = {
        "_CORPUSMILL_COMPLETE": "complete_bash",
        "COMP_WORDS": "corpusmill pre",
        "COMP_CWORD": "1",
    }
    done = run_python(
        "-c", "from pipeline.console import main; main()", env={**os.environ, **asked}
    )
    assert done.stdout.split() == ["preview"], done.stderr


@pytest.mark.parametrize("words", [["fly"], ["run"], ["run", "ccnet", "--fly"]])
def test_wrong_usage_ends_with_code_2(words: list[str]) -> None:
    """An unknown command, a missing argument and an unknown option are usage errors."""
    done = run_command(*words)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "Usage: python -m pipeline" in done.stderr
    assert "Error: " in done.stderr


def test_log_lines_of_our_packages_are_printed() -> None:
    """INFO goes to stdout and warnings to stderr, as plain lines; other libraries stay silent."""
    code = (
        "import logging; from pipeline.terminal import set_up_process; set_up_process(); "
        "logging.getLogger('stages.x').info('made [%s]', 'a model'); "
        "logging.getLogger('pipeline.x').warning('no cache'); "
        "logging.getLogger('urllib3').info('connected')"
    )
    done = run_python("-c", code, check=True)
    assert (done.stdout, done.stderr) == ("made [a model]\n", "no cache\n")


def test_ctrl_c_ends_a_run_with_a_message_and_code_130(small: Small) -> None:
    """The message says how to continue, and the run is recorded as stopped."""
    files: list[str] = []
    for number in range(300):
        file = small.folder / f"{number:03d}.warc.wet"
        page = "\n".join(["Title", f"Sentence {number} of the page. " * 20])
        file.write_bytes(wet_record(f"https://example.org/{number}", page))
        files.append(str(file))
    run_dir = Path(small.plan(input={"files": files}).run_dir)
    process = subprocess.Popen(
        # SIGINT is ignored, if the tests run in the background.
        [
            "env",
            "--default-signal=INT",
            sys.executable,
            "-m",
            "pipeline",
            "run",
            str(small.path),
        ],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        process_group=0,  # a terminal sends SIGINT to the whole group
    )
    wait_for_task(process, run_dir / "log.jsonl")
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=600)
    assert stderr.strip() == (
        "interrupted: finished tasks are kept, run the same command again to continue: "
        f"python -m pipeline run {small.path}"
    )
    assert process.returncode == 130
    status = run_command("status", str(run_dir))
    assert ": stopped " in status.stdout


def wait_for_task(process: subprocess.Popen[str], log: Path) -> None:
    """Wait until the event log holds a finished task."""
    while process.poll() is None:
        if log.exists() and "TaskFinished" in log.read_text():
            return
        time.sleep(0.02)
    pytest.fail(f"the run ended before its first task: {process.communicate()}")


def test_garbage_is_collected_again_after_the_start() -> None:
    """It is not collected in the block, and afterwards also if the block fails."""
    is_enabled: list[bool] = []
    with contextlib.suppress(ValueError), postpone_garbage_collection():
        is_enabled.append(gc.isenabled())
        raise ValueError("wrong config")
    is_enabled.append(gc.isenabled())
    gc.unfreeze()
    assert is_enabled == [False, True]
