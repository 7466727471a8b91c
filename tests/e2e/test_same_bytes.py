"""The same input gives the same bytes: on any engine, in any order, with any batches, killed or not."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from pipeline import engine
from pipeline.engine import PhaseFinished, PhaseStarted, WorkFinished
from pipeline.phases import PHASES
from tests.e2e.conftest import Chain, digests

pytestmark = pytest.mark.models


def test_batches_of_any_size_give_the_same_bytes(chain: Chain, reference_run: Path) -> None:
    """A few documents at a time, or all at once."""
    run_dir, _ = chain.run("small-batches", "engine.batch_mb=0.02")
    assert digests(run_dir) == digests(reference_run)


def test_the_order_in_which_work_is_done_does_not_matter(
    chain: Chain, reference_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Units, partitions and shards from last to first."""
    in_order = engine._Inline.results

    def backwards(self: engine._Inline, phase: engine.Phase, works: Sequence[str]) -> object:
        return in_order(self, phase, list(reversed(works)))

    monkeypatch.setattr(engine._Inline, "results", backwards)
    run_dir, events = chain.run("backwards")
    works = [event.work for event in events if isinstance(event, WorkFinished) and event.phase == "extract"]
    assert works == sorted(works, reverse=True)
    assert digests(run_dir) == digests(reference_run)


@pytest.mark.parametrize("partitions_mb", [256])
def test_partitions_change_nothing_in_the_dataset(
    chain: Chain, reference_run: Path, monkeypatch: pytest.MonkeyPatch, partitions_mb: int
) -> None:
    """Deduplication by seven ranges of hashes finds what one range finds, of paragraphs and of documents."""
    from pipeline.phases import deduplicate, near_deduplicate

    phases = {"deduplicate": deduplicate, "near_deduplicate": near_deduplicate}
    for module in phases.values():
        monkeypatch.setattr(module, "partitions_for", lambda *_: 7)
    run_dir, events = chain.run("partitions", f"engine.memory_mb={partitions_mb}")
    assert [e.num_works for e in events if isinstance(e, PhaseStarted) and e.phase in phases] == [7, 7]

    def of_the_answer(run_dir: Path) -> dict[str, str]:
        return {
            name: digest
            for name, digest in digests(run_dir).items()
            if name.endswith("near_duplicates.arrow") or name.split("-", maxsplit=1)[0] not in phases
        }

    assert of_the_answer(run_dir) == of_the_answer(reference_run)


@pytest.mark.ray
@pytest.mark.parametrize("workers", [1, 2])
def test_ray_gives_the_same_bytes_as_one_process(chain: Chain, reference_run: Path, workers: int) -> None:
    """Every file of every phase, with one worker and with two."""
    run_dir, _ = chain.run(f"ray-{workers}", "engine.kind=ray", f"engine.workers={workers}")
    assert digests(run_dir) == digests(reference_run)


@pytest.mark.parametrize("phase", list(PHASES))
def test_a_run_killed_in_any_phase_goes_on_to_the_same_bytes(chain: Chain, reference_run: Path, phase: str) -> None:
    """Kill -9 as soon as the phase has begun; the next run does only what is missing."""
    name = f"killed-in-{phase}"
    _kill_when(chain, name, phase)
    run_dir, events = chain.run(name)
    assert digests(run_dir) == digests(reference_run)
    complete = [event.phase for event in events if isinstance(event, PhaseFinished) and event.was_complete]
    assert complete == list(PHASES)[: list(PHASES).index(phase)]


@pytest.mark.ray
def test_a_run_on_ray_killed_twice_goes_on_to_the_same_bytes(chain: Chain, reference_run: Path) -> None:
    """Kill -9 of the driver, with workers at work, twice."""
    for phase in ("extract", "annotate"):
        _kill_when(chain, "ray-killed", phase, "--engine", "ray")
    run_dir, _ = chain.run("ray-killed", "engine.kind=ray")
    assert digests(run_dir) == digests(reference_run)


def test_a_second_run_does_nothing(chain: Chain, reference_run: Path) -> None:
    """All phases are complete; nothing is handed out."""
    before = digests(reference_run)
    _, events = chain.run("reference")
    assert [type(event) for event in events] == [PhaseFinished] * len(PHASES)
    assert digests(reference_run) == before


def test_a_changed_threshold_runs_select_and_what_follows(chain: Chain) -> None:
    """The phases before it are found complete, under the same fingerprints."""
    chain.run("threshold")
    _, events = chain.run("threshold", "select.language.min_score=0.9")
    started = [event.phase for event in events if isinstance(event, PhaseStarted)]
    assert started == ["select", "tokenize", "write_shards"]


def _kill_when(chain: Chain, name: str, phase: str, *arguments: str) -> None:
    """Start a run and kill its whole process group when its log says that the phase has started."""
    log = chain.folder / name / "log.jsonl"
    seen = log.stat().st_size if log.exists() else 0
    process = chain.command(name, *arguments)
    try:
        deadline = time.monotonic() + 120
        while not _has_started(log, seen, phase):
            assert process.poll() is None, process.stdout.read() if process.stdout else ""
            assert time.monotonic() < deadline, f"{phase} did not start"
            time.sleep(0.02)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def _has_started(log: Path, seen: int, phase: str) -> bool:
    if not log.exists():
        return False
    with log.open(encoding="utf-8") as file:
        file.seek(seen)
        lines = [line for line in file if line.endswith("\n")]
    return any(json.loads(line) | {"event": "PhaseStarted", "phase": phase} == json.loads(line) for line in lines)
