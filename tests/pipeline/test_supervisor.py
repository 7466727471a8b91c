"""A command in a child process: every end of it has one line and an exit code."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.processes import list_descendants
from tests.conftest import REPOSITORY
from tests.pipeline.runs.waiting import wait_for

PROGRAM = """
import ctypes, os, signal, subprocess, sys, time
from pathlib import Path
from pipeline.supervisor import report_exit, supervise
from pipeline.terminal import console, errors, fail, set_up_process
sys.argv = ["python -m pipeline", "run", "my config.yaml"]
folder = Path({folder!r})
signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored, if the tests run in background
set_up_process()
os.register_at_fork(after_in_parent=lambda: time.sleep({pause_s}))
supervise()
(folder / "child").write_text(str(os.getpid()))
{body}
"""

KEPT = (
    "finished tasks are kept, run the same command again to continue: "
    "python -m pipeline run 'my config.yaml'"
)
SLEEP = "while True: time.sleep(0.05)"


@pytest.fixture
def start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., subprocess.Popen[str]]:
    """Start a program that runs these lines in the child."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))

    def start_program(body: str, parent_pause_s: float = 0.0) -> subprocess.Popen[str]:
        program = PROGRAM.format(folder=str(tmp_path), body=body, pause_s=parent_pause_s)
        return subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=REPOSITORY,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start_program


def wait_for_child(folder: Path) -> int:
    """Return the id of the child, when it has started."""
    path = folder / "child"
    while not (path.exists() and path.read_text()):
        time.sleep(0.01)
    return int(path.read_text())


