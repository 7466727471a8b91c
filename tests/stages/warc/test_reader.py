"""Reading documents from intact files, and the report on all other records."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from fastwarc.stream_io import Lz4Writer, ZstdWriter
from hypothesis import given
from hypothesis import strategies as st

from stages.contract import DOCUMENT, DocumentCountError
from stages.settings.warc import WarcAdvanced, WarcSettings
from stages.warc.causes import SKIPPED
from stages.warc.documents import extract_source_domains, parse_source_domain
from stages.warc.read_report import ReadReport
from stages.warc.reader import WarcReader
from tests.stages.warc.files import (
    MIB,
    A,
    B,
    C,
    Reading,
    clean_in_python,
    make_text,
    member,
    page,
    record,
    response,
)


def test_wet_record_becomes_a_row(folder: Path) -> None:
    """Each column comes from the record, the file name or the record's number."""
    path = folder / "crawl.warc.wet.gz"
    info = member(record(b"x", kind="warcinfo"))
    path.write_bytes(
        info
        + member(
            record(
                b"Title\nfirst \n\tsecond\n\n", WARC_Target_URI="<https://u@B.org:81/?q>"
            )
        )
    )
    (table,) = WarcReader(path, WarcSettings(), split=7, first_record=100, batch_bytes=MIB)
    assert table.schema == DOCUMENT
    assert table.to_pylist() == [
        {
            "doc_id": 7 << 32 | 101,
            "url": "https://u@B.org:81/?q",
            "source_domain": "b.org",
            "date": "2026-01-02T03:04:05Z",
            "digest": "sha1:AAAA",
            "warc_file": "crawl.warc.wet.gz",
            "warc_offset": len(info),
            "title": "Title",
            "text": "first\n\tsecond",
            "main_content_chars": None,
            "page_sample": None,
        }
    ]


def test_code_and_nested_lists_of_a_page_stay_indented(folder: Path) -> None:
    """White space at the ends of lines goes, and tabs are tabs."""
    code = "def f(x):\n    if x:\n\t\treturn 1   \n    return 0"
    html = (
        f"<p>{'Some words before it. ' * 20}<pre>{code}</pre><ul><li>a<ul><li>b</ul></ul>"
    )
    (row,) = Reading(folder, member(response(page(html.encode())))).rows
    lines = row["text"].split("\n")
    start = lines.index("def f(x):")
    expected = ["def f(x):", "    if x:", "\t\treturn 1", "    return 0"]
    assert lines[start : start + 4] == expected


def test_invisible_characters_are_removed_and_counted(folder: Path) -> None:
    """From title and text. A line of nothing else is blank."""
    found = Reading(
        folder, member(record("Ti\u00adtle\na\u200bb\n\ufeff\nc\n\u2060\n".encode()))
    )
    assert [(row["title"], row["text"]) for row in found.rows] == [("Title", "ab\n\nc")]
    assert found.report.invisible_removed == 4


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(
            lambda records: b"".join(member(r) for r in records), id="member-per-record"
        ),
        pytest.param(lambda records: member(b"".join(records)), id="one-member"),
        pytest.param(
            lambda records: member(b"".join(records[:2])) + member(records[2]),
            id="two-in-one-member",
        ),
        pytest.param(b"".join, id="uncompressed"),
        pytest.param(b"\r\n\r\n".join, id="more-newlines"),
        pytest.param(
            lambda records: b"".join(r.removesuffix(b"\r\n\r\n") for r in records),
            id="no-newlines",
        ),
        pytest.param(
            lambda records: b"".join(
                member(b"".join(records)[i : i + 500]) for i in range(0, 9000, 500)
            ),
            id="members-cut-by-size",
        ),
        pytest.param(
            lambda records: (
                member(b"")
                + member(records[0])
                + member(b"")
                + member(b"".join(records[1:]))
            ),
            id="empty-members",
        ),
    ],
)
def test_documents_do_not_depend_on_packing(
    folder: Path, pack: Callable[[list[bytes]], bytes]
) -> None:
    """Gzip members and newlines between records change only the offsets."""
    reading = Reading(folder, pack([A, B, C]))
    assert (reading.names, reading.causes) == ("ABC", [])
    assert reading.rows[1]["text"] == make_text("B").decode().partition("\n")[2].rstrip()


