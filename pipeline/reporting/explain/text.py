"""The traces of documents as lines of text, and as JSON values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from pipeline.inputs.file_types import describe_place
from pipeline.phases.annotate import Annotate
from pipeline.phases.dedup.exact_dedup import ExactDedup
from pipeline.phases.dedup.paragraph_dedup import ParagraphDedup
from pipeline.phases.dedup.substring_dedup import SubstringDedup
from pipeline.phases.extract import EXTRACTED, Extract
from pipeline.phases.select import Select
from pipeline.phases.write_shards import WriteShards
from pipeline.reporting.explain.trace import (
    KEPT,
    DocumentTrace,
    OtherDocument,
    RemovedParagraphs,
    RepeatedSpan,
    RetractionNote,
    RuleReport,
)
from pipeline.reporting.queries import Row
from stages.filters.lines import Lines
from stages.filters.score import QUALITY_SCORE
from stages.mixing.mix import MIX_PERCENTILE, NUM_COPIES, QUALITY_BIN
from terminal_output import format_count

LABEL_WIDTH = 17
INDENT = " " * LABEL_WIDTH

# The scores that are shown first, on one line.
FIRST_SCORES = (
    "language",
    "language_score",
    "perplexity",
    "classifier_wikipedia_reference",
)

# Stored columns that are shown elsewhere.
NO_SCORES = {*EXTRACTED.names, "num_chars", "num_lines", "chars_removed"}

NO_URL = "no URL"  # of texts without one, and where a rewrite has removed it

NUM_LISTED = 5
LISTED_CHARS = 100
NUM_PARTS = 10  # of the quality score


def format_trace(trace: DocumentTrace) -> list[str]:
    """Return the trace as lines, phase by phase."""
    return [f"document {trace.doc_id}: {trace.url or NO_URL}", *_format_phases(trace)]


def list_values(traces: Iterable[DocumentTrace]) -> list[dict[str, Any]]:
    """Return the traces as JSON values. The rows of phases have keys such as `select.decisions`."""
    objects: list[dict[str, Any]] = []
    for trace in traces:
        rows = {f"{phase}.{kind}": dict(row) for (phase, kind), row in trace.rows.items()}
        objects.append(asdict(replace(trace, rows={})) | {"rows": rows})
    return objects


def format_values(values: Mapping[str, Any]) -> str:
    """Return the value, limit and detail of a rule: ` (value 12, limit 50)`, or nothing."""
    parts = [
        f"{name} {values[name]:g}"
        for name in ("value", "limit")
        if values[name] is not None
    ]
    if values["detail"] is not None:
        parts.append(str(values["detail"]))
    return f" ({', '.join(parts)})" if parts else ""


def _format_phases(trace: DocumentTrace) -> Iterator[str]:
    extracted = trace.rows.get((Extract.name, "documents"))
    annotated = trace.rows.get((Annotate.name, "documents"))
    if extracted:
        yield from _format_extracted(extracted)
        yield from _format_rules(trace, Extract.name)
    if trace.repeated:
        yield from _format_repeated(trace.repeated)
    if trace.removed:
        yield from _format_removed(trace.removed)
    if annotated:
        if extracted:
            yield from _format_line_rules(str(extracted["text"]).split("\n"), annotated)
        yield from _format_scores(annotated)
        yield from _format_rules(trace, Annotate.name)
    for phase in (Extract.name, Annotate.name, Select.name):
        decided = trace.rows.get((phase, "decisions"))
        if decided:
            yield from _format_decision(trace, phase, decided)
    if trace.decision == KEPT:
        yield from _format_location(trace)
    if trace.retraction is not None:
        yield from _format_retraction(trace.retraction)


def _label(name: str) -> str:
    return f"{name:<{LABEL_WIDTH}}"


def _format_extracted(row: Row) -> Iterator[str]:
    yield (
        f"{_label(Extract.name)}{describe_place(row['warc_file'], row['warc_offset'])}, "
        f"{row['date'] or 'no date'}, title {row['title']!r}"
    )
    yield (
        f"{INDENT}{format_count(row['original_num_chars'], 'character')} in "
        f"{format_count(row['original_num_lines'], 'paragraph')}"
    )
    if row.get("main_content_chars") is not None:
        yield (
            f"{INDENT}all text of the page, because its main content has only "
            f"{row['main_content_chars']:,} characters"
        )


def _format_repeated(repeated: Sequence[RepeatedSpan]) -> Iterator[str]:
    num_words = sum(span.num_words for span in repeated)
    spans = format_count(len(repeated), "span of words", "spans of words")
    yield (
        f"{_label(SubstringDedup.name)}{spans} in earlier documents, "
        f"{format_count(num_words, 'word')}"
    )
    for span in repeated[:NUM_LISTED]:
        yield f"{_format_line(span.text)} ({format_count(span.num_words, 'word')})"
        if span.first:
            yield f"{INDENT}  first in document {_format_other(span.first)}"
    yield from _format_rest([span.text for span in repeated])


def _format_removed(removed: RemovedParagraphs) -> Iterator[str]:
    chars = removed.num_chars_left
    left = f"{removed.num_left} left"
    if chars is not None:
        left += f" ({format_count(chars, 'character')})"
    paragraphs = format_count(len(removed.paragraphs), "paragraph")
    yield f"{_label(ParagraphDedup.name)}{paragraphs} removed, {left}"
    for paragraph in removed.paragraphs[:NUM_LISTED]:
        yield _format_line(paragraph)
        other = removed.copies.get(paragraph)
        if other:
            yield f"{INDENT}  also in document {_format_other(other)}"
        elif removed.may_be_in_previous:
            yield f"{INDENT}  twice in this document, or in a previous run"
        else:
            yield f"{INDENT}  twice in this document"
    yield from _format_rest(removed.paragraphs)


def _format_line_rules(lines: Sequence[str], annotated: Row) -> Iterator[str]:
    """Describe what the stage `lines` removed, if it is on."""
    numbers = annotated.get("lines_removed")
    if numbers is None:
        return
    yield (
        f"{_label(Lines.name)}{format_count(len(numbers), 'line')} removed, "
        f"{len(annotated['kept_lines'])} left "
        f"({format_count(annotated['num_chars'], 'character')})"
    )
    removed = [lines[int(number)] for number in numbers]
    shown = [line for line in removed if line.strip()]
    for line in shown[:NUM_LISTED]:
        yield _format_line(line)
    yield from _format_rest(shown)
    if num_empty := len(removed) - len(shown):
        yield f"{INDENT}- and {format_count(num_empty, 'empty line')}"


def _format_line(line: str) -> str:
    return f"{INDENT}- {line[:LISTED_CHARS]!r}"


def _format_rest(lines: Sequence[str]) -> Iterator[str]:
    if len(lines) > NUM_LISTED:
        yield f"{INDENT}- and {len(lines) - NUM_LISTED} more"


def _format_scores(annotated: Row) -> Iterator[str]:
    """Describe all stored scores: the most important ones on one line, then one per line."""
    scores = {name: value for name, value in annotated.items() if _is_score(name, value)}
    first = [name for name in FIRST_SCORES if name in scores]
    yield _label(Annotate.name) + ", ".join(f"{name} {scores[name]}" for name in first)
    for name in sorted(scores.keys() - set(first)):
        value = scores[name]
        shown = f"{value:.6g}" if isinstance(value, float) else str(value)
        yield f"{INDENT}{name} {shown}"


def _is_score(name: str, value: Any) -> bool:
    return isinstance(value, str | int | float) and name not in NO_SCORES


def _format_rules(trace: DocumentTrace, phase: str) -> Iterator[str]:
    report = trace.rules.get(phase, RuleReport())
    if report.error:
        yield f"{INDENT}its rules cannot be evaluated: {report.error}"
    for check in report.checks:
        verdict = "breaks" if check.is_broken else "passes"
        yield f"{INDENT}{verdict} {check.reason}{format_values(vars(check))}"
    if report.bucket_ends:
        head, middle = report.bucket_ends
        language = trace.columns["language"]
        yield f"{INDENT}buckets of {language}: head below {head:g}, middle below {middle:g}"
    yield from _format_score(report)


def _format_score(report: RuleReport) -> Iterator[str]:
    """Describe how the quality score is made: its largest parts, as shares of all parts."""
    if report.quality_score is None:
        return
    yield f"{INDENT}{QUALITY_SCORE.name} {report.quality_score:.4f}, from percentile ranks:"
    total = sum(abs(each.part) for each in report.score_parts)
    for each in report.score_parts[:NUM_PARTS]:
        if each.rank is None or each.value is None:
            yield f"{INDENT}  {each.signal}: no value, does not count"
            continue
        share = abs(each.part) / total if total else 0.0
        yield (
            f"{INDENT}  {each.signal} {each.value:.6g}: percentile rank {each.rank:.3f}, "
            f"weight {each.weight:+g}, adds {each.part:+.4f} ({share:.0%})"
        )
    num_left = len(report.score_parts) - NUM_PARTS
    if num_left > 0:
        yield f"{INDENT}  and {num_left} smaller parts"


def _format_decision(trace: DocumentTrace, phase: str, decided: Row) -> Iterator[str]:
    if decided["decision"] == KEPT:
        bucket = decided.get("bucket")
        yield f"{_label(phase)}kept{f', bucket {bucket}' if bucket else ''}"
        if phase == Select.name and trace.columns.get(NUM_COPIES.name) is not None:
            yield INDENT + _format_copies(trace.columns)
    else:
        yield f"{_label(phase)}dropped: {decided['decision']}{format_values(decided)}"
    other = trace.representatives.get(phase)
    if other:
        is_copy = decided["decision"].startswith(f"{ExactDedup.name}.")
        kind = "copy" if is_copy else "near-duplicate"
        yield f"{INDENT}{kind} of document {_format_other(other)}"
    if phase == Select.name:
        yield from _format_rules(trace, phase)


def _format_copies(columns: Row) -> str:
    """Describe the quality bin of a kept document."""
    return (
        f"stored {format_count(columns[NUM_COPIES.name], 'time')}: percentile "
        f"{columns[MIX_PERCENTILE.name]:.4g} of its language, quality bin "
        f"{columns[QUALITY_BIN.name]}"
    )


def _format_other(other: OtherDocument) -> str:
    """Return id, previous run, URL and decision of another document."""
    text = f"{other.doc_id}"
    if other.run_dir:
        text += f" of {other.run_dir}"
    if other.url is not None:
        dropped = "" if other.decision == KEPT else "dropped: "
        state = "retracted" if other.is_retracted else f"{dropped}{other.decision}"
        text += f": {other.url or NO_URL} ({state})"
    return text


def _format_retraction(note: RetractionNote) -> Iterator[str]:
    by = f", requested by {note.requested_by}" if note.requested_by else ""
    yield f"{_label('retracted')}{note.recorded_at}{by}: {note.reason}"
    yield f"{INDENT}the loader masks its tokens; exports leave it out"


def _format_location(trace: DocumentTrace) -> Iterator[str]:
    location = trace.location
    if location is None:
        yield f"{_label(WriteShards.name)}not written yet"
        return
    yield (
        f"{_label(WriteShards.name)}{location.shard}, document {location.row}, "
        f"in sample {location.sample}"
    )
    tokens = format_count(location.num_tokens, "token")
    yield f"{INDENT}{tokens} from token {location.token_start:,} of the shard"
    for copy in trace.copies:
        yield f"{INDENT}also {copy.shard}, document {copy.row}, in sample {copy.sample}"
