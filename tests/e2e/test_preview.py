"""The preview on the whole chain: percentiles, cutoffs of models, and scores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.reporting.preview import preview
from pipeline.runs.run_folder import RunFolder
from tests.e2e.conftest import Chain
from tests.e2e.test_command_line import command
from tests.pipeline.reporting.test_preview import decide, pick_rule, read_stored_decisions

pytestmark = pytest.mark.models


@pytest.mark.parametrize(
    "overrides",
    [
        ["select.perplexity.percentiles=[10, 90]", "select.perplexity.keep=[head]"],
        ["select.perplexity.cutoffs=model", "select.perplexity.keep=[middle, all]"],
        ["select.language.min_score=0.9", "select.classifiers.wikipedia_reference.min=0.7"],
    ],
)
def test_preview_agrees_with_a_run(
    chain: Chain, reference_run: Path, overrides: list[str]
) -> None:
    """Every decision and every bucket equals that of a real run."""
    name = "preview-" + overrides[0].partition("=")[0]
    run_dir = chain.copy(reference_run, name)
    before = RunFolder.open(run_dir)
    found = preview(before, overrides)
    decisions = decide(before, overrides)
    chain.run(name, *overrides)
    after = RunFolder.open(run_dir)
    assert after.folders["select"] != before.folders["select"]
    stored = read_stored_decisions(after).to_pylist()
    assert decisions == {row["doc_id"]: pick_rule(row) for row in stored}
    num_kept = sum(row["decision"] == "kept" for row in stored)
    assert found.after.num_docs == num_kept != found.before.num_docs


def test_preview_command(reference_run: Path) -> None:
    """It prints tables or JSON; a change of another phase ends with exit code 2."""
    code, out = command("preview", reference_run, "--set", "select.language.min_score=0.99")
    assert (code, "Newly dropped" in out, "language.score_too_low (value 0.9" in out) == (
        0,
        True,
        True,
    ), out
    code, out = command(
        "preview", reference_run, "--set", "select.language.min_score=0.99", "--json"
    )
    figures = json.loads(out)
    newly_kept = figures["newly_kept"]["num_docs"]  # by the cut of the classifier
    assert (
        figures["newly_dropped"]["num_docs"] - newly_kept
        == figures["before"]["num_docs"] - figures["after"]["num_docs"]
        > 0
    )
    code, out = command(
        "preview", reference_run, "--set", "annotate.minhash.num_permutations=64"
    )
    assert (code, "annotate would have to run again" in out) == (2, True), out
    code, out = command("preview", reference_run)
    assert (code, "nothing to preview" in out) == (2, True), out
