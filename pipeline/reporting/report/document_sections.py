"""The sections of the page that show scores, domains, samples and clusters."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.reporting.explain.text import format_values
from pipeline.reporting.report.bars import Section
from pipeline.reporting.report.details import Cluster, Details
from pipeline.reporting.report.elements import Content, element
from pipeline.reporting.report.histogram import draw_histogram
from pipeline.reporting.report.provenance import Provenance
from pipeline.reporting.report.summary import describe_reason
from terminal_output import format_count

# From the bottom up.
SIDES = ("kept", "dropped")


# Scores with limits that are shown without a click. Quality rules have more than twenty.
_NUM_OPEN_SCORES = 3


def list_document_sections(details: Details) -> Iterator[Section]:
    """Yield the sections; none without details."""
    if not details.num_docs:
        return
    if details.num_splits < details.num_all_splits:
        read = f"{details.num_splits:,} of {details.num_all_splits:,} input splits"
        documents = format_count(details.num_docs, "document")
        note = f"The sections below show {documents}, from {read}."
        yield Section("Part of the documents", [element("p", {}, note)])
    yield Section("Scores and limits", list(_show_scores(details)))
    title = f"Domains with most documents, of {details.num_domains:,}"
    yield Section(title, [_show_domains(details.domains)])
    yield Section("Random documents, by decision", list(_show_samples(details)))
    clusters = [_show_cluster(cluster) for cluster in details.clusters]
    yield Section("Largest clusters of duplicates", clusters)


def list_provenance_sections(found: Provenance) -> Iterator[Section]:
    """Yield the sections about models, versions and config."""
    if found.models:
        columns = ("model or list", "version", "licence", "used by")
        rows = [(m.name, m.version, m.licence, ", ".join(m.phases)) for m in found.models]
        yield Section("Models and lists", [make_table(columns, rows)])
    rows = list(found.stages.items())
    versions = [make_table(("phase", "stages with their versions"), rows)] if rows else []
    libraries = ", ".join(f"{name} {number}" for name, number in found.libraries.items())
    versions.append(
        element("p", {"class": "note"}, f"This page was made with {libraries}.")
    )
    yield Section("Versions", versions)
    config = element("pre", {}, found.config)
    yield Section("Config", [fold("All keys, with their defaults", [config])])


def fold(summary: str, content: Iterable[Content], *, is_open: bool = False) -> ET.Element:
    """Return content that a click on its summary shows and hides."""
    state = {"open": ""} if is_open else {}
    return element("details", state, element("summary", {}, summary), content)


def make_table(
    columns: Sequence[str], rows: Iterable[Sequence[Content]], numbers: Sequence[str] = ()
) -> ET.Element:
    """Return a table, in a box that scrolls sideways if the window is narrow.

    Args:
        columns: the heads.
        rows: the cells of each row.
        numbers: the columns that hold numbers.
    """
    kinds = [{"class": "number" if name in numbers else "text"} for name in columns]

    def row(cell: str, contents: Sequence[Content]) -> ET.Element:
        pairs = zip(kinds, contents, strict=True)
        return element("tr", {}, [element(cell, kind, each) for kind, each in pairs])

    head = element("thead", {}, row("th", columns))
    body = element("tbody", {}, [row("td", contents) for contents in rows])
    table = element("table", {}, head, body)
    return element("div", {"class": "scrolled", "tabindex": "0"}, table)


def make_legend(sides: Sequence[str]) -> ET.Element:
    """Return the colours of the bars of histograms."""
    entries: list[ET.Element] = []
    for side in sides:
        shape = element("rect", {"class": side, "width": "10", "height": "10"})
        picture = element("svg", {"viewBox": "0 0 10 10", "aria-hidden": "true"}, shape)
        entries.append(element("span", {}, picture, side.replace("_", " ")))
    return element("p", {"class": "legend"}, entries)


def _show_scores(details: Details) -> Iterator[ET.Element]:
    yield make_legend(SIDES)
    num_open = 0
    for bins in details.histograms:
        figures = [draw_histogram(one, bins, SIDES) for one in bins["histograms"]]
        grid = element("div", {"class": "histograms"}, figures)
        if bins["score"] in details.limited:
            yield fold(bins["score"], [grid], is_open=num_open < _NUM_OPEN_SCORES)
            num_open += 1
        else:
            yield fold(f"{bins['score']}: no limit", [grid])


def _show_domains(domains: Iterable[Mapping[str, Any]]) -> ET.Element:
    rows: list[tuple[Content, ...]] = []
    for domain in domains:
        num_docs, num_kept = domain["num_docs"], domain["num_kept"]
        reasons = [f"{lost['reason']} {lost['num_docs']:,}" for lost in domain["reasons"]]
        numbers = (f"{num_docs:,}", f"{num_kept:,}", f"{num_kept / num_docs:.1%}")
        rows.append((domain["name"] or "(no domain)", *numbers, ", ".join(reasons)))
    numbers = ("read", "kept", "share")
    return make_table(("domain", *numbers, "lost mostly to"), rows, numbers)


def _show_samples(details: Details) -> Iterator[ET.Element]:
    for decision, documents in details.samples.items():
        shown = [_show_document(document) for document in documents]
        content = [element("ol", {"class": "documents"}, shown)]
        if meaning := describe_reason(decision):
            content.insert(0, element("p", {"class": "note"}, meaning))
        yield fold(f"{decision}: {format_count(len(shown), 'document')}", content)


def _show_document(document: Mapping[str, Any]) -> ET.Element:
    facts = f"{document['language']}{format_values({'detail': None, **document})}"
    title = document.get("title")
    excerpt = document["excerpt"]
    return element(
        "li",
        {},
        [element("h4", {"dir": "auto"}, title)] if title else [],
        element("p", {"class": "url"}, document["url"]),
        element("p", {"class": "facts"}, element("span", {}, facts)),
        [element("p", {"class": "excerpt", "dir": "auto"}, excerpt)] if excerpt else [],
    )


def _show_cluster(cluster: Cluster) -> ET.Element:
    num_more = cluster.num_docs - 1 - len(cluster.members)
    members = [element("li", {"class": "url"}, url) for url in cluster.members]
    if num_more:
        members.append(element("li", {"class": "note"}, f"{num_more:,} more"))
    head = f"{cluster.num_docs:,} documents, represented by one that is {cluster.decision}"
    return element(
        "div",
        {"class": "cluster"},
        element("p", {"class": "url"}, cluster.url),
        fold(head, [element("ul", {}, members)]),
    )
