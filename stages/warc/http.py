r"""Parse HTTP responses stored in WARC records, and undo their content and transfer codings.

    parse_response(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>Hello", max_bytes=1 << 20)
    # Response(status=200, content_type="text/html", body=b"<p>Hello", ...)

Many archives store decoded bodies under the original header. A body that is not coded as its header
states is therefore returned unchanged, and no body raises an error.
"""

from __future__ import annotations

import io
import re
import zlib
from typing import NamedTuple

from fastwarc.stream_io import BrotliReader, ZstdReader

_STATUS_LINE = re.compile(rb"HTTP/\d+(?:\.\d+)?[ \t]+(\d{3})\b[^\n]*\n", re.IGNORECASE)
_HEADER_END = re.compile(rb"(?:(?<=\n)|\r?\n)\r?\n")
_FOLD = re.compile(rb"\r?\n[ \t]+")
# RFC 9112, section 7.1
_CHUNK_HEAD = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n")

# As in Chromium (net/http/http_stream_parser.h, kMaxHeaderBufSize). It bounds lines and fields too.
_MAX_HEADER_BYTES = 256 << 10
_MAX_CODINGS = 4  # servers send one or two; each may expand the body up to the limit

# The `wbits` argument of zlib for each format.
_GZIP, _ZLIB, _RAW_DEFLATE = 31, 15, -15


class Response(NamedTuple):
    """An HTTP response."""

    status: int
    content_type: str  # as sent, "" if not sent
    body: bytes
    is_cut: bool  # the coded body stops before its end; `body` is the part before
    is_as_stored: bool  # the header names a coding that the body does not have


class TooLarge(NamedTuple):
    """A header or a decoded body that is too large to be read."""

    cause: str  # one of stages.warc.causes.CAUSES
    detail: str


class _Decoded(NamedTuple):
    body: bytes
    is_cut: bool = False


def parse_fields(header: bytes) -> dict[bytes, bytes]:
    """Return the named fields of a header block, names in lower case.

    Of several fields with the same name the first counts. Continuation lines (RFC 9112,
    section 5.2) are joined to the line before.
    """
    if b"\n " in header or b"\n\t" in header:
        header = _FOLD.sub(b" ", header)
    fields: dict[bytes, bytes] = {}
    for line in header.split(b"\n"):  # twice as fast as a regular expression
        name, colon, value = line.partition(b":")
        if colon:
            fields.setdefault(name.rstrip().lower(), value.strip())
    return fields


def parse_response(block: bytes, max_bytes: int) -> Response | TooLarge | None:
    """Parse a response and decode its body.

    Args:
        block: content of a response record.
        max_bytes: largest decoded body.

    Returns:
        The response; `TooLarge`; or None if the block does not begin with an HTTP header.
    """
    status_line = _STATUS_LINE.match(block)
    if status_line is None:
        return None
    start = status_line.end()
    header_end = _HEADER_END.search(block, start - 1, start + _MAX_HEADER_BYTES)
    if header_end is None:
        if len(block) <= start + _MAX_HEADER_BYTES:
            return None
        detail = f"the HTTP header has more than {_MAX_HEADER_BYTES} bytes"
        return TooLarge("warc.http_header_broken", detail)
    fields = parse_fields(block[start : header_end.start()])
    body, is_cut, is_as_stored = block[header_end.end() :], False, False
    for coding in _list_codings(fields):
        decoded = _decode(coding, body, max_bytes)
        if decoded is None:
            is_as_stored = True
        elif len(decoded.body) > max_bytes:
            detail = f"the body expands ({coding}) to more than {max_bytes} bytes"
            return TooLarge("warc.record_too_large", detail)
        else:
            body, is_cut = decoded.body, is_cut or decoded.is_cut
    content_type = fields.get(b"content-type", b"").decode("latin-1")
    return Response(int(status_line[1]), content_type, body, is_cut, is_as_stored)


def _list_codings(fields: dict[bytes, bytes]) -> list[str]:
    """Return the codings that the header names, in the order in which to undo them."""
    applied: list[str] = []
    for name in (b"content-encoding", b"transfer-encoding"):
        value = fields.get(name, b"").decode("latin-1")
        applied += [coding.strip().lower() for coding in value.split(",")]
    to_undo = [coding for coding in reversed(applied) if coding not in ("", "identity")]
    return to_undo[:_MAX_CODINGS]


def _decode(coding: str, body: bytes, max_bytes: int) -> _Decoded | None:
    """Undo one coding. Return None if the body does not have it, or if it is unknown."""
    if coding == "chunked":
        return _join_chunks(body)
    if coding in ("gzip", "x-gzip"):
        return _inflate(body, _GZIP, max_bytes)
    if coding == "deflate":
        # The zlib format (RFC 9110, section 8.4.1.2), but some servers leave out its header.
        return _inflate(body, _ZLIB, max_bytes) or _inflate(body, _RAW_DEFLATE, max_bytes)
    if coding in ("br", "zstd"):
        return _decode_stream(coding, body, max_bytes)
    return None


def _join_chunks(body: bytes) -> _Decoded | None:
    joined = bytearray()  # a list of chunks of one byte takes 40 times the memory
    position = 0
    while head := _CHUNK_HEAD.match(body, position):
        chunk_bytes = int(head[1], 16)
        if chunk_bytes == 0:
            return _Decoded(bytes(joined))
        position = head.end() + chunk_bytes
        joined += body[head.end() : position]
        # A line end follows each chunk; some servers send a bare line feed, or nothing.
        if body.startswith(b"\r\n", position):
            position += 2
        elif body.startswith(b"\n", position):
            position += 1
    return _Decoded(bytes(joined), is_cut=True) if position else None


def _inflate(body: bytes, wbits: int, max_bytes: int) -> _Decoded | None:
    inflate = zlib.decompressobj(wbits=wbits)
    try:
        plain = inflate.decompress(body, max_bytes + 1)
    except zlib.error:
        return None
    return _Decoded(plain, is_cut=not inflate.eof) if plain or inflate.eof else None


def _decode_stream(coding: str, body: bytes, max_bytes: int) -> _Decoded | None:
    reader = (
        BrotliReader(io.BytesIO(body)) if coding == "br" else ZstdReader(io.BytesIO(body))
    )
    try:
        return _Decoded(reader.read(max_bytes + 1))
    except OSError:
        return None
