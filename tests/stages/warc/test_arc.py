"""Reading ARC files: the same documents as from WARC files."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.settings.warc import WarcAdvanced, WarcSettings
from tests.stages.warc.files import (
    ARC_A,
    ARC_B,
    ARC_C,
    ARC_SHORT,
    ARC_START,
    MIB,
    Reading,
    arc_record,
    make_page,
    member,
    page,
    response,
)


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(b"".join, id="uncompressed"),
        pytest.param(lambda parts: b"".join(map(member, parts)), id="member-per-record"),
        pytest.param(lambda parts: member(b"".join(parts)), id="one-member"),
        pytest.param(lambda parts: b"".join(parts[1:]), id="no-description"),
        pytest.param(
            lambda parts: b"".join(part.removesuffix(b"\n") for part in parts),
            id="no-newlines",
        ),
        pytest.param(
            lambda parts: b"\r\n".join([parts[0].replace(b"\n", b"\r\n"), *parts[1:]]),
            id="more-newlines",
        ),
        pytest.param(
            lambda parts: b"".join(
                member(b"".join(parts)[i : i + 7]) for i in range(0, 9000, 7)
            ),
            id="members-cut-by-size",
        ),
    ],
)
def test_arc_document_equals_warc_response(
    folder: Path, pack: Callable[[list[bytes]], bytes]
) -> None:
    """Each row equals the row of a WARC file with the same responses, except digest and offset."""
    arc = Reading(folder, pack([ARC_START, ARC_A, ARC_B, ARC_C]))
    warc = Reading(folder, b"".join(response(make_page(name)) for name in "ABC"))
    apart = {"doc_id", "digest", "warc_file", "warc_offset"}
    assert [{key: row[key] for key in row.keys() - apart} for row in arc.rows] == [
        {key: row[key] for key in row.keys() - apart} for row in warc.rows
    ]
    assert (arc.names, arc.causes, arc.rows[0]["digest"]) == ("ABC", [], None)
    assert arc.report.record_types["response"] == 3
    assert arc.report.skipped.keys() <= {"type_warcinfo"}


@pytest.mark.parametrize(
    ("data", "decision"),
    [
        (
            arc_record(b"20260102030405\nexample.org. 192.0.2.1", url="dns:example.org"),
            "not_http",
        ),
        (arc_record(page(b"x", status="404 Not Found")), "http_status"),
        (arc_record(page(b"x", content_type="image/png")), "media_type"),
        (arc_record(b"this is not HTTP"), "warc.http_header_broken"),
        (arc_record(page(bytes(3 * MIB))), "warc.record_too_large"),
        (
            arc_record(
                page(gzip.compress(bytes(3 * MIB), mtime=0), "Content-Encoding: gzip")
            ),
            "warc.record_too_large",
        ),
        (arc_record(page(bytes(range(32)) * 9)), "html.not_text"),
    ],
)
def test_arc_responses_follow_the_same_rules(
    folder: Path, data: bytes, decision: str
) -> None:
    """Reasons and causes are those of WARC, and the next record is read."""
    reading = Reading(
        folder,
        ARC_START + data + ARC_A,
        WarcSettings(advanced=WarcAdvanced(max_record_bytes=2 * MIB)),
    )
    assert reading.names == "A"
    assert [
        *reading.report.skipped,
        *(entry.cause for entry in reading.report.quarantine),
    ] == [
        "type_warcinfo",
        decision,
    ]


def test_arc_header_fields_are_used(folder: Path) -> None:
    """A URL may have spaces and any charset, and a date that does not exist is corrected."""
    untyped = b"HTTP/1.0 200 OK\r\nServer: x\r\n\r\n<p>Hello"
    late = arc_record(untyped, url="http://b.org/a 1.2 b").replace(
        b" 20260102", b" 20261301"
    )
    latin = late.replace(b"/a 1", b"/\xe9 1")
    rows = Reading(folder, ARC_START + late + latin).rows
    assert [(row["url"], row["date"], row["text"]) for row in rows] == [
        ("http://b.org/a 1.2 b", "2026-12-01T03:04:05Z", "Hello"),
        ("http://b.org/é 1.2 b", "2026-12-01T03:04:05Z", "Hello"),
    ]


@pytest.mark.parametrize("batch_bytes", [1, 2000, MIB])
def test_arc_rows_do_not_depend_on_batch_bytes(folder: Path, batch_bytes: int) -> None:
    """Any batch size gives the same rows and the same report."""
    data = ARC_START + ARC_A + ARC_SHORT + ARC_B + b"garbage\n" + ARC_C
    whole, cut = (
        Reading(folder, data, batch_bytes=64 * MIB),
        Reading(folder, data, batch_bytes=batch_bytes),
    )
    assert [{**row, "warc_file": ""} for row in whole.rows] == [
        {**row, "warc_file": ""} for row in cut.rows
    ]
    assert whole.report.counters() == cut.report.counters()