def end(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr."""
    stdout, stderr = process.communicate(timeout=600)
    return process.returncode, stdout, stderr


def write_raylet_log(text: str, then: str = "pass") -> str:
    """Return the lines of a child that writes the log of its raylet, runs `then` and fails."""
    lines = [
        "logs = folder / f'ray/session_2026-11-22_{os.getpid()}/logs'",
        "logs.mkdir(parents=True)",
        f"(logs / 'raylet.err').write_text({text!r})",
        then,
        "os._exit(1)",
    ]
    return "\n".join(lines)


Start = Callable[..., subprocess.Popen[str]]


def test_a_child_that_reports_is_believed(start: Start, tmp_path: Path) -> None:
    """Its output reaches the terminal, its exit code is that of the program, its log is removed."""
    body = (
        "print('of a library'); os.write(2, b'of native code')\n"
        "console.print('done'); errors.print('a warning'); report_exit(3)"
    )
    assert end(start(body)) == (3, "done\n", "a warning\n")
    assert list(tmp_path.glob("corpusmill-run-*")) == []


@pytest.mark.parametrize(
    ("body", "ending"),
    [
        ("os.write(2, b'*** SIGABRT received ***'); os.abort()", "SIGABRT"),
        ("ctypes.string_at(0)", "SIGSEGV"),
        ("os._exit(7)", "exit code 7"),
        ("os.write(2, b'no report'); os._exit(0)", "exit code 0"),
    ],
)
def test_an_end_in_native_code_is_one_line(
    start: Start, tmp_path: Path, body: str, ending: str
) -> None:
    """The line has the cause, what is kept and the command; native output is in the log that it names."""
    code, stdout, stderr = end(start(body))
    (log,) = tmp_path.glob("corpusmill-run-*.log")
    message = f"native code ended the run with {ending}, details are in {log}; {KEPT}\n"
    assert (code, stdout, stderr) == (1, "", message)
    assert log.stat().st_mode & 0o777 == 0o600
    if "SIGABRT" in ending:
        assert log.read_text() == "*** SIGABRT received ***"


@pytest.mark.parametrize(
    ("printed", "cause"),
    [
        (
            "Failed to connect to GCS within 60 seconds",
            "Ray's control store (GCS) could not be reached",
        ),
        ("Raylet is terminated. Termination is unexpected.", "Ray's raylet died"),
        (
            "The node with node id: 0f has been marked dead because the detector has missed",
            "a machine of Ray, or its raylet, died",
        ),
    ],
)
def test_the_cause_is_found_in_the_output_of_ray(
    start: Start, printed: str, cause: str
) -> None:
    """On a cluster, the driver learns from Ray's native code alone what died."""
    code, _, stderr = end(start(f"os.write(2, {printed.encode()!r}); os._exit(1)"))
    assert code == 1
    assert stderr.startswith(f"{cause}, details are in /")
    assert stderr.endswith(f"; {KEPT}\n")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("dashboard_agent", "dashboard agent"),
        ("runtime_env_agent", "runtime environment agent"),
    ],
)
def test_a_dead_agent_of_ray_is_named(
    start: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    words: str,
) -> None:
    """Only the raylet writes which agent died; its log of this run counts, and is kept."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    body = write_raylet_log(
        f"one Ray agent failed, agent_name = {name}.",
        "os.write(2, b'The node has been marked dead because the detector ...')",
    )
    code, _, stderr = end(start(body))
    (log,) = tmp_path.glob("corpusmill-run-*.log")
    assert (code, stderr) == (1, f"Ray's {words} died, details are in {log}; {KEPT}\n")
    assert f"agent_name = {name}" in log.read_text()


def test_the_log_of_a_ray_that_fails_at_once_is_read(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be written before the parent runs again after the fork."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    body = write_raylet_log("agent_name = dashboard_agent.")
    _, _, stderr = end(start(body, parent_pause_s=0.3))
    assert stderr.startswith("Ray's dashboard agent died, ")


def test_the_log_of_an_earlier_ray_is_not_read(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Process ids are used again: the session folder may be that of another run."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    make_old = "os.utime(logs / 'raylet.err', (0, 0))"
    body = write_raylet_log("agent_name = dashboard_agent.", make_old)
    _, _, stderr = end(start(body))
    assert stderr.startswith("native code ended the run with exit code 1, ")


def test_a_child_without_memory_is_one_line(start: Start, tmp_path: Path) -> None:
    """Linux kills with SIGKILL when memory runs out."""
    process = start(SLEEP)
    os.kill(wait_for_child(tmp_path), signal.SIGKILL)
    message = (
        f"the run was killed by SIGKILL, by a user or because memory ran out; {KEPT}\n"
    )
    assert end(process) == (1, "", message)
    assert list(tmp_path.glob("corpusmill-run-*")) == []


def test_a_traceback_reaches_the_terminal(start: Start) -> None:
    """A bug of ours is no end of native code."""
    code, stdout, stderr = end(start("raise KeyError('a bug')"))
    assert (code, stdout) == (1, "")
    assert "KeyError: 'a bug'" in stderr
    assert "native code" not in stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_child_in_order(
    start: Start, tmp_path: Path, number: signal.Signals
) -> None:
    """The child closes what it has opened, and prints one line; a closed terminal counts as SIGTERM."""
    body = f"try:\n    {SLEEP}\nfinally:\n    (folder / 'closed').touch()"
    process = start(body)
    wait_for_child(tmp_path)
    os.killpg(process.pid, number)
    assert end(process) == (143, "", f"stopped by SIGTERM: {KEPT}\n")
    assert (tmp_path / "closed").exists()


def test_exit_functions_run_although_the_child_ends_at_once(
    start: Start, tmp_path: Path
) -> None:
    """Libraries close what they have opened, and the last words are printed."""
    lines = [
        "import atexit, weakref",
        "atexit.register((folder / 'exit').touch)",
        "class Library: pass",
        "library = Library()",
        "weakref.finalize(library, (folder / 'finalizer').touch)",
        "console.file.write('the last words')",
        "report_exit(3)",
    ]
    assert end(start("\n".join(lines))) == (3, "the last words", "")
    assert (tmp_path / "exit").exists()
    assert (tmp_path / "finalizer").exists()


@pytest.mark.parametrize("body", ["os.abort()", "sys.exit(15)", "report_exit(15)"])
def test_sigterm_has_its_line_when_the_child_ends_otherwise(
    start: Start, tmp_path: Path, body: str
) -> None:
    """As while Ray starts: its native code aborts, or its own handler exits with code 15."""
    handler = (
        f"def stop(*_):\n    {body}\n    os._exit(15)\nsignal.signal(signal.SIGTERM, stop)"
    )
    process = start(f"{handler}\n(folder / 'ready').touch()\n{SLEEP}")
    while not (tmp_path / "ready").exists():
        time.sleep(0.01)
    process.terminate()
    assert end(process) == (143, "", f"stopped by SIGTERM: {KEPT}\n")


def test_a_second_signal_ends_a_child_that_does_not_stop(
    start: Start, tmp_path: Path
) -> None:
    """Ctrl-C twice, while native code does not return."""
    process = start(
        f"signal.signal(signal.SIGINT, lambda *_: (folder / 'asked').touch())\n{SLEEP}"
    )
    child = wait_for_child(tmp_path)
    while not (tmp_path / "asked").exists():
        assert process.poll() is None, process.communicate()
        process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    assert end(process) == (130, "", f"interrupted: {KEPT}\n")
    assert not Path(f"/proc/{child}").exists()


def test_processes_of_a_dead_child_are_ended(start: Start, tmp_path: Path) -> None:
    """Workers of Ray outlive their raylet; nothing of a run stays behind."""
    body = (
        "worker = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "(folder / 'worker').write_text(str(worker.pid))\n"
        "os.abort()"
    )
    assert end(start(body))[0] == 1
    worker = int((tmp_path / "worker").read_text())
    assert not Path(f"/proc/{worker}").exists()


def test_the_child_dies_with_its_parent(start: Start, tmp_path: Path) -> None:
    """After kill -9 of the program, no child goes on writing."""
    process = start(SLEEP)
    child = wait_for_child(tmp_path)
    (found,) = [each for each in list_descendants(process.pid) if each.pid == child]
    process.kill()
    process.communicate()
    wait_for(lambda: not found.is_running())
