"""Stages with tasks of their own: the units that pass between them come out as they would of one task."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import RunAborted
from pipeline.runs.run_folder import RunFolder
from tests.e2e.conftest import Chain, digests

pytestmark = [pytest.mark.models, pytest.mark.ray]


def test_stages_with_tasks_of_their_own_give_the_same_bytes(
    chain: Chain, reference_run: Path
) -> None:
    """One in the midst of extract, two in annotate with another between them, and batches far smaller than a unit."""
    own = "{extract: {stages: {length: {num_cpus: 0.5}}}, annotate: {stages: {language: {num_cpus: 0.25}, "
    own += "classifiers: {num_cpus: 0.5, memory_mb: 256}}}}"
    run_dir, _ = chain.run(
        "own-tasks", "engine.kind=ray", f"engine.phases={own}", "engine.advanced.batch_mb=0.05"
    )
    assert digests(run_dir) == digests(reference_run)


def test_what_no_machine_has_is_told_before_any_work(chain: Chain) -> None:
    """Of a late phase, too: Ray would wait for it without a word when all before it is done."""
    with pytest.raises(RunAborted, match=r"nothing was begun") as caught:
        chain.run(
            "too-much",
            "engine.kind=ray",
            "engine.workers=1",
            "engine.phases={tokenize: {num_cpus: 64}}",
        )
    assert "\n  tokenize asks for CPU 64, memory 2,000 MB; the nearest has only CPU 1\n" in str(
        caught.value
    )
    found = RunFolder.open(chain.folder / "too-much")
    assert not found.folder("extract").done()
