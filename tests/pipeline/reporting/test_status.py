"""What `status` says of a run at work, stopped, finished, and left by its driver: from the run folder alone."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from pipeline.errors import RunAborted
from pipeline.execution.engine import Event, PhaseFinished, TaskFinished, run
from pipeline.planning.run_plan import RunPlan
from pipeline.reporting.status import (
    SILENT_AFTER_S,
    PhaseStatus,
    Status,
    print_status,
    read_status,
    to_json,
)
from pipeline.runs.run_folder import RunFolder
from tests.conftest import REPOSITORY
from tests.pipeline.conftest import Small
from tests.pipeline.reporting.pages import PAGES, RULES, write_pages

NUM_FILES = 3


@pytest.fixture
def plan(small: Small) -> RunPlan:
    """Three units; the second file ends in a broken record."""
    files = [
        write_pages(small.folder / f"{i}.warc.wet", PAGES, broken)
        for i, broken in enumerate((0, 1, 0))
    ]
    return small.plan(input={"files": [str(path) for path in files]}, **RULES)


def status_of(plan: RunPlan, after_s: float = 0) -> Status:
    return read_status(RunFolder.open(plan.run_dir), now=time.time() + after_s)


def phase_of(status: Status, name: str) -> PhaseStatus:
    return next(phase for phase in status.phases if phase.name == name)


@contextlib.contextmanager
def at_work(plan: RunPlan, num_tasks: int, phase: str) -> Iterator[None]:
    """The run, until so many pieces of that phase are done; on leaving, its driver is stopped."""
    with contextlib.closing(run(plan)) as events:  # pyright: ignore[reportArgumentType] - it is a generator
        is_work = (
            isinstance(event, TaskFinished) and event.phase == phase for event in _alive(events)
        )
        while num_tasks:
            num_tasks -= next(is_work)
        yield


def _alive(events: Iterator[Event]) -> Iterator[Event]:
    yield from iter(lambda: next(events), None)


def test_a_run_at_work_shows_its_rate_and_what_is_left(plan: RunPlan) -> None:
    """The phase at work has a rate and an end estimate that belong together; before it done, after it waiting."""
    with at_work(plan, 2, "annotate"):
        found = status_of(plan)
        assert (found.state, found.why) == ("running", "")
        states = {phase.name: phase.state for phase in found.phases if phase.state != "off"}
        assert states == {
            "extract": "done",
            "paragraph_dedup": "done",
            "annotate": "running",
            **dict.fromkeys(("select", "tokenize", "write_shards"), "waiting"),
        }
        assert (
            phase_of(found, "extract").num_tasks == phase_of(found, "select").num_tasks == NUM_FILES
        )
        assert phase_of(found, "write_shards").num_tasks is None
        working = phase_of(found, "annotate")
        assert (working.num_done, working.num_tasks) == (2, NUM_FILES)
        assert working.rate_per_s
        assert working.left_s == pytest.approx((NUM_FILES - 2) / working.rate_per_s)


def test_a_driver_that_says_nothing_for_long_is_called_silent(plan: RunPlan) -> None:
    """It may be dead; the rate of what was done long ago is none."""
    with at_work(plan, 2, "annotate"):
        found = status_of(plan, after_s=SILENT_AFTER_S + 3600)
        assert found.state == "silent"
        assert found.silent_s > SILENT_AFTER_S
        assert (phase_of(found, "annotate").rate_per_s, phase_of(found, "annotate").left_s) == (
            0,
            None,
        )


def test_a_clock_behind_the_drivers_harms_nothing(plan: RunPlan) -> None:
    """What the log has from the future was just now."""
    with at_work(plan, 2, "annotate"):
        found = status_of(plan, after_s=-3600)
        assert (found.state, found.silent_s) == ("running", 0)
        assert (phase_of(found, "annotate").rate_per_s or 0) > 0


def test_a_stopped_run_keeps_its_count_and_goes_on(plan: RunPlan) -> None:
    """Stopped, it says so; started again and ended, it is finished."""
    with at_work(plan, 2, "annotate"):
        pass
    found = status_of(plan)
    assert (found.state, found.why) == ("stopped", "its driver was stopped")
    assert phase_of(found, "annotate") == PhaseStatus("annotate", "stopped", NUM_FILES, 2)
    assert isinstance(list(run(plan))[-1], PhaseFinished)
    found = status_of(plan)
    assert found.state == "finished"
    assert {phase.state for phase in found.phases} == {"done", "off"}


def test_failures_are_told_until_they_are_mended(plan: RunPlan) -> None:
    """Work and cause of the latest start; none once the run went through."""
    path = Path(plan.splits[1].files[0].location)
    away = path.rename(path.with_suffix(".away"))
    with pytest.raises(RunAborted):
        list(run(plan))
    found = status_of(plan)
    assert found.state == "stopped"
    assert found.why.startswith("phase extract: 1 of 3 tasks failed")
    (task_id,) = found.failures
    assert task_id == f"extract {plan.splits[1].key}"
    assert "No such file" in found.failures[task_id]
    away.rename(path)
    list(run(plan))
    assert status_of(plan).failures == {}


def test_quarantine_is_counted_before_the_phase_is_summed_up(plan: RunPlan) -> None:
    """From the done-records, and the same afterwards."""
    with at_work(plan, NUM_FILES, "extract"):
        early = status_of(plan)
        assert phase_of(early, "extract").num_done == NUM_FILES
    list(run(plan))
    assert sum(early.quarantine.values()) == 1
    assert (early.quarantine, early.num_records) == (
        status_of(plan).quarantine,
        status_of(plan).num_records,
    )


def test_it_is_shown_to_people_and_to_programs(plan: RunPlan) -> None:
    """One table with a line per phase; the same figures as JSON."""
    with at_work(plan, 2, "annotate"):
        found = status_of(plan)
        console = Console(file=io.StringIO(), width=160, soft_wrap=True)
        print_status(found, console)
        shown = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue] - it is a StringIO
    assert f"{plan.run_dir}: running" in shown
    assert f"quarantined: 1 of {found.num_records} records" in shown
    (line,) = (line for line in shown.splitlines() if line.startswith("annotate"))
    assert "2 of 3" in line
    assert "a minute" in line
    assert {phase["name"]: phase["num_done"] for phase in json.loads(to_json(found))["phases"]}[
        "annotate"
    ] == 2


def test_the_command_needs_no_ray(plan: RunPlan) -> None:
    """It is asked on machines where none runs, again and again."""
    list(run(plan))
    program = (
        "import sys; from pipeline.cli import app; app(sys.argv[1:], standalone_mode=False); "
        "assert 'ray' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "status", str(plan.run_dir)],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "finished" in done.stdout
