"""Counterfactuals over the whole chain: percentiles, models' cutoffs and scores, as a real run would decide."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.reporting.preview import decisions_with, preview
from pipeline.runs.run_folder import RunFolder
from tests.e2e.conftest import Chain
from tests.e2e.test_command_line import command

pytestmark = pytest.mark.models


@pytest.mark.parametrize(
    "overrides",
    [
        ["select.perplexity.percentiles=[10, 90]", "select.perplexity.keep=[head]"],
        ["select.perplexity.cutoffs=model", "select.perplexity.keep=[middle, all]"],
        ["select.language.min_score=0.9", "select.classifiers.wikipedia_reference.min=0.7"],
    ],
)
def test_recut_says_what_a_run_does(chain: Chain, overrides: list[str]) -> None:
    """Fate for fate, bucket for bucket; the run it was asked of is left as it was."""
    run_dir, _ = chain.run("preview")
    before = RunFolder.open(run_dir)
    said = preview(before, overrides)
    decisions = pa.concat_tables(decisions_with(before, before.change_config(overrides)))
    chain.run("preview", *overrides)
    after = RunFolder.open(run_dir)
    paths = [
        after.folder("select").path(f"{split.key}.decisions.parquet") for split in after.splits
    ]
    assert after.folders["select"] != before.folders["select"]
    assert decisions.equals(pa.concat_tables([pq.read_table(path) for path in paths]))
    assert (
        said.after.num_docs
        == decisions["decision"].to_pylist().count("kept")
        != said.before.num_docs
    )


def test_the_command_answers(chain: Chain) -> None:
    """As a table and as JSON; a change of another phase ends with code 2 and its name."""
    run_dir, _ = chain.run("recut-command")
    code, out = command("preview", run_dir, "--set", "select.language.min_score=0.99")
    assert (code, "Newly dropped" in out, "language.score_too_low (value 0.9" in out) == (
        0,
        True,
        True,
    ), out
    code, out = command("preview", run_dir, "--set", "select.language.min_score=0.99", "--json")
    figures = json.loads(out)
    assert (
        figures["newly_dropped"]["num_docs"]
        == figures["before"]["num_docs"] - figures["after"]["num_docs"]
        > 0
    )
    code, out = command("preview", run_dir, "--set", "annotate.minhash.num_permutations=64")
    assert (code, "annotate would have to run again" in out) == (2, True), out
    code, out = command("preview", run_dir)
    assert (code, "nothing to recut" in out) == (2, True), out
