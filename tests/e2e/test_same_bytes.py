"""The same input gives the same bytes on any engine and after any interruption."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline.execution import engine
from pipeline.execution.engine import PhaseFinished, PhaseStarted, TaskFinished
from pipeline.execution.inline import InlineEngine
from pipeline.phases import registry
from pipeline.phases.dedup import hash_phase, paragraph_dedup
from pipeline.phases.phase import Phase
from pipeline.planning.plan import make_plan
from storage.local import read_umask
from tests.connected_engine import ConnectedEngine
from tests.e2e.conftest import Chain, digests
from tests.faults.runs.small_run import run_to_end, start_driver
from tests.pipeline.conftest import run_until

pytestmark = pytest.mark.models

PARTITIONED = {"paragraph_dedup": paragraph_dedup, "fuzzy_candidates": hash_phase}

# Phases with files or segments per partition of these.
BY_PARTITION = {"fuzzy_ngrams", "fuzzy_clusters"}


def test_batches_of_any_size_give_the_same_bytes(chain: Chain, reference_run: Path) -> None:
    """A few documents at a time, or all at once."""
    run_dir, _ = chain.run("small-batches", "engine.advanced.batch_mb=0.02")
    assert digests(run_dir) == digests(reference_run)


def test_the_order_of_tasks_does_not_matter(
    chain: Chain, reference_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Input splits, partitions and shards are run from last to first."""
    in_order = InlineEngine.run_tasks

    def backwards(self: InlineEngine, phase: Phase, task_ids: Sequence[str]) -> object:
        return in_order(self, phase, list(reversed(task_ids)))

    monkeypatch.setattr(InlineEngine, "run_tasks", backwards)
    run_dir, events = chain.run("backwards")
    task_ids = [
        event.task_id
        for event in events
        if isinstance(event, TaskFinished) and event.phase == "extract"
    ]
    assert task_ids == sorted(task_ids, reverse=True)
    assert digests(run_dir) == digests(reference_run)


