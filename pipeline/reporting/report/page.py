"""The report of a run as one HTML page, without scripts, fonts or other files.

A crawl is written by strangers. So all texts are escaped, and the page has a policy that lets the
browser apply its one style sheet and load nothing.
"""

from __future__ import annotations

import base64
import hashlib
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator
from importlib import resources

from pipeline.reporting.report.bars import Section, list_first_bars, list_last_bars
from pipeline.reporting.report.details import Details, read_details
from pipeline.reporting.report.document_sections import (
    list_document_sections,
    list_provenance_sections,
)
from pipeline.reporting.report.elements import element, write_element
from pipeline.reporting.report.provenance import Provenance, read_provenance
from pipeline.reporting.report.summary import Report
from pipeline.runs.run_folder import RunFolder
from terminal_output import format_count

POLICY = (
    "default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
)


def make_report_page(
    run: RunFolder, report: Report, comparison: Iterable[Section] = ()
) -> str:
    """Return the page of a run, with all that is known about it."""
    return to_html(report, read_details(run), read_provenance(run), comparison)


def to_html(
    report: Report,
    details: Details | None = None,
    provenance: Provenance | None = None,
    comparison: Iterable[Section] = (),
) -> str:
    """Return the page.

    Args:
        report: the numbers.
        details: scores, domains, samples and clusters.
        provenance: models, versions and config.
        comparison: sections about another run, which are shown first.
    """
    headline = (
        f"{format_count(report.num_tokens, 'token')} in "
        f"{format_count(report.num_shards, 'shard')}, "
        f"from {format_count(report.num_docs_read, 'document')}"
    )
    sections = [*comparison, *_list_sections(report, details or Details(), provenance)]
    return make_page(report.run_dir, [headline, *_describe_time(provenance)], sections)


def make_page(title: str, lines: Iterable[str], sections: Iterable[Section]) -> str:
    """Return a page with the sections that have content, and links to them."""
    shown = [section for section in sections if section.content]
    links = [
        element("li", {}, element("a", {"href": f"#{_name(one)}"}, one.title))
        for one in shown
    ]
    body = element(
        "body",
        {"class": "report"},
        element(
            "main",
            {},
            element("h1", {}, title),
            [element("p", {}, line) for line in lines],
            element("nav", {"aria-label": "Sections"}, element("ul", {}, links)),
            [_make_section(section) for section in shown],
        ),
    )
    html = element("html", {"lang": "en"}, _make_head(title), body)
    return f"<!doctype html>\n{write_element(html)}\n"


def _list_sections(
    report: Report, details: Details, provenance: Provenance | None
) -> Iterator[Section]:
    yield from list_first_bars(report)
    yield from list_document_sections(details)
    yield from list_last_bars(report, provenance.wall_s if provenance else {})
    if provenance:
        yield from list_provenance_sections(provenance)


def _describe_time(provenance: Provenance | None) -> list[str]:
    if provenance is None or provenance.started is None:
        return []
    return [f"Run from {provenance.started} to {provenance.ended}"]


def _make_section(section: Section) -> ET.Element:
    heading = element("h2", {"id": _name(section)}, section.title)
    return element("section", {}, heading, section.content)


def _name(section: Section) -> str:
    """Return the name of a section in addresses."""
    return re.sub("[^a-z0-9]+", "-", section.title.lower()).strip("-")


def _make_head(title: str) -> ET.Element:
    style = _read_style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = POLICY.format(digest=digest)
    made = element("style", {})
    made.text = style  # not escaped in HTML: it must come from our own files only
    return element(
        "head",
        {},
        element("meta", {"charset": "utf-8"}),
        element("meta", {"http-equiv": "Content-Security-Policy", "content": policy}),
        element(
            "meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}
        ),
        element("meta", {"name": "color-scheme", "content": "light dark"}),
        element("title", {}, title),
        made,
    )


def _read_style() -> str:
    """Return the style sheet of `browse`, and what the page adds to it."""
    reporting = resources.files("pipeline.reporting")
    return "\n".join(
        reporting.joinpath(*path).read_text(encoding="utf-8")
        for path in (("browse", "assets", "style.css"), ("report", "report.css"))
    )
