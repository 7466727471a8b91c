"""A local Ray that is killed: one line, an exit code, no process left, and the same bytes by the next run."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from pipeline.errors import EngineLost
from pipeline.execution.engine import run
from pipeline.execution.on_ray.failures import (
    describe_failure,
    find_log_folder,
    iterate_in_thread,
)
from pipeline.planning.plan import make_plan
from pipeline.processes import Process, list_descendants
from tests.conftest import REPOSITORY, wet_record
from tests.e2e.conftest import digests
from tests.pipeline.conftest import Small
from tests.pipeline.execution.on_ray.waiting import FILL, FOLDER, FULL, OPEN
from tests.sockets import is_loopback, list_listening

NUM_FILES = 3
PROGRAM = "from tests.pipeline.execution.on_ray.waiting import main; main()"
DEADLINE_S = 600


@dataclass
class WaitingRun:
    """A run on a local Ray, as a process, whose first tasks wait for a file.

    Attributes:
        gate: the folder of that file.
        run_dir: the folder of the run.
        reference: digests of an uninterrupted run in this process.
    """

    small: Small
    gate: Path
    files: list[str]
    reference: dict[str, str]
    process: subprocess.Popen[str]

    def wait_for_tasks(self, number: int = 2) -> None:
        """Wait until so many tasks run."""
        self.wait_until(lambda: len(list(self.gate.iterdir())) >= number)

    def wait_for_process(self, name: str) -> Process:
        """Wait until a process of that name runs, and return it."""
        self.wait_until(lambda: bool(self.find(name)))
        return self.find(name)[0]

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition while the run goes on."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert self.process.poll() is None, self.process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def find(self, name: str) -> list[Process]:
        """The processes of the run whose name starts so."""
        descendants = list_descendants(self.process.pid)
        return [each for each in descendants if each.name.startswith(name)]

    def open(self) -> None:
        """Let the tasks go on."""
        (self.gate / OPEN).touch()

    def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and the lines on stderr. No process may stay."""
        before = list_descendants(self.process.pid)
        stdout, stderr = self.process.communicate(timeout=DEADLINE_S)
        assert [each for each in before if each.is_running()] == []
        for word in ("Traceback", "core_worker", "state-dump", "raylet)", "SIGABRT"):
            assert word not in stdout + stderr
        return self.process.returncode, stderr

    def continue_inline(self) -> dict[str, str]:
        """Run the same config again, in this process; return the digests."""
        self.open()
        list(run(make_plan(self.small.config(input={"files": self.files}))))
        return digests(self.small.folder / "run")

    @property
    def kept(self) -> str:
        """The end of each message."""
        return (
            "finished tasks are kept, run the same command again to continue: "
            f"python -m pipeline run {self.small.path}\n"
        )


@pytest.fixture
def waiting_run(
    small: Small, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[WaitingRun]:
    """A run of three files on a Ray of two workers, which wait. A parameter adds variables to its environment."""
    files: list[str] = []
    for number in range(NUM_FILES):
        path = small.folder / f"{number}.warc.wet"
        page = "\n".join(["Title", f"Sentence {number} of the page. " * 20])
        path.write_bytes(wet_record(f"https://example.org/{number}", page))
        files.append(str(path))
    gate = small.folder / "gate"
    gate.mkdir()
    monkeypatch.setenv(FOLDER, str(gate))
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    list(run(make_plan(small.config("reference", input={"files": files}))))
    small.config(input={"files": files}, engine={"kind": "ray", "workers": 2})
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "run", str(small.path)],
        cwd=REPOSITORY,
        env={**os.environ, **getattr(request, "param", {}), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield WaitingRun(small, gate, files, digests(small.folder / "reference"), process)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def check_loopback(waiting_run: WaitingRun) -> None:
    """Control store, raylet, agents, workers and driver listen on loopback only."""
    assert waiting_run.find("gcs_server")
    assert waiting_run.find("raylet")
    processes = list_descendants(waiting_run.process.pid)
    listening = list_listening(each.pid for each in processes)
    assert len(listening) >= 8, listening
    assert [address for address, _ in listening if not is_loopback(address)] == []


@pytest.mark.ray
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("raylet", "raylet"),
        pytest.param("gcs_server", r"control store \(GCS\)", marks=pytest.mark.heavy),
        pytest.param("ray::Dashboard", "dashboard agent", marks=pytest.mark.heavy),
        pytest.param("ray::Runtime", "runtime environment agent", marks=pytest.mark.heavy),
    ],
)
def test_a_local_ray_is_private_and_its_death_is_named(
    waiting_run: WaitingRun, name: str, words: str
) -> None:
    """Exit code 1 and one line: what died, where the logs are, what is kept, how to go on.

    Before that, no other machine can reach a process of this Ray.
    """
    waiting_run.wait_for_tasks()
    check_loopback(waiting_run)
    # A process that it is starting has its name for a moment, and comes after it.
    victim = waiting_run.find(name)[0]
    victim.kill()
    code, stderr = waiting_run.end()
    assert code == 1
    # Ray may end the driver before it looks for dead processes, which it does twice a second.
    noticed = rf"{words} \(process {victim.pid}\).* died, the logs are in /\S+/logs; "
    ended = rf"{words} died, details are in /\S+\.log; "
    died = f"Ray's .*({noticed}|{ended})"
    assert re.fullmatch(died + re.escape(waiting_run.kept), stderr), stderr
    assert waiting_run.continue_inline() == waiting_run.reference