def test_partitions_change_nothing_in_the_dataset(
    chain: Chain, reference_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deduplication in seven partitions finds the duplicates of one partition."""
    _set_num_partitions(7, monkeypatch)
    run_dir, events = chain.run("partitions", "engine.memory_mb=256")
    assert [
        e.num_tasks
        for e in events
        if isinstance(e, PhaseStarted) and e.phase in PARTITIONED
    ] == [7, 7]
    assert _partition_free_digests(run_dir) == _partition_free_digests(reference_run)


@pytest.mark.parametrize("phase", ["paragraph_dedup", "fuzzy_candidates"])
def test_tasks_of_other_partitions_do_not_count_as_done(
    chain: Chain, reference_run: Path, monkeypatch: pytest.MonkeyPatch, phase: str
) -> None:
    """A run stops after one of three partitions and continues with two."""
    name = f"recut-{phase}"
    _set_num_partitions(3, monkeypatch)
    events = engine.run(make_plan(chain.config(name)))
    assert any(isinstance(event, TaskFinished) and event.phase == phase for event in events)
    events.close()
    _set_num_partitions(2, monkeypatch)
    run_dir, events = chain.run(name)
    assert (phase, 0) in [
        (e.phase, e.num_done) for e in events if isinstance(e, PhaseStarted)
    ]
    assert _partition_free_digests(run_dir) == _partition_free_digests(reference_run)


def test_a_complete_phase_keeps_its_partitions(
    chain: Chain, reference_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another engine.memory_mb does not rerun it, and the next phase reads its files."""
    _set_num_partitions(3, monkeypatch)
    list(run_until(make_plan(chain.config("cut-and-done")), "paragraph_dedup"))
    _set_num_partitions(2, monkeypatch)
    run_dir, events = chain.run("cut-and-done")
    assert "paragraph_dedup" in [
        e.phase for e in events if isinstance(e, PhaseFinished) and e.was_complete
    ]
    assert _partition_free_digests(run_dir) == _partition_free_digests(reference_run)


@pytest.mark.ray
def test_a_killed_run_on_a_local_ray_continues_on_a_cluster_to_the_same_bytes(
    chain: Chain,
    reference_run: Path,
    umask: int,
    ray_engine: ConnectedEngine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kill -9 of the driver and its Ray of one worker; the second run uses a cluster with two workers.

    Every file of every phase equals that of the in-process engine, and follows the umask.
    Only the session of Ray is private.
    """
    on_ray = ("engine.kind=ray", "engine.workers=1")
    command = [word for setting in on_ray for word in ("--set", setting)]
    with monkeypatch.context() as patch:
        patch.delenv("RAY_ADDRESS")
        _stop_when(chain, "local-ray", "annotate", signal.SIGKILL, *command)
    plan = make_plan(chain.config("local-ray", "engine.kind=ray"))
    list(engine.run(plan, ray_engine.use(plan)))
    run_dir = chain.folder / "local-ray"
    assert digests(run_dir) == digests(reference_run)
    assert read_umask() == umask
    modes = read_modes(reference_run)
    assert read_modes(run_dir) == {name: mode & ~umask for name, mode in modes.items()}


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.heavy)])
def test_a_run_killed_in_each_phase_continues_to_the_same_bytes(
    chain: Chain, reference_run: Path, every: int
) -> None:
    """Kill -9 when a phase has started, one phase after another, or every fourth up to the last: complete phases stay so."""
    name = f"killed-{every}"
    plan = make_plan(chain.config(name))
    phases = [each.name for each in registry.list_enabled(plan.config)]
    for number, phase in list(enumerate(phases))[(len(phases) - 1) % every :: every]:
        messages = chain.folder / f"{name}.txt"
        driver = start_driver(run_to_end, plan, messages=messages)
        while not _has_started(chain.folder / name / "log.jsonl", phase):
            assert driver.is_alive(), messages.read_text()
            time.sleep(0.01)
        driver.kill()
        driver.join()
        assert all(plan.folder(name).is_complete() for name in phases[:number])
    run_dir, events = chain.run(name)
    assert digests(run_dir) == digests(reference_run)
    complete = [e.phase for e in events if isinstance(e, PhaseFinished) and e.was_complete]
    assert complete[: len(phases) - 1] == phases[:-1]


def test_a_run_stopped_by_sigterm_prints_how_to_continue(chain: Chain) -> None:
    """Its event log is closed, and its exit code is 128 + SIGTERM."""
    out, code = _stop_when(chain, "told-to-stop", "extract", signal.SIGTERM)
    assert code == 128 + signal.SIGTERM
    assert (
        "stopped by SIGTERM: finished tasks are kept, run the same command again to continue"
        in out
    )
    log = (chain.folder / "told-to-stop" / "log.jsonl").read_text().splitlines()
    assert json.loads(log[-1])["event"] == "RunEnded"


def test_a_second_run_does_nothing(chain: Chain, reference_run: Path) -> None:
    """All phases are complete, and no task is run."""
    before = digests(reference_run)
    _, events = chain.run("reference")
    assert [type(event) for event in events] == [PhaseFinished] * len(
        registry.list_enabled(chain.config("reference"))
    )
    assert digests(reference_run) == before


def test_a_changed_threshold_reruns_select_and_dependent_phases(
    chain: Chain, reference_run: Path
) -> None:
    """The phases before it are complete, with the same fingerprints."""
    chain.copy(reference_run, "threshold")
    _, events = chain.run("threshold", "select.language.min_score=0.9")
    started = [event.phase for event in events if isinstance(event, PhaseStarted)]
    assert started == [
        "percentiles",
        "mix_percentiles",
        "select",
        "tokenize",
        "write_shards",
    ]


def _set_num_partitions(num_partitions: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the number of partitions of both phases with hash partitions."""
    for module in PARTITIONED.values():
        monkeypatch.setattr(module, "count_partitions", lambda *_: num_partitions)


def _partition_free_digests(run_dir: Path) -> dict[str, str]:
    """Return the digests of all files that do not depend on the number of partitions."""
    return {
        name: digest
        for name, digest in digests(run_dir).items()
        if name.split("-", maxsplit=1)[0] not in {*PARTITIONED, *BY_PARTITION}
    }


def _stop_when(
    chain: Chain, name: str, phase: str, how: signal.Signals, *arguments: str
) -> tuple[str, int]:
    """Start a run, and send a signal to its process group when the phase has started."""
    log = chain.folder / name / "log.jsonl"
    process = chain.command(name, *arguments)
    try:
        while not _has_started(log, phase):
            assert process.poll() is None, process.stdout.read() if process.stdout else ""
            time.sleep(0.02)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        out, _ = process.communicate()
    return out, process.returncode


def _has_started(log: Path, phase: str) -> bool:
    """Return whether the event log has the start of a phase."""
    if not log.exists():
        return False
    lines = log.read_text(encoding="utf-8").rpartition("\n")[0].splitlines()
    events = [json.loads(line) for line in lines]
    return any(e["event"] == "PhaseStarted" and e["phase"] == phase for e in events)


def read_modes(run_dir: Path) -> dict[str, int]:
    """Return the permissions of the files of all phases, and of their folders."""
    files = [run_dir / name for name in digests(run_dir)]
    paths = {*files, *(path.parent for path in files)}
    return {str(path.relative_to(run_dir)): path.stat().st_mode & 0o777 for path in paths}
