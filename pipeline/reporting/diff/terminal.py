"""The comparison of two runs on the terminal."""

from __future__ import annotations

import json
from collections.abc import Iterator

from pipeline.reporting.diff.comparison import Example, RunDiff
from pipeline.reporting.explain.text import format_values
from pipeline.reporting.preview.comparison import Amount
from pipeline.reporting.tables import make_table
from terminal_output import format_count
from terminal_output.console import SafeConsole

# Rows of each table; `--json` has all of them.
NUM_ROWS = 12
NUM_EXAMPLE_ROWS = 6


def print_diff(found: RunDiff, console: SafeConsole) -> None:
    """Print what has changed, the documents with another decision, and where they are."""
    console.print(f"From {found.before} to {found.after}")
    for line in describe_causes(found):
        console.print(line)
    columns = ("", "before", "after", "change")
    console.print(make_table("Documents", columns, list_amount_rows(found)))
    if not found.transitions:
        console.print("No document has another decision.")
        return
    rows = [(t.before, t.after, f"{t.num_docs:,}") for t in found.transitions[:NUM_ROWS]]
    title = f"{format_count(found.num_changed, 'document')} with another decision"
    console.print(make_table(title, ("from", "to", "documents"), rows))
    columns = ("language", "before", "after", "change", "tokens")
    console.print(make_table("Kept, by language", columns, list_language_rows(found)))
    columns = ("domain", "before", "after", "change")
    rows = list(list_domain_rows(found))[:NUM_ROWS]
    if rows:
        console.print(make_table("Kept, by domain", columns, rows))
    columns = ("score of kept documents", "median before", "median after", "moved")
    rows = list(list_score_rows(found))[:NUM_ROWS]
    if rows:
        console.print(make_table("Scores that moved", columns, rows))
    _print_examples(found, console)


def describe_causes(found: RunDiff) -> Iterator[str]:
    """Yield a line for each change of config, version and limit, and for other phases."""
    for key, (before, after) in found.config.items():
        yield f"{key}: {_format_value(before)} -> {_format_value(after)}"
    for stage, (before, after) in found.stages.items():
        yield f"version of {stage}: {_format_value(before)} -> {_format_value(after)}"
    for cut in found.cuts:
        pair = " -> ".join(
            "none" if limit is None else f"{limit:.4g}" for limit in (cut.before, cut.after)
        )
        yield f"{cut.setting} {pair} ({cut.language})"
    if found.phases:
        yield f"phases with other outputs: {', '.join(found.phases)}"


def list_amount_rows(found: RunDiff) -> Iterator[tuple[str, str, str, str]]:
    """Yield what is read and kept: a name, before, after, and the change."""
    before, after = found.kept
    yield "documents read", *format_change(*found.read)
    yield "documents kept", *format_change(before.num_docs, after.num_docs)
    yield "characters kept", *format_change(before.num_chars, after.num_chars)
    yield "tokens", *format_change(before.num_tokens, after.num_tokens)


def list_language_rows(found: RunDiff) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the largest languages: kept documents, and the change of tokens."""
    pairs = list(found.languages.items())
    others = [pair for _, pair in pairs[NUM_ROWS:]]
    if others:
        sums = [sum((pair[side] for pair in others), Amount()) for side in (0, 1)]
        pairs = [*pairs[:NUM_ROWS], (f"{len(others)} more", (sums[0], sums[1]))]
    for name, (before, after) in pairs:
        tokens = format_change(before.num_tokens, after.num_tokens)[2]
        yield name, *format_change(before.num_docs, after.num_docs), tokens


def list_domain_rows(found: RunDiff) -> Iterator[tuple[str, str, str, str]]:
    """Yield the domains with the largest changes: kept documents."""
    for domain in found.distributions.domains:
        yield domain.name or "(no domain)", *format_change(*domain.kept)


def list_score_rows(found: RunDiff) -> Iterator[tuple[str, str, str, str]]:
    """Yield the scores whose distribution has changed: medians, and the share that moved."""
    for score in found.distributions.scores:
        if score.moved_share:
            medians = [
                "" if median is None else f"{median:.4g}" for median in score.medians
            ]
            yield score.score, medians[0], medians[1], f"{score.moved_share:.1%}"


def format_change(before: int, after: int) -> tuple[str, str, str]:
    """Return both numbers and their difference; equal numbers have none."""
    change = f"{after - before:+,}" if after != before else ""
    return f"{before:,}", f"{after:,}", change


def describe_rules(example: Example) -> str:
    """Return the values and limits of the rules before and after, if there are any."""
    rules = (("before", example.rule_before), ("after", example.rule_after))
    parts = [f"{name}{format_values(rule)}" for name, rule in rules if format_values(rule)]
    return ", ".join(parts)


def _print_examples(found: RunDiff, console: SafeConsole) -> None:
    for transition in found.transitions[:NUM_EXAMPLE_ROWS]:
        console.print(f"\n{transition.before} -> {transition.after}, at random:")
        for example in transition.examples:
            console.print(f"  {example.url} ({example.language or 'unknown'})")
            if rules := describe_rules(example):
                console.print(f"    {rules}")
            if example.text:
                console.print(f"    {example.text!r}")


def _format_value(value: object) -> str:
    """Return a value as `--set` accepts it. JSON is a subset of YAML."""
    return json.dumps(value, ensure_ascii=False)
