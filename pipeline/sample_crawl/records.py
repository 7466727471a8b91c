"""Render pages as WARC records: WET (conversion) or WARC (request, response, metadata)."""

from __future__ import annotations

import base64
import hashlib
import html
import re
import uuid
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pipeline.sample_crawl.keyed_random import KeyedRandom
from pipeline.sample_crawl.kinds import TAIL_KINDS
from pipeline.sample_crawl.languages import ISO_639_3, LEGACY_CHARSETS
from pipeline.sample_crawl.pages import Page, PageSpec

# Increase it if equal arguments give other files or another truth table.
VERSION = 2

# Part of each file's first record.
#
# Increase it, and VERSION, if equal arguments give other records.
RECORDS_VERSION = 1

# Share of HTML pages in their language's old charset.
#
# Half of them declare it in the HTTP header, half in a meta element.
LEGACY_SHARE = 0.2

# Level 1 takes 62 us per page of 3 KB, level 6 136 us. Files are 4 % larger.
#
# Measured with zlib 1.2.13 on 2 shared cores.
GZIP_LEVEL = 1

_GZIP_WBITS = 31  # zlib's argument for the gzip format


@dataclass(frozen=True)
class Envelope:
    """The header fields that all records of one page share."""

    spec: PageSpec
    position: int
    seed: int

    def make_id(self, record_type: str) -> str:
        """Return the WARC-Record-ID of the page's record of this type."""
        return _make_record_id(self.seed, self.spec.role, record_type)

    def make_record(
        self,
        record_type: str,
        fields: Sequence[tuple[str, str]],
        content_type: str,
        block: bytes,
    ) -> bytes:
        """Return a record of the page, uncompressed."""
        common = (
            ("WARC-Target-URI", self.spec.url),
            ("WARC-Date", _format_date(self.position)),
            ("WARC-Record-ID", self.make_id(record_type)),
        )
        return _make_record(record_type, (*common, *fields), content_type, block)


def render_warcinfo(name: str, seed: int) -> bytes:
    """Return the gzip member that begins a file."""
    block = (
        "isPartOf: CC-MAIN-SAMPLE\r\n"
        "publisher: corpusmill\r\n"
        "description: synthetic crawl made of real sentences, "
        f"version {RECORDS_VERSION}, seed {seed}\r\n"
        "format: WARC File Format 1.0\r\n\r\n"
    )
    fields = [
        ("WARC-Date", "2026-11-01T01:00:00Z"),
        ("WARC-Filename", name),
        ("WARC-Record-ID", _make_record_id(seed, name, "warcinfo")),
    ]
    return _compress(
        _make_record("warcinfo", fields, "application/warc-fields", block.encode())
    )


def render_wet(page: Page, envelope: Envelope) -> list[bytes]:
    """Return the gzip member of a page's conversion record."""
    text = "\n".join((page.title, *page.lines, ""))
    fields = [
        ("WARC-Refers-To", envelope.make_id("response")),
        ("WARC-Identified-Content-Language", ISO_639_3[page.spec.language]),
    ]
    block = text.encode(errors="surrogateescape")
    record = envelope.make_record("conversion", fields, "text/plain", block)
    return [_damage_and_compress(page.spec.kind, record)]


def render_warc(page: Page, envelope: Envelope) -> list[bytes]:
    """Return the gzip members of a page's request, response and metadata records.

    A response with a framing fault is the last record of its file, so it has no metadata.
    """
    spec = page.spec
    request = envelope.make_record(
        "request", (), "application/http; msgtype=request", _render_request(spec)
    )
    response = envelope.make_record(
        "response",
        [("WARC-Concurrent-To", envelope.make_id("request"))],
        "application/http; msgtype=response",
        _render_response(page, envelope.seed),
    )
    members = [_compress(request), _damage_and_compress(spec.kind, response)]
    if spec.kind not in TAIL_KINDS:
        block = (
            f"fetchTimeMs: {50 + spec.role % 500}\r\n"
            f"languages-identified: {ISO_639_3[spec.language]}\r\n"
        )
        metadata = envelope.make_record(
            "metadata",
            [("WARC-Refers-To", envelope.make_id("response"))],
            "application/warc-fields",
            block.encode(),
        )
        members.append(_compress(metadata))
    return members


