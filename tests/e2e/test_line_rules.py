"""C4's line rules in a whole run: removed lines are counted and are in no shard."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from pipeline.reporting.explain import explain, format_trace
from pipeline.reporting.report import make_report
from pipeline.runs.run_folder import RunFolder
from terminal_output import format_count
from tests.e2e.conftest import Chain

pytestmark = pytest.mark.models


def read_documents(run_dir: Path) -> pa.Table:
    """Return the documents of annotate in input order."""
    run = RunFolder.open(run_dir)
    return pa.concat_tables(
        [
            pq.read_table(run.folder("annotate").path(f"{split.key}.documents.parquet"))
            for split in run.splits
        ]
    )


def test_removed_lines_are_counted_and_shown(chain: Chain, reference_run: Path) -> None:
    """The report has the removed characters, and a trace the number of removed lines."""
    run_dir, _ = chain.run("line-rules", "annotate.lines={min_sentences: 1}")
    before = {step.name: step for step in make_report(RunFolder.open(reference_run)).steps}
    after = {step.name: step for step in make_report(RunFolder.open(run_dir)).steps}
    assert after["annotate: paragraphs"] == before["annotate: paragraphs"]
    assert after["annotate: lines"].num_chars < after["annotate: paragraphs"].num_chars

    scored = read_documents(run_dir)
    assert scored["num_chars"].to_pylist() == pc.utf8_length(scored["text"]).to_pylist()
    assert scored["num_lines"].to_pylist() == [
        text.count("\n") + 1 for text in scored["text"].to_pylist()
    ]
    shorter = (
        scored.filter(pc.greater(pc.list_value_length(scored["lines_removed"]), 0))
        .slice(0, 1)
        .to_pylist()[0]
    )
    (trace,) = explain(RunFolder.open(run_dir), str(shorter["doc_id"]))
    removed = format_count(len(shorter["lines_removed"]), "line")
    start = f"lines            {removed} removed, {shorter['num_lines']} left"
    assert any(line.startswith(start) for line in format_trace(trace))
