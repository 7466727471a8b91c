"""The status of a run that is running, stopped, finished or left by its driver."""

from __future__ import annotations

import contextlib
import io
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from pipeline.errors import RunAborted
from pipeline.execution.engine import Event, PhaseFinished, TaskFinished, run
from pipeline.phases.run_plan import RunPlan
from pipeline.reporting.status import (
    SILENT_AFTER_S,
    PhaseStatus,
    Status,
    print_status,
    read_status,
)
from pipeline.runs.event_log import LOG
from pipeline.runs.run_folder import RunFolder
from terminal_output.console import SafeConsole
from tests.pipeline.conftest import Small
from tests.pipeline.reporting.pages import PAGES, RULES, write_pages
from tests.processes import run_python

NUM_FILES = 3


@pytest.fixture
def plan(small: Small) -> RunPlan:
    """A plan with three input splits; the second file ends in a broken record."""
    files = [
        write_pages(small.folder / f"{i}.warc.wet", PAGES, broken)
        for i, broken in enumerate((0, 1, 0))
    ]
    return small.plan(input={"files": [str(path) for path in files]}, **RULES)


def get_status(plan: RunPlan, after_s: float = 0) -> Status:
    return read_status(RunFolder.open(plan.run_dir), now=time.time() + after_s)


def get_phase(status: Status, name: str) -> PhaseStatus:
    return next(phase for phase in status.phases if phase.name == name)


@contextlib.contextmanager
def running(plan: RunPlan, num_tasks: int, phase: str) -> Iterator[None]:
    """Run until num_tasks tasks of the phase are done. When the block ends, the driver is stopped."""
    with contextlib.closing(run(plan)) as events:  # pyright: ignore[reportArgumentType] - it is a generator
        is_task = (
            isinstance(event, TaskFinished) and event.phase == phase
            for event in _iterate(events)
        )
        while num_tasks:
            num_tasks -= next(is_task)
        yield


def _iterate(events: Iterator[Event]) -> Iterator[Event]:
    yield from iter(lambda: next(events), None)


def test_running_phase_has_a_rate_and_an_end_estimate(plan: RunPlan) -> None:
    """Phases before the running one are done, those after it are waiting."""
    with running(plan, 2, "annotate"):
        found = get_status(plan)
        assert (found.state, found.why) == ("running", "")
        states = {phase.name: phase.state for phase in found.phases if phase.state != "off"}
        assert states == {
            "extract": "done",
            "paragraph_dedup": "done",
            "annotate": "running",
            **dict.fromkeys(("select", "tokenize", "write_shards"), "waiting"),
        }
        assert (
            get_phase(found, "extract").num_tasks
            == get_phase(found, "select").num_tasks
            == NUM_FILES
        )
        assert get_phase(found, "write_shards").num_tasks is None
        working = get_phase(found, "annotate")
        assert (working.num_done, working.num_tasks) == (2, NUM_FILES)
        assert working.rate_per_s
        assert working.left_s == pytest.approx((NUM_FILES - 2) / working.rate_per_s)


def test_run_without_recent_events_is_silent(plan: RunPlan) -> None:
    """Tasks that finished long ago do not count in the rate."""
    with running(plan, 2, "annotate"):
        found = get_status(plan, after_s=SILENT_AFTER_S + 3600)
        assert found.state == "silent"
        assert found.silent_s > SILENT_AFTER_S
        assert (
            get_phase(found, "annotate").rate_per_s,
            get_phase(found, "annotate").left_s,
        ) == (
            0,
            None,
        )


def test_events_from_the_future_count_as_now(plan: RunPlan) -> None:
    """The clock of this machine may be behind that of the driver."""
    with running(plan, 2, "annotate"):
        found = get_status(plan, after_s=-3600)
        assert (found.state, found.silent_s) == ("running", 0)
        assert (get_phase(found, "annotate").rate_per_s or 0) > 0


def test_a_killed_driver_is_known_at_once(plan: RunPlan) -> None:
    """On its machine; it could not log its end. Elsewhere, the run is silent after a while."""
    code = f"""
import os
from pipeline.config import RunConfig
from pipeline.execution.engine import TaskFinished, run
from pipeline.planning.plan import make_plan
config = RunConfig.model_validate_json({plan.config.model_dump_json()!r})
for event in run(make_plan(config)):
    if isinstance(event, TaskFinished):
        os._exit(9)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    found = get_status(plan)
    assert found.state == "stopped"
    assert "driver died" in found.why
    log = Path(str(plan.run_dir)) / LOG
    log.write_text(re.sub('"machine": "[^"]*"', '"machine": "another"', log.read_text()))
    assert get_status(plan).state == "running"


def test_stopped_run_can_be_resumed(plan: RunPlan) -> None:
    """A stopped run keeps its counts; after it was run again it is finished."""
    with running(plan, 2, "annotate"):
        pass
    found = get_status(plan)
    assert (found.state, found.why) == ("stopped", "its driver was stopped")
    assert get_phase(found, "annotate") == PhaseStatus("annotate", "stopped", NUM_FILES, 2)
    assert isinstance(list(run(plan))[-1], PhaseFinished)
    found = get_status(plan)
    assert found.state == "finished"
    assert {phase.state for phase in found.phases} == {"done", "off"}


def test_failures_are_shown_until_they_are_repaired(plan: RunPlan) -> None:
    """The failures of the latest start are shown, and none after a successful run."""
    path = Path(plan.splits[1].files[0].location)
    away = path.rename(path.with_suffix(".away"))
    with pytest.raises(RunAborted):
        list(run(plan))
    found = get_status(plan)
    assert found.state == "stopped"
    assert found.why.startswith("phase extract: 1 of 3 tasks failed")
    (task_id,) = found.failures
    assert task_id == f"extract {plan.splits[1].key}"
    assert "No such file" in found.failures[task_id]
    away.rename(path)
    list(run(plan))
    assert get_status(plan).failures == {}


def test_quarantine_is_counted_while_extract_runs(plan: RunPlan) -> None:
    """The count from the done-records equals that of the summary."""
    with running(plan, NUM_FILES, "extract"):
        early = get_status(plan)
        assert get_phase(early, "extract").num_done == NUM_FILES
    list(run(plan))
    assert sum(early.quarantine.values()) == 1
    assert (early.quarantine, early.num_records) == (
        get_status(plan).quarantine,
        get_status(plan).num_records,
    )


def test_terminal_and_json_show_the_status(plan: RunPlan) -> None:
    """The table has a row per phase, and the JSON the same numbers."""
    with running(plan, 2, "annotate"):
        found = get_status(plan)
        console = SafeConsole(file=io.StringIO(), width=160, soft_wrap=True)
        print_status(found, console)
        shown = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue] - it is a StringIO
    assert f"{plan.run_dir}: running" in shown
    assert f"quarantined: 1 of {found.num_records} records" in shown
    (line,) = (line for line in shown.splitlines() if line.startswith("annotate"))
    assert "2 of 3" in line
    assert "tasks/" in line
    assert {phase["name"]: phase["num_done"] for phase in asdict(found)["phases"]}[
        "annotate"
    ] == 2


def test_command_does_not_import_ray(plan: RunPlan) -> None:
    """The status command must be fast, and work where no Ray is installed."""
    list(run(plan))
    program = (
        "import sys; from pipeline.cli import app; app(sys.argv[1:], standalone_mode=False); "
        "assert 'ray' not in sys.modules"
    )
    done = run_python("-c", program, "status", str(plan.run_dir))
    assert (done.returncode, done.stderr) == (0, "")
    assert "finished" in done.stdout
