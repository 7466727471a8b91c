"""The report of a run on the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from pipeline.reporting.report.losses import Losses
from pipeline.reporting.report.mix import MixReport, make_mix_title
from pipeline.reporting.report.summary import (
    NUM_SHOWN,
    Report,
    describe_reason,
    list_stage_counters,
    sort_by_number,
    take_largest,
    take_largest_cuts,
    take_slowest,
)
from pipeline.reporting.tables import make_table
from terminal_output import format_count
from terminal_output.console import SafeConsole


def print_report(report: Report, console: SafeConsole) -> None:
    """Print the summary of a run."""
    for table in _make_tables(report):
        console.print(table)


def _make_tables(report: Report) -> Iterator[Table]:
    yield _make_steps_table(report)
    yield from _make_document_tables(report)
    for counters in list_stage_counters(report):
        rows = [(name, f"{number:,}") for name, number in take_largest(counters.rows)]
        title = f"Counted by {counters.phase}: {counters.stage}"
        yield make_table(title, ("counter", "number"), rows)
    if report.retractions:
        columns = ("recorded", "documents", "tokens", "reason")
        yield make_table("Retracted since", columns, _list_retraction_rows(report))
    yield from _make_fault_tables(report)
    if report.seconds:
        rows = [(step, f"{seconds:,.1f}") for step, seconds in take_slowest(report.seconds)]
        yield make_table("Worker time", ("step", "seconds"), rows)


def _make_document_tables(report: Report) -> Iterator[Table]:
    """Yield the tables of the documents that were dropped and kept, and of limits."""
    if report.reasons:
        columns = ("reason", "documents", "meaning")
        yield make_table("Why documents were dropped", columns, _list_reason_rows(report))
    if report.losses.found:
        columns = ("lost", "name", "documents", "dropped", "most frequent reason")
        title = "Nearly all documents dropped by one phase"
        yield make_table(title, columns, _list_loss_rows(report.losses))
    if report.languages:
        columns = ("language", "documents", "tokens")
        yield make_table("Kept, by language", columns, _list_language_rows(report))
    if report.buckets:
        rows = [(bucket, f"{number:,}") for bucket, number in report.buckets.items()]
        yield make_table("Kept, by bucket", ("bucket", "documents"), rows)
    if report.mix is not None:
        columns = ("percentiles", "copies of each", "documents", "all copies", "tokens")
        title = make_mix_title(report.mix)
        yield make_table(title, columns, _list_bin_rows(report.mix))
    if report.cuts:
        columns = ("setting", "language", "limit", "scored documents")
        rows = _list_cut_rows(report)
        yield make_table("Limits from the scores of the run", columns, rows)


def _make_fault_tables(report: Report) -> Iterator[Table]:
    """Yield the tables of files and records that could not be read."""
    if report.lost_files:
        rows = [(name, f"{number:,}") for name, number in take_largest(report.lost_files)]
        title = (
            f"Files without a readable record: {report.lost_files_share:.2%} of "
            f"{report.num_files:,}"
        )
        yield make_table(title, ("file", "number"), rows)
    if report.quarantine:
        causes = sort_by_number(report.quarantine)
        rows = [(cause, f"{number:,}") for cause, number in causes.items()]
        title = (
            f"Quarantined: {report.quarantined_share:.2%} of {report.num_records:,} records"
        )
        yield make_table(title, ("cause", "records"), rows)


def _list_retraction_rows(report: Report) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for entry in report.retractions:
        numbers = f"{entry.num_docs:,}", f"{entry.num_tokens:,}"
        rows.append((entry.recorded_at, *numbers, entry.reason))
    return rows


def _make_steps_table(report: Report) -> Table:
    first = report.steps[0]
    rows: list[tuple[str, ...]] = []
    for step in report.steps:
        docs_share = step.num_docs / max(1, first.num_docs)
        chars_share = step.num_chars / max(1, first.num_chars)
        documents = (f"{step.num_docs:,}", f"{docs_share:.1%}")
        characters = (f"{step.num_chars:,}", f"{chars_share:.1%}")
        rows.append((step.name, *documents, *characters))
    if report.num_shards or report.num_tokens:
        tokens = format_count(report.num_tokens, "token")
        shards = format_count(report.num_shards, "shard")
        rows.append(("written", tokens, "", shards, ""))
    columns = ("step", "documents", "share", "characters", "share")
    return make_table("What is left after each step", columns, rows)


def _list_reason_rows(report: Report) -> Iterator[tuple[str, str, str]]:
    for reason, number in take_largest(report.reasons):
        yield reason, f"{number:,}", describe_reason(reason)


def _list_loss_rows(losses: Losses) -> Iterator[tuple[str, ...]]:
    for loss in losses.found[:NUM_SHOWN]:
        dropped = f"{loss.num_lost / loss.num_docs:.1%} by {loss.phase}"
        yield loss.kind, loss.name, f"{loss.num_docs:,}", dropped, loss.reason
    num_more = losses.num_others + len(losses.found[NUM_SHOWN:])
    if num_more:
        yield f"{num_more:,} more", "", "", "", ""


def _list_bin_rows(mix: MixReport) -> Iterator[tuple[str, ...]]:
    for each in mix.bins:
        numbers = (each.num_docs, each.num_copies, each.num_tokens)
        yield (
            each.percentiles,
            f"{each.copies_of_each:g}",
            *(f"{number:,}" for number in numbers),
        )


def _list_cut_rows(report: Report) -> Iterator[tuple[str, ...]]:
    shown = take_largest_cuts(report.cuts)
    for cut in shown:
        yield cut.setting, cut.language, f"{cut.limit:.4g}", f"{cut.num_scored:,}"
    if len(report.cuts) > len(shown):
        yield f"{len(report.cuts) - len(shown)} more in report.json", "", "", ""


def _list_language_rows(report: Report) -> Iterator[tuple[str, str, str]]:
    tokens = dict(take_largest(report.language_tokens, among=report.languages))
    for language, number in take_largest(report.languages):
        yield language, f"{number:,}", f"{tokens.get(language, 0):,}"
