"""Paused and rival drivers, clocks that go back, and run folders that are moved."""

from __future__ import annotations

import itertools
import os
import random
import shutil
import signal
import time
from functools import partial
from pathlib import Path

from pipeline.phases.run_plan import RunPlan
from pipeline.planning.plan import make_plan
from pipeline.runs import run_lock
from pipeline.runs.event_log import read_events
from storage import open_store
from tests.faults.attack import Attack, find_nothing
from tests.faults.runs.crash import KILLED, make_point, resume, run_killed
from tests.faults.runs.kill_points import (
    AFTER_RECORD,
    AFTER_RENAME,
    BEFORE_SUMMARY,
    BEFORE_WRITE,
    KillPoint,
)
from tests.faults.runs.small_run import (
    PHASES,
    check_outputs,
    find_missing_seaweed,
    make_config,
    make_run_dir,
    run_command,
    run_to_end,
    start_driver,
    wait_for,
)

MOMENTS = (BEFORE_WRITE, AFTER_RENAME, AFTER_RECORD, BEFORE_SUMMARY)
POINTS = tuple(itertools.product(PHASES, MOMENTS))

# Instead of a minute, so that a try takes seconds.
EXPIRE_S, RENEW_S = 10.0, 1.0

PAUSE_TIMEOUT_S = 240.0

YEAR_S = 365 * 86_400.0


# ---- two drivers, one of them paused ----


def run_paused(plan: RunPlan, point: KillPoint) -> None:
    """Run, and pause this process at a point. Runs in a driver process."""
    run_lock.EXPIRE_S, run_lock.RENEW_S = EXPIRE_S, RENEW_S
    run_killed(plan, point)


def run_as_rival(plan: RunPlan) -> None:
    """Run with a lock that expires soon. Runs in a driver process."""
    run_lock.EXPIRE_S, run_lock.RENEW_S = EXPIRE_S, RENEW_S
    run_to_end(plan)


def pause_driver(storage: str, seed: int, folder: Path) -> None:
    """Pause a driver, let another one work, and continue the first.

    On a disk the rival is refused. In an object store it takes over when the lock has expired,
    and the first one must notice.
    """
    phase, moment = POINTS[seed]
    run_dir, messages = make_run_dir(storage, folder), folder / "messages"
    point = make_point(folder, (phase,), moment, signal_number=signal.SIGSTOP)
    plan = make_plan(make_config(run_dir))
    paused = start_driver(run_paused, plan, point, messages=messages)
    assert paused.pid is not None
    _wait_for_pause(paused.pid, messages)
    rival = start_driver(run_as_rival, plan, messages=folder / "rival")
    rival_code = wait_for(rival)
    rival_text = (folder / "rival").read_text()
    assert rival_code == 1, "the lock of a paused driver was ignored"
    assert "another process is working in" in rival_text, rival_text[-2000:]
    if storage != "local disk":
        time.sleep(EXPIRE_S + 1)
        code = wait_for(start_driver(run_as_rival, plan, messages=messages))
        assert code == 0, f"no takeover: {messages.read_text()[-2000:]}"
        check_outputs(run_dir)
    os.kill(paused.pid, signal.SIGCONT)
    code = wait_for(paused)
    text = messages.read_text()
    if code != 0:
        assert storage != "local disk", text[-2000:]
        wanted = "another process has taken over", "Finished tasks stay done"
        assert all(words in text for words in wanted), text[-2000:]
    check_outputs(run_dir)


def _wait_for_pause(pid: int, messages: Path) -> None:
    deadline = time.monotonic() + PAUSE_TIMEOUT_S
    while time.monotonic() < deadline:
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        if status == "T":
            return
        assert status != "Z", f"the driver ended: {messages.read_text()[-2000:]}"
        time.sleep(0.05)
    raise AssertionError("the driver did not reach its point")


# ---- clocks and moved folders ----


def run_with_clock(plan: RunPlan, offset_s: float) -> None:
    """Run with a clock that is wrong and goes back at each call. Runs in a driver process."""
    readings = itertools.count()
    right_time = time.time
    time.time = lambda: right_time() + offset_s - 60 * next(readings)
    run_to_end(plan)


def turn_clock_back(seed: int, folder: Path) -> None:
    """Kill a run, give its files random times, and go on with a wrong clock."""
    phase, moment = POINTS[seed]
    draws = random.Random(seed)
    run_dir, messages = str(folder / "run"), folder / "messages"
    _run_until(run_dir, phase, moment, messages)
    for path in Path(run_dir).rglob("*"):
        if not path.is_symlink():
            at = time.time() + draws.uniform(-YEAR_S, YEAR_S)
            os.utime(path, (at, at))
    offset_s = draws.uniform(-YEAR_S, YEAR_S)
    plan = make_plan(make_config(run_dir))
    driver = start_driver(run_with_clock, plan, offset_s, messages=messages)
    assert wait_for(driver) == 0, messages.read_text()[-2000:]
    check_outputs(run_dir)
    for command in ("status", "report"):
        code = wait_for(start_driver(run_command, command, run_dir, messages=messages))
        assert code == 0, f"{command} ended with {code}: {messages.read_text()[-2000:]}"


def move_folder(seed: int, folder: Path) -> None:
    """Kill a run, move or copy its folder, and go on at the new path: no finished phase starts again."""
    number, is_copy = len(PHASES) - 1 - seed // 2, seed % 2
    messages, moved = folder / "messages", folder / "another folder" / "run"
    _run_until(str(folder / "run"), PHASES[number], BEFORE_WRITE, messages)
    moved.parent.mkdir()
    if is_copy:
        shutil.copytree(folder / "run", moved, symlinks=True)
        shutil.rmtree(folder / "run")
    else:
        (folder / "run").rename(moved)
    resume(str(moved), messages)
    events = read_events(open_store(moved))
    started = [each["phase"] for each in events if each["event"] == "PhaseStarted"]
    assert not {*PHASES[:number]} & {*started[started.index(PHASES[number]) + 1 :]}, started
    assert (moved / "dataset" / "manifest.json").exists()


def _run_until(run_dir: str, phase: str, moment: str, messages: Path) -> None:
    point, plan = (
        make_point(messages.parent, (phase,), moment),
        make_plan(make_config(run_dir)),
    )
    code = wait_for(start_driver(run_killed, plan, point, messages=messages))
    assert code in KILLED, f"not killed ({code}): {messages.read_text()[-2000:]}"


ATTACKS = (
    *(
        Attack(
            f"drivers: one paused, {storage}",
            "Two drivers never mix: one is refused or takes over, and the bytes are the same.",
            len(POINTS),
            1,
            partial(pause_driver, storage),
            find_obstacle,
            timeout_s=600.0,
        )
        for storage, find_obstacle in (
            ("local disk", find_nothing),
            ("object store", find_missing_seaweed),
        )
    ),
    Attack(
        "drivers: clock goes back",
        "Neither clocks nor times of files decide what is done again.",
        len(POINTS),
        1,
        turn_clock_back,
        timeout_s=600.0,
    ),
    Attack(
        "drivers: run folder moved",
        "A run continues in a folder that was moved or copied.",
        2 * len(PHASES),
        1,
        move_folder,
        timeout_s=600.0,
    ),
)
