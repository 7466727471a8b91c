"""The report of a run as one HTML page, without scripts, fonts or other files."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from pipeline.reporting.report.losses import Losses
from pipeline.reporting.report.summary import (
    Report,
    describe_reason,
    list_stage_counters,
    take_largest,
    take_largest_cuts,
    take_slowest,
)
from stages.warc.causes import CAUSES
from terminal_output import escape

# Width of the longest bar of a section, in percent of the page.
FULL_BAR_PERCENT = 60

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto;
  padding: 0 1rem; color: #1b1f24 }}
h1 {{ font-size: 1.3rem; margin-bottom: 0 }} h2 {{ font-size: 1.05rem; margin: 2rem 0 .5rem }}
.row {{ display: grid; grid-template-columns: 15rem 1fr; gap: .75rem; align-items: center;
  margin: 2px 0 }}
.name {{ text-align: right; overflow-wrap: anywhere }}
.bar {{ flex: none; background: #3b6ea8; height: 1.15rem; border-radius: 2px; min-width: 2px }}
.line {{ display: flex; gap: .5rem; align-items: center; font-variant-numeric: tabular-nums;
  white-space: nowrap }}
.note {{ color: #59636e; font-size: .85rem }}
</style></head><body>
<h1>{title}</h1><p>{headline}</p>
{sections}
</body></html>
"""

ROW = (
    '<div class="row"><div class="name">{name}{note}</div>'
    '<div class="line"><div class="bar" style="width:{width:.2f}%"></div>{label}</div></div>'
)


class Bar(NamedTuple):
    """One bar of a section."""

    name: str
    value: float
    label: str
    note: str = ""


def to_html(report: Report) -> str:
    """Return the page. All texts are escaped."""
    headline = (
        f"{report.num_tokens:,} tokens in {report.num_shards:,} shards, "
        f"from {report.num_docs_read:,} documents"
    )
    sections = "\n".join(_format_sections(report))
    return PAGE.format(title=_escape(report.run_dir), headline=headline, sections=sections)


def _format_sections(report: Report) -> Iterator[str]:
    reasons = _make_bars(report.reasons, describe_reason)
    causes = _make_bars(report.quarantine, lambda cause: CAUSES.get(cause, ""))
    yield _format_section("What is left after each step", _make_step_bars(report))
    yield _format_section("Why documents were dropped", reasons)
    losses = _make_loss_bars(report.losses)
    yield _format_section("Nearly all documents dropped by one phase", losses)
    yield _format_section("Kept, by language", _make_bars(report.languages))
    yield _format_section("Kept, by perplexity bucket", _make_bars(report.buckets))
    yield _format_section("Limits from the scores of the run", _make_cut_bars(report))
    for counters in list_stage_counters(report):
        bars = [
            Bar(name, value, f"{value:,}") for name, value in take_largest(counters.rows)
        ]
        yield _format_section(f"Counted by {counters.phase}: {counters.stage}", bars)
    lost_files = _make_bars(report.lost_files)
    yield _format_section("Input files without a readable record", lost_files)
    yield _format_section("Quarantined records, by cause", causes)
    slowest = take_slowest(report.seconds)
    seconds = [Bar(step, value, f"{value:,.1f} s") for step, value in slowest]
    yield _format_section("Worker seconds, by step", seconds)


def _make_step_bars(report: Report) -> Iterator[Bar]:
    for step in report.steps:
        label = f"{step.num_docs:,} documents · {step.num_chars:,} characters"
        yield Bar(step.name, step.num_docs, label)


def _make_loss_bars(losses: Losses) -> Iterator[Bar]:
    for loss in losses.found:
        share = f"{loss.num_lost / loss.num_docs:.1%} of {loss.num_docs:,} documents"
        note = f"{loss.kind}; most frequent reason: {loss.reason}"
        yield Bar(loss.name, loss.num_lost, f"{share} by {loss.phase}", note)
    if losses.num_others:
        yield Bar(f"{losses.num_others:,} more", 0, "")


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


def _format_section(title: str, bars: Iterable[Bar]) -> str:
    """Return a section, or nothing if it has no bars."""
    bars = list(bars)
    if not bars:
        return ""
    longest = max(bar.value for bar in bars)
    rows = [_format_bar(bar, bar.value / longest if longest else 0.0) for bar in bars]
    return "\n".join([f"<h2>{_escape(title)}</h2>", *rows])


def _escape(text: str) -> str:
    """Return the text without markup, and without invisible and reordering characters."""
    return html.escape(escape(text))


def _format_bar(bar: Bar, share: float) -> str:
    note = f'<div class="note">{_escape(bar.note)}</div>' if bar.note else ""
    return ROW.format(
        name=_escape(bar.name),
        note=note,
        width=FULL_BAR_PERCENT * share,
        label=_escape(bar.label),
    )
