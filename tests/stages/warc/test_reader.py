"""Reading documents from WET, WARC and ARC files, and the report on all other records."""

from __future__ import annotations

import contextlib
import gzip
import re
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path

import brotli
import pyarrow as pa
import pytest
from fastwarc.stream_io import Lz4Writer, ZstdWriter
from fastwarc.warc import ArchiveIterator as FastWarc
from fastwarc.warc import WarcRecordType
from hypothesis import given
from hypothesis import strategies as st
from warcio.archiveiterator import ArchiveIterator as Warcio
from warcio.exceptions import ArchiveLoadFailed

from stages.contract import DOCUMENT, DocumentCountError
from stages.settings.warc import WarcAdvanced, WarcSettings
from stages.warc.causes import CAUSES, SKIPPED
from stages.warc.documents import parse_source_domain
from stages.warc.read_report import ReadReport
from stages.warc.reader import WarcReader

MIB = 1 << 20
DEFAULT = WarcSettings()


def record(
    content: bytes,
    *,
    kind: str = "conversion",
    length: int | None = None,
    without: str = "",
    **fields: str,
) -> bytes:
    """Build a WARC record; `length` replaces its Content-Length, `without` names a field to omit."""
    named = {
        "WARC-Type": kind,
        "WARC-Target-URI": "http://Example.org:80/a",
        "WARC-Date": "2026-01-02T03:04:05Z",
        "WARC-Block-Digest": "sha1:AAAA",
        "Content-Type": "text/plain",
        **{name.replace("_", "-"): value for name, value in fields.items()},
        "Content-Length": str(len(content) if length is None else length),
    }
    lines = [f"{name}: {value}" for name, value in named.items() if name != without]
    return "\r\n".join(["WARC/1.0", *lines, "", ""]).encode() + content + b"\r\n\r\n"


def response(http: bytes) -> bytes:
    """Build a WARC record of an HTTP response."""
    return record(
        http,
        kind="response",
        Content_Type="application/http; msgtype=response",
        WARC_Payload_Digest="sha1:P",
    )


