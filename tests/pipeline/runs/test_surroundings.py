"""What may happen around a run: a clock that is set back, a moved folder, a paused driver."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from pipeline.errors import RunAborted
from pipeline.execution.engine import PhaseFinished, PhaseStarted, run
from pipeline.planning.plan import make_plan
from pipeline.reporting.status import read_status
from pipeline.runs import run_lock
from pipeline.runs.run_folder import RunFolder
from storage.object_store import ObjectStore
from tests.conftest import REPOSITORY
from tests.e2e.conftest import digests
from tests.pipeline.conftest import Small

# Runs a config; waits for a line before it asks for the event after extract.
DRIVER = """
import sys
import threading
from pipeline.config import load
from pipeline.errors import RunAborted
from pipeline.execution.engine import PhaseFinished, run
from pipeline.planning.plan import make_plan
from pipeline.runs import run_lock
run_lock.RENEW_S, run_lock.EXPIRE_S = 0.3, 2.0
try:
    for event in run(make_plan(load(sys.argv[1], [f"run_dir={sys.argv[2]}"]))):
        if isinstance(event, PhaseFinished) and event.phase == "extract":
            print("extracted", flush=True)
            sys.stdin.readline()
            # Only a lock in a bucket is renewed. The thread ends when the lock is lost.
            for thread in threading.enumerate():
                if "_renew" in thread.name:
                    thread.join()
    print("finished", flush=True)
except RunAborted as error:
    print(error, flush=True)
"""


def start_driver(small: Small, run_dir: object) -> subprocess.Popen[str]:
    """Start a driver, and return when it has finished extract."""
    small.config()
    command = [sys.executable, "-c", DRIVER, str(small.path), str(run_dir)]
    driver = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=REPOSITORY,
    )
    assert driver.stdout is not None
    assert driver.stdout.readline() == "extracted\n"
    return driver


def run_to_the_end(small: Small, run_dir: object) -> list[str]:
    """Run in this process; return the phases in which tasks were left."""
    config = small.config().model_copy(update={"run_dir": str(run_dir)})
    events = list(run(make_plan(config)))
    return [event.phase for event in events if isinstance(event, PhaseStarted)]


def test_a_clock_that_goes_back_changes_nothing(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the clock is an hour earlier; a second run is a year before the first."""
    wanted, _ = small.run("steady")
    now = time.time()
    ticks = itertools.count()
    monkeypatch.setattr(time, "time", lambda: now - 3_600 * next(ticks))
    found, _ = small.run()
    assert digests(Path(str(found.run_dir))) == digests(Path(str(wanted.run_dir)))
    monkeypatch.setattr(time, "time", lambda: now - 365 * 86_400)
    assert run_to_the_end(small, found.run_dir) == []
    status = read_status(found, now=time.time())
    assert (status.state, status.silent_s) == ("finished", 0.0)


def test_a_moved_run_folder_is_continued(small: Small, tmp_path: Path) -> None:
    """Under its new path: finished phases are not repeated, and the bytes are the same."""
    wanted, _ = small.run("unmoved")
    events = run(small.plan())
    assert isinstance(events, Generator)
    assert any(isinstance(e, PhaseFinished) and e.phase == "annotate" for e in events)
    events.close()
    moved = tmp_path / "elsewhere" / "moved"
    moved.parent.mkdir()
    (tmp_path / "run").rename(moved)
    started = run_to_the_end(small, moved)
    assert "select" in started
    assert not {"extract", "annotate"} & set(started)
    assert digests(moved) == digests(Path(str(wanted.run_dir)))
    finished = moved.rename(tmp_path / "again")
    assert run_to_the_end(small, finished) == []
    assert (finished / "dataset" / "manifest.json").exists()


def test_a_paused_driver_keeps_a_run_folder_on_a_disk(small: Small, tmp_path: Path) -> None:
    """A second driver is refused. The first one goes on, with the same bytes."""
    wanted, _ = small.run("alone")
    with start_driver(small, tmp_path / "run") as driver:
        driver.send_signal(signal.SIGSTOP)
        with pytest.raises(RunAborted, match="another process is working in"):
            run_to_the_end(small, tmp_path / "run")
        driver.send_signal(signal.SIGCONT)
        out, _ = driver.communicate("\n")
    assert out == "finished\n"
    assert digests(tmp_path / "run") == digests(Path(str(wanted.run_dir)))


def test_a_paused_driver_loses_a_run_folder_in_a_bucket(
    small: Small, bucket_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second driver finishes the run. The first one ends in our words, and harms nothing."""
    monkeypatch.setattr(run_lock, "EXPIRE_S", 2.0)
    wanted, _ = small.run("alone")
    with start_driver(small, bucket_store) as driver:
        driver.send_signal(signal.SIGSTOP)
        time.sleep(3.1)  # the server's clock counts in seconds
        assert "annotate" in run_to_the_end(small, bucket_store)
        driver.send_signal(signal.SIGCONT)
        out, _ = driver.communicate("\n")
    assert "another process has taken over" in out
    assert "Finished tasks stay done" in out
    found = RunFolder.open(str(bucket_store))
    for phase, name in wanted.folders.items():
        folder = wanted.folder(phase).root
        assert found.folders[phase] == name
        assert found.folder(phase).root.list_names() == folder.list_names()
        for file in folder.list_names():
            content = found.folder(phase).root.read_bytes(file)
            assert content == folder.read_bytes(file), file