@pytest.mark.parametrize("writer", [ZstdWriter, Lz4Writer])
def test_zstd_and_lz4_files_have_no_offsets(
    folder: Path, writer: type[ZstdWriter | Lz4Writer]
) -> None:
    """The offset is null, because the decompressors do not report where a frame begins."""
    path = folder / "packed"
    packer = writer(str(path))
    packer.write(A + B)
    packer.close()
    reading = Reading(folder, path.read_bytes())
    assert reading.names == "AB"
    assert [row["warc_offset"] for row in reading.rows] == [None, None]
    broken = Reading(folder, path.read_bytes()[:-12])
    assert broken.causes == ["compression_corrupt"]


def test_offset_locates_the_record_on_disk(folder: Path) -> None:
    """Reading a file from `warc_offset` gives the record, or its member if it shares one."""
    for data, inflate in (
        (A + B + C, bytes),
        (member(A) + member(B) + member(C), lambda d: zlib.decompress(d, 31)),
    ):
        for row, name in zip(Reading(folder, data).rows, "ABC", strict=True):
            offset = row["warc_offset"]
            assert isinstance(offset, int)
            content = (
                inflate(data[offset:])
                if inflate is bytes
                else zlib.decompressobj(31).decompress(data[offset:])
            )
            assert content.startswith(b"WARC/1.0")
            assert f"Title {name}\n".encode() in content[:400]
    shared = Reading(folder, member(A) + member(B + C))
    assert [row["warc_offset"] for row in shared.rows] == [
        0,
        len(member(A)),
        len(member(A)),
    ]


def test_parts_of_a_batch_give_the_rows_of_batches(folder: Path) -> None:
    """Several parts, one with a text that is not UTF-8, and one longer than the batch."""
    contents = [f"Title {i}\n" + f" text {i} \n" * 3000 for i in range(30)]
    contents.append("Long\n" + "long line " * 200_000)
    records = [record(content.encode()) for content in contents]
    records.insert(15, record(b"\xff" * 99))
    data = b"".join(map(member, records))
    whole, single = Reading(folder, data), Reading(folder, data, batch_bytes=1)
    assert whole.causes == single.causes == ["not_utf8"]
    assert [row["doc_id"] for row in whole.rows] == [row["doc_id"] for row in single.rows]
    assert whole.report.counters() == single.report.counters()
    for row, content in zip(whole.rows, contents, strict=True):
        assert (row["title"], row["text"]) == clean_in_python(content)


@pytest.mark.parametrize("batch_bytes", [1, 1000, 3000, MIB])
def test_rows_do_not_depend_on_batch_bytes(folder: Path, batch_bytes: int) -> None:
    """Any batch size gives the same rows in the same order and the same report."""
    data = (
        b"".join(
            map(
                member,
                [A, record(b"\xff", WARC_Target_URI="x:"), B, response(page(b"<p>D")), C],
            )
        )
        + b"end"
    )
    whole, cut = (
        Reading(folder, data, batch_bytes=64 * MIB),
        Reading(folder, data, batch_bytes=batch_bytes),
    )
    assert [{**row, "warc_file": ""} for row in whole.rows] == [
        {**row, "warc_file": ""} for row in cut.rows
    ]
    assert [entry.cause for entry in cut.report.quarantine] == [
        "warc.not_utf8",
        "warc.garbage",
    ]
    assert whole.report.counters() == cut.report.counters()
    assert all(table.num_rows for table in cut.tables)


def test_reader_can_be_iterated_twice(folder: Path) -> None:
    """The second iteration gives the same rows and a new report."""
    path = folder / "twice"
    path.write_bytes(A + B)
    reader = WarcReader(path, WarcSettings(), split=0, batch_bytes=1)
    first = pa.concat_tables(reader)
    assert first.equals(pa.concat_tables(reader))
    assert reader.report.num_documents == 2


WHITE = "".join(chr(code) for code in range(0x10000) if chr(code).isspace())
CONTENTS = st.text(
    st.sampled_from("\n\n\r\0ab é日𝄞\u200b\ufeff" + WHITE) | st.characters(codec="utf-8"),
    max_size=60,
)


@given(st.lists(CONTENTS, min_size=1, max_size=8))
def test_texts_are_cleaned_as_in_ccnet(folder: Path, list_conversions: list[str]) -> None:
    """Lines are stripped, the first is the title, and blank lines at the end are removed."""
    reading = Reading(
        folder, b"".join(record(content.encode()) for content in list_conversions)
    )
    assert [(row["title"], row["text"]) for row in reading.rows] == [
        clean_in_python(content) for content in list_conversions
    ]
    assert reading.report.nul_bytes_replaced == sum(
        content.count("\0") for content in list_conversions
    )
    assert reading.report.text_bytes == sum(
        len(str(row["text"]).encode()) for row in reading.rows
    )


