"""`keep_top` keeps a share of each language, of the documents that all other rules keep."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.config import RunConfig
from pipeline.phases.select import Select
from pipeline.planning.prepare import describe_demo_models
from pipeline.reporting.explain import explain, format_trace
from pipeline.reporting.plan_table import print_plan
from pipeline.reporting.preview import preview, print_preview
from pipeline.reporting.report import make_report, to_html, to_json
from pipeline.runs.run_folder import RunFolder
from terminal_output.console import SafeConsole
from tests.pipeline.conftest import Small
from tests.pipeline.phases.outputs import format_report, write_wet
from tests.stages.examples import tiny_reference

# From the best to the worst by the classifier; the second rule drops the first two.
TEXTS = [
    "treaty",
    "signed",
    "the treaty was signed in the museum of the town",
    "the treaty was signed, they say, and cheap it was",
    "the treaty was online before the shoes of all the pages",
    "buy the cheap shoes online, they say, in the museum shop",
]


@pytest.fixture
def ranked(small: Small, tmp_path: Path) -> Small:
    """A config with a classifier, and six pages in two files."""
    (tmp_path / "model").mkdir()
    model = {
        "model": str(tiny_reference(tmp_path / "model")),
        "label": "__label__reference",
    }
    files: list[str] = []
    for name, texts in (("one", TEXTS[:3]), ("two", TEXTS[3:])):
        files += write_wet(tmp_path / f"{name}.warc.wet", texts)["files"]
    tree: Mapping[str, Any] = {
        **small.tree,
        "input": {"files": files},
        "extract": {"length": {"min_chars": 1}},
        "annotate": {**small.tree["annotate"], "classifiers": {"hq": model}, "quality": {}},
    }
    return Small(small.folder, tree)


def select(**limits: float) -> dict[str, Any]:
    """The section select, with a rule that drops the pages of one word."""
    rules = {"languages": None, "min_words": 5, "min_stop_words": None}
    repetition = {f"max_top_{n}gram_char_share": None for n in (2, 3, 4)}
    return {"language": None, "classifiers": {"hq": limits}, "quality": rules | repetition}


def read_rows(run: RunFolder) -> list[dict[str, Any]]:
    """Return the decisions of select on all documents, with their scores."""
    rows: list[dict[str, Any]] = []
    for split in run.splits:
        decisions = run.folder("select").path(f"{split.key}.decisions.parquet")
        documents = run.folder("annotate").path(f"{split.key}.documents.parquet")
        scores = pq.read_table(documents)["classifier_hq"].to_pylist()
        for row, score in zip(pq.read_table(decisions).to_pylist(), scores, strict=True):
            rows.append({**row, "score": score})
    return rows


def render(found: Any, print_it: Any) -> str:
    """Return what a function prints on a wide terminal."""
    out = io.StringIO()
    print_it(found, SafeConsole(file=out, width=200))
    return out.getvalue()


def test_the_share_is_of_the_documents_that_the_other_rules_keep(ranked: Small) -> None:
    """Half of four pages stay, the best ones; two others are dropped by another rule."""
    run, _ = ranked.run(select=select(keep_top=0.5))
    (cut,) = Select.read_cuts(run.folder("select"))
    assert (cut.setting, cut.num_scored) == ("select.classifiers.hq.keep_top: from", 4)
    kept, dropped = list[float](), list[float]()
    for text, row in zip(TEXTS, read_rows(run), strict=True):
        assert (row["decision"] == "kept") == (row["score"] >= cut.limit and " " in text)
        if " " in text:
            (kept if row["decision"] == "kept" else dropped).append(row["score"])
        if row["decision"] == "classifiers.not_in_top":
            assert (row["value"], row["limit"]) == (row["score"], cut.limit)
    assert len(kept) == len(dropped) == 2
    assert min(kept) > max(dropped)


def test_report_explain_and_plan_show_the_cut(ranked: Small) -> None:
    """Each of them has the limit of the language."""
    run, _ = ranked.run(select=select(keep_top=0.5))
    report = make_report(run)
    (cut,) = report.cuts
    limit = f"{cut.limit:.4g}"
    assert f'"limit": {cut.limit}' in to_json(report)
    for shown in (format_report(run), to_html(report)):
        assert "select.classifiers.hq.keep_top" in shown
        assert limit in shown
    last = read_rows(run)[-1]
    (trace,) = explain(run, str(last["doc_id"]))
    lines = "\n".join(format_trace(trace))
    assert (
        f"breaks classifiers.not_in_top (value {last['value']:g}, limit {cut.limit:g}, hq)"
        in lines
    )
    planned = render(ranked.plan(select=select(keep_top=0.5)), print_plan)
    assert (
        f"keep_top: the best 0.5 of each language; {cut.language} from {limit}" in planned
    )
    unknown = render(ranked.plan("other", select=select(keep_top=0.5)), print_plan)
    assert (
        "keep_top: the best 0.5 of each language; percentiles will find the score"
        in unknown
    )


@pytest.mark.parametrize("keep_top", [0.25, 1.0])
def test_preview_of_another_share_equals_a_run(ranked: Small, keep_top: float) -> None:
    """It counts the scores again, from a run with a fixed limit too, and shows both cuts."""
    before, _ = ranked.run("before", select=select(min=0.1))
    overrides = [
        f"select.classifiers.hq.keep_top={keep_top}",
        "select.classifiers.hq.min=null",
    ]
    found = preview(before, overrides)
    after, _ = ranked.run("after", select=select(keep_top=keep_top))
    assert found.after.num_docs == make_report(after).steps[-1].num_docs
    (cut,) = Select.read_cuts(after.folder("select"))
    (change,) = found.cuts
    assert (change.before, change.after) == (None, cut.limit)
    assert f"{cut.limit:.4g}" in render(found, print_preview)


def test_the_phase_is_off_without_a_share(ranked: Small) -> None:
    """It has no tasks, and the fingerprint of select does not depend on it."""
    plan = ranked.plan(select=select(min=0.1))
    assert "percentiles" not in plan.phase("select").parents
    run, _ = ranked.run(select=select(min=0.1))
    assert run.folder("percentiles").list_done() == frozenset()


def test_a_demo_model_on_other_input_is_noted(ranked: Small, tmp_path: Path) -> None:
    """The note names the models in one line. The sample crawl gives none, nor does another model."""
    assert describe_demo_models(ranked.config()) is None
    classifiers = {"hq": {"model": "demo-reference-en", "label": "__label__reference"}}
    config = ranked.config(annotate={"classifiers": classifiers})
    note = describe_demo_models(config) or ""
    assert note.startswith("Note: demo-reference-en")
    assert "\n" not in note
    crawl = {"sample_crawl": {"documents": 100}}
    tree = config.model_dump(mode="json") | {"input": crawl}
    assert describe_demo_models(RunConfig.model_validate(tree)) is None
