"""`select.language.min_score: run` takes the limit of each language from the scores of the run."""

from __future__ import annotations

import io
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from pipeline.phases.select import Select
from pipeline.reporting.explain import explain, format_trace
from pipeline.reporting.plan_table import print_plan
from pipeline.reporting.preview import preview
from pipeline.reporting.report import make_report
from stages.filters.language import compute_min_score
from terminal_output.console import SafeConsole
from tests.pipeline.conftest import Small
from tests.pipeline.phases.outputs import format_report, write_wet

# From certain to doubtful; the last has words of both languages.
ENGLISH = [
    "the treaty was signed in the museum",
    "the treaty was signed",
    "the treaty and le chat",
]
FRENCH = ["le chat et la souris", "la souris et le chat et la souris"]


@pytest.fixture
def pages(small: Small, tmp_path: Path) -> Small:
    """Pages in two languages, in two files."""
    files = [
        *write_wet(tmp_path / "one.warc.wet", [*ENGLISH, FRENCH[0]])["files"],
        *write_wet(tmp_path / "two.warc.wet", FRENCH[1:])["files"],
    ]
    tree = {
        **small.tree,
        "input": {"files": files},
        "extract": {"length": {"min_chars": 1}},
    }
    return Small(small.folder, tree)


def test_limits_of_the_run_decide_and_are_shown(pages: Small) -> None:
    """Decisions, cuts.json, report, explain and plan agree; German has a fixed limit."""
    limits = {"language": {"min_score": {"default": "run", "fr": 0.0}}}
    run, _ = pages.run(select=limits)
    scores: dict[str, list[int]] = {}
    documents: list[tuple[int, str, float, str]] = []
    for split in run.splits:
        stored = run.folder("annotate").path(f"{split.key}.documents.parquet")
        decided = run.folder("select").path(f"{split.key}.decisions.parquet")
        decisions = pq.read_table(decided).to_pylist()
        for row, decision in zip(pq.read_table(stored).to_pylist(), decisions, strict=True):
            language, score = row["language"], row["language_score"]
            scores.setdefault(language, []).append(round(100 * score))
            documents.append((row["doc_id"], language, score, decision["decision"]))
    (cut,) = Select.read_cuts(run.folder("select"))
    counted = {score: scores["en"].count(score) for score in scores["en"]}
    assert (cut.setting, cut.language) == ("select.language.min_score: from", "en")
    assert (cut.limit, cut.num_scored) == (compute_min_score(counted), len(scores["en"]))
    for _, language, score, decision in documents:
        is_low = language == "en" and score < cut.limit
        assert decision == ("language.score_too_low" if is_low else "kept")
    dropped = [document for document in documents if document[3] != "kept"]
    assert dropped
    assert make_report(run).cuts == (cut,)
    assert "select.language.min_score: from" in format_report(run)
    (trace,) = explain(run, str(dropped[0][0]))
    lines = "\n".join(format_trace(trace))
    assert (
        f"breaks language.score_too_low (value {dropped[0][2]:g}, limit {cut.limit:g})"
        in lines
    )
    out = io.StringIO()
    print_plan(pages.plan(select=limits), SafeConsole(file=out, width=200))
    assert (
        "select.language.min_score: run, the median of a language's scores"
        in out.getvalue()
    )


def test_preview_of_limits_of_the_run_equals_a_run(pages: Small) -> None:
    """The run before may have a fixed limit: annotate counts the language scores in every run."""
    before, _ = pages.run("before", select={"language": {"min_score": 0.0}})
    found = preview(before, ["select.language.min_score=run"])
    after, _ = pages.run("after", select={"language": {"min_score": "run"}})
    assert found.after.num_docs == make_report(after).steps[-1].num_docs
    shown = {(change.language, change.before, change.after) for change in found.cuts}
    cuts = Select.read_cuts(after.folder("select"))
    assert shown == {(cut.language, None, cut.limit) for cut in cuts}
