"""The sections of the page that show numbers as bars."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from pipeline.inputs.quarantine import CAUSES
from pipeline.reporting.rates import format_duration
from pipeline.reporting.report.elements import element
from pipeline.reporting.report.losses import Losses
from pipeline.reporting.report.mix import MixReport, make_mix_title
from pipeline.reporting.report.summary import (
    Report,
    describe_reason,
    list_stage_counters,
    take_largest,
    take_largest_cuts,
    take_slowest,
)
from terminal_output import format_count


class Bar(NamedTuple):
    """One bar of a section."""

    name: str
    value: float
    label: str
    note: str = ""


class Section(NamedTuple):
    """A part of the page with a heading."""

    title: str
    content: list[ET.Element]


def list_first_bars(report: Report) -> Iterator[Section]:
    """Yield the sections about documents: what is left, and what was dropped."""
    reasons = _make_bars(report.reasons, describe_reason)
    yield draw_bars("What is left after each step", _make_step_bars(report))
    yield draw_bars("Why documents were dropped", reasons)
    losses = _make_loss_bars(report.losses)
    yield draw_bars("Nearly all documents dropped by one phase", losses)
    yield draw_bars("Kept, by language", _make_language_bars(report))
    yield draw_bars("Kept, by perplexity bucket", _make_bars(report.buckets))
    if report.mix is not None:
        yield draw_bars(make_mix_title(report.mix), _make_bin_bars(report.mix))
    yield draw_bars("Limits from the scores of the run", _make_cut_bars(report))
    yield draw_bars("Retracted since", _make_retraction_bars(report))


def list_last_bars(report: Report, wall_s: Mapping[str, float]) -> Iterator[Section]:
    """Yield the sections about input that could not be read, counters and times."""
    causes = _make_bars(report.quarantine, lambda cause: CAUSES.get(cause, ""))
    yield draw_bars("Quarantined records, by cause", causes)
    lost_files = _make_bars(report.lost_files)
    yield draw_bars("Input files without a readable record", lost_files)
    for counters in list_stage_counters(report):
        bars = [
            Bar(name, value, f"{value:,}") for name, value in take_largest(counters.rows)
        ]
        yield draw_bars(f"Counted by {counters.phase}: {counters.stage}", bars)
    slowest = take_slowest(report.seconds)
    seconds = [Bar(step, value, f"{value:,.1f} s") for step, value in slowest]
    yield draw_bars("Worker seconds, by step", seconds)
    times = [Bar(name, value, format_duration(value)) for name, value in wall_s.items()]
    yield draw_bars("Time from start to end, by phase", times)


def draw_bars(title: str, bars: Iterable[Bar]) -> Section:
    """Return a section with a bar for each number; without bars, its content is empty."""
    bars = list(bars)
    longest = max((bar.value for bar in bars), default=0)
    rows = [_draw_bar(bar, bar.value / longest if longest else 0.0) for bar in bars]
    return Section(title, rows)


def _make_step_bars(report: Report) -> Iterator[Bar]:
    for step in report.steps:
        documents = format_count(step.num_docs, "document")
        label = f"{documents} · {format_count(step.num_chars, 'character')}"
        yield Bar(step.name, step.num_docs, label)


def _make_loss_bars(losses: Losses) -> Iterator[Bar]:
    for loss in losses.found:
        documents = format_count(loss.num_docs, "document")
        share = f"{loss.num_lost / loss.num_docs:.1%} of {documents}"
        note = f"{loss.kind}; most frequent reason: {loss.reason}"
        yield Bar(loss.name, loss.num_lost, f"{share} by {loss.phase}", note)
    if losses.num_others:
        yield Bar(f"{losses.num_others:,} more", 0, "")


def _make_language_bars(report: Report) -> Iterator[Bar]:
    tokens = dict(take_largest(report.language_tokens, among=report.languages))
    for bar in _make_bars(report.languages):
        num_tokens = tokens.get(bar.name)
        label = (
            f"{bar.label} · {format_count(num_tokens, 'token')}"
            if num_tokens
            else bar.label
        )
        yield bar._replace(label=label)


def _make_retraction_bars(report: Report) -> Iterator[Bar]:
    for entry in report.retractions:
        documents = format_count(entry.num_docs, "document")
        label = f"{documents} · {format_count(entry.num_tokens, 'token')}"
        yield Bar(entry.recorded_at, entry.num_docs, label, entry.reason)


def _make_bin_bars(mix: MixReport) -> Iterator[Bar]:
    for each in mix.bins:
        label = f"{format_count(each.num_tokens, 'token')}, copies: {each.num_copies:,}"
        documents = format_count(each.num_docs, "document")
        note = f"{documents}, copies of each: {each.copies_of_each:g}"
        yield Bar(f"percentiles {each.percentiles}", each.num_tokens, label, note)


def _make_cut_bars(report: Report) -> Iterator[Bar]:
    for cut in take_largest_cuts(report.cuts):
        label = f"{cut.limit:.4g}, of {cut.num_scored:,} scored documents"
        yield Bar(f"{cut.setting} ({cut.language})", cut.num_scored, label)


def _make_bars(
    counts: Mapping[str, int], describe: Callable[[str], str] = lambda _: ""
) -> Iterator[Bar]:
    """Yield a bar per name, with its share of the total and the sentence that describes it."""
    total = max(1, sum(counts.values()))
    for name, number in take_largest(counts):
        yield Bar(name, number, f"{number:,} ({number / total:.1%})", describe(name))


def _draw_bar(bar: Bar, share: float) -> ET.Element:
    """Return a row: the name, a bar with this share of the width, and the label."""
    note = [element("div", {"class": "note"}, bar.note)] if bar.note else []
    shape = element("rect", {"width": f"{100 * share:.2f}%", "height": "100%"})
    return element(
        "div",
        {"class": "bar"},
        element("div", {"class": "name"}, bar.name, note),
        element("svg", {"aria-hidden": "true"}, shape),
        element("div", {"class": "label"}, bar.label),
    )
