r"""Split a WARC or ARC file into records, and into broken stretches between them.

Every byte of the file is part of a record, of the newlines between records, or of exactly one
`Broken`. The reader is strict about where a record ends, because a wrong Content-Length would mix
two documents. After a fault it continues at the next header that it can find.

`RecordReader` reads a `StreamWindow`. Each of its methods follows one of these contracts:

    _skip_...        moves the position forward; returns what it skipped
    _read_...        consumes a record or a broken stretch and returns it
    _parse_header    returns the header at the position, without moving the position

`stages.warc.record_bounds` has the rules for the end of a record. Examples:

    "WARC/1.0\r\n...Content-Length: 5\r\n\r\n" "Hello" "\r\n\r\n" "WARC/1.0\r\n..."      Record
    "WARC/1.0\r\n...Content-Length: 3\r\n\r\n" "Hel" "lo\r\n\r\nWARC/1.0\r\n..."
                                          Broken, up to the next version line

Why no WARC library is used here: each of the following would lose or mix documents unnoticed.
FastWARC 2.0 returns a truncated record as an empty one, reads over the end of a gzip member
into the next record, treats a missing Content-Length as 0, reports wrong offsets if a member
contains two records, and stops at the first fault. On intact files the tests compare with
FastWARC and warcio.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from stages.warc import arc
from stages.warc.decompress import Fault
from stages.warc.http import parse_fields
from stages.warc.input_content import InputContent
from stages.warc.record_bounds import ARC, NEWLINES, WARC, is_record_end
from stages.warc.stream_window import StreamWindow

_MAX_HEADER_BYTES = 64 << 10  # the standard sets no limit; FastWARC allows 32 KiB
_MAX_REWINDS = 16  # per file; each decompresses a gzip member once more
_MIN_ITEM_BYTES = 1 << 20  # nothing smaller counts as a decompression bomb
_HEADER_END = b"\r\n\r\n"
_USUAL_VERSIONS = (b"WARC/1.0\r\n", b"WARC/1.1\r\n")
_SHOWN_BYTES = 32  # of bytes that belong to no record, in the quarantine list
_LENGTH = re.compile(rb"\d{1,18}")
_TYPES = frozenset(
    {
        "warcinfo",
        "response",
        "resource",
        "request",
        "metadata",
        "revisit",
        "conversion",
        "continuation",
    }
)


class Record(NamedTuple):
    """A complete record."""

    offset: int | None  # on disk, of the record or of the gzip member that contains it
    type: str  # lower case; "unknown" if the standard does not define it
    fields: dict[bytes, bytes]  # names in lower case
    content: bytes


class Broken(NamedTuple):
    """A record that cannot be read, or bytes that belong to no record."""

    offset: int | None
    type: str  # of the record if its header could be read, else "broken"
    cause: str  # one of stages.warc.causes.CAUSES
    detail: str
    skipped_bytes: int


class _Header(NamedTuple):
    offset: int | None
    into_member: int  # decompressed bytes from the start of the member to the record
    num_bytes: int
    type: str
    fields: dict[bytes, bytes]
    length: int  # Content-Length; -1 if it is missing or not a number

    def to_broken(self, cause: str, detail: str, skipped_bytes: int) -> Broken:
        return Broken(self.offset, self.type, cause, detail, skipped_bytes)


class _Search(NamedTuple):
    """Result of a search for the next header."""

    num_bytes: int  # skipped
    is_found: bool
    fault: Fault | None  # the first one on the way


def read_records(
    content: InputContent, max_record_bytes: int, max_faults: int
) -> Iterator[Record | Broken]:
    """Yield records and broken stretches in the order of the file.

    Args:
        content: a file: gzip, zstd, lz4 or uncompressed.
        max_record_bytes: skip larger records without holding them ("warc.record_too_large").
        max_faults: stop after more broken stretches and faults ("warc.too_many_faults").

    Raises:
        OSError: the file cannot be read.
    """
    reader = RecordReader(content, max_record_bytes, max_faults)
    num_items = 0
    while (item := reader.read_next()) is not None:
        yield item
        num_items += 1
        if reader.num_faults > max_faults:
            offset, _ = reader.window.locate()
            detail = f"more than {max_faults} broken places"
            yield Broken(offset, "broken", "warc.too_many_faults", detail, 0)
            return
    if num_items == 0:
        detail = "no bytes, or only newlines"
        yield Broken(0, "broken", "warc.empty_file", detail, 0)


class RecordReader:
    """Reads one file. `window` shows how far."""

    def __init__(
        self, content: InputContent, max_record_bytes: int, max_faults: int
    ) -> None:
        # A record of the largest size must be read whole, with what follows it in the window.
        self._max_item_bytes = 2 * max_record_bytes + _MIN_ITEM_BYTES
        self.window = StreamWindow.open(content, max_item_bytes=self._max_item_bytes)
        self.num_faults = 0
        self.window.read_until(arc.START_BYTES)
        self._framing = ARC if arc.is_arc(self.window.buffer) else WARC
        self._content = content
        self._max_record_bytes = max_record_bytes
        self._max_faults = max_faults
        self._num_rewinds = 0
        self._has_seen_header = False

    def read_next(self) -> Record | Broken | None:
        """Return the next record or broken stretch; None at the end of the file."""
        window = self.window
        window.begin_item()
        self._skip_newlines()
        if (record := self._read_whole_record()) is not None:
            return record
        has_start = window.read_until(window.position + self._framing.start_bytes)
        if not has_start and not window.available and window.fault is None:
            return None
        head = self._framing.start.match(window.buffer, window.position)
        if head is None:
            item = self._read_foreign_bytes()
        else:
            self._has_seen_header = True
            item = self._read_record(head)
        if isinstance(item, Broken):
            self.num_faults += 1
        return item

    def _read_whole_record(self) -> Record | None:
        """Read a sound record that is an intact gzip member by itself, as nearly all are.

        Returns:
            The record; None, without a move of the position, if the next bytes are anything else.
        """
        window = self.window
        member = window.buffer
        if window.position or not window.is_single_member or self._framing is not WARC:
            return None
        header_end = member.find(_HEADER_END, 0, _MAX_HEADER_BYTES)
        if header_end < 0 or not member.startswith(_USUAL_VERSIONS):
            return None
        fields = parse_fields(bytes(member[:header_end]))
        length = fields.get(b"content-length", b"")
        type_name = fields.get(b"warc-type", b"").decode("latin-1").lower()
        start, end = header_end + len(_HEADER_END), len(member) - len(WARC.separator)
        is_sound = (
            type_name in _TYPES
            and _LENGTH.fullmatch(length)
            and int(length) == end - start <= self._max_record_bytes
            and member.endswith(WARC.separator)
        )
        if not is_sound:
            return None
        offset, _ = window.locate()
        content = bytes(member[start:end])
        window.advance(len(member))
        self._has_seen_header = True
        return Record(offset, type_name, fields, content)

    def _skip_newlines(self) -> None:
        window = self.window
        while window.available or window.read_more():
            if not window.buffer:
                continue  # the last chunk of a member may be empty
            if window.buffer[window.position] not in b"\r\n":
                return
            newlines = NEWLINES.match(window.buffer, window.position)
            assert newlines is not None
            window.advance(newlines.end() - window.position)

    def _read_foreign_bytes(self) -> Broken:
        """Consume the bytes before the next header."""
        window = self.window
        offset, _ = window.locate()
        if not window.available and window.fault is not None:
            offset = window.fault.offset
        opening = bytes(window.buffer[window.position : window.position + _SHOWN_BYTES])
        search = self._skip_to_header()
        fault = search.fault
        # A decompression bomb is no fault of the bytes before it: these are garbage.
        if fault is not None and fault.cause != "warc.record_too_large":
            return Broken(offset, "broken", fault.cause, fault.detail, search.num_bytes)
        if search.is_found or self._has_seen_header:
            cause = "warc.garbage"
            detail = (
                f"{search.num_bytes} bytes that belong to no record, beginning {opening!r}"
            )
        else:
            cause = "warc.not_a_warc"
            detail = f"no header of a record; the file begins {opening!r}"
        if fault is not None:
            detail += f"; {fault.detail}"
        return Broken(offset, "broken", cause, detail, search.num_bytes)

    def _skip_to_header(self) -> _Search:
        """Move to the next header, over any faults before it."""
        window, num_bytes = self.window, 0
        start_bytes = self._framing.start_bytes
        first_fault: Fault | None = None
        while (
            found := self._framing.search.search(window.buffer, window.position)
        ) is None:
            # Keep what may be the beginning of a header that continues in the next chunk.
            num_bytes += window.advance(max(0, window.available - start_bytes))
            if window.read_more():
                # At least half of the bytes of each search are new, so searching stays linear.
                window.read_until(window.position + 2 * start_bytes)
                continue
            num_bytes += window.advance(window.available)
            if window.fault is None or self.num_faults > self._max_faults:
                return _Search(num_bytes, False, first_fault)
            self.num_faults += 1
            fault = window.skip_fault()
            num_bytes += fault.lost_bytes
            first_fault = first_fault or fault
        num_bytes += window.advance(found.start() - window.position)
        return _Search(num_bytes, True, first_fault)

    def _read_record(self, head: re.Match[bytes]) -> Record | Broken:
        """Consume the record that begins at the position with `head`."""
        header = self._parse_header(head)
        if isinstance(header, Broken):
            return header
        if header.length < 0:
            detail = "Content-Length is missing or not a number"
            return self._read_broken(header, "warc.header_missing", detail)
        if header.length > self._max_record_bytes:
            return self._read_too_large(header)
        window = self.window
        start = window.position + header.num_bytes
        end = start + header.length
        if not window.read_until(end):
            num_bytes = len(window.buffer) - start
            detail = f"Content-Length is {header.length}, but only {num_bytes} bytes follow"
            return self._read_broken(header, "warc.truncated", detail)
        if not is_record_end(window, self._framing, head.end(), end):
            detail = f"Content-Length is {header.length}, but no record ends there"
            return self._read_broken(header, "warc.content_length_wrong", detail)
        # Through a memoryview: a slice of a bytearray would make a second copy.
        content = bytes(memoryview(window.buffer)[start:end])
        window.advance(end - window.position)
        if b"warc-type" not in header.fields:
            num_bytes = header.num_bytes + header.length
            return header.to_broken(
                "warc.header_missing", "WARC-Type is missing", num_bytes
            )
        return Record(header.offset, header.type, header.fields, content)

    def _parse_header(self, head: re.Match[bytes]) -> _Header | Broken:
        """Parse the header at the position. Consume it only if it does not end."""
        window = self.window
        offset, into_member = window.locate()
        terminator, search_from = head[1] * 2, head.start(1)
        limit = window.position + _MAX_HEADER_BYTES
        while (end := window.buffer.find(terminator, search_from, limit)) < 0:
            if len(window.buffer) >= limit or not window.read_more():
                return self._read_endless_header(
                    offset, is_long=len(window.buffer) >= limit
                )
        fields = self._framing.parse_fields(bytes(window.buffer[window.position : end]))
        type_name = fields.get(b"warc-type", b"").decode("latin-1").lower()
        length = fields.get(b"content-length", b"")
        return _Header(
            offset,
            into_member,
            end + len(terminator) - window.position,
            type_name if type_name in _TYPES else "unknown",
            fields,
            int(length) if _LENGTH.fullmatch(length) else -1,
        )

    def _read_endless_header(self, offset: int | None, *, is_long: bool) -> Broken:
        skipped_bytes = self.window.advance(1)
        search = self._skip_to_header()
        cause = "warc.header_too_long" if is_long else "warc.truncated"
        detail = "the header of the record does not end"
        if not is_long and search.fault is not None and search.fault.cuts_member(offset):
            cause, detail = search.fault.cause, search.fault.detail
        return Broken(offset, "broken", cause, detail, skipped_bytes + search.num_bytes)

    def _read_broken(
        self, header: _Header, cause: str, detail: str, skipped_bytes: int = 0
    ) -> Broken:
        """Skip a record that cannot be read, and search for the next header.

        The search decides between causes. A fault before any other header means that the fault cut
        the record. A header, or the intact end of a member, inside the stated content means that
        only Content-Length is wrong.
        """
        skipped_bytes += self.window.advance(header.num_bytes)
        search = self._skip_to_header()
        if search.fault is not None and search.fault.cuts_member(header.offset):
            cause, detail = search.fault.cause, search.fault.detail
        elif cause == "warc.truncated" and (search.is_found or self.window.ends_member):
            cause = "warc.content_length_wrong"
        return header.to_broken(cause, detail, skipped_bytes + search.num_bytes)

    def _read_too_large(self, header: _Header) -> Broken:
        """Skip a record that is too large to be held, and check that it ends where it states."""
        window = self.window
        window.advance(header.num_bytes)
        num_bytes = self._skip_content(header.length)
        skipped_bytes = header.num_bytes + num_bytes
        is_complete = num_bytes == header.length
        if is_complete and is_record_end(
            window, self._framing, window.position, window.position
        ):
            detail = (
                f"Content-Length is {header.length}, the limit is {self._max_record_bytes}"
            )
            return header.to_broken("warc.record_too_large", detail, skipped_bytes)
        cause = "warc.content_length_wrong" if is_complete else "warc.truncated"
        detail = f"Content-Length is {header.length}, but no record ends there"
        if (
            header.offset is None
            or self._num_rewinds >= _MAX_REWINDS
            or window.fault is not None
        ):
            return self._read_broken(
                header._replace(num_bytes=0), cause, detail, skipped_bytes
            )
        # The stated length skipped other records: go back and search from this header on.
        self._num_rewinds += 1
        self.window = StreamWindow.open(
            self._content,
            max_item_bytes=self._max_item_bytes,
            offset=header.offset,
            skip_bytes=header.into_member,
        )
        self.window.begin_item()
        self.window.read_until(self.window.position + header.num_bytes)
        return self._read_broken(header, cause, detail)

    def _skip_content(self, num_bytes: int) -> int:
        """Move forward without holding the bytes, at most to a member that begins with a header.

        Returns:
            How many bytes were skipped.
        """
        window, rest = self.window, num_bytes
        while rest and (window.available or window.read_more()):
            step = min(rest, window.available)
            for member in window.find_members(window.position, window.position + step - 1):
                if self._framing.start.match(window.buffer, member):
                    rest -= window.advance(member - window.position)
                    return num_bytes - rest
            rest -= window.advance(step)
        return num_bytes - rest
