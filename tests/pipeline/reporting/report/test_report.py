"""The report of a run: its numbers agree with the stored files, and its page needs no other file."""

from __future__ import annotations

import io
import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.execution.engine import PhaseFinished, run
from pipeline.reporting.report import (
    Report,
    make_report,
    print_report,
    to_html,
    to_json,
)
from pipeline.reporting.report.summary import NUM_SHOWN, describe_reasons
from pipeline.runs.run_folder import RunFolder
from stages.contract import DocumentCountError
from terminal_output.console import SafeConsole
from tests.pipeline.conftest import Small
from tests.pipeline.reporting.pages import PAGES, RULES, read_decisions, write_pages

HOSTILE = "<script>alert('&\"')</script>"


@pytest.fixture
def mixed(small: Small) -> RunFolder:
    """A run over pages of every kind in two files, with two broken records at the end of one."""
    kinds = [*PAGES, "good", "copy"]
    files = [
        write_pages(small.folder / "first.warc.wet", kinds),
        write_pages(small.folder / "second.warc.wet", kinds, 2),
    ]
    return small.run(input={"files": [str(path) for path in files]}, **RULES)[0]


def rows(found: RunFolder, phase: str, kind: str) -> list[dict[str, Any]]:
    paths = [
        found.folder(phase).path(f"{split.key}.{kind}.parquet") for split in found.splits
    ]
    return [row for path in paths for row in pq.read_table(path).to_pylist()]


def test_numbers_agree_with_the_stored_files(mixed: RunFolder) -> None:
    """The numbers equal those of the decisions, the texts, the quarantine and the manifest."""
    report = make_report(mixed)
    decisions = read_decisions(mixed)
    documents, early = (
        rows(mixed, "extract", "documents"),
        rows(mixed, "extract", "decisions"),
    )
    kept = [row for row in rows(mixed, "select", "decisions") if row["decision"] == "kept"]
    manifest = json.loads((Path(mixed.dataset) / "manifest.json").read_text())
    assert report.steps[0].num_docs == len(documents) + len(early) == 16
    num_chars = sum(len(row["text"]) for row in documents) + sum(
        row["num_chars"] for row in early
    )
    assert report.steps[0].num_chars == num_chars
    assert report.steps[-1].num_docs == len(kept) == manifest["totals"]["num_docs"]
    texts = {row["doc_id"]: row["text"] for row in rows(mixed, "annotate", "documents")}
    assert report.steps[-1].num_chars == sum(len(texts[row["doc_id"]]) for row in kept)
    assert report.reasons == Counter(
        decision for decision in decisions.values() if decision != "kept"
    )
    assert list(report.reasons.values()) == sorted(report.reasons.values(), reverse=True)
    assert report.languages == Counter(row["language"] for row in kept)
    assert (
        report.num_tokens
        == manifest["totals"]["num_tokens"]
        == sum(report.language_tokens.values())
    )
    assert report.num_shards == len(manifest["shards"])


def test_steps_never_rise(mixed: RunFolder) -> None:
    """Each step has no more documents than the one before, and names the drop reasons."""
    steps = make_report(mixed).steps
    assert [step.name for step in steps] == [
        "read",
        "extract: length",
        "annotate: paragraphs",
        "select: language",
    ]
    counts = [step.num_docs for step in steps]
    assert counts == sorted(counts, reverse=True)
    assert [step.reasons for step in steps[1:]] == [
        ("length.too_few_chars",),
        ("paragraphs.none_left",),
        ("language.not_wanted",),
    ]


def test_quarantine_is_counted_by_cause(mixed: RunFolder) -> None:
    """The numbers equal those of the quarantine files."""
    report = make_report(mixed)
    lines = [
        json.loads(line)
        for split in mixed.splits
        for line in mixed.folder("extract")
        .path(f"{split.key}.quarantine.jsonl")
        .read_text()
        .splitlines()
    ]
    assert lines
    assert sum(report.quarantine.values()) == len(lines)
    assert set(report.quarantine) == {line["cause"] for line in lines}
    assert report.quarantined_share == pytest.approx(len(lines) / report.num_records)


def test_seconds_are_those_of_the_event_log(mixed: RunFolder) -> None:
    """They are summed by phase and step; a phase with one step has its own name only."""
    seconds = make_report(mixed).seconds
    assert {
        "extract: read",
        "extract: length",
        "annotate: language",
        "paragraph_dedup",
        "write_shards",
    } <= seconds.keys()
    logged = [
        json.loads(line)
        for line in (Path(mixed.run_dir) / "log.jsonl").read_text().splitlines()
    ]
    assert sum(seconds.values()) == pytest.approx(
        sum(s for e in logged for s in e.get("seconds", {}).values())
    )


def tamper(found: RunFolder, phase: str, change: Callable[[dict[str, int]], None]) -> None:
    """Change the counters of a complete phase."""
    folder = found.folder(phase)
    summary = folder.summary()
    change(summary["counters"]["counts"])
    folder.finish(summary)


