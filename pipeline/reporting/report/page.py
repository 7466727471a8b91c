"""The report of a run as one HTML page, without scripts, fonts or other files.

A crawl is written by strangers. So all texts are escaped, and the page has a policy that lets the
browser apply its one style sheet and load nothing. page.html is the template.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from importlib import resources
from typing import Any

from pipeline.reporting.diff import tables as diff_tables
from pipeline.reporting.diff.comparison import RunDiff
from pipeline.reporting.drawing import draw_histogram
from pipeline.reporting.explain.text import format_values
from pipeline.reporting.report.details import Details, read_details
from pipeline.reporting.report.provenance import Provenance, read_provenance
from pipeline.reporting.report.summary import Report, describe_reason
from pipeline.reporting.report.tables import list_document_tables, list_other_tables
from pipeline.reporting.tables import NUMBER_COLUMNS, Table, format_duration
from pipeline.reporting.templates import render, trust
from pipeline.runs.run_folder import RunFolder
from terminal_output import escape, format_count

# Of a model that a config names by its path.
NO_LICENCE = "not in the registry: see its source"

POLICY = (
    "default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
)


def make_report_page(
    run: RunFolder, report: Report, comparison: RunDiff | None = None
) -> str:
    """Return the page of a run, with all that is known about it."""
    return to_html(report, read_details(run), read_provenance(run), comparison)


def to_html(
    report: Report,
    details: Details | None = None,
    provenance: Provenance | None = None,
    comparison: RunDiff | None = None,
) -> str:
    """Return the page.

    Args:
        report: the numbers.
        details: scores, domains, samples and clusters.
        provenance: models, versions and config.
        comparison: with another run, which is shown first.
    """
    headline = (
        f"{format_count(report.num_tokens, 'token')} in "
        f"{format_count(report.num_shards, 'shard')}, "
        f"from {format_count(report.num_docs_read, 'document')}"
    )
    lines = [headline]
    times = Table("", (), ())
    models = Table("", (), ())
    if provenance is not None:
        if provenance.started is not None:
            lines.append(f"Run from {provenance.started} to {provenance.ended}")
        rows = [(name, format_duration(value)) for name, value in provenance.wall_s.items()]
        bars = list(provenance.wall_s.values())
        title = "Time from start to end, by phase"
        times = Table(title, ("phase", "time"), rows, bars)
        rows = [
            (m.name, m.version, m.licence or NO_LICENCE, ", ".join(m.phases))
            for m in provenance.models
        ]
        columns = ("model or list", "version", "licence", "used by")
        models = Table("Models and lists", columns, rows)
    details = details or Details()
    return _render(
        report.run_dir,
        lines,
        comparison,
        document_tables=list_document_tables(report),
        details=details,
        domains_table=_make_domains_table(details),
        other_tables=[*list_other_tables(report), times],
        provenance=provenance,
        models_table=models,
    )


def make_diff_page(title: str, comparison: RunDiff) -> str:
    """Return a page that compares two runs."""
    return _render(title, [], comparison)


def _render(
    title: str, lines: Sequence[str], comparison: RunDiff | None, **report: Any
) -> str:
    folder = resources.files("pipeline.reporting")
    style = "\n".join(
        folder.joinpath(path).read_text(encoding="utf-8")
        for path in ("browse/assets/style.css", "report/report.css")
    )
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    page = render(
        "report/page.html",
        escape,
        # What the template calls.
        anchor=_make_anchor,
        count=format_count,
        describe_reason=describe_reason,
        diff=diff_tables,
        draw_histogram=draw_histogram,
        format_values=format_values,
        # What it shows.
        numbers=NUMBER_COLUMNS,
        title=title,
        lines=lines,
        policy=POLICY.format(digest=digest),
        style=trust(style),
        comparison=comparison,
        is_report=bool(report),
        **report,
    )
    return f"{page.strip()}\n"


def _make_domains_table(details: Details) -> Table:
    rows: list[tuple[str, ...]] = []
    for domain in details.domains:
        num_docs, num_kept = domain["num_docs"], domain["num_kept"]
        reasons = [f"{lost['reason']} {lost['num_docs']:,}" for lost in domain["reasons"]]
        numbers = (f"{num_docs:,}", f"{num_kept:,}", f"{num_kept / num_docs:.1%}")
        rows.append((domain["name"] or "(no domain)", *numbers, ", ".join(reasons)))
    title = f"Domains with most documents, of {details.num_domains:,}"
    columns = ("domain", "read", "kept", "share", "lost mostly to")
    return Table(title, columns, rows)


def _make_anchor(title: str) -> str:
    """Return the name of a section in addresses."""
    return re.sub("[^a-z0-9]+", "-", title.lower()).strip("-")
