"""The comparison of two runs as sections of an HTML page."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import asdict

from pipeline.reporting.diff.comparison import Example, RunDiff, Transition
from pipeline.reporting.diff.terminal import (
    describe_causes,
    describe_rules,
    list_amount_rows,
    list_domain_rows,
    list_language_rows,
    list_score_rows,
)
from pipeline.reporting.report.bars import Section
from pipeline.reporting.report.document_sections import fold, make_legend, make_table
from pipeline.reporting.report.elements import element
from pipeline.reporting.report.histogram import draw_histogram
from terminal_output import format_count

NUMBERS = ("documents", "before", "after", "change", "tokens", "moved")

# Transitions and scores that are shown without a click.
NUM_OPEN = 4

SIDES = ("before", "after")


def list_diff_sections(found: RunDiff) -> Iterator[Section]:
    """Yield the sections: causes, numbers, documents with another decision, scores."""
    head = element("p", {}, f"From {found.before} to {found.after}")
    causes = [element("li", {}, line) for line in describe_causes(found)]
    amounts = make_table(("", *NUMBERS[1:4]), list(list_amount_rows(found)), NUMBERS)
    title = f"Compared with {found.before}"
    yield Section(title, [head, element("ul", {"class": "text"}, causes), amounts])
    yield Section("Documents with another decision", list(_show_transitions(found)))
    if not found.transitions:
        return
    rows = list(list_language_rows(found))
    columns = ("language", *NUMBERS[1:5])
    yield Section("Change by language", [make_table(columns, rows, NUMBERS)])
    rows = list(list_domain_rows(found))
    domains = [make_table(("domain", *NUMBERS[1:4]), rows, NUMBERS)] if rows else []
    yield Section("Change by domain", domains)
    yield Section("Scores of kept documents", list(_show_scores(found)))


def _show_transitions(found: RunDiff) -> Iterator[ET.Element]:
    if not found.transitions:
        yield element("p", {}, "No document has another decision.")
        return
    total = f"{format_count(found.num_changed, 'document')}; unchanged: {found.num_unchanged:,}."
    yield element("p", {}, total)
    rows = [(t.before, t.after, f"{t.num_docs:,}") for t in found.transitions]
    yield make_table(("from", "to", "documents"), rows, NUMBERS)
    for place, transition in enumerate(found.transitions):
        yield _show_examples(transition, is_open=place < NUM_OPEN)


def _show_examples(transition: Transition, *, is_open: bool) -> ET.Element:
    documents = [_show_example(example) for example in transition.examples]
    summary = f"{transition.before} → {transition.after}: random documents"
    shown = element("ol", {"class": "documents"}, documents)
    return fold(summary, [shown], is_open=is_open)


def _show_example(example: Example) -> ET.Element:
    facts = " ".join(filter(None, (example.language or "unknown", describe_rules(example))))
    return element(
        "li",
        {},
        element("p", {"class": "url"}, example.url),
        element("p", {"class": "facts"}, element("span", {}, facts)),
        element("p", {"class": "excerpt", "dir": "auto"}, example.text),
    )


def _show_scores(found: RunDiff) -> Iterator[ET.Element]:
    rows = list(list_score_rows(found))
    if not rows:
        return
    columns = ("score", "median before", "median after", "moved")
    numbers = columns[1:]
    yield make_table(columns, rows, numbers)
    yield make_legend(SIDES)
    moved = [score for score in found.distributions.scores if score.moved_share]
    for place, score in enumerate(moved):
        bins = asdict(score)
        figures = [
            draw_histogram(one, bins, SIDES, is_stacked=False) for one in score.histograms
        ]
        grid = element("div", {"class": "histograms"}, figures)
        if place < NUM_OPEN:
            yield element("h3", {}, score.score)
            yield grid
        else:
            yield fold(score.score, [grid])
