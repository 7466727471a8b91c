"""A preview on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pipeline.reporting.changes import (
    NUM_LANGUAGES,
    Amount,
    AmountPairs,
    cut_languages,
    describe_settings,
    format_limit,
)
from pipeline.reporting.explain.text import format_values
from pipeline.reporting.preview.effects import Example, Preview
from pipeline.reporting.tables import Table, format_change, print_tables
from terminal_output import format_count
from terminal_output.console import SafeConsole

EXCERPT_CHARS = 100


def print_preview(found: Preview, console: SafeConsole) -> None:
    """Print the changes, the sums, and examples of newly kept and newly dropped documents."""
    for line in describe_settings(found.changes):
        console.print(line)
    for phase in found.outdated:
        console.print(
            f"Note: a run would run {phase} again, because a stage or a model has changed; "
            f"the preview uses its stored scores."
        )
    console.print()
    print_tables([_make_amounts_table(found)], console)
    if found.is_tokenized and found.newly_kept.num_docs:
        console.print(
            "The tokens of newly kept documents are estimated from their characters, because they "
            "were never tokenized."
        )
    print_tables(_list_tables(found), console)
    sides = (
        ("Newly kept", found.newly_kept, found.examples_kept, "was dropped"),
        ("Newly dropped", found.newly_dropped, found.examples_dropped, "would be dropped"),
    )
    for side in sides:
        for line in _format_examples(*side):
            console.print(line)
    console.print(
        "\nNothing was written. `python -m pipeline run CONFIG` with the same --set applies it."
    )


def _make_amounts_table(found: Preview) -> Table:
    amounts = {
        "before": found.before,
        "after": found.after,
        "newly kept": found.newly_kept,
        "newly dropped": found.newly_dropped,
    }
    rows: list[tuple[str, ...]] = []
    for name, amount in amounts.items():
        numbers = (amount.num_docs, amount.num_chars, amount.num_tokens)
        rows.append((name, *(f"{number:,}" for number in numbers)))
    return Table("Kept documents", ("", "documents", "characters", "tokens"), rows)


def _list_tables(found: Preview) -> Iterator[Table]:
    columns = ("before", "after", "change", "tokens")
    languages = _list_rows(cut_languages(found.languages))
    yield Table("Kept, by language", ("language", *columns), languages)
    yield Table("Kept, by quality bin", ("percentiles", *columns), _list_rows(found.bins))
    rows: list[tuple[str, ...]] = []
    for cut in found.cuts[:NUM_LANGUAGES]:
        before, after = map(format_limit, (cut.before, cut.after))
        rows.append((cut.setting, cut.language, before, after))
    if len(found.cuts) > NUM_LANGUAGES:
        rows.append((f"{len(found.cuts) - NUM_LANGUAGES} more with --json", "", "", ""))
    columns = ("setting", "language", "before", "after")
    yield Table("Limits from the scores of the run", columns, rows)
    rows = [(reason, *format_change(*pair)) for reason, pair in found.reasons.items()]
    columns = ("reason", "before", "after", "change")
    yield Table("Dropped by select, by reason", columns, rows)


def _list_rows(pairs: AmountPairs) -> list[tuple[str, ...]]:
    """Return the change of the documents of each name, and the tokens of all their copies."""
    rows: list[tuple[str, ...]] = []
    for name, (before, after) in pairs.items():
        change = format_change(before.num_docs, after.num_docs)
        rows.append((name, *change, f"{after.num_tokens:,}"))
    return rows


def _format_examples(
    title: str, amount: Amount, examples: Sequence[Example], verdict: str
) -> Iterator[str]:
    """Yield examples as lines; nothing without examples."""
    if not examples:
        return
    is_part = len(examples) < amount.num_docs
    shown = f", {len(examples)} of them drawn at random" if is_part else ""
    yield f"\n{title}: {format_count(amount.num_docs, 'document')}{shown}"
    for example in examples:
        yield f"  {example.url} ({example.language})"
        yield f"    {verdict}: {example.reason}{format_values(vars(example))}"
        yield f"    {example.text[:EXCERPT_CHARS]!r}"
