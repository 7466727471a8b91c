"""Collect the trace of a document from the files of all phases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pipeline.phases.annotate import Annotate
from pipeline.phases.dedup.exact_dedup import ExactDedup
from pipeline.phases.extract import Extract
from pipeline.phases.select import Select
from pipeline.reporting.explain.find import (
    describe_other,
    find_doc_ids,
    find_in_shards,
    find_nearest_url,
)
from pipeline.reporting.explain.removed import find_removed
from pipeline.reporting.explain.repeated import find_repeated_spans
from pipeline.reporting.explain.rules import check_rules
from pipeline.reporting.explain.trace import (
    KEPT,
    NOT_DECIDED,
    DocumentTrace,
    RemovedParagraphs,
    RepeatedSpan,
    RetractionNote,
    RuleReport,
    ShardLocation,
)
from pipeline.reporting.queries import Row, read_row
from pipeline.retraction.retracted import read_retracted
from pipeline.runs.run_folder import RunFolder, RunNotFound
from stages.mixing.mix import COPY_SHIFT, NUM_COPIES

# The files that hold a row per document, in the order in which they are written.
STORED = (
    Extract.documents,
    Extract.decisions,
    Annotate.documents,
    Annotate.decisions,
    Select.decisions,
)

DOCUMENTS, DECISIONS, SCORES = "documents", "decisions", "scores"

# (phase, kind of file) -> the row of the document.
Rows = Mapping[tuple[str, str], Row]


def explain(run: RunFolder, key: str) -> list[DocumentTrace]:
    """Return the traces of the documents with this doc_id, or this URL.

    Raises:
        RunNotFound: extract has not read such a document (yet).
    """
    traces: list[DocumentTrace] = []
    for doc_id in find_doc_ids(run, key):
        trace = _trace_document(run, doc_id)
        if trace is not None:
            traces.append(trace)
    if not traces:
        nearest = find_nearest_url(run, key)
        hint = f"did you mean {nearest}? Else " if nearest else ""
        raise RunNotFound(
            f"{run.run_dir}: no document {key!r} was read; {hint}"
            f"its record may be in the quarantine (extract-*/*.quarantine.jsonl)"
        )
    return traces


def _trace_document(run: RunFolder, doc_id: int) -> DocumentTrace | None:
    rows = _read_stored_rows(run, doc_id)
    if not rows:
        return None
    columns = {name: value for row in rows.values() for name, value in row.items()}
    decision = _find_decision(rows)
    repeated, removed = _find_removed(run, doc_id, rows, decision)
    return DocumentTrace(
        doc_id=doc_id,
        url=columns["url"],
        decision=decision,
        columns=columns,
        rows=rows,
        repeated=repeated,
        removed=removed,
        rules=_check_rules(run, doc_id, rows),
        representatives={
            phase: describe_other(run, row["representative"])
            for (phase, _), row in rows.items()
            if row.get("representative") is not None
        },
        location=find_in_shards(run, doc_id) if decision == KEPT else None,
        retraction=_find_retraction(run, doc_id),
        copies=tuple(_find_copies(run, doc_id, rows)),
    )


def _find_retraction(run: RunFolder, doc_id: int) -> RetractionNote | None:
    record = read_retracted(run).find(doc_id)
    if record is None:
        return None
    return RetractionNote(record.recorded_at, record.reason, record.requested_by)


def _read_stored_rows(run: RunFolder, doc_id: int) -> Rows:
    if doc_id >> 32 >= len(run.splits):
        return {}
    rows: dict[tuple[str, str], Row] = {}
    selection = run.recorded_config.get(Select.section) or {}
    has_scores = any(selection.get(key) is not None for key in ("score", "mix"))
    for artifact in (*STORED, Select.scores) if has_scores else STORED:
        row = read_row(run, artifact, doc_id)
        # The text of a retracted document may have been removed.
        if row and row.get("text") != "":
            rows[artifact.phase, artifact.kind] = row
    return rows


def _find_copies(run: RunFolder, doc_id: int, rows: Rows) -> Iterator[ShardLocation]:
    """Yield where the copies of a document are stored, without the first one."""
    num_copies = rows.get((Select.name, SCORES), {}).get(NUM_COPIES.name, 1)
    for number in range(1, num_copies):
        location = find_in_shards(run, doc_id + (number << COPY_SHIFT))
        if location is not None:
            yield location


def _find_decision(rows: Rows) -> str:
    """Return the decision of the last phase that made one."""
    decision = NOT_DECIDED
    for (_, kind), row in rows.items():
        if kind == DECISIONS:
            decision = row["decision"]
    return decision


def _find_removed(
    run: RunFolder, doc_id: int, rows: Rows, decision: str
) -> tuple[tuple[RepeatedSpan, ...], RemovedParagraphs | None]:
    """Return what substring_dedup and paragraph_dedup removed.

    Returns:
        Nothing and None if annotate has not looked at the text of the document.
    """
    extracted = rows.get((Extract.name, DOCUMENTS))
    annotated = rows.get((Annotate.name, DOCUMENTS))
    is_exact_copy = decision.startswith(f"{ExactDedup.name}.")
    was_dropped = (Annotate.name, DECISIONS) in rows and not is_exact_copy
    if extracted is None or (annotated is None and not was_dropped):
        return (), None
    repeated, text = find_repeated_spans(run, doc_id, extracted["text"])
    return repeated, find_removed(run, doc_id, extracted, annotated, text)


def _check_rules(run: RunFolder, doc_id: int, rows: Rows) -> dict[str, RuleReport]:
    """Return phase -> its rules, for the phases that have stored the document."""
    reports: dict[str, RuleReport] = {}
    for phase in (Extract.name, Annotate.name):
        if (phase, DOCUMENTS) in rows:
            reports[phase] = check_rules(run, doc_id, phase)
    selected = rows.get((Select.name, DECISIONS))
    if selected:
        representative = selected.get("representative")
        reports[Select.name] = check_rules(run, doc_id, Select.name, representative)
    return reports
