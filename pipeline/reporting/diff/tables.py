"""The comparison of two runs as lines and tables, which the terminal and the page show."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.reporting.changes import (
    NUM_LANGUAGES,
    cut_languages,
    describe_settings,
    format_limit,
)
from pipeline.reporting.diff.comparison import Example, RunDiff
from pipeline.reporting.explain.text import format_values
from pipeline.reporting.tables import Table, format_change, print_tables
from terminal_output import format_count
from terminal_output.console import SafeConsole

# Rows of each table on the terminal; `--json` has all of them. The last language is the sum of the others.
NUM_ROWS = NUM_LANGUAGES + 1
NUM_EXAMPLE_ROWS = 6


def print_diff(found: RunDiff, console: SafeConsole) -> None:
    """Print what has changed, the documents with another decision, and where they are."""
    console.print(f"From {found.before} to {found.after}")
    for line in describe_causes(found):
        console.print(line)
    print_tables([make_amounts_table(found)], console)
    if not found.transitions:
        console.print("No document has another decision.")
        return
    print_tables([make_transitions_table(found), *list_tables(found)], console, NUM_ROWS)
    for transition in found.transitions[:NUM_EXAMPLE_ROWS]:
        console.print(f"\n{transition.before} -> {transition.after}, at random:")
        for example in transition.examples:
            console.print(f"  {example.url} ({example.language or 'unknown'})")
            if rules := describe_rules(example):
                console.print(f"    {rules}")
            if example.text:
                console.print(f"    {example.text!r}")


def describe_causes(found: RunDiff) -> Iterator[str]:
    """Yield a line for each change of config, version and limit, and for other phases."""
    yield from describe_settings(found.config)
    for line in describe_settings(found.stages):
        yield f"version of {line}"
    for cut in found.cuts:
        pair = " -> ".join(map(format_limit, (cut.before, cut.after)))
        yield f"{cut.setting} {pair} ({cut.language})"
    if found.phases:
        yield f"phases with other outputs: {', '.join(found.phases)}"


def make_amounts_table(found: RunDiff) -> Table:
    """Return what is read and kept."""
    before, after = found.kept
    rows = [
        ("documents read", *format_change(*found.read)),
        ("documents kept", *format_change(before.num_docs, after.num_docs)),
        ("characters kept", *format_change(before.num_chars, after.num_chars)),
        ("tokens", *format_change(before.num_tokens, after.num_tokens)),
    ]
    return Table("Documents", ("", "before", "after", "change"), rows)


def make_transitions_table(found: RunDiff) -> Table:
    """Return the decisions that have changed."""
    rows = [(t.before, t.after, f"{t.num_docs:,}") for t in found.transitions]
    title = f"{format_count(found.num_changed, 'document')} with another decision"
    return Table(title, ("from", "to", "documents"), rows)


def list_tables(found: RunDiff) -> Iterator[Table]:
    """Yield what has changed by language and by domain, and the scores that moved."""
    rows: list[tuple[str, ...]] = []
    for name, (before, after) in cut_languages(found.languages).items():
        tokens = format_change(before.num_tokens, after.num_tokens)[2]
        rows.append((name, *format_change(before.num_docs, after.num_docs), tokens))
    columns = ("language", "before", "after", "change", "tokens")
    yield Table("Kept, by language", columns, rows)
    rows = []
    for domain in found.distributions.domains:
        rows.append((domain.name or "(no domain)", *format_change(*domain.kept)))
    yield Table("Kept, by domain", ("domain", "before", "after", "change"), rows)
    rows = []
    for score in found.distributions.scores:
        if score.moved_share:
            medians = ["" if value is None else f"{value:.4g}" for value in score.medians]
            rows.append((score.score, *medians, f"{score.moved_share:.1%}"))
    columns = ("score of kept documents", "median before", "median after", "moved")
    yield Table("Scores that moved", columns, rows)


def describe_rules(example: Example) -> str:
    """Return the values and limits of the rules before and after, if there are any."""
    rules = (("before", example.rule_before), ("after", example.rule_after))
    parts = [f"{name}{format_values(rule)}" for name, rule in rules if format_values(rule)]
    return ", ".join(parts)
