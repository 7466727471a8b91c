"""Files of Common Crawl and of other projects, compared with warcio and FastWARC."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest
from fastwarc.warc import ArchiveIterator as FastWarc
from fastwarc.warc import WarcRecordType
from warcio.archiveiterator import ArchiveIterator as Warcio
from warcio.exceptions import ArchiveLoadFailed

from stages.settings.warc import WarcSettings
from stages.warc.causes import CAUSES, SKIPPED
from stages.warc.reader import WarcReader
from tests.stages.warc.files import (
    MIB,
    clean_in_python,
)


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
    # One of the four pages is a feed, which is no document.
    "common-crawl/npm-warc/CC-MAIN-20140820021334-00006-ip-10-180-136-8.ec2.internal.warc": 3,
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
    assert sorted(reader.report.record_types.elements()) == sorted(
        kind for kind, _, _ in records
    )
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
    "hostile/netarchivesuite+jwat/invalid-arcfile-record-then-garbage.arc": (
        1,
        {"garbage": 1},
    ),
    # warcio returns records from these files although they are damaged: cut by the end of the
    # file, ending inside a line, without a header or without a length.
    "hostile/webrecorder+warcio/example-space-in-url.arc": (0, {"truncated": 1}),
    "hostile/netarchivesuite+jwat/test-arc-1.0-dashed-fields.arc": (
        0,
        {"content_length_wrong": 1},
    ),
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
            found.append(
                (get("WARC-Target-URI", ""), get("WARC-Date"), items.get_record_offset())
            )
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
        Counter(entry.cause.removeprefix("warc.") for entry in reader.report.quarantine)
        == causes
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
            report.num_records
            == num_rows + report.skipped.total() + len(report.quarantine)
            > 0
        ), path
        assert set(report.skipped) <= SKIPPED.keys()
        assert {entry.cause for entry in report.quarantine} <= CAUSES.keys()
        assert len(report.quarantine) <= 4, path
