"""The numbers of a report as tables, which the terminal and the page show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from pipeline.inputs.quarantine import CAUSES
from pipeline.reporting.report.losses import Losses
from pipeline.reporting.report.mix import MixReport, make_mix_title
from pipeline.reporting.report.summary import (
    NUM_SHOWN,
    Report,
    describe_reason,
    list_stage_counters,
    take_largest,
)
from pipeline.reporting.tables import Table, print_tables
from terminal_output import format_count
from terminal_output.console import SafeConsole


def print_report(report: Report, console: SafeConsole) -> None:
    """Print the summary of a run."""
    tables = (*list_document_tables(report, NUM_SHOWN), *list_other_tables(report))
    print_tables(tables, console)


def list_document_tables(report: Report, max_losses: int | None = None) -> Iterator[Table]:
    """Yield the tables of documents: what is left, what was dropped, and the limits.

    Args:
        report: the report.
        max_losses: rows of the table of losses; None: all that the report holds.
    """
    yield _make_steps_table(report)
    columns = ("reason", "documents", "share", "meaning")
    yield _count("Why documents were dropped", columns, report.reasons, describe_reason)
    yield _make_losses_table(report.losses, max_losses)
    yield _make_languages_table(report)
    columns = ("bucket", "documents", "share")
    yield _count("Kept, by perplexity bucket", columns, report.buckets)
    if report.mix is not None:
        yield _make_bins_table(report.mix)
    yield _make_cuts_table(report)
    rows = [
        (each.recorded_at, f"{each.num_docs:,}", f"{each.num_tokens:,}", each.reason)
        for each in report.retractions
    ]
    columns = ("recorded", "documents", "tokens", "reason")
    yield Table("Retracted since", columns, rows)


def list_other_tables(report: Report) -> Iterator[Table]:
    """Yield the tables of counters, of input that could not be read, and of times."""
    for counters in list_stage_counters(report):
        title = f"Counted by {counters.phase}: {counters.stage}"
        largest = take_largest(counters.rows)
        rows = [(name, f"{number:,}") for name, number in largest]
        yield Table(title, ("counter", "number"), rows, _list_numbers(largest))
    title = (
        f"Input files without a readable record: {report.lost_files_share:.2%} of "
        f"{report.num_files:,}"
    )
    yield _count(title, ("file", "number", "share"), report.lost_files)
    title = f"Quarantined: {report.quarantined_share:.2%} of {report.num_records:,} records"
    columns = ("cause", "records", "share", "meaning")
    yield _count(title, columns, report.quarantine, lambda cause: CAUSES.get(cause, ""))
    slowest = sorted(report.seconds.items(), key=lambda item: -item[1])[:NUM_SHOWN]
    rows = [(step, f"{seconds:,.1f}") for step, seconds in slowest]
    columns = ("step", "seconds")
    yield Table("Worker seconds, by step", columns, rows, _list_numbers(slowest))


def _count(
    title: str,
    columns: Sequence[str],
    counts: Mapping[str, int],
    describe: Callable[[str], str] | None = None,
) -> Table:
    """Return the largest numbers with their shares of the total, and what each name means."""
    total = max(1, sum(counts.values()))
    largest = take_largest(counts)
    rows: list[tuple[str, ...]] = []
    for name, number in largest:
        meaning = (describe(name),) if describe else ()
        rows.append((name, f"{number:,}", f"{number / total:.1%}", *meaning))
    return Table(title, columns, rows, _list_numbers(largest))


def _list_numbers(rows: Sequence[tuple[str, float]]) -> list[float]:
    return [number for _, number in rows]


def _make_steps_table(report: Report) -> Table:
    first = report.steps[0]
    rows: list[tuple[str, ...]] = []
    for step in report.steps:
        docs_share = step.num_docs / max(1, first.num_docs)
        chars_share = step.num_chars / max(1, first.num_chars)
        documents = (f"{step.num_docs:,}", f"{docs_share:.1%}")
        characters = (f"{step.num_chars:,}", f"{chars_share:.1%}")
        rows.append((step.name, *documents, *characters))
    bars = [step.num_docs for step in report.steps]
    if report.num_shards or report.num_tokens:
        tokens = format_count(report.num_tokens, "token")
        shards = format_count(report.num_shards, "shard")
        rows.append(("written", tokens, "", shards, ""))
        bars.append(0)
    columns = ("step", "documents", "share", "characters", "share")
    return Table("What is left after each step", columns, rows, bars)


def _make_losses_table(losses: Losses, max_losses: int | None) -> Table:
    rows: list[tuple[str, ...]] = []
    shown = losses.found[:max_losses]
    for loss in shown:
        dropped = f"{loss.num_lost / loss.num_docs:.1%} by {loss.phase}"
        rows.append((loss.kind, loss.name, f"{loss.num_docs:,}", dropped, loss.reason))
    num_more = losses.num_others + len(losses.found) - len(shown)
    if num_more:
        rows.append((f"{num_more:,} more", "", "", "", ""))
    columns = ("lost", "name", "documents", "dropped", "most frequent reason")
    return Table("Nearly all documents dropped by one phase", columns, rows)


def _make_languages_table(report: Report) -> Table:
    tokens = dict(take_largest(report.language_tokens, among=report.languages))
    counted = _count("Kept, by language", (), report.languages)
    rows = [(*row, f"{tokens.get(row[0], 0):,}") for row in counted.rows]
    columns = ("language", "documents", "share", "tokens")
    return Table(counted.title, columns, rows, counted.bars)


def _make_bins_table(mix: MixReport) -> Table:
    rows: list[tuple[str, ...]] = []
    for each in mix.bins:
        numbers = (each.num_docs, each.num_copies, each.num_tokens)
        shown = (f"{number:,}" for number in numbers)
        rows.append((each.percentiles, f"{each.copies_of_each:g}", *shown))
    columns = ("percentiles", "copies of each", "documents", "all copies", "tokens")
    bars = [each.num_tokens for each in mix.bins]
    return Table(make_mix_title(mix), columns, rows, bars)


def _make_cuts_table(report: Report) -> Table:
    largest = sorted(report.cuts, key=lambda cut: -cut.num_scored)[:NUM_SHOWN]
    rows = [
        (cut.setting, cut.language, f"{cut.limit:.4g}", f"{cut.num_scored:,}")
        for cut in largest
    ]
    num_more = len(report.cuts) - len(rows)
    if num_more:
        rows.append((f"{num_more} more in report.json", "", "", ""))
    columns = ("setting", "language", "limit", "scored documents")
    return Table("Limits from the scores of the run", columns, rows)
