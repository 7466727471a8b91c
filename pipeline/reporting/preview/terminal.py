"""A preview on the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from pipeline.reporting.explain.text import format_values
from pipeline.reporting.preview.comparison import Amount, Example, Preview
from pipeline.reporting.tables import make_table
from terminal_output import format_count
from terminal_output.console import SafeConsole

NUM_LANGUAGES = 12


def print_preview(found: Preview, console: SafeConsole) -> None:
    """Print the changes, the sums, and examples of newly kept and newly dropped documents."""
    for key, (before, after) in found.changes.items():
        line = f"{key}: {_format_as_yaml(before)} -> {_format_as_yaml(after)}"
        console.print(line)
    for phase in found.outdated:
        console.print(
            f"Note: a run would run {phase} again, because a stage or a model has changed; "
            f"the preview uses its stored scores."
        )
    console.print()
    _print_tables(found, console)
    _print_examples(
        console, "Newly kept", found.newly_kept, found.examples_kept, "was dropped"
    )
    _print_examples(
        console,
        "Newly dropped",
        found.newly_dropped,
        found.examples_dropped,
        "would be dropped",
    )
    console.print(
        "\nNothing was written. `python -m pipeline run CONFIG` with the same --set applies it."
    )


def _print_tables(found: Preview, console: SafeConsole) -> None:
    columns = ("", "documents", "characters", "tokens")
    console.print(make_table("Kept documents", columns, _list_amount_rows(found)))
    if found.is_tokenized and found.newly_kept.num_docs:
        console.print(
            "The tokens of newly kept documents are estimated from their characters, because they "
            "were never tokenized."
        )
    columns = ("language", "before", "after", "change", "tokens")
    console.print(make_table("Kept, by language", columns, _list_language_rows(found)))
    if found.bins:
        columns = ("percentiles", "before", "after", "change", "tokens")
        console.print(make_table("Kept, by quality bin", columns, _list_bin_rows(found)))
    if found.cuts:
        columns = ("setting", "language", "before", "after")
        title = "Limits from the scores of the run"
        console.print(make_table(title, columns, _list_cut_rows(found)))
    rows: list[tuple[str, ...]] = []
    for reason, (before, after) in found.reasons.items():
        rows.append((reason, *_format_change(before, after)))
    columns = ("reason", "before", "after", "change")
    console.print(make_table("Dropped by select, by reason", columns, rows))


def _list_cut_rows(found: Preview) -> Iterator[tuple[str, str, str, str]]:
    """Yield the limits before and after, of the settings that have any."""
    for cut in found.cuts[:NUM_LANGUAGES]:
        before, after = map(_format_limit, (cut.before, cut.after))
        yield cut.setting, cut.language, before, after
    if len(found.cuts) > NUM_LANGUAGES:
        yield f"{len(found.cuts) - NUM_LANGUAGES} more with --json", "", "", ""


def _format_limit(limit: float | None) -> str:
    return "none" if limit is None else f"{limit:.4g}"


def _list_amount_rows(found: Preview) -> list[tuple[str, ...]]:
    amounts = {
        "before": found.before,
        "after": found.after,
        "newly kept": found.newly_kept,
        "newly dropped": found.newly_dropped,
    }
    rows: list[tuple[str, ...]] = []
    for name, amount in amounts.items():
        rows.append(
            (
                name,
                f"{amount.num_docs:,}",
                f"{amount.num_chars:,}",
                f"{amount.num_tokens:,}",
            )
        )
    return rows


def _list_language_rows(found: Preview) -> Iterator[tuple[str, ...]]:
    """Yield the largest languages, and the sum of the others."""
    pairs = list(found.languages.items())
    others = [pair for _, pair in pairs[NUM_LANGUAGES:]]
    pairs = pairs[:NUM_LANGUAGES]
    if others:
        before = sum((amount for amount, _ in others), Amount())
        after = sum((amount for _, amount in others), Amount())
        pairs.append((f"{len(others)} more", (before, after)))
    for name, (before, after) in pairs:
        change = _format_change(before.num_docs, after.num_docs)
        yield name, *change, f"{after.num_tokens:,}"


def _list_bin_rows(found: Preview) -> Iterator[tuple[str, ...]]:
    """Yield the documents of each quality bin, with the tokens of all their copies."""
    for label, (before, after) in found.bins.items():
        change = _format_change(before.num_docs, after.num_docs)
        yield label, *change, f"{after.num_tokens:,}"


def _format_change(before: int, after: int) -> tuple[str, str, str]:
    change = f"{after - before:+,}" if after != before else ""
    return f"{before:,}", f"{after:,}", change


def _print_examples(
    console: SafeConsole,
    title: str,
    amount: Amount,
    examples: Sequence[Example],
    verdict: str,
) -> None:
    if not examples:
        return
    num_docs = amount.num_docs
    shown = (
        "" if len(examples) == num_docs else f", {len(examples)} of them drawn at random"
    )
    lines = [f"\n{title}: {format_count(num_docs, 'document')}{shown}"]
    for example in examples:
        lines.append(f"  {example.url} ({example.language})")
        lines.append(f"    {verdict}: {example.reason}{format_values(vars(example))}")
        lines.append(f"    {example.text!r}")
    for line in lines:
        console.print(line)


def _format_as_yaml(value: object) -> str:
    """Return a value as `--set` accepts it. JSON is a subset of YAML."""
    return json.dumps(value, ensure_ascii=False)
