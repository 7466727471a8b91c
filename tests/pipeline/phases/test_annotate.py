"""Optional stages of annotate in a small run, with their rules in select."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pipeline.reporting.report import make_report, to_html
from pipeline.runs.run_folder import RunFolder
from tests.pipeline.conftest import Small
from tests.pipeline.phases.outputs import (
    format_report,
    read_decisions,
    read_documents,
    read_sample_metadata,
    write_wet,
)
from tests.stages.examples import tiny_reference
from tests.stages.warc.files import page, response


def test_removed_lines_are_counted_in_the_report(small: Small, tmp_path: Path) -> None:
    """The report has the number of lines that the line rules removed, and the lines that are left."""
    texts = [
        "Home\nThe treaty was signed in Ghent.\nMenu",
        "The river rose again in spring.",
        "All the pages of this site",
    ]
    run, _ = small.run(
        input=write_wet(tmp_path / "l.warc.wet", texts),
        annotate={"lines": {"min_sentences": 1}},
    )
    report = make_report(run)
    assert report.reasons == {"lines.none_left": 1}
    counters = report.counters["annotate"]
    assert (counters["lines_removed"], counters["paragraphs"]) == (2, 2)
    for shown in (to_html(report), format_report(run)):
        assert "Counted by annotate: lines" in shown
        assert "Lines removed" in shown


def test_changed_limits_of_a_classifier_rerun_select_only(
    small: Small, tmp_path: Path
) -> None:
    """Scores are in the shards, and a decision names the classifier. Annotate keeps its fingerprint."""
    (tmp_path / "model").mkdir()
    one = {"model": str(tiny_reference(tmp_path / "model")), "label": "__label__reference"}
    texts = [
        "The treaty was signed and the treaty was signed.",
        "Buy cheap shoes online, buy cheap shoes online.",
    ]
    chain = {
        "input": write_wet(tmp_path / "c.warc.wet", texts),
        "annotate": {"classifiers": {"hq": one}},
    }
    run, _ = small.run(**chain, select={"classifiers": {"hq": {"min": 0.4}}})
    good, bad = read_documents(run, "annotate")["classifier_hq"].to_pylist()
    assert good > 0.4 > bad
    decisions = read_decisions(run, "select")
    assert [
        (row["decision"], row["value"], row["limit"], row["detail"]) for row in decisions
    ] == [
        ("kept", None, None, None),
        ("classifiers.score_too_low", bad, 0.4, "hq"),
    ]
    assert [row["classifier_hq"] for row in read_sample_metadata(run).values()] == [good]
    before, after = (
        {
            phase.name: phase.fingerprint
            for phase in small.plan(**chain, select={"classifiers": limits}).phases
        }
        for limits in ({"hq": {"min": 0.4}}, {"hq": {"max": 0.4}})
    )
    assert [name for name in before if before[name] != after[name]] == [
        "select",
        "tokenize",
        "write_shards",
    ]


def test_overlap_with_evaluation_sets_is_counted_per_set(
    small: Small, tmp_path: Path
) -> None:
    """Shares are stored, the report has a row per set, and another limit does not rerun annotate."""
    question = (
        "Which treaty was signed in the city of Ghent on the day before Christmas of 1814?"
    )
    (tmp_path / "history.jsonl").write_text(json.dumps({"question": question}) + "\n")
    (tmp_path / "other.txt").write_text("A line of nine words that no page of ours has.\n")
    sets = {
        "history": str(tmp_path / "history.jsonl"),
        "other": str(tmp_path / "other.txt"),
    }
    texts = [
        f"They asked: {question} Nobody knew.",
        "Nothing of the kind is to be read on this page.",
    ]
    chain = {
        "input": write_wet(tmp_path / "d.warc.wet", texts),
        "annotate": {"decontamination": {"sets": sets}},
    }
    run, _ = small.run("strict", **chain, select={"decontamination": {}})
    (shared,), none = read_documents(run, "annotate")["contamination"].to_pylist()
    assert shared == {"set": "history", "words": 16, "share": 0.8}
    assert none == []
    assert count_overlaps(run) == {
        "contaminated.history": 1,
        "contaminated.other": 0,
        "contaminated_words.history": 16,
        "contaminated_words.other": 0,
        "decontaminated.history": 1,
    }
    decisions = read_decisions(run, "select")
    assert [
        (row["decision"], row["value"], row["limit"], row["detail"]) for row in decisions
    ] == [
        ("decontamination.share_too_high", 0.8, 0.0, "history"),
        ("kept", None, None, None),
    ]
    for shown in (format_report(run), to_html(make_report(run))):
        assert "Documents that share a word n-gram with the evaluation set: other" in shown
        assert "Documents dropped because of the evaluation set: history" in shown

    lenient, _ = small.run(
        "strict", **chain, select={"decontamination": {"max_share": {"history": 0.9}}}
    )
    assert lenient.folders["annotate"] == run.folders["annotate"]
    assert lenient.folders["select"] != run.folders["select"]
    kept = count_overlaps(lenient)
    assert (kept["contaminated.history"], kept["contaminated_words.history"]) == (1, 16)
    assert "decontaminated.history" not in kept


def count_overlaps(run: RunFolder) -> dict[str, int]:
    """Return the counters of decontamination."""
    counters = make_report(run).counters
    merged = {**counters["annotate"], **counters["select"]}
    return {name: number for name, number in merged.items() if "contaminated" in name}


def test_language_of_the_page_and_not_of_its_main_content(small: Small) -> None:
    """As in Pile-CC. The sample is not stored with the scores."""
    menu = "<nav>" + "le chat et le chien sont ici " * 20 + "</nav>"
    content = "<p>" + "the cat and the dog are here " * 12 + "</p>"
    path = small.folder / "mixed.warc"
    path.write_bytes(response(page((menu + content).encode())))
    files = {"files": [str(path)]}
    html: dict[str, Any] = {"main_content": True}
    run, _ = small.run(input=files, extract={"warc": {"html": html}})
    assert read_documents(run, "annotate")["language"].to_pylist() == ["en"]
    run, _ = small.run(
        input=files,
        extract={"warc": {"html": {**html, "page_sample_chars": 300}}},
        annotate={
            "language": {**small.tree["annotate"]["language"], "read": "page_sample"}
        },
    )
    documents = read_documents(run, "annotate")
    assert documents["language"].to_pylist() == ["fr"]
    assert "le chat" not in documents["text"][0].as_py()
    assert "page_sample" not in documents.column_names
