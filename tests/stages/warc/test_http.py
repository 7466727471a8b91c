"""Pages in HTTP responses: codings, cut bodies and unreadable pages."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from pathlib import Path

import brotli
import pytest

from stages.settings.warc import WarcAdvanced, WarcSettings
from stages.warc.http import Response, parse_response
from tests.stages.warc.files import (
    MIB,
    A,
    Reading,
    page,
    response,
)


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
        (
            ("Content-Encoding: deflate",),
            zlib.compress(b"<title>T</title><p>Hello", wbits=-15),
        ),
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
        page(gzip.compress(letters, mtime=0)[:3000], "Content-Encoding: gzip"),
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
        (
            page(gzip.compress(bytes(3 * MIB), mtime=0), "Content-Encoding: gzip"),
            "warc.record_too_large",
        ),
        (page(b"<p>x", "X: a", *[" b"] * 90_000), "warc.http_header_broken"),
        (page(b"<p>x", "Content-Encoding: " + "ab," * 90_000), "warc.http_header_broken"),
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


def test_a_body_of_tiny_chunks_takes_little_memory() -> None:
    """A chunk has 6 bytes for 1 byte of text."""
    body = b"1\r\na\r\n" * (1 << 20) + b"0\r\n\r\n"
    http = page(body, "Transfer-Encoding: chunked")
    tracemalloc.start()
    found = parse_response(http, 64 * MIB)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(found, Response)
    assert len(found.body) == 1 << 20
    assert peak_bytes < 4 * len(http)
