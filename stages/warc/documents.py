"""Convert one record into a document, a skip reason, or a quarantine cause.

Conversion records (WET) contain text. Response records contain an HTTP response; ARC documents are
treated as responses, and the description of an ARC file as a warcinfo record.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stages.html import extraction
from stages.html.extraction import Unusable
from stages.settings.warc import WarcSettings
from stages.warc.http import TooLarge, parse_response
from stages.warc.record_framing import Broken, Record

_SHOWN_BYTES = 32  # of content without an HTTP header, in the quarantine list


class Row(NamedTuple):
    """A document before its lines are cleaned."""

    record: int
    offset: int | None
    url: str
    date: str | None
    digest: str | None
    title: str | None  # None: the first line of the content is the title
    content: bytes
    num_undecodable: int
    is_cut: bool
    is_stored_decoded: bool
    main_content_chars: int | None = None  # see stages.html.extraction.Page
    page_sample: str | None = None


class Skipped(NamedTuple):
    """An intact record that is not a document."""

    reason: str  # one of stages.warc.causes.SKIPPED


def parse_document(
    record: Record, number: int, settings: WarcSettings
) -> Row | Skipped | Broken:
    """Convert a record.

    Args:
        record: the record.
        number: its number within the input split.
        settings: which records become documents.
    """
    if record.type not in ("conversion", "response"):
        return Skipped(f"type_{record.type}")
    if len(record.content) < settings.advanced.min_content_bytes:
        return Skipped("content_too_short")
    url = _decode_field(record.fields.get(b"warc-target-uri", b"")).strip("<> ")
    if not url:
        return _quarantine(record, "warc.header_missing", "WARC-Target-URI is missing")
    if record.type == "conversion":
        return _parse_conversion(record, number, url, settings)
    return _parse_response_record(record, number, url, settings)


def _parse_conversion(
    record: Record, number: int, url: str, settings: WarcSettings
) -> Row | Skipped:
    # Without a Content-Type it is text/plain, the only type in WET files.
    content_type = _decode_field(record.fields.get(b"content-type", b"text/plain"))
    if _parse_media_type(content_type) not in settings.advanced.media_types:
        return Skipped("media_type")
    return Row(
        record=number,
        offset=record.offset,
        url=url,
        date=_decode_optional(record.fields.get(b"warc-date")),
        digest=_decode_optional(record.fields.get(b"warc-block-digest")),
        title=None if settings.first_line_is_title else "",
        content=_normalize_newlines(record.content),
        num_undecodable=0,
        is_cut=b"warc-truncated" in record.fields,
        is_stored_decoded=False,
    )


def _parse_response_record(
    record: Record, number: int, url: str, settings: WarcSettings
) -> Row | Skipped | Broken:
    limits = settings.advanced
    response = parse_response(record.content, limits.max_record_bytes)
    if response is None:
        is_http = (
            record.fields.get(b"content-type", b"").lower().startswith(b"application/http")
        )
        if not is_http:
            return Skipped("not_http")
        detail = f"the content begins {record.content[:_SHOWN_BYTES]!r}"
        return _quarantine(record, "warc.http_header_broken", detail)
    if isinstance(response, TooLarge):
        return _quarantine(record, response.cause, response.detail)
    if response.status not in limits.http_statuses:
        return Skipped("http_status")
    identified_type = _decode_field(record.fields.get(b"warc-identified-payload-type", b""))
    content_type = response.content_type or identified_type
    if _parse_media_type(content_type) not in limits.media_types:
        return Skipped("media_type")
    page = extraction.extract(response.body, content_type, settings.html)
    if isinstance(page, Unusable):
        return _quarantine(record, page.cause, page.detail)
    return Row(
        record=number,
        offset=record.offset,
        url=url,
        date=_decode_optional(record.fields.get(b"warc-date")),
        digest=_decode_optional(record.fields.get(b"warc-payload-digest")),
        title=page.title,
        content=_normalize_newlines(page.text.encode()),
        num_undecodable=page.num_undecodable,
        is_cut=response.is_cut or b"warc-truncated" in record.fields,
        is_stored_decoded=response.is_as_stored,
        main_content_chars=page.main_content_chars,
        page_sample=page.sample,
    )


def _quarantine(record: Record, cause: str, detail: str) -> Broken:
    return Broken(record.offset, record.type, cause, detail, len(record.content))


def _decode_optional(value: bytes | None) -> str | None:
    return None if value is None else _decode_field(value)


def _decode_field(value: bytes) -> str:
    """Decode a header field as UTF-8 (ISO 28500:2017, section 4), or else as Latin-1.

    Latin-1 has a character for each byte, so nothing is lost.
    """
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _normalize_newlines(content: bytes) -> bytes:
    r"""Replace \r\n and \r by \n."""
    if b"\r" not in content:
        return content
    return content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _parse_media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


# RFC 3986, section 3.2: scheme, user, and as group 1 the host (in brackets: an IPv6 address).
_HOST = re.compile(
    r"[A-Za-z][A-Za-z0-9+.\-]*://(?:[^/?#@]*@)?(?P<host>\[[^\]/?#]*\]|[^\[\]/?#:]*)",
)


def parse_source_domain(url: str) -> str:
    """Return the host of a URL in lower case, without user and port; "" if there is none.

    CCNet uses `urlparse(url).netloc`, which keeps user and port.

    >>> parse_source_domain("https://user@WWW.Example.org:8080/a")
    'www.example.org'
    """
    host = _HOST.match(url)
    return host[1].lower() if host else ""


def extract_source_domains(urls: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return `parse_source_domain` of each URL; null if there is none."""
    hosts = pc.extract_regex(urls, f"^{_HOST.pattern}")
    return pc.utf8_lower(pc.struct_field(hosts, "host"))