def page(
    body: bytes, *headers: str, status: str = "200 OK", content_type: str = "text/html"
) -> bytes:
    """Build an HTTP response."""
    return (
        "\r\n".join(
            [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", *headers, "", ""]
        ).encode()
        + body
    )


def member(content: bytes) -> bytes:
    """Compress with gzip; equal input gives equal bytes."""
    return gzip.compress(content, compresslevel=6, mtime=0)


def make_text(name: str) -> bytes:
    """Build the content of a WET record, long enough to be found after damage."""
    return f"Title {name}\n".encode() + b"".join(
        b"line %d of %s\n" % (i, name.encode()) for i in range(40)
    )


A, B, C = (record(make_text(name)) for name in "ABC")

ARC_START = (
    b"filedesc://a.arc 0.0.0.0 20100101000000 text/plain 76\n"
    b"1 0 InternetArchive\nURL IP-address Archive-date Content-type Archive-length\n\n"
)


def arc_record(
    http: bytes, *, url: str = "http://Example.org:80/a", length: int | None = None
) -> bytes:
    """Build an ARC record; `length` replaces its true length."""
    header = f"{url} 192.0.2.1 20260102030405 text/html {len(http) if length is None else length}\n"
    return header.encode() + http + b"\n"


def make_page(name: str) -> bytes:
    """Build an HTTP response with the same title and lines as `make_text`."""
    title, _, lines = make_text(name).partition(b"\n")
    return page(b"<title>" + title + b"</title><pre>" + lines + b"</pre>")


ARC_A, ARC_B, ARC_C = (arc_record(make_page(name)) for name in "ABC")
_COUNT = iter(range(10**9))


class Reading:
    """The tables and the report of one file."""

    def __init__(
        self, folder: Path, data: bytes, settings: WarcSettings = DEFAULT, batch_bytes: int = MIB
    ) -> None:
        self.path = folder / f"{next(_COUNT)}.warc"
        self.path.write_bytes(data)
        self.reader = WarcReader(self.path, settings, split=0, batch_bytes=batch_bytes)
        self.tables = list(self.reader)
        self.report = self.reader.report
        self.path.unlink()

    @property
    def rows(self) -> list[dict[str, object]]:
        return [row for table in self.tables for row in table.to_pylist()]

    @property
    def names(self) -> str:
        """The names given to `make_text`, of all documents, in order."""
        return "".join(str(row["title"]).removeprefix("Title ") for row in self.rows)

    @property
    def causes(self) -> list[str]:
        return [entry.cause.removeprefix("warc.") for entry in self.report.quarantine]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all examples of a property share."""
    return tmp_path_factory.mktemp("warc")


# Intact files


def test_wet_record_becomes_a_row(folder: Path) -> None:
    """Each column comes from the record, the file name or the record's number."""
    path = folder / "crawl.warc.wet.gz"
    info = member(record(b"x", kind="warcinfo"))
    path.write_bytes(
        info
        + member(record(b"Title\nfirst \n\tsecond\n\n", WARC_Target_URI="<https://u@B.org:81/?q>"))
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
            "text": "first\nsecond",
        }
    ]


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(lambda records: b"".join(member(r) for r in records), id="member-per-record"),
        pytest.param(lambda records: member(b"".join(records)), id="one-member"),
        pytest.param(
            lambda records: member(b"".join(records[:2])) + member(records[2]),
            id="two-in-one-member",
        ),
        pytest.param(b"".join, id="uncompressed"),
        pytest.param(b"\r\n\r\n".join, id="more-newlines"),
        pytest.param(
            lambda records: b"".join(r.removesuffix(b"\r\n\r\n") for r in records), id="no-newlines"
        ),
        pytest.param(
            lambda records: b"".join(
                member(b"".join(records)[i : i + 500]) for i in range(0, 9000, 500)
            ),
            id="members-cut-by-size",
        ),
        pytest.param(
            lambda records: (
                member(b"") + member(records[0]) + member(b"") + member(b"".join(records[1:]))
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
    """The readers do not tell where a frame begins, so the offset is null rather than wrong."""
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
    assert [row["warc_offset"] for row in shared.rows] == [0, len(member(A)), len(member(A))]


@pytest.mark.parametrize("batch_bytes", [1, 1000, 3000, MIB])
def test_rows_do_not_depend_on_batch_bytes(folder: Path, batch_bytes: int) -> None:
    """Any batch size gives the same rows in the same order and the same report."""
    data = (
        b"".join(
            map(member, [A, record(b"\xff", WARC_Target_URI="x:"), B, response(page(b"<p>D")), C])
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
    assert [entry.cause for entry in cut.report.quarantine] == ["warc.not_utf8", "warc.garbage"]
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


# The form of a text


def clean_in_python(content: str) -> tuple[str, str]:
    """Return title and text of a WET content, computed line by line."""
    lines = [line.strip() for line in re.split(r"\r\n|\n|\r", content.replace("\0", " "))]
    return lines[0], "\n".join(lines[1:]).rstrip("\n")


WHITE = "".join(chr(code) for code in range(0x10000) if chr(code).isspace())
CONTENTS = st.text(
    st.sampled_from("\n\n\r\0ab é日𝄞\u200b\ufeff" + WHITE) | st.characters(codec="utf-8"),
    max_size=60,
)


@given(st.lists(CONTENTS, min_size=1, max_size=8))
def test_texts_are_cleaned_as_in_ccnet(folder: Path, list_conversions: list[str]) -> None:
    """Lines are stripped, the first is the title, and blank lines at the end are removed."""
    reading = Reading(folder, b"".join(record(content.encode()) for content in list_conversions))
    assert [(row["title"], row["text"]) for row in reading.rows] == [
        clean_in_python(content) for content in list_conversions
    ]
    assert reading.report.nul_bytes_replaced == sum(
        content.count("\0") for content in list_conversions
    )
    assert reading.report.text_bytes == sum(len(str(row["text"]).encode()) for row in reading.rows)


def test_first_line_stays_in_the_text_without_title(folder: Path) -> None:
    """With `first_line_is_title: false`, the text begins with the first line."""
    (row,) = Reading(folder, record(b"a\nb"), WarcSettings(first_line_is_title=False)).rows
    assert (row["title"], row["text"]) == ("", "a\nb")


def test_undecodable_text_is_quarantined_above_the_limit(folder: Path) -> None:
    """By default no replacement is allowed. Up to `max_undecodable_share` they are made and counted."""
    data = record(b"title\n" + b"x" * 90 + b"\xff\xfe" + "\ufffd".encode()) + A
    strict, lenient = (
        Reading(folder, data),
        Reading(folder, data, WarcSettings(advanced=WarcAdvanced(max_undecodable_share=0.05))),
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


# What is skipped


@pytest.mark.parametrize(
    "kind", ["warcinfo", "request", "metadata", "revisit", "resource", "continuation", "novel"]
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
def test_intact_records_are_skipped_for_each_reason(folder: Path, data: bytes, reason: str) -> None:
    """Each reason of SKIPPED is reached."""
    reading = Reading(folder, data + A, WarcSettings(advanced=WarcAdvanced(min_content_bytes=5)))
    assert reading.names == "A"
    assert reading.report.skipped == {reason: 1}
    assert reason in SKIPPED


# Pages


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ((), b"<title>T</title><p>Hello"),
        (
            ("Transfer-Encoding: chunked",),
            b"5\r\n<titl\r\n13;x=y\r\ne>T</title><p>Hello\r\n0\r\n\r\n",
        ),
        (("Content-Encoding: gzip",), gzip.compress(b"<title>T</title><p>Hello", mtime=0)),
        (("Content-Encoding: deflate",), zlib.compress(b"<title>T</title><p>Hello")),
        (("Content-Encoding: deflate",), zlib.compress(b"<title>T</title><p>Hello", wbits=-15)),
        (("Content-Encoding: br",), brotli.compress(b"<title>T</title><p>Hello")),
        (
            ("content-encoding: gzip", "x-folded: a", " b"),
            gzip.compress(b"<title>T</title><p>Hello", mtime=0),
        ),
    ],
)
def test_codings_of_a_response_are_undone(
    folder: Path, headers: tuple[str, ...], body: bytes
) -> None:
    """Chunks and content codings are decoded as the HTTP header states."""
    reading = Reading(folder, response(page(body, *headers)))
    assert [(row["title"], row["text"], row["digest"]) for row in reading.rows] == [
        ("T", "Hello", "sha1:P")
    ]
    assert reading.report.num_stored_decoded == reading.report.num_cut == 0


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "compress"])
def test_page_stored_decoded_is_read_unchanged(folder: Path, coding: str) -> None:
    """Many archives store decoded bodies under the old header; such pages are counted."""
    reading = Reading(
        folder, response(page(b"<p>Hello there, all of you", f"Content-Encoding: {coding}"))
    )
    assert [row["text"] for row in reading.rows] == ["Hello there, all of you"]
    assert reading.report.num_stored_decoded == 1


def test_cut_pages_are_kept_and_counted(folder: Path) -> None:
    """A coded body that stops early gives the part before."""
    letters = "".join(f"<p>{i * 7919}" for i in range(2000)).encode()
    cut = [
        page(gzip.compress(letters)[:3000], "Content-Encoding: gzip"),
        page(b"5000\r\n" + letters[:4000], "Transfer-Encoding: chunked"),
    ]
    reading = Reading(folder, b"".join(map(response, cut)))
    assert [str(row["text"]).startswith("0\n\n7919\n\n15838") for row in reading.rows] == [
        True,
        True,
    ]
    assert reading.report.num_cut == 2


@pytest.mark.parametrize(
    ("http", "cause"),
    [
        (b"this is not HTTP", "warc.http_header_broken"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/html", "warc.http_header_broken"),
        (page(gzip.compress(bytes(3 * MIB)), "Content-Encoding: gzip"), "warc.record_too_large"),
        (page(bytes(range(32)) * 9), "html.not_text"),
        (page(b"<" * 50_001), "html.too_many_tags"),
    ],
)
def test_unreadable_pages_are_quarantined(folder: Path, http: bytes, cause: str) -> None:
    """The cause is recorded, and the next record is read."""
    settings = WarcSettings(advanced=WarcAdvanced(max_record_bytes=2 * MIB))
    reading = Reading(folder, response(http) + A, settings)
    assert reading.names == "A"
    assert [entry.cause for entry in reading.report.quarantine] == [cause]


# ARC files


@pytest.mark.parametrize(
    "pack",
    [
        pytest.param(b"".join, id="uncompressed"),
        pytest.param(lambda parts: b"".join(map(member, parts)), id="member-per-record"),
        pytest.param(lambda parts: member(b"".join(parts)), id="one-member"),
        pytest.param(lambda parts: b"".join(parts[1:]), id="no-description"),
        pytest.param(
            lambda parts: b"".join(part.removesuffix(b"\n") for part in parts), id="no-newlines"
        ),
        pytest.param(
            lambda parts: b"\r\n".join([parts[0].replace(b"\n", b"\r\n"), *parts[1:]]),
            id="more-newlines",
        ),
        pytest.param(
            lambda parts: b"".join(member(b"".join(parts)[i : i + 7]) for i in range(0, 9000, 7)),
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
        (arc_record(b"20260102030405\nexample.org. 192.0.2.1", url="dns:example.org"), "not_http"),
        (arc_record(page(b"x", status="404 Not Found")), "http_status"),
        (arc_record(page(b"x", content_type="image/png")), "media_type"),
        (arc_record(b"this is not HTTP"), "warc.http_header_broken"),
        (arc_record(page(bytes(3 * MIB))), "warc.record_too_large"),
        (
            arc_record(page(gzip.compress(bytes(3 * MIB)), "Content-Encoding: gzip")),
            "warc.record_too_large",
        ),
        (arc_record(page(bytes(range(32)) * 9)), "html.not_text"),
    ],
)
def test_arc_responses_follow_the_same_rules(folder: Path, data: bytes, decision: str) -> None:
    """Reasons and causes are those of WARC, and the next record is read."""
    reading = Reading(
        folder,
        ARC_START + data + ARC_A,
        WarcSettings(advanced=WarcAdvanced(max_record_bytes=2 * MIB)),
    )
    assert reading.names == "A"
    assert [*reading.report.skipped, *(entry.cause for entry in reading.report.quarantine)] == [
        "type_warcinfo",
        decision,
    ]


def test_arc_header_fields_are_used(folder: Path) -> None:
    """A URL may have spaces and any charset; the media type replaces a missing one; dates are completed."""
    untyped = b"HTTP/1.0 200 OK\r\nServer: x\r\n\r\n<p>Hello"
    late = arc_record(untyped, url="http://b.org/a 1.2 b").replace(b" 20260102", b" 20261301")
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


def test_large_arc_record_and_long_line_are_not_held(folder: Path) -> None:
    """100 MB of each need a few MiB of memory, and the next record is read."""
    huge, line = arc_record(bytes(100_000_000)), b"http://" + b"x" * 100_000_000 + b"\n"
    path = folder / "bomb.arc"
    path.write_bytes(b"".join(map(member, [ARC_START, ARC_A, huge, ARC_B, line, ARC_C])))
    del huge, line
    tracemalloc.start()
    reader = WarcReader(
        path, WarcSettings(advanced=WarcAdvanced(max_record_bytes=MIB)), split=0, batch_bytes=MIB
    )
    num_docs = sum(table.num_rows for table in reader)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    path.unlink()
    assert num_docs == 3
    assert [entry.cause for entry in reader.report.quarantine] == [
        "warc.record_too_large",
        "warc.garbage",
    ]
    assert peak_bytes < 8 * MIB


# Broken files: (bytes, names of the documents to be read, causes)

FLIPPED = bytearray(member(B))
FLIPPED[len(FLIPPED) // 2] ^= 0x55
BAD_CRC = bytearray(member(B))
BAD_CRC[-6] ^= 1
SHORT, LONG = (record(make_text("X"), length=length) for length in (100, 1000))
SWALLOWING = record(make_text("X"), length=len(make_text("X")) + 4 + len(C) - 4)
HUGE = record(make_text("X"), length=10**12)
NO_LENGTH, NO_TYPE = (
    record(make_text("X"), without="Content-Length"),
    record(make_text("X"), without="WARC-Type"),
)
NO_URL = record(make_text("X"), without="WARC-Target-URI")
LONG_HEADER = record(b"x", X="y" * 70_000)
ONE_MEMBER = member(A + B + C)
ARC_SHORT, ARC_LONG, ARC_HUGE = (
    arc_record(make_page("X"), length=length) for length in (100, 1500, 10**12)
)
FLIPPED_ARC = bytearray(member(ARC_B))
FLIPPED_ARC[len(FLIPPED_ARC) // 2] ^= 0x55

BROKEN = {
    "empty": (b"", "", ["empty_file"]),
    "empty-gzip": (member(b""), "", ["empty_file"]),
    "newlines": (b"\r\n" * 9, "", ["empty_file"]),
    "text": (b"No records here.\n" * 999, "", ["not_a_warc"]),
    "text-gzip": (member(b"No records here.\n" * 999), "", ["not_a_warc"]),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 99, "", ["not_a_warc"]),
    "gzip-magic-only": (b"\x1f\x8b", "", ["truncated"]),
    "zstd-magic-only": (b"\x28\xb5\x2f\xfd" + bytes(99), "", ["compression_corrupt"]),
    "lz4-magic-only": (b"\x04\x22\x4d\x18" + bytes(99), "", ["compression_corrupt"]),
    "gzip-cut": (member(A) + member(B)[:90], "A", ["truncated"]),
    "gzip-cut-in-header": (member(A) + member(B)[:8], "A", ["truncated"]),
    "gzip-cut-in-checksum": (member(A) + member(B)[:-3], "A", ["truncated"]),
    "gzip-flipped": (member(A) + bytes(FLIPPED) + member(C), "AC", ["compression_corrupt"]),
    "gzip-bad-checksum": (member(A) + bytes(BAD_CRC) + member(C), "AC", ["compression_corrupt"]),
    "gzip-two-broken": (
        bytes(FLIPPED) + bytes(BAD_CRC) + member(C),
        "C",
        ["compression_corrupt"] * 2,
    ),
    "gzip-damaged-at-start": (b"xx" + member(A)[2:] + member(B), "B", ["garbage"]),
    "gzip-garbage-between": (
        member(A) + b"garbage" + member(B) + bytes(99) + member(C),
        "ABC",
        ["garbage"] * 2,
    ),
    "gzip-garbage-behind": (member(A) + bytes(512), "A", ["garbage"]),
    "gzip-no-warc-between": (member(A) + member(b"hello") + member(C), "AC", ["garbage"]),
    "one-member-cut": (ONE_MEMBER[:-60], "AB", ["truncated"]),
    "cut": (A + B[:-50], "A", ["truncated"]),
    "cut-in-header": (A + B[:70], "A", ["truncated"]),
    "garbage-between": (A + b"garbage\r\n" + B, "AB", ["garbage"]),
    "garbage-before": (b"garbage\r\n" + A + B, "AB", ["garbage"]),
    "garbage-behind": (A + B + b"garbage", "AB", ["garbage"]),
    "length-too-short": (A + SHORT + C, "AC", ["content_length_wrong"]),
    "length-too-long": (A + LONG + C, "AC", ["content_length_wrong"]),
    "length-huge": (A + HUGE + C, "AC", ["content_length_wrong"]),
    "gzip-length-too-short": (
        member(A) + member(SHORT) + member(C),
        "AC",
        ["content_length_wrong"],
    ),
    "gzip-length-too-long": (member(A) + member(LONG) + member(C), "AC", ["content_length_wrong"]),
    "gzip-length-huge": (member(A) + member(HUGE) + member(C), "AC", ["content_length_wrong"]),
    "gzip-length-huge-at-end": (member(A) + member(HUGE), "A", ["content_length_wrong"]),
    "gzip-swallowing-the-next": (
        member(A) + member(SWALLOWING) + member(C),
        "AC",
        ["content_length_wrong"],
    ),
    "one-member-length-huge": (member(A + HUGE + C), "AC", ["content_length_wrong"]),
    "no-length": (A + NO_LENGTH + C, "AC", ["header_missing"]),
    "length-no-number": (
        A + record(b"x").replace(b"Length: 1", b"Length: -1") + C,
        "AC",
        ["header_missing"],
    ),
    "no-type": (A + NO_TYPE + C, "AC", ["header_missing"]),
    "no-url": (A + NO_URL + C, "AC", ["header_missing"]),
    "header-too-long": (A + LONG_HEADER + C, "AC", ["header_too_long"]),
    "header-without-end": (A + B[:80] + b"y" * 100_000, "A", ["header_too_long"]),
    "not-utf8": (A + record(b"\xff" * 50) + C, "AC", ["not_utf8"]),
    "arc-no-more-than-a-start": (ARC_START[:60], "", ["not_a_warc"]),
    "arc-garbage-between": (ARC_START + ARC_A + b"garbage\n" + ARC_B, "AB", ["garbage"]),
    "arc-garbage-for-a-start": (b"filedesc:\n" + ARC_A + ARC_B, "AB", ["garbage"]),
    "arc-date-that-is-none": (
        ARC_START + ARC_B.replace(b" 2026", b" MMXX") + ARC_C,
        "C",
        ["garbage"],
    ),
    "arc-cut": (ARC_START + ARC_A + ARC_B[:-50], "A", ["truncated"]),
    "arc-cut-in-header": (ARC_START + ARC_A + ARC_B[:40], "A", ["garbage"]),
    "arc-length-too-short": (ARC_START + ARC_A + ARC_SHORT + ARC_C, "AC", ["content_length_wrong"]),
    "arc-length-too-long": (ARC_START + ARC_A + ARC_LONG + ARC_C, "AC", ["content_length_wrong"]),
    "arc-length-huge": (ARC_START + ARC_A + ARC_HUGE + ARC_C, "AC", ["content_length_wrong"]),
    "arc-gzip-length-huge": (
        member(ARC_START + ARC_A) + member(ARC_HUGE) + member(ARC_C),
        "AC",
        ["content_length_wrong"],
    ),
    "arc-gzip-flipped": (
        member(ARC_START) + bytes(FLIPPED_ARC) + member(ARC_C),
        "C",
        ["compression_corrupt"],
    ),
    "arc-gzip-cut": (member(ARC_START) + member(ARC_A) + member(ARC_B)[:90], "A", ["truncated"]),
    "lonely-versions": (A + b"WARC/1.0\r\n\r\n" * 3 + C, "AC", ["header_missing"]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_file_gives_intact_documents_and_causes(folder: Path, name: str) -> None:
    """Intact records on both sides are read, and each fault has one quarantine entry."""
    data, names, causes = BROKEN[name]
    reading = Reading(folder, data)
    assert (reading.names, reading.causes) == (names, causes)
    for entry in reading.report.quarantine:
        assert entry.cause in CAUSES
        assert entry.detail


def test_every_cause_is_reached() -> None:
    """The cases above reach each cause of CAUSES (those of HTML have their own tests)."""
    reached = {f"warc.{cause}" for _, _, causes in BROKEN.values() for cause in causes}
    elsewhere = {"warc.too_many_faults", "warc.record_too_large", "warc.http_header_broken"}
    assert {cause for cause in CAUSES if cause.startswith("warc.")} == reached | elsewhere


def test_quarantine_entry_locates_the_fault(folder: Path) -> None:
    """File, number and offset lead to the record; the skipped bytes are counted."""
    reading = Reading(folder, A + SHORT + C)
    (entry,) = reading.report.quarantine
    assert (entry.file, entry.record, entry.offset) == (reading.path.name, 1, len(A))
    assert entry.skipped_bytes == len(SHORT)
    assert [row["doc_id"] for row in reading.rows] == [0, 2]


@pytest.mark.parametrize("pack", [member, bytes], ids=["gzip", "uncompressed"])
def test_decompression_bomb_is_not_held(folder: Path, pack: Callable[[bytes], bytes]) -> None:
    """A record of 200 MB (20 MB uncompressed) needs a few MiB, and the next record is read."""
    num_bytes = 200_000_000 if pack is member else 20_000_000
    path = folder / "bomb"
    path.write_bytes(pack(A) + pack(record(bytes(num_bytes))) + pack(C))
    tracemalloc.start()
    reader = WarcReader(
        path, WarcSettings(advanced=WarcAdvanced(max_record_bytes=MIB)), split=0, batch_bytes=MIB
    )
    num_docs = sum(table.num_rows for table in reader)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    path.unlink()
    assert num_docs == 2
    assert [entry.cause for entry in reader.report.quarantine] == ["warc.record_too_large"]
    assert peak_bytes < 8 * MIB


def test_line_of_20_mb_is_a_document(folder: Path) -> None:
    """A long line is not a fault."""
    (row,) = Reading(folder, member(record(b"title\n" + b"x" * 20_000_000))).rows
    assert len(str(row["text"])) == 20_000_000


def test_reading_stops_after_max_faults(folder: Path) -> None:
    """Neither the list nor the time grows without limit."""
    reading = Reading(
        folder,
        (b"WARC/1.0\r\nWARC-Type: revisit\r\n\r\n") * 5000 + A,
        WarcSettings(advanced=WarcAdvanced(max_faults=20)),
    )
    assert reading.causes == ["header_missing"] * 21 + ["too_many_faults"]
    members = Reading(
        folder, bytes(BAD_CRC) * 100 + member(A), WarcSettings(advanced=WarcAdvanced(max_faults=20))
    )
    assert members.causes[-1] == "too_many_faults"
    assert len(members.causes) <= 22


def test_wrong_lengths_take_linear_time(folder: Path) -> None:
    """Each of 20,000 records claims 60 MB; the following bytes are read once, not once per record."""
    lie = b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 1000000\r\n\r\n"
    reading = Reading(
        folder, lie * 20_000 + A, WarcSettings(advanced=WarcAdvanced(max_faults=10**6))
    )
    assert len(reading.causes) == 20_000
    assert reading.names == "A"


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
    counters = Reading(folder, record(b"x", kind="warcinfo") + A + b"garbage").report.counters()
    assert counters.counts["num_documents"] == counters.counts["skipped.type_warcinfo"] == 1
    assert counters.counts["quarantined.warc.garbage"] == counters.counts["type.broken"] == 1
    assert (counters + counters).counts["num_records"] == 6


# Any damage at all

RECORDS = [record(make_text(str(i))) for i in range(6)]
ARC_RECORDS = [arc_record(make_page(str(i))) for i in range(6)]
PACKED = {
    "gzip": list(map(member, RECORDS)),
    "uncompressed": RECORDS,
    "arc-gzip": [member(ARC_START) + member(ARC_RECORDS[0]), *map(member, ARC_RECORDS[1:])],
    "arc": [ARC_START + ARC_RECORDS[0], *ARC_RECORDS[1:]],
}
NOISE = st.binary(max_size=40) | st.sampled_from(
    [
        b"WARC/1.0\r\n",
        b"\x1f\x8b\x08\0\0\0\0\0\0\x03",
        b"\r\n\r\n",
        RECORDS[0],
        ARC_RECORDS[0],
        b"filedesc:",
        b" ",
    ]
)


@pytest.mark.parametrize("packing", PACKED)
@given(at=st.floats(0, 1), cut=st.integers(0, 200), inserted=NOISE)
def test_damage_never_raises_and_keeps_earlier_records(
    folder: Path, packing: str, at: float, cut: int, inserted: bytes
) -> None:
    """Bytes are cut, inserted or overwritten anywhere: all records before are read, and counts match."""
    parts = PACKED[packing]
    data = b"".join(parts)
    place = int(at * len(data))
    reading = Reading(folder, data[:place] + inserted + data[place + cut :])
    num_whole = sum(len(b"".join(parts[: i + 1])) <= place for i in range(len(parts)))
    assert reading.names[:num_whole] == "012345"[:num_whole]
    reading.report.check()


@given(
    flips=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=6)
)
@pytest.mark.parametrize("packing", [*PACKED, "one-member"])
def test_flipped_bits_never_raise(
    folder: Path, packing: str, flips: list[tuple[float, int]]
) -> None:
    """Counts match, and gzip's checksums prevent false documents."""
    data = bytearray(
        member(b"".join(RECORDS)) if packing == "one-member" else b"".join(PACKED[packing])
    )
    for at, mask in flips:
        data[int(at * len(data))] ^= mask
    reading = Reading(folder, bytes(data))
    reading.report.check()
    if packing == "gzip":
        texts = {clean_in_python(make_text(str(i)).decode()) for i in range(6)}
        assert {(row["title"], row["text"]) for row in reading.rows} <= texts


@given(st.binary(max_size=300))
def test_random_bytes_never_raise(folder: Path, data: bytes) -> None:
    """Random bytes alone, in a gzip member, after a version line and as a page."""
    for wrapped in (
        data,
        member(data),
        b"WARC/1.0\r\n" + data,
        ARC_START + data,
        ARC_A[:30] + data + ARC_A[30:],
        response(page(data)),
        response(data),
        b"\x1f\x8b\x08" + data,
    ):
        Reading(folder, wrapped).report.check()


# Real files


def list_conversions(records: Iterable[tuple[str, str, bytes]]) -> list[tuple[str, str]]:
    """Return (url, title) of the conversion records."""
    return [
        (url, clean_in_python(content.decode())[0] + clean_in_python(content.decode())[1])
        for kind, url, content in records
        if kind == "conversion"
    ]


def read_with_warcio(path: Path) -> list[tuple[str, str, bytes]]:
    """Return type, URL and content of every record, read with warcio."""
    with path.open("rb") as file:
        return [
            (
                item.rec_type,
                item.rec_headers.get_header("WARC-Target-URI", ""),
                item.raw_stream.read(),
            )
            for item in Warcio(file, no_record_parse=True)
        ]


GOOD = {
    "common-crawl/cc-main-2026-17.safe.warc.wet.gz": 78,
    "common-crawl/whirlwind/whirlwind.warc.wet.gz": 1,
    "common-crawl/whirlwind/whirlwind.warc.wet": 1,
    "common-crawl/whirlwind/whirlwind.warc.gz": 1,
    "common-crawl/whirlwind/whirlwind.warc": 1,
    "common-crawl/whirlwind/whirlwind.warc.wat.gz": 0,
    "common-crawl/resiliparse/warcfile.warc.gz": 16,
    "common-crawl/resiliparse/warcfile.warc": 16,
    "common-crawl/gzipstream-crlf.warc.gz": 1,
    "common-crawl/jwarc-cc.warc.gz": 1,
    "common-crawl/npm-warc/CC-MAIN-20140820021334-00006-ip-10-180-136-8.ec2.internal.warc.wet": 3,
    "common-crawl/npm-warc/CC-MAIN-20140820021334-00006-ip-10-180-136-8.ec2.internal.warc": 3,  # of 4: one is a feed
    "common-crawl/npm-warc/CC-MAIN-20140820021334-00006-ip-10-180-136-8.ec2.internal.warc.wat": 0,
}


@pytest.mark.shared_data
@pytest.mark.parametrize("name", GOOD)
def test_real_files_equal_warcio_and_fastwarc(shared_data: Path, name: str) -> None:
    """The same records of each type and, in WET files, the same texts."""
    path = shared_data / name
    reader = WarcReader(path, WarcSettings(), split=0, batch_bytes=MIB)
    rows = [row for table in reader for row in table.to_pylist()]
    records = read_with_warcio(path)
    assert len(rows) == GOOD[name]
    assert reader.report.quarantine == []
    assert sorted(reader.report.record_types.elements()) == sorted(kind for kind, _, _ in records)
    converted = [
        (row["url"], row["title"] + row["text"])
        for row in rows
        if path.name.endswith((".wet", ".wet.gz"))
    ]
    assert converted == list_conversions(records)
    fast = FastWarc(str(path), record_types=WarcRecordType.conversion, parse_http=False)
    assert len(list(fast)) == len(converted)


ARC_FILES = {
    "common-crawl/cc2012.arc.gz": (1, {}),
    "hostile/webrecorder+warcio/example.arc": (1, {}),
    "hostile/webrecorder+warcio/example.arc.gz": (1, {}),
    "hostile/netarchivesuite+jwat/small_BNF.arc": (3, {}),  # of 5: two are images
    "hostile/netarchivesuite+jwat/invalid-arcfile-record-then-garbage.arc": (1, {"garbage": 1}),
    # warcio hands these out: cut short by the end of the file, ending within a line, with no
    # header or no length at all
    "hostile/webrecorder+warcio/example-space-in-url.arc": (0, {"truncated": 1}),
    "hostile/netarchivesuite+jwat/test-arc-1.0-dashed-fields.arc": (0, {"content_length_wrong": 1}),
    "hostile/netarchivesuite+jwat/test-arc-1.0-invalid-fields.arc": (
        0,
        {"content_length_wrong": 1},
    ),
    "hostile/webrecorder+warcio/bad.arc": (0, {"garbage": 2, "http_header_broken": 1}),
}


def read_arc_with_warcio(path: Path) -> list[tuple[str, str, int]]:
    """Return URL, date and offset of every record that warcio finds before it fails."""
    found: list[tuple[str, str, int]] = []
    with path.open("rb") as file, contextlib.suppress(ArchiveLoadFailed):
        items = Warcio(file, no_record_parse=True, arc2warc=True)
        for item in items:
            get = item.rec_headers.get_header
            found.append((get("WARC-Target-URI", ""), get("WARC-Date"), items.get_record_offset()))
    return found


@pytest.mark.shared_data
@pytest.mark.parametrize("name", ARC_FILES)
def test_real_arc_files_equal_warcio(shared_data: Path, name: str) -> None:
    """As many records as warcio finds, with warcio's URL, date and offset."""
    path = shared_data / name
    reader = WarcReader(path, WarcSettings(), split=0, batch_bytes=MIB)
    rows = [row for table in reader for row in table.to_pylist()]
    num_docs, causes = ARC_FILES[name]
    found = read_arc_with_warcio(path)
    assert len(rows) == num_docs
    assert (
        Counter(entry.cause.removeprefix("warc.") for entry in reader.report.quarantine) == causes
    )
    assert {(row["url"], row["date"], row["warc_offset"]) for row in rows} <= set(found)
    assert reader.report.num_records == len(found) + (name.endswith("then-garbage.arc"))


@pytest.mark.shared_data
@pytest.mark.parametrize("part", ["hostile", "common-crawl", "web-archives"])
def test_every_real_file_is_read(shared_data: Path, part: str) -> None:
    """Damaged WARCs and ARCs from other projects' tests raise nothing, and counts match."""
    paths = [path for path in sorted((shared_data / part).rglob("*")) if path.is_file()]
    assert paths
    for path in paths:
        reader = WarcReader(path, WarcSettings(), split=0, batch_bytes=MIB)
        num_rows = sum(table.num_rows for table in reader)
        report = reader.report
        assert (
            report.num_records == num_rows + report.skipped.total() + len(report.quarantine) > 0
        ), path
        assert set(report.skipped) <= SKIPPED.keys()
        assert {entry.cause for entry in report.quarantine} <= CAUSES.keys()
        assert len(report.quarantine) <= 4, path
