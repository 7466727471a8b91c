r"""The records of an ARC file, the format before WARC: how they are told from other bytes, and as what WARC knows them.

Promises: whatever `START` matches has the fields of a WARC record, and is no longer than `START_BYTES`.
Leaves to others: taking the header of a document apart (warcio does, and writes its date as WARC does), and where
records end (`stages._records`, by the same rules as in WARC files).

Source: Burner and Kahle, Arc File Format, 1996, version 1. Version 2, which warcio does not read either, matches
nothing here. As in warcio, the URL may hold spaces, and a date that does not exist becomes the nearest that does.

    b"http://example.org/ 192.0.2.1 20100203040506 text/html 42\n" "HTTP/1.1 200 OK\r\n..." "\n"
"""

from __future__ import annotations

import io
import re

from warcio.recordloader import ARC2WARCHeadersParser

_DESCRIPTION = rb"filedesc:[^\n]{0,2048}\n\d[^\n]{0,1024}\n[^\n]{0,1024}\n"
_DOCUMENT = (
    rb"(?!filedesc:)[A-Za-z][A-Za-z0-9+.\-]{0,31}:[^\n]{0,8192}"  # RFC 9110, section 4.1, asks for 8,000
    rb" [^ \n]{1,64} \d{14} [^ \n]{1,256} \d{1,18}\r?\n"
)
START = re.compile(rb"(?:" + _DESCRIPTION + rb"|" + _DOCUMENT + rb")()")
"""A whole header, at the place where a record begins. The first record of a file describes it, in three lines."""
START_BYTES = 9 << 10
SEARCH = re.compile(rb"(?<![^\n])" + START.pattern)
"""A whole header, wherever a line begins."""
SEPARATOR = b"\n"
"""What stands after every record."""

_FILE_START = b"filedesc:"
_LENGTH = re.compile(rb" (\d{1,18})\r?\n")
_PARSER = ARC2WARCHeadersParser()


def is_arc(head: bytes | bytearray) -> bool:
    """Whether a file that begins with these (at best `START_BYTES`) decompressed bytes is an ARC file."""
    return head.startswith(_FILE_START) or START.match(head) is not None


def warc_fields(header: bytes) -> dict[bytes, bytes]:
    """The fields that a header found by `START` would have in a WARC file, names in lower case."""
    if header.startswith(_FILE_START):
        return _description(header)
    parsed = _PARSER.parse(io.BytesIO(header)).headers
    fields = {name.lower().encode(): value.encode() for name, value in parsed}
    media_type = header.rsplit(b" ", 2)[1]
    if not fields[b"warc-target-uri"].lower().startswith((b"http:", b"https:")):
        fields[b"content-type"] = media_type  # warcio says HTTP of DNS too
    return {**fields, b"warc-identified-payload-type": media_type}


def _description(header: bytes) -> dict[bytes, bytes]:
    """Its length counts the second and third line. Some say less than these have, or nothing: then no more follows."""
    first_line, _, other_lines = header.partition(b"\n")
    found = _LENGTH.search(first_line + b"\n")
    num_bytes = int(found[1]) - len(other_lines) if found else 0
    return {b"warc-type": b"warcinfo", b"content-length": str(max(0, num_bytes)).encode()}
