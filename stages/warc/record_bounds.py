"""Where a record of a WARC or ARC file begins, and where it ends.

A record of n content bytes ends after them if one of these follows:

    two CRLF (ISO 28500:2017, section 4)
    any newlines, then a version line, the end of a gzip member or the end of the file

It does not end there in two cases: decompression fails after it, with no version line before the
failure, so its bytes may be wrong; or a gzip member inside it begins with a version line. (Members
that begin elsewhere inside a record are fine: some writers cut members by size.) In ARC files a
header line replaces the version line, and one newline replaces the two CRLF.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from stages.warc import arc
from stages.warc.http import parse_fields
from stages.warc.stream_window import StreamWindow

_MAX_NEWLINES = 64 << 10  # after a record: more newlines than this also prove its end
# Read after a record to see whether its gzip member is intact.
_MAX_LOOKAHEAD_BYTES = 1 << 20
_START_BYTES = 128  # the version line and the first field name are shorter
_VERSION = re.compile(rb"WARC/\d{1,2}\.\d{1,3}[ \t]{0,8}(\r?\n)", re.IGNORECASE)
_HEADER_START = re.compile(_VERSION.pattern + rb"[!-9;-~]{1,64}[ \t]{0,8}:", re.IGNORECASE)
NEWLINES = re.compile(rb"[\r\n]*")


class Framing(NamedTuple):
    """How the records of a format are recognized.

    Attributes:
        start: matches at the first byte of a record. A header ends with two times group 1.
        search: finds the first byte of a record.
        start_bytes: neither pattern matches more bytes.
        separator: follows every record.
        parse_fields: returns the fields of a header under the names of WARC.
    """

    start: re.Pattern[bytes]
    search: re.Pattern[bytes]
    start_bytes: int
    separator: bytes
    parse_fields: Callable[[bytes], dict[bytes, bytes]]


WARC = Framing(_VERSION, _HEADER_START, _START_BYTES, b"\r\n\r\n", parse_fields)
ARC = Framing(arc.START, arc.SEARCH, arc.START_BYTES, arc.SEPARATOR, arc.to_warc_fields)


def is_record_end(window: StreamWindow, framing: Framing, start: int, end: int) -> bool:
    """Return whether the bytes after buffer[:end] prove that a record ends there.

    May extend the window; does not move its position.

    Args:
        window: the file.
        framing: the format of its records.
        start: where the record's header fields start; no record can end before.
        end: where the record ends by its Content-Length.
    """
    separator = framing.separator
    # Nearly all files have one member per record: nothing else needs a check then.
    after_separator = end + len(separator)
    if window.is_single_member and window.buffer[end : after_separator + 1] == separator:
        return True
    for member in window.find_members(start, end - 1):
        if framing.start.match(window.buffer, member):
            return False
    after = _find_newlines_end(window, end)
    if after == len(window.buffer) and window.ends_member:
        return True
    if window.read_until(after + 1):
        window.read_until(after + framing.start_bytes)
        if framing.start.match(window.buffer, after):
            return True
        if any(True for _ in window.find_members(end, after)):
            return True
        is_standard = window.buffer[end:after_separator] == separator
        return is_standard and _is_member_intact(window, end)
    return window.fault is None or window.fault.is_verified


def _is_member_intact(window: StreamWindow, index: int) -> bool:
    """Return False if decompression fails soon after `index`, in the same gzip member.

    A flipped bit may give wrong bytes long before decompression fails. They may also hide
    the end of the deflate stream, so that garbage follows a record that seems complete.
    """
    limit = index + _MAX_LOOKAHEAD_BYTES
    while not window.ends_member and len(window.buffer) < limit:
        if any(True for _ in window.find_members(index, len(window.buffer))):
            return True
        if not window.read_more():
            return window.fault is None or window.fault.is_verified
    return True


def _find_newlines_end(window: StreamWindow, start: int) -> int:
    """Return the index after the newlines that begin at `start`."""
    while True:
        newlines = NEWLINES.match(window.buffer, start, start + _MAX_NEWLINES)
        assert newlines is not None
        end = newlines.end()
        is_complete = end < len(window.buffer) or end - start >= _MAX_NEWLINES
        if is_complete or window.ends_member or not window.read_more():
            return end
