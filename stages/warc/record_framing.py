r"""The records of a WARC or ARC file, and the stretches between them that are none.

Promises: every byte of the file belongs to a record, to the newlines between records, or to exactly one `Broken`; a
record is handed out only when what follows it proves where it ends; after a fault reading goes on at the next header
that can be found.
Leaves to others: what a record means, and how the header of an ARC record is read (`stages._arc`).

What proves that a record ends after Content-Length bytes: the two CRLF of the standard (ISO 28500:2017, section 4), or
any newlines and then a version line, the end of a gzip member or the end of the file. What proves that it does not: a
break in the compression right after it, or a gzip member inside it that begins with a version line (members that begin
anywhere else inside it are sound: some writers cut them by size). In ARC files a record's header line stands for the
version line, and one newline for the two CRLF: a weaker proof, but no more lies between the records of that format.

    "WARC/1.0\r\n...Content-Length: 5\r\n\r\n" "Hello" "\r\n\r\n" "WARC/1.0\r\n..."      Record
    "WARC/1.0\r\n...Content-Length: 3\r\n\r\n" "Hel" "lo\r\n\r\nWARC/1.0\r\n..."        Broken, up to the version line
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from stages.warc import arc as _arc
from stages.warc.decompress import Fault, Tape
from stages.warc.http import parse_fields

_MAX_HEADER_BYTES = 64 << 10  # the standard sets no limit; FastWARC allows 32 KiB
_MAX_NEWLINES = 64 << 10  # after a record, before its end is taken as proven
_MAX_REWINDS = 16  # each may decompress a gzip member once more
_START_BYTES = 128  # a WARC header's beginning is shorter
_VERSION = re.compile(rb"WARC/\d{1,2}\.\d{1,3}[ \t]{0,8}(\r?\n)", re.IGNORECASE)
_HEADER_START = re.compile(_VERSION.pattern + rb"[!-9;-~]{1,64}[ \t]{0,8}:", re.IGNORECASE)
_NEWLINES = re.compile(rb"[\r\n]*")
_SHOWN_BYTES = 32  # of what is no header, in the quarantine list
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
    """A whole record."""

    offset: int | None  # on disk, of the record or of the gzip member that holds it
    type: str  # lower case; "unknown" if the standard does not have it
    fields: dict[bytes, bytes]  # names in lower case
    content: bytes


class Broken(NamedTuple):
    """A record that cannot be had, or bytes that belong to none."""

    offset: int | None
    type: str  # of the record, as far as its header could be read; else "broken"
    cause: str
    detail: str
    skipped_bytes: int


class _Framing(NamedTuple):
    """How the records of a format are told from other bytes."""

    start: re.Pattern[
        bytes
    ]  # at the place where a record begins; what group 1 matches, twice, ends the header
    search: re.Pattern[bytes]  # finds such a place
    start_bytes: int  # neither matches more
    separator: bytes  # after every record
    fields: Callable[[bytes], dict[bytes, bytes]]  # of a header, as in a WARC file


_WARC = _Framing(_VERSION, _HEADER_START, _START_BYTES, b"\r\n\r\n", parse_fields)
_ARC = _Framing(_arc.START, _arc.SEARCH, _arc.START_BYTES, _arc.SEPARATOR, _arc.warc_fields)


class _Header(NamedTuple):
    offset: int | None
    into_member: int  # decompressed bytes from the start of the member to the record
    num_bytes: int
    type: str
    fields: dict[bytes, bytes]
    length: int  # Content-Length; -1 if there is none that is a number

    def broken(self, cause: str, detail: str, skipped_bytes: int) -> Broken:
        return Broken(self.offset, self.type, cause, detail, skipped_bytes)


class _Lost(NamedTuple):
    """How a search for the next header went."""

    num_bytes: int
    is_found: bool
    fault: Fault | None  # the first one on the way


def read_records(path: Path, max_record_bytes: int, max_faults: int) -> Iterator[Record | Broken]:
    """Records and broken stretches in the order of the file.

    Args:
        path: gzip, zstd, lz4 or uncompressed.
        max_record_bytes: larger records are passed over without being held, as "warc.record_too_large".
        max_faults: broken stretches and breaks after which the file is given up, as "warc.too_many_faults".

    Raises:
        OSError: the file cannot be opened or read.
    """
    reader = _Reader(path, max_record_bytes, max_faults)
    num_items = 0
    while (item := reader.next()) is not None:
        yield item
        num_items += 1
        if reader.num_faults > max_faults:
            offset, _ = reader.tape.parse_location()
            yield Broken(
                offset, "broken", "warc.too_many_faults", f"more than {max_faults} broken places", 0
            )
            return
    if num_items == 0:
        yield Broken(0, "broken", "warc.empty_file", "no bytes, or none but newlines", 0)


class _Reader:
    def __init__(self, path: Path, max_record_bytes: int, max_faults: int) -> None:
        self.tape = Tape.of(path)
        self.num_faults = 0
        self.tape.reach(_arc.START_BYTES)
        self._framing = _ARC if _arc.is_arc(self.tape.window) else _WARC
        self._path = path
        self._max_record_bytes = max_record_bytes
        self._max_faults = max_faults
        self._num_rewinds = 0
        self._has_seen_header = False

    def next(self) -> Record | Broken | None:
        """The next record or broken stretch; None at the end of the file."""
        tape = self.tape
        self._skip_newlines()
        if (
            not tape.reach(tape.position + self._framing.start_bytes)
            and not tape.available
            and tape.fault is None
        ):
            return None
        head = self._framing.start.match(tape.window, tape.position)
        if head is None:
            item = self._foreign_bytes()
        else:
            self._has_seen_header = True
            item = self._record(head)
        if isinstance(item, Broken):
            self.num_faults += 1
        return item

    def _skip_newlines(self) -> None:
        tape = self.tape
        while tape.available or tape.fill():
            if not tape.window:
                continue  # a member that ended without another byte
            if tape.window[tape.position] not in b"\r\n":
                return
            newlines = _NEWLINES.match(tape.window, tape.position)
            assert newlines is not None
            tape.advance(newlines.end() - tape.position)

    def _foreign_bytes(self) -> Broken:
        """What stands where a record should begin, up to the next header."""
        tape = self.tape
        offset, _ = tape.parse_location()
        if not tape.available and tape.fault is not None:
            offset = tape.fault.offset
        opening = bytes(tape.window[tape.position : tape.position + _SHOWN_BYTES])
        lost = self._find_header()
        if lost.fault is not None:
            return Broken(offset, "broken", lost.fault.cause, lost.fault.detail, lost.num_bytes)
        if lost.is_found or self._has_seen_header:
            detail = f"{lost.num_bytes} bytes that belong to no record, beginning {opening!r}"
            return Broken(offset, "broken", "warc.garbage", detail, lost.num_bytes)
        detail = f"no header of a record; the file begins {opening!r}"
        return Broken(offset, "broken", "warc.not_a_warc", detail, lost.num_bytes)

    def _find_header(self) -> _Lost:
        """Move on to the next header, over whatever lies before it."""
        tape, num_bytes = self.tape, 0
        first_fault: Fault | None = None
        while (found := self._framing.search.search(tape.window, tape.position)) is None:
            num_bytes += tape.advance(max(0, tape.available - self._framing.start_bytes))
            if tape.fill():
                tape.reach(
                    tape.position + 2 * self._framing.start_bytes
                )  # at least half of what is searched is new
                continue
            num_bytes += tape.advance(tape.available)
            if tape.fault is None or self.num_faults > self._max_faults:
                return _Lost(num_bytes, False, first_fault)
            self.num_faults += 1
            fault = tape.cross()
            num_bytes += fault.lost_bytes
            first_fault = first_fault or fault
        num_bytes += tape.advance(found.start() - tape.position)
        return _Lost(num_bytes, True, first_fault)

    def _record(self, head: re.Match[bytes]) -> Record | Broken:
        header = self._header(head)
        if isinstance(header, Broken):
            return header
        tape = self.tape
        start, end = (
            tape.position + header.num_bytes,
            tape.position + header.num_bytes + header.length,
        )
        if header.length < 0:
            return self._give_up(
                header, "warc.header_missing", "Content-Length is missing or not a number"
            )
        if header.length > self._max_record_bytes:
            return self._pass_over(header)
        if not tape.reach(end):
            detail = f"Content-Length is {header.length}, but only {len(tape.window) - start} bytes follow"
            return self._give_up(header, "warc.truncated", detail)
        if not self._is_end(head.end(), end):
            detail = f"Content-Length is {header.length}, but no record ends there"
            return self._give_up(header, "warc.content_length_wrong", detail)
        content = bytes(
            memoryview(tape.window)[start:end]
        )  # one copy, whichever kind the window is
        tape.advance(end - tape.position)
        if b"warc-type" not in header.fields:
            return header.broken(
                "warc.header_missing", "WARC-Type is missing", header.num_bytes + header.length
            )
        return Record(header.offset, header.type, header.fields, content)

    def _header(self, head: re.Match[bytes]) -> _Header | Broken:
        """The header at the position; the position stays where it is."""
        tape = self.tape
        offset, into_member = tape.parse_location()
        terminator, search_from = head[1] * 2, head.start(1)
        limit = tape.position + _MAX_HEADER_BYTES
        while (end := tape.window.find(terminator, search_from, limit)) < 0:
            if len(tape.window) >= limit or not tape.fill():
                return self._endless_header(offset, is_long=len(tape.window) >= limit)
        fields = self._framing.fields(bytes(tape.window[tape.position : end]))
        type_name = fields.get(b"warc-type", b"").decode("latin-1").lower()
        length = fields.get(b"content-length", b"")
        return _Header(
            offset,
            into_member,
            end + len(terminator) - tape.position,
            type_name if type_name in _TYPES else "unknown",
            fields,
            int(length) if _LENGTH.fullmatch(length) else -1,
        )

    def _endless_header(self, offset: int | None, *, is_long: bool) -> Broken:
        skipped_bytes = self.tape.advance(1)
        lost = self._find_header()
        cause, detail = (
            "warc.header_too_long" if is_long else "warc.truncated",
            "the header of the record does not end",
        )
        if not is_long and lost.fault is not None and lost.fault.tears(offset):
            cause, detail = lost.fault.cause, lost.fault.detail
        return Broken(offset, "broken", cause, detail, skipped_bytes + lost.num_bytes)

    def _is_end(self, start: int, end: int) -> bool:
        """Whether what follows window[:end] proves that a record ends there which is known to reach to `start`."""
        tape = self.tape
        separator = self._framing.separator
        if tape.is_single_member and tape.window[end : end + len(separator) + 1] == separator:
            return True  # how nearly all files are written: a member for each record
        if any(
            self._framing.start.match(tape.window, member)
            for member in tape.members_within(start, end - 1)
        ):
            return False
        after = self._after_newlines(end)
        if after == len(tape.window) and tape.ends_member:
            return True
        if tape.reach(after + 1):
            tape.reach(after + self._framing.start_bytes)
            is_standard = tape.window[end : end + len(separator)] == separator
            return (
                is_standard
                or any(True for _ in tape.members_within(end, after))
                or bool(self._framing.start.match(tape.window, after))
            )
        return tape.fault is None or tape.fault.is_verified

    def _after_newlines(self, start: int) -> int:
        """Where in the window the newlines that begin at `start` end."""
        tape = self.tape
        while True:
            newlines = _NEWLINES.match(tape.window, start, start + _MAX_NEWLINES)
            assert newlines is not None
            is_run_over = (
                newlines.end() < len(tape.window) or newlines.end() - start >= _MAX_NEWLINES
            )
            if is_run_over or tape.ends_member or not tape.fill():
                return newlines.end()

    def _give_up(self, header: _Header, cause: str, detail: str, skipped_bytes: int = 0) -> Broken:
        """Pass over a record that cannot be had: the next header may stand anywhere after its own.

        What is found decides how the record broke: a break in the compression before any other header tore it, and a
        header, or the sound end of a member, where content should be shows that only its length is wrong.
        """
        skipped_bytes += self.tape.advance(header.num_bytes)
        lost = self._find_header()
        if lost.fault is not None and lost.fault.tears(header.offset):
            cause, detail = lost.fault.cause, lost.fault.detail
        elif cause == "warc.truncated" and (lost.is_found or self.tape.ends_member):
            cause = "warc.content_length_wrong"
        return header.broken(cause, detail, skipped_bytes + lost.num_bytes)

    def _pass_over(self, header: _Header) -> Broken:
        """Pass over a record that is too large to be held, and see whether it ends where it says."""
        tape = self.tape
        tape.advance(header.num_bytes)
        num_bytes = self._skip(header.length)
        if num_bytes == header.length and self._is_end(tape.position, tape.position):
            detail = f"Content-Length is {header.length}, at most {self._max_record_bytes} are read"
            return header.broken("warc.record_too_large", detail, header.num_bytes + num_bytes)
        cause = "warc.content_length_wrong" if num_bytes == header.length else "warc.truncated"
        detail = f"Content-Length is {header.length}, but no record ends there"
        if header.offset is None or self._num_rewinds >= _MAX_REWINDS or tape.fault is not None:
            return self._give_up(
                header._replace(num_bytes=0), cause, detail, header.num_bytes + num_bytes
            )
        self._num_rewinds += 1
        self.tape = Tape.of(self._path, header.offset, header.into_member)
        self.tape.reach(self.tape.position + header.num_bytes)
        return self._give_up(header, cause, detail)

    def _skip(self, num_bytes: int) -> int:
        """Move on by so many bytes without holding them, or to a member before that begins with a header."""
        tape, rest = self.tape, num_bytes
        while rest and (tape.available or tape.fill()):
            step = min(rest, tape.available)
            for member in tape.members_within(tape.position, tape.position + step - 1):
                if self._framing.start.match(tape.window, member):
                    rest -= tape.advance(member - tape.position)
                    return num_bytes - rest
            rest -= tape.advance(step)
        return num_bytes - rest
