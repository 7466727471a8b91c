"""Crawl files are recognized by their content."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.inputs.recognize import Kind, recognize
from tests.stages.warc.files import ARC_A, ARC_START, A, make_page, member, record, response

WARCINFO = record(b"software: x", kind="warcinfo")
REQUEST = record(b"GET / HTTP/1.1\r\n\r\n", kind="request")
METADATA = record(b"{}", kind="metadata")
PAGE = response(make_page("P"))


def zstd(content: bytes) -> bytes:
    return pa.compress(content, codec="zstd", asbytes=True)


def lz4(content: bytes) -> bytes:
    return pa.compress(content, codec="lz4", asbytes=True)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (WARCINFO + A, Kind.WET),
        (WARCINFO + REQUEST + PAGE + METADATA, Kind.WARC),
        (ARC_START + ARC_A, Kind.ARC),
    ],
    ids=["wet", "warc", "arc"],
)
@pytest.mark.parametrize(
    ("pack", "compression"),
    [(bytes, "none"), (member, "gzip"), (zstd, "zstd"), (lz4, "lz4")],
)
def test_kind_and_compression_are_found_in_any_file(
    tmp_path: Path, content: bytes, kind: Kind, pack: type[bytes], compression: str
) -> None:
    """The name of the file has no effect."""
    path = tmp_path / "file.bin"
    path.write_bytes(pack(content))
    found = recognize(path)
    assert (found.kind, found.compression, found.problem) == (kind, compression, "")
    assert found.num_bytes == path.stat().st_size


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "it is empty"),
        (gzip.compress(b"", mtime=0), "it is empty"),
        (b"%PDF-1.7\n", "it is a PDF"),
        (b"\n<!DOCTYPE html><p>Not found", "it is a web page"),
        (b"BZh91AY", "recompress it"),
        (b"hello", "it begins b'hello'"),
        (WARCINFO + METADATA, "it is a WAT file"),
        (WARCINFO + REQUEST, "its first records are of the types request"),
    ],
    ids=["empty", "empty gzip", "pdf", "html", "bzip2", "text", "wat", "requests"],
)
def test_other_files_have_a_reason(tmp_path: Path, content: bytes, problem: str) -> None:
    """The reason says what the file is, or how it begins."""
    path = tmp_path / "a.warc.gz"
    path.write_bytes(content)
    found = recognize(path)
    assert found.kind is None
    assert problem in found.problem


def test_a_damaged_beginning_is_no_error(tmp_path: Path) -> None:
    """A truncated file is what its first records are."""
    path = tmp_path / "cut.warc.gz"
    path.write_bytes(member(WARCINFO) + member(A)[:-20])
    assert recognize(path).compression == "gzip"
