r"""Recognize records of ARC files, the format before WARC, and convert their headers.

Source: Burner and Kahle, Arc File Format, 1996, version 1. Version 2 is not recognized; warcio does
not read it either. As in warcio, a URL may contain spaces, and a date that does not exist becomes
the nearest one that does.

    b"http://example.org/ 192.0.2.1 20100203040506 text/html 42\n" "HTTP/1.1 200 OK\r\n..." "\n"
"""

from __future__ import annotations

import io
import re
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from warcio.recordloader import ARC2WARCHeadersParser

# The first record of a file describes it: "filedesc:...", a version line and a line of field names.
_DESCRIPTION = rb"filedesc:[^\n]{0,2048}\n\d[^\n]{0,1024}\n[^\n]{0,1024}\n"
# URL, IP address, date, media type, length. URLs: RFC 9110, section 4.1, asks for 8,000 bytes.
_DOCUMENT = (
    rb"(?!filedesc:)[A-Za-z][A-Za-z0-9+.\-]{0,31}:[^\n]{0,8192}"
    rb" [^ \n]{1,64} \d{14} [^ \n]{1,256} \d{1,18}\r?\n"
)
# A whole header, for use at the position where a record begins.
START = re.compile(rb"(?:" + _DESCRIPTION + rb"|" + _DOCUMENT + rb")()")
# `START` matches no more bytes than this.
START_BYTES = 9 << 10
# A whole header at the beginning of any line.
SEARCH = re.compile(rb"(?<![^\n])" + START.pattern)
# Follows every record.
SEPARATOR = b"\n"

_FILE_START = b"filedesc:"
_LENGTH = re.compile(rb" (\d{1,18})\r?\n")


def is_arc(head: bytes | bytearray) -> bool:
    """Return whether a file is an ARC file.

    Args:
        head: its first `START_BYTES` decompressed bytes, or all if there are fewer.
    """
    return head.startswith(_FILE_START) or START.match(head) is not None


def to_warc_fields(header: bytes) -> dict[bytes, bytes]:
    """Return the fields that a header found by `START` has in a WARC file, names in lower case."""
    if header.startswith(_FILE_START):
        return _convert_description(header)
    parsed = _make_parser().parse(io.BytesIO(header)).headers
    fields = {name.lower().encode(): value.encode() for name, value in parsed}
    media_type = header.rsplit(b" ", 2)[1]
    if not fields[b"warc-target-uri"].lower().startswith((b"http:", b"https:")):
        fields[b"content-type"] = media_type  # warcio sets HTTP for DNS records too
    fields[b"warc-identified-payload-type"] = media_type
    return fields


@cache
def _make_parser() -> ARC2WARCHeadersParser:
    # Imported at the first ARC record: warcio imports fsspec and asyncio, 0.04 CPU seconds.
    from warcio.recordloader import ARC2WARCHeadersParser

    return ARC2WARCHeadersParser()


def _convert_description(header: bytes) -> dict[bytes, bytes]:
    """Convert the first record of a file to the fields of a warcinfo record.

    Its length counts the second and third line, which are part of `header`. Some files state less
    than these lines have, or no length: then no content follows.
    """
    first_line, _, other_lines = header.partition(b"\n")
    found = _LENGTH.search(first_line + b"\n")
    num_bytes = int(found[1]) - len(other_lines) if found else 0
    return {b"warc-type": b"warcinfo", b"content-length": str(max(0, num_bytes)).encode()}