@pytest.mark.heavy
@pytest.mark.ray
@pytest.mark.parametrize("moment", ["gcs_server", "raylet", "tasks"])
def test_sigterm_ends_a_run_on_ray(waiting_run: WaitingRun, moment: str) -> None:
    """Ray replaces the handler of SIGTERM while it starts, and its native code may abort."""
    if moment == "tasks":
        waiting_run.wait_for_tasks()
    else:
        waiting_run.wait_for_process(moment)
    waiting_run.process.terminate()
    assert waiting_run.end() == (143, f"stopped by SIGTERM: {waiting_run.kept}")
    assert waiting_run.continue_inline() == waiting_run.reference


@pytest.mark.ray
@pytest.mark.heavy
@pytest.mark.parametrize(
    # Ray then refuses to move objects to the disk.
    "waiting_run",
    [{FILL: "1", "RAY_local_fs_capacity_threshold": "0.01"}],
    indirect=True,
)
def test_a_full_object_store_changes_nothing(waiting_run: WaitingRun) -> None:
    """Documents never pass through the object store, so a run ends as usual."""
    waiting_run.wait_until((waiting_run.gate / FULL).exists)
    assert (waiting_run.gate / FULL).read_text() in (
        "OutOfDiskError",
        "ObjectStoreFullError",
    )
    waiting_run.open()
    assert waiting_run.end() == (0, "")
    assert digests(waiting_run.small.folder / "run") == waiting_run.reference


def test_a_failure_of_ray_is_one_line_and_a_bug_is_not() -> None:
    """Errors of Ray are found in the chain of causes; an error that our code raised on a worker is a bug."""
    from ray.exceptions import ObjectStoreFullError, RaySystemError, RayTaskError

    def chain(cause: BaseException) -> BaseException:
        error = ValueError("of Ray Data")
        error.__cause__ = cause
        return error

    full = ObjectStoreFullError("The object store is full.\nMemory usage below: ...")
    line = "Ray failed with ObjectStoreFullError: "
    assert (describe_failure(full) or "").startswith(line)
    assert "\n" not in (describe_failure(chain(full)) or "")
    assert "RaySystemError" in (describe_failure(chain(RaySystemError("gone"))) or "")
    bug = RayTaskError("extract", "traceback", KeyError("bug"))
    assert describe_failure(chain(bug)) is None
    assert describe_failure(KeyError("bug")) is None


def test_the_logs_are_those_of_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other processes of the machine may have started a Ray later."""
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    for name in (f"1_{os.getpid()}", f"2_{os.getpid()}", f"3_{os.getpid() + 1}"):
        (tmp_path / "ray" / f"session_{name}" / "logs").mkdir(parents=True)
    found = find_log_folder()
    assert found == tmp_path / "ray" / f"session_2_{os.getpid()}" / "logs"


def test_rows_are_read_while_processes_are_checked() -> None:
    """Rows and errors of the thread arrive; a check that fails ends a wait that would never end."""

    def find_nothing() -> list[str]:
        return []

    assert list(iterate_in_thread(iter("abc"), find_nothing)) == ["a", "b", "c"]

    def fail() -> Iterator[str]:
        yield "a"
        raise KeyError("of the thread")

    rows = iterate_in_thread(fail(), find_nothing)
    assert next(rows) == "a"
    with pytest.raises(KeyError, match="of the thread"):
        next(rows)

    never = threading.Event()

    def wait_forever() -> Iterator[str]:
        never.wait()
        yield "never"

    def check() -> list[str]:
        raise EngineLost("a process died")

    with pytest.raises(EngineLost, match="a process died"):
        next(iterate_in_thread(wait_forever(), check))
    never.set()


def test_what_a_check_finds_comes_between_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checks are made while rows come all the time, too."""
    monkeypatch.setattr("pipeline.execution.on_ray.failures.CHECK_S", 0.01)
    is_checked = threading.Event()

    def read() -> Iterator[str]:
        while not is_checked.wait(0.001):
            yield "row"

    def check() -> list[str]:
        is_checked.set()
        return ["found"]

    rows = list(iterate_in_thread(read(), check))
    assert set(rows) - {"row"} == {"found"}
