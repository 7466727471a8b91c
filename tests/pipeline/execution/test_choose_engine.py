"""`engine.kind: auto` takes the engine by the size of the input."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from pipeline.execution.choose_engine import choose_kind, make_engine
from pipeline.execution.inline import InlineEngine
from pipeline.execution.on_ray.engine import RayEngine
from pipeline.inputs.input_files import InputFile
from pipeline.inputs.input_splits import InputSplit
from pipeline.phases.run_plan import RunPlan
from pipeline.planning.plan import plan_splits
from tests.pipeline.conftest import Small

MB = 2**20


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run as if on one machine."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def plan_files(small: Small, megabytes: int, num_files: int, workers: int) -> RunPlan:
    """A plan over files that need not exist."""
    config = small.config(engine={"kind": "auto", "workers": workers})
    splits: list[InputSplit] = []
    for index in range(num_files):
        file = InputFile(f"/crawl/{index}.wet.gz", megabytes * MB, f"{index:064d}")
        splits.append(InputSplit.create(index, [file]))
    return plan_splits(config, splits)


def test_a_small_run_stays_in_this_process(small: Small) -> None:
    """Ray's start would take longer than the run."""
    kind, reason = choose_kind(plan_files(small, megabytes=1, num_files=2, workers=8))
    assert (kind, reason) == ("inline", "2.1 MB of input are at most 64 MB")


def test_a_large_run_goes_to_ray(small: Small) -> None:
    """With one worker it stays in this process, because Ray would save nothing."""
    assert choose_kind(plan_files(small, 75, 100, workers=8))[0] == "ray"
    assert choose_kind(plan_files(small, 75, 100, workers=1))[0] == "inline"


def test_requests_of_phases_do_not_keep_a_run_from_this_process(small: Small) -> None:
    """One process runs a task that requests many CPUs."""
    engine = {"kind": "auto", "workers": 2, "phases": {"annotate": {"num_cpus": 64}}}
    assert choose_kind(small.plan(engine=engine))[0] == "inline"


def test_requests_without_effect_are_named(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    """Only Ray gives GPUs and custom resources to tasks; a run in one process says so."""
    phases = {
        "annotate": {"num_gpus": 1, "num_cpus": 2},
        "extract": {"custom": {"disk": 1}},
    }
    plan = small.plan(engine={"kind": "inline", "phases": phases})
    with caplog.at_level(logging.WARNING, logger="pipeline"):
        make_engine(plan)
    assert caplog.messages == [
        "engine.phases.annotate.num_gpus has no effect in one process; engine.kind: ray follows it",
        "engine.phases.extract.custom has no effect in one process; engine.kind: ray follows it",
    ]


def test_a_cluster_and_a_metrics_port_mean_ray(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even a run of one small file uses Ray."""
    port = small.plan(engine={"kind": "auto", "metrics_port": 9464})
    assert choose_kind(port) == ("ray", "engine.metrics_port needs Ray")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert choose_kind(small.plan()) == ("ray", "RAY_ADDRESS is 10.0.0.1:6379")


def test_the_choice_is_logged_in_one_line(
    small: Small, caplog: pytest.LogCaptureFixture
) -> None:
    """The line has the size of the input. A config that names its engine logs nothing."""
    with caplog.at_level(logging.INFO, "pipeline"):
        assert isinstance(make_engine(small.plan(engine={"kind": "auto"})), InlineEngine)
    (record,) = caplog.records
    assert record.getMessage().startswith("engine: inline (0.0 MB of input ")
    caplog.clear()
    assert isinstance(make_engine(small.plan(engine={"kind": "ray"})), RayEngine)
    assert isinstance(make_engine(small.plan(engine={"kind": "inline"})), InlineEngine)
    assert not caplog.records


def test_auto_gives_the_same_bytes(small: Small, tmp_path: Path) -> None:
    """The kind of the engine is no part of a fingerprint."""
    inline, auto = small.plan("one"), small.plan("two", engine={"kind": "auto"})
    fingerprints = [[phase.fingerprint for phase in plan.phases] for plan in (inline, auto)]
    assert fingerprints[0] == fingerprints[1]