def _make_record(
    record_type: str, fields: Iterable[tuple[str, str]], content_type: str, block: bytes
) -> bytes:
    """Return one WARC 1.0 record (ISO 28500:2009) with the fields in Common Crawl's order."""
    digest = base64.b32encode(hashlib.sha1(block, usedforsecurity=False).digest()).decode()
    named = ""
    for name, value in fields:
        named += f"{name}: {value}\r\n"
    head = (
        f"WARC/1.0\r\nWARC-Type: {record_type}\r\n{named}WARC-Block-Digest: sha1:{digest}\r\n"
        f"Content-Type: {content_type}\r\nContent-Length: {len(block)}\r\n\r\n"
    )
    return head.encode() + block + b"\r\n\r\n"


def _compress(record: bytes) -> bytes:
    """Return a gzip member (RFC 1952). It contains no time, so equal records give equal bytes."""
    return zlib.compress(record, GZIP_LEVEL, wbits=_GZIP_WBITS)


def _damage_and_compress(kind: str, record: bytes) -> bytes:
    """Return the gzip member of a page's record, with the fault of its kind."""
    match kind:
        case "damaged_type":
            record = re.sub(rb"WARC-Type: .*\r\n", b"", record, count=1)
        case "damaged_uri":
            record = re.sub(rb"WARC-Target-URI: .*\r\n", b"", record, count=1)
        case "damaged_length":
            record = re.sub(rb"Content-Length: ", b"Content-Length: 9", record, count=1)
        case "damaged_header":
            record = b"\x00\xfe\xc3(\x89PNG\r\n" + record[10:]
        case _:
            pass
    member = _compress(record)
    # Half of a gzip member, so the file ends inside the record.
    return member[: len(member) // 2] if kind == "truncated" else member


def _make_record_id(seed: int, key: object, record_type: str) -> str:
    name = f"sample-crawl/{seed}/{key}/{record_type}"
    return f"<urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, name)}>"


def _format_date(position: int) -> str:
    minute, second = divmod(position % 3600, 60)
    return f"2026-11-01T00:{minute:02}:{second:02}Z"


def _render_request(spec: PageSpec) -> bytes:
    return (
        f"GET /articles/{spec.role}.html HTTP/1.1\r\n"
        "User-Agent: CCBot/2.0 (https://commoncrawl.org/faq/)\r\n"
        f"Accept: text/html\r\nHost: {spec.site.host}\r\n\r\n"
    ).encode()


def _render_response(page: Page, seed: int) -> bytes:
    """Return HTTP header and HTML, some in an old charset."""
    spec = page.spec
    rng = KeyedRandom(seed, "charset", spec.role)
    charset = LEGACY_CHARSETS.get(spec.language, "utf-8")
    is_legacy = rng.random() < LEGACY_SHARE and charset != "utf-8"
    if is_legacy and not spec.kind.startswith("damaged"):
        is_in_header = rng.random() < 0.5
        meta = "" if is_in_header else f'<meta charset="{charset}">\n'
        # Authors write a character reference for a character that the charset lacks.
        payload = _render_html(page, meta).encode(charset, errors="xmlcharrefreplace")
    else:
        charset, is_in_header = "utf-8", True
        page_html = _render_html(page, '<meta charset="utf-8">\n')
        # Texts of the kind damaged_utf8 hold raw bytes as surrogates.
        payload = page_html.encode(errors="surrogateescape")
    content_type = f"text/html; charset={charset}" if is_in_header else "text/html"
    head = f"HTTP/1.1 200 OK\r\nContent-Type: {content_type}\r\nContent-Length: {len(payload)}\r\n\r\n"
    return head.encode() + payload


def _render_html(page: Page, meta: str) -> str:
    nav = ""
    for i, link in enumerate(page.nav):
        nav += f'<div><a href="/{i}">{_escape(link)}</a></div>\n'
    return (
        f'<!DOCTYPE html>\n<html lang="{page.spec.language}">\n<head>\n{meta}'
        f"<title>{_escape(page.title)}</title>\n"
        "<style>nav a { color: #036 }</style>\n"
        "<script>var page = { ads: true };</script>\n</head>\n<body>\n<nav>\n"
        + nav
        + "</nav>\n<main>\n"
        + _render_paragraphs(page.paragraphs)
        + "</main>\n<footer>\n"
        + _render_paragraphs(page.footer)
        + "</footer>\n</body>\n</html>\n"
    )


def _render_paragraphs(lines: Iterable[str]) -> str:
    rendered = ""
    for line in lines:
        rendered += f"<p>{_escape(line)}</p>\n"
    return rendered


def _escape(text: str) -> str:
    return html.escape(text, quote=False)