@pytest.mark.parametrize(
    ("phase", "counter", "named"),
    [
        ("extract", "documents", "extract|annotate"),
        ("annotate", "documents", "annotate"),
        ("annotate", "dropped.paragraphs.none_left", "select"),
        ("select", "documents", "select"),
        ("select", "", "select"),
        ("select", "dropped.language.not_wanted", "tokenize"),
        ("tokenize", "documents", "tokenize"),
    ],
)
def test_lost_documents_are_an_error(
    mixed: RunFolder, phase: str, counter: str, named: str
) -> None:
    """If the counters of two phases do not agree, the error names the phase and both numbers."""
    make_report(mixed)
    tamper(
        mixed,
        phase,
        lambda counts: (
            counts.update({counter: counts[counter] + 1}) if counter else counts.clear()
        ),
    )
    with pytest.raises(
        DocumentCountError,
        match=rf"^({named}) read \d+ documents, but \d+ were kept before it",
    ):
        make_report(mixed)


def test_report_as_json_has_every_field(mixed: RunFolder) -> None:
    """The JSON has the names and values of the fields."""
    report = make_report(mixed)
    again = json.loads(to_json(report))
    assert again == json.loads(json.dumps(asdict(report)))
    assert again["steps"][0] == {
        "name": "read",
        "num_docs": 16,
        "num_chars": report.steps[0].num_chars,
        "reasons": [],
    }
    assert again.keys() == set(Report.__dataclass_fields__)


class Page(HTMLParser):
    """The tags, the addresses and the text of an HTML page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.fetched: list[str | None] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.fetched += [
            value for name, value in attrs if name in ("src", "href", "data", "action")
        ]
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def parsed(report: Report) -> Page:
    page = Page()
    page.feed(to_html(report))
    page.close()
    return page


def test_page_needs_no_other_file(mixed: RunFolder) -> None:
    """The page has no script, font, image or address, and shows the numbers."""
    report = make_report(mixed)
    page = parsed(report)
    assert page.fetched
    assert [address for address in page.fetched if not str(address).startswith("#")] == []
    assert not {"script", "link", "img", "iframe", "object"} & set(page.tags)
    assert "url(" not in to_html(report)
    assert f"{report.num_tokens:,} tokens in 1 shard, from 16 documents" in page.text
    for reason in report.reasons:
        assert reason in page.text
        assert describe_reasons()[reason] in page.text


def test_page_escapes_names(mixed: RunFolder) -> None:
    """Names of folders, languages, reasons and causes are shown as text."""
    named = {HOSTILE: 3}
    report = replace(
        make_report(mixed),
        run_dir=HOSTILE,
        reasons=named,
        languages=named,
        buckets=named,
        quarantine=named,
        seconds={HOSTILE: 1.0},
    )
    page = parsed(report)
    assert "script" not in page.tags
    assert page.text.count(HOSTILE) == 7  # title, heading, and five sections


def test_terminal_shows_every_table(mixed: RunFolder) -> None:
    """Steps, reasons with their meaning, languages and quarantine are printed."""
    out = io.StringIO()
    print_report(make_report(mixed), SafeConsole(width=160, file=out))
    for title in (
        "What is left after each step",
        "Why documents were dropped",
        "Kept, by language",
        "Quarantined: ",
    ):
        assert title in out.getvalue()
    assert re.search(
        r"language\.not_wanted +2 +[\d.]+% +The most likely language is not in the list to keep",
        out.getvalue(),
    )


def test_only_error_reasons_are_explained_as_errors(mixed: RunFolder) -> None:
    """The row of the smaller reasons has no explanation, on the terminal and on the page."""
    reasons = {f"length.rule_{i}": 100 - i for i in range(NUM_SHOWN - 1)}
    reasons = {"length.error_value": 200, **reasons, "length.rare": 1, "length.rarer": 1}
    report = replace(make_report(mixed), reasons=reasons)
    out = io.StringIO()
    print_report(report, SafeConsole(width=160, file=out))
    error = "The stage raised an error; `explain` shows it."
    for text in (out.getvalue(), parsed(report).text):
        assert "2 more" in text
        assert text.count(error) == 1
        assert re.search(rf"length\.error_value\s*200\s*[\d.]+%\s*{error}", text)


def test_report_covers_the_complete_phases(small: Small) -> None:
    """Phases that are not complete are left out, without an error."""
    path = write_pages(small.folder / "first.warc.wet", [*PAGES])
    plan = small.plan(input={"files": [str(path)]}, **RULES)
    seen: list[int] = []
    for event in run(plan):
        report = make_report(RunFolder.open(plan.run_dir))
        if isinstance(event, PhaseFinished):
            seen.append(len(report.steps))
            to_html(report)
            to_json(report)
    assert seen[0] == 2
    assert seen == sorted(seen)
    assert seen[-1] == 4


def test_report_of_a_new_run_is_empty(small: Small) -> None:
    """A run without a complete phase has zeros, on the page too."""
    plan = small.plan()
    next(run(plan))
    report = make_report(RunFolder.open(plan.run_dir))
    assert (report.steps[0].num_docs, report.num_tokens, report.quarantined_share) == (
        0,
        0,
        0,
    )
    assert "0 tokens in 0 shards, from 0 documents" in to_html(report)
