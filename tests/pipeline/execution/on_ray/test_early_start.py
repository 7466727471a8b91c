"""Ray starts in a thread while the driver plans the run."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

import pytest

from pipeline import cli
from pipeline.errors import RunAborted
from pipeline.execution import choose_engine
from pipeline.execution.choose_engine import start_planned_ray, start_ray_early
from pipeline.execution.on_ray import engine as ray_engine
from pipeline.execution.on_ray.early_start import StartThread, unshare_umask
from pipeline.execution.on_ray.engine import RayEngine
from pipeline.processes import list_descendants
from storage.local import read_umask
from tests.pipeline.conftest import Small

ONLY_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="threads share their umask")
CHILD = (
    "import ctypes, time; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); print(flush=True)\n"
    "time.sleep(600)"
)


class FakeRay:
    """What a test has seen of `ray.init` and `ray.shutdown`."""

    def __init__(self) -> None:
        self.may_start = threading.Event()
        self.init_threads: list[threading.Thread] = []
        self.umasks: list[int] = []
        self.num_shutdowns = 0
        self.error: Exception | None = None

    def init(self, **_: Any) -> None:
        """Wait for the test, and note thread and umask."""
        assert self.may_start.wait(30)
        self.init_threads.append(threading.current_thread())
        self.umasks.append(read_umask())
        if self.error is not None:
            raise self.error

    def shutdown(self) -> None:
        """Count the calls."""
        self.num_shutdowns += 1


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    """Replace the start and the end of a local Ray."""
    import ray

    found = FakeRay()
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", found.init)
    monkeypatch.setattr(ray, "shutdown", found.shutdown)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"memory": 4e9})
    monkeypatch.setattr(ray_engine, "start_workers", lambda _: None)
    return found


def start(small: Small) -> RayEngine:
    """Return the engine of a run with `engine.kind: ray`, which is starting."""
    engine = start_ray_early(small.config(engine={"kind": "ray"}))
    assert isinstance(engine, RayEngine)
    return engine


@ONLY_LINUX
def test_the_driver_goes_on_with_its_umask_while_ray_starts(
    small: Small, fake: FakeRay
) -> None:
    """Only the thread that starts Ray has the private umask."""
    umask = read_umask()
    with start(small) as engine:
        assert not fake.init_threads
        assert read_umask() == umask
        fake.may_start.set()
        engine.start()
        (thread,) = fake.init_threads
        assert thread is not threading.main_thread()
        assert fake.umasks == [0o077]
        assert read_umask() == umask
        assert thread.is_alive()
    thread.join(30)
    assert fake.num_shutdowns == 1


@ONLY_LINUX
@pytest.mark.parametrize("error", [RunAborted("no model"), KeyboardInterrupt()])
def test_a_run_that_ends_before_its_first_task_shuts_ray_down(
    small: Small, fake: FakeRay, error: BaseException
) -> None:
    """The error of the preflight, or Ctrl-C, is raised when Ray is down."""
    fake.may_start.set()
    with pytest.raises(type(error)), start(small):
        raise error
    assert len(fake.init_threads) == fake.num_shutdowns == 1


@ONLY_LINUX
def test_an_error_of_the_preflight_comes_before_one_of_ray(
    small: Small, fake: FakeRay
) -> None:
    """The start of Ray fails in the meantime, which no longer matters."""
    fake.may_start.set()
    fake.error = RuntimeError("timed out")
    with pytest.raises(RunAborted, match=r"^no model$"), start(small):
        raise RunAborted("no model")


@ONLY_LINUX
def test_an_error_of_the_thread_is_raised_by_the_start(small: Small, fake: FakeRay) -> None:
    """As if Ray had been started at the first task."""
    fake.may_start.set()
    fake.error = RuntimeError("timed out")
    message = r"Ray did not start on this machine in 2 attempts \(RuntimeError: timed out\)"
    with start(small) as engine, pytest.raises(RunAborted, match=message):
        engine.start()
    assert len(fake.init_threads) == 2


def test_other_kinds_of_engines_wait_for_the_plan(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` may choose this process, and does so for a few pages."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    for kind in ("auto", "inline"):
        assert start_ray_early(small.config(engine={"kind": kind})) is None
        assert start_planned_ray(small.plan(engine={"kind": kind})) is None


@ONLY_LINUX
def test_auto_starts_ray_early_where_nothing_else_is_possible(
    small: Small, fake: FakeRay
) -> None:
    """The metrics port needs Ray, so the plan is not waited for."""
    fake.may_start.set()
    engine = start_ray_early(small.config(engine={"kind": "auto", "metrics_port": 9464}))
    assert isinstance(engine, RayEngine)
    with engine:
        pass
    assert fake.num_shutdowns == 1


@ONLY_LINUX
def test_auto_starts_ray_when_the_plan_is_large(
    small: Small, fake: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models are opened meanwhile."""
    fake.may_start.set()
    monkeypatch.setattr(choose_engine, "RAY_START_S", -1e9)
    engine = start_planned_ray(small.plan(engine={"kind": "auto", "workers": 2}))
    assert isinstance(engine, RayEngine)
    with engine:
        engine.start()
    assert len(fake.init_threads) == fake.num_shutdowns == 1


@ONLY_LINUX
def test_an_error_of_the_preflight_is_printed_before_ray_has_started(
    small: Small,
    fake: FakeRay,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The end of Ray takes seconds, in which the user would see nothing."""
    small.config(engine={"kind": "ray"}, input={"files": [str(small.folder / "none*.gz")]})
    printed: list[str] = []
    wait = StartThread.wait

    def let_ray_start(thread: StartThread) -> bool:
        printed.append(capsys.readouterr().err)
        fake.may_start.set()
        # The thread must not go on when the test is over: `ray.init` is then the real one.
        return wait(thread)

    monkeypatch.setattr(StartThread, "wait", let_ray_start)
    monkeypatch.setattr(cli, "supervise", lambda: None)
    with pytest.raises(SystemExit):
        cli.make_program()(["run", str(small.path)])
    assert "none*.gz" in printed[0]


@ONLY_LINUX
def test_processes_of_the_thread_live_until_it_is_closed() -> None:
    """Linux kills a child with PR_SET_PDEATHSIG when its parent thread ends."""
    children: list[subprocess.Popen[bytes]] = []

    def start_child() -> None:
        command = [sys.executable, "-c", CHILD]
        children.append(subprocess.Popen(command, stdout=subprocess.PIPE))

    thread = StartThread(start_child)
    assert thread.wait()
    (child,) = children
    assert child.stdout is not None
    child.stdout.readline()
    assert child.poll() is None
    assert child.pid in [process.pid for process in list_descendants()]
    thread.close()
    assert child.wait(30) == -9
    child.stdout.close()


@ONLY_LINUX
def test_a_thread_that_cannot_have_its_own_umask_starts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Then `start` starts Ray where it is called."""
    monkeypatch.setattr(
        "pipeline.execution.on_ray.early_start.unshare_umask", lambda: False
    )
    called: list[int] = []
    thread = StartThread(lambda: called.append(1))
    assert not thread.wait()
    thread.close()
    assert called == []


@ONLY_LINUX
def test_a_thread_has_its_own_umask() -> None:
    """It is that of the process at first."""
    umask, found = read_umask(), list[int]()

    def change() -> None:
        assert unshare_umask()
        found.append(os.umask(0o077))

    thread = threading.Thread(target=change)
    thread.start()
    thread.join()
    assert found == [umask]
    assert read_umask() == umask
