"""The run lock: one driver at a time, on a disk and in a bucket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.runs import run_lock
from pipeline.runs.run_lock import HeldByAnother, RunLock, hold
from storage import open_store
from storage.object_store import ObjectStore
from tests.conftest import REPOSITORY
from tests.pipeline.runs.waiting import wait_for

HOLD_AND_SLEEP = """
import sys, time
from pipeline.runs.run_lock import hold
from storage import open_store
with hold(open_store(sys.argv[1])):
    print("holding", flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("place", ["disk", "bucket"])
def test_the_lock_of_a_killed_driver_is_free_on_its_machine(
    place: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """While the driver lives, others are refused at once; after kill -9 nobody waits."""
    folder = (
        request.getfixturevalue("bucket_store")
        if place == "bucket"
        else open_store(tmp_path)
    )
    command = [sys.executable, "-c", HOLD_AND_SLEEP, str(folder)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY
    ) as driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == "holding\n"
        with (
            pytest.raises(HeldByAnother, match=rf"another process is working in {folder}"),
            hold(folder),
        ):
            pass
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        with hold(folder) as held:
            held.check()


def test_a_second_driver_is_refused_and_learns_who_holds_the_lock(
    bucket_store: ObjectStore,
) -> None:
    """When the first driver releases the lock, the folder is free."""
    message = rf"process {os.getpid()} of .*last renewal \d+ s ago.*expires in \d+ s"
    with hold(bucket_store) as held:
        with pytest.raises(HeldByAnother, match=message), hold(bucket_store):
            pass
        held.check()
    with hold(bucket_store):
        pass


def test_an_expired_lock_is_taken_over_and_its_former_holder_finds_out(
    bucket_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first driver sleeps too long; it must not delete the lock of the second."""
    monkeypatch.setattr(run_lock, "EXPIRE_S", 1.0)
    monkeypatch.setattr(run_lock, "RENEW_S", 6.0)
    with hold(bucket_store) as sleeper:
        time.sleep(2.1)  # the server's clock counts in seconds
        with hold(bucket_store) as second:
            wait_for(lambda: is_lost(sleeper))
            second.check()
    with pytest.raises(HeldByAnother, match=r"has taken over"):
        sleeper.check()


def is_lost(held: RunLock) -> bool:
    try:
        held.check()
    except HeldByAnother:
        return True
    return False
