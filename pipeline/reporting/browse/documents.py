"""A document with its trace, as JSON for the page: marked lines, scores, rules, duplicates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np

from pipeline.inputs.file_types import describe_place
from pipeline.phases.annotate import Annotate
from pipeline.phases.extract import Extract
from pipeline.phases.registry import DECIDING_PHASES
from pipeline.reporting.browse.index import Index
from pipeline.reporting.browse.search import describe_rows
from pipeline.reporting.explain import DocumentTrace, explain
from pipeline.reporting.explain.trace import KEPT, OtherDocument

# Lines and documents beyond these numbers are counted, not shown.
MAX_LINES = 2_000
MAX_LINE_CHARS = 5_000
MAX_CLUSTER = 50
MAX_SPANS = 20


def describe_document(index: Index, doc_id: int) -> dict[str, Any]:
    """Return a document with its trace and its cluster.

    Raises:
        RunNotFound: the run has no such document.
    """
    (trace,) = explain(index.run, str(doc_id))
    lines = list(_mark_lines(trace))
    decision = trace.decision
    if trace.retraction is not None:
        decision += f", retracted {trace.retraction.recorded_at}"
    annotated = trace.rows.get((Annotate.name, "documents")) or {}
    scores = {name: annotated.get(name) for name in index.score_names}
    return {
        "doc_id": str(trace.doc_id),
        "url": trace.url,
        "decision": decision,
        "is_kept": trace.decision == KEPT and trace.retraction is None,
        "source": _describe_source(trace),
        "scores": {name: value for name, value in scores.items() if value is not None},
        "lines": lines[:MAX_LINES],
        "num_lines": len(lines),
        "repeated": [
            {
                "text": span.text[:MAX_LINE_CHARS],
                "num_words": span.num_words,
                "first": _describe_other(span.first),
            }
            for span in trace.repeated[:MAX_SPANS]
        ],
        "num_repeated": len(trace.repeated),
        "decisions": list(_list_decisions(trace)),
        "location": asdict(trace.location) if trace.location else None,
        "cluster": _describe_cluster(index, trace),
    }


def _describe_source(trace: DocumentTrace) -> dict[str, Any]:
    names = ("title", "date", "language", "warc_file", "warc_offset", "original_num_chars")
    source = {name: trace.columns.get(name) for name in names}
    if source["warc_file"] is not None:
        source["place"] = describe_place(source["warc_file"], source["warc_offset"])
    return source


def _mark_lines(trace: DocumentTrace) -> Iterator[dict[str, Any]]:
    """Yield the extracted lines with their marks.

    A mark is "kept", "duplicate", "rule" (removed by a line rule), or "span" (substring_dedup cut
    all of its words).
    """
    extracted = trace.rows.get((Extract.name, "documents"))
    if extracted is None:
        return
    annotated = trace.rows.get((Annotate.name, "documents")) or {}
    by_rule = set[int](annotated.get("lines_removed") or ())
    # Without stored lines, nothing is left of the document, or it was not annotated yet.
    left = set[int](annotated["kept_lines"]) if annotated else None
    removed = trace.removed
    duplicates = set[int](removed.line_numbers if removed else ())
    copies = removed.copies if removed else {}
    for number, line in enumerate(str(extracted["text"]).split("\n")):
        mark = "kept"
        if number in duplicates:
            mark = "duplicate"
        elif number in by_rule:
            mark = "rule"
        elif left is not None and number not in left:
            mark = "span"
        yield {
            "mark": mark,
            "text": line[:MAX_LINE_CHARS],
            "is_cut": len(line) > MAX_LINE_CHARS,
            "also_in": _describe_other(copies.get(line) if mark == "duplicate" else None),
        }


def _describe_other(other: OtherDocument | None) -> dict[str, Any] | None:
    """Return another document; a document of a previous run cannot be opened from here."""
    return {**asdict(other), "doc_id": str(other.doc_id)} if other else None


def _list_decisions(trace: DocumentTrace) -> Iterator[dict[str, Any]]:
    """Yield what each phase decided, with all of its rules."""
    for phase in DECIDING_PHASES:
        row = trace.rows.get((phase.name, "decisions"))
        report = trace.rules.get(phase.name)
        if row is None and report is None:
            continue
        names = ("decision", "value", "limit", "detail", "bucket")
        yield {
            "phase": phase.name,
            **{name: row.get(name) if row else None for name in names},
            "representative": _describe_other(trace.representatives.get(phase.name)),
            "rules": [asdict(check) for check in report.checks] if report else [],
            "error": report.error if report else "",
            "bucket_ends": report.bucket_ends if report else None,
        }


def _describe_cluster(index: Index, trace: DocumentTrace) -> dict[str, Any] | None:
    """Return the representative of a document and the documents that it stands for, if any."""
    representative = trace.doc_id
    for other in trace.representatives.values():
        if other.run_dir is not None:
            return None  # of a previous run
        representative = other.doc_id
    first = index.find_row(representative)
    others = index.find_represented(representative)
    if first is None or not len(others):
        return None
    rows = np.concatenate([[first], others[:MAX_CLUSTER]])
    return {
        "representative": str(representative),
        "num_docs": len(others) + 1,
        "documents": describe_rows(index, rows),
    }