def test_first_line_stays_in_the_text_without_title(folder: Path) -> None:
    """With `first_line_is_title: false`, the text begins with the first line."""
    (row,) = Reading(folder, record(b"a\nb"), WarcSettings(first_line_is_title=False)).rows
    assert (row["title"], row["text"]) == ("", "a\nb")


def test_undecodable_text_is_quarantined_above_the_limit(folder: Path) -> None:
    """Up to `max_undecodable_share`, which is 0 by default, bytes are replaced and counted."""
    data = record(b"title\n" + b"x" * 90 + b"\xff\xfe" + "\ufffd".encode()) + A
    strict, lenient = (
        Reading(folder, data),
        Reading(
            folder, data, WarcSettings(advanced=WarcAdvanced(max_undecodable_share=0.05))
        ),
    )
    assert (strict.names, strict.causes) == ("A", ["not_utf8"])
    assert "2 of 99 characters" in strict.report.quarantine[0].detail
    assert lenient.rows[0]["text"] == "x" * 90 + "\ufffd" * 3
    assert lenient.report.undecodable_replaced == 2
    assert lenient.causes == []


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://user:pw@WWW.Example.org:8080/a?b@c", "www.example.org"),
        ("http://[2001:DB8::1]:80/", "[2001:db8::1]"),
        ("http://example.org", "example.org"),
        ("http://example.org?x:1@y", "example.org"),
        ("urn:uuid:1", ""),
        ("http://[broken", ""),
        ("", ""),
    ],
)
def test_source_domain_is_the_host(url: str, host: str) -> None:
    """It is in lower case, without user and port; empty if the URL has no host."""
    assert parse_source_domain(url) == host
    column = extract_source_domains(pa.chunked_array([[url, None]]))
    assert column.fill_null("").to_pylist() == [host, ""]


@given(st.text("aZ+:/?#@[].é\n", max_size=12).map("Http://{}".format))
def test_source_domains_of_a_column_are_the_same(url: str) -> None:
    """The hosts of many URLs are those of the single ones."""
    column = extract_source_domains(pa.chunked_array([[url]], pa.string()))
    assert (column[0].as_py() or "") == parse_source_domain(url)


@pytest.mark.parametrize(
    "kind",
    ["warcinfo", "request", "metadata", "revisit", "resource", "continuation", "novel"],
)
def test_other_record_types_are_skipped_and_counted(folder: Path, kind: str) -> None:
    """Records without documents are counted by type; a type outside the standard is unknown."""
    reading = Reading(folder, record(b"x", kind=kind) + A)
    name = "unknown" if kind == "novel" else kind
    assert reading.report.skipped == {f"type_{name}": 1}
    assert reading.report.record_types == {name: 1, "conversion": 1}


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (record(b"a portable document", Content_Type="application/pdf"), "media_type"),
        (response(page(b"x", content_type="image/png")), "media_type"),
        (response(page(b"x", status="404 Not Found")), "http_status"),
        (record(b"an answer", kind="response", Content_Type="text/dns"), "not_http"),
        (record(b"tiny"), "content_too_short"),
    ],
)
def test_intact_records_are_skipped_for_each_reason(
    folder: Path, data: bytes, reason: str
) -> None:
    """Each reason of SKIPPED is reached."""
    reading = Reading(
        folder, data + A, WarcSettings(advanced=WarcAdvanced(min_content_bytes=5))
    )
    assert reading.names == "A"
    assert reading.report.skipped == {reason: 1}
    assert reason in SKIPPED


def test_missing_file_raises(folder: Path) -> None:
    """A missing file is an error of the caller, not a fault of the crawl."""
    with pytest.raises(FileNotFoundError):
        next(iter(WarcReader(folder / "missing", WarcSettings(), split=0, batch_bytes=1)))


def test_report_raises_if_counts_differ() -> None:
    """A record that is not counted raises an error with the file and the numbers."""
    with pytest.raises(
        DocumentCountError,
        match=r"a\.gz: 1 records, but 0 documents, 0 skipped and 0 quarantined",
    ):
        ReadReport("a.gz", num_records=1).check()


def test_counters_hold_every_count(folder: Path) -> None:
    """Records, types, skips and causes are counters, so files can be added."""
    counters = Reading(
        folder, record(b"x", kind="warcinfo") + A + b"garbage"
    ).report.counters()
    assert counters.counts["num_documents"] == counters.counts["skipped.type_warcinfo"] == 1
    assert (
        counters.counts["quarantined.warc.garbage"] == counters.counts["type.broken"] == 1
    )
    assert (counters + counters).counts["num_records"] == 6
