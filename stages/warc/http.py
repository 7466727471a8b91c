r"""An HTTP response as a WARC record holds it: status, content type and body, with the transfer's wrapping taken off.

Promises: a body is unwrapped (chunks, gzip, deflate, br, zstd) as its header says; a body that is not wrapped as it
says is taken as it stands, because many archives store bodies unwrapped under the header of the wrapped ones; never
more than `max_bytes` comes out, and nothing is raised.
Leaves to others: whether the bytes are text.

    parse_response(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n<p>Hello", max_bytes=1 << 20)
    # Response(status=200, content_type="text/html", body=b"<p>Hello", ...)
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
_CHUNK_HEAD = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r?\n")  # RFC 9112, section 7.1


class Response(NamedTuple):
    """What a server answered."""

    status: int
    content_type: str  # as sent, "" if not sent
    body: bytes
    is_cut: bool  # the wrapping stops before its end; `body` is what there was
    is_as_stored: bool  # the header speaks of a wrapping that the body does not have


class TooLarge(NamedTuple):
    """A body that unwraps to more than it may."""

    coding: str


class _Unwrapped(NamedTuple):
    body: bytes
    is_cut: bool = False


def parse_fields(header: bytes) -> dict[bytes, bytes]:
    """The named fields of a header block, names in lower case; of two of the same name the first counts.

    Continuation lines (RFC 9112, section 5.2) are joined to the line that they continue.
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
    """Status, type and unwrapped body of a response; None if the block does not open with an HTTP header."""
    status_line = _STATUS_LINE.match(block)
    header_end = _HEADER_END.search(block, status_line.end() - 1) if status_line else None
    if status_line is None or header_end is None:
        return None
    fields = parse_fields(block[status_line.end() : header_end.start()])
    body, is_cut, is_as_stored = block[header_end.end() :], False, False
    for coding in _codings(fields):
        unwrapped = _unwrap(coding, body, max_bytes)
        if unwrapped is None:
            is_as_stored = True
        elif len(unwrapped.body) > max_bytes:
            return TooLarge(coding)
        else:
            body, is_cut = unwrapped.body, is_cut or unwrapped.is_cut
    content_type = fields.get(b"content-type", b"").decode("latin-1")
    return Response(int(status_line[1]), content_type, body, is_cut, is_as_stored)


def _codings(fields: dict[bytes, bytes]) -> list[str]:
    """The wrappings named in the header, outermost first."""
    named = [fields.get(b"content-encoding", b""), fields.get(b"transfer-encoding", b"")]
    applied = [
        coding.strip().lower() for value in named for coding in value.decode("latin-1").split(",")
    ]
    return [coding for coding in reversed(applied) if coding not in ("", "identity")][:_MAX_CODINGS]


_MAX_CODINGS = 4  # servers send one or two; each may expand up to the limit


def _unwrap(coding: str, body: bytes, max_bytes: int) -> _Unwrapped | None:
    """The body without this wrapping, or None where it does not have it (or where nobody knows the wrapping)."""
    if coding == "chunked":
        return _join_chunks(body)
    if coding in ("gzip", "x-gzip"):
        return _inflate(body, 31, max_bytes)
    if (
        coding == "deflate"
    ):  # RFC 9110, section 8.4.1.2: zlib's format, but some servers send it without zlib's header
        return _inflate(body, 15, max_bytes) or _inflate(body, -15, max_bytes)
    if coding in ("br", "zstd"):
        return _read_all(coding, body, max_bytes)
    return None


def _join_chunks(body: bytes) -> _Unwrapped | None:
    chunks: list[bytes] = []
    position = 0
    while head := _CHUNK_HEAD.match(body, position):
        size = int(head[1], 16)
        if size == 0:
            return _Unwrapped(b"".join(chunks))
        chunks.append(body[head.end() : head.end() + size])
        position = head.end() + size
        position += (
            2
            if body.startswith(b"\r\n", position)
            else 1
            if body.startswith(b"\n", position)
            else 0
        )
    return _Unwrapped(b"".join(chunks), is_cut=True) if chunks else None


def _inflate(body: bytes, wbits: int, max_bytes: int) -> _Unwrapped | None:
    inflate = zlib.decompressobj(wbits=wbits)
    try:
        plain = inflate.decompress(body, max_bytes + 1)
    except zlib.error:
        return None
    return _Unwrapped(plain, is_cut=not inflate.eof) if plain or inflate.eof else None


def _read_all(coding: str, body: bytes, max_bytes: int) -> _Unwrapped | None:
    reader = BrotliReader(io.BytesIO(body)) if coding == "br" else ZstdReader(io.BytesIO(body))
    try:
        return _Unwrapped(reader.read(max_bytes + 1))
    except OSError:
        return None
