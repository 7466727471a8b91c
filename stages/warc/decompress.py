r"""The decompressed bytes of one file, a window at a time, and the places where they cannot be trusted.

Promises: any bytes are read to their end (gzip in one or many members, zstd, lz4, or uncompressed); where compression
breaks off, what comes out before the break is handed out, the break is shown as a `Fault`, and reading goes on at the
next gzip member; memory is bounded by what the reader asks to see at once, whatever the file expands to.
Leaves to others: what the bytes mean.

A tape stops at a fault until `cross` is called, so bytes from both sides of a break never meet in one window:

    tape = Tape.of(path)
    tape.fill()              # True: the window has grown
    tape.window              # bytearray(b"WARC/1.0\r\n...")
    tape.advance(8)          # tape.position is 8 further on; what lies behind may go
    tape.fill()              # False: at the end, or at a break, and then
    tape.fault               # Fault("warc.compression_corrupt", offset=167, ...)
"""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import Generator, Iterator
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from fastwarc.stream_io import Lz4Reader, ZstdReader
from isal import igzip_lib

_DISK_BYTES = 64 << 10
_HEAD_BYTES = 1 << 20  # where a whole member is looked for in a file that does not begin with one
_PIECE_BYTES = 256 << 10
_KEPT_BYTES = 1 << 20  # read bytes that may stay in the window before it is cut

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"  # RFC 8878, section 3.1.1
_ZSTD_DICTIONARY = (
    b"\x5d\x2a\x4d\x18"  # the skippable frame that opens a .warc.zst with a dictionary of its own
)
_LZ4 = b"\x04\x22\x4d\x18"  # LZ4 frame format, version 1.6.4
# RFC 1952, section 2.3: deflate, no reserved flag, any time, the flags of a known writer, any system.
_MEMBER = re.compile(rb"\x1f\x8b\x08[\x00-\x1f].{4}[\x00\x02\x04].", re.DOTALL)
_MEMBER_TRIAL_BYTES = 1024  # a member that inflates so far without an error is taken for one
_SALVAGE_BYTES = 64  # on disk, per step: what a break takes with it at most


class Fault(NamedTuple):
    """A place where the bytes break off, and where they go on after it."""

    cause: str
    offset: int | None  # on disk, of the member or of the foreign bytes
    detail: str
    is_verified: (
        bool  # everything that came out before is whole: the broken member itself gave nothing
    )
    lost_bytes: int  # on disk, that were never decompressed

    def tears(self, offset: int | None) -> bool:
        """Whether the fault lies in the member at `offset`, after something came out of it."""
        return not self.is_verified and self.offset == offset


class _Piece(NamedTuple):
    data: bytes
    offset: int | None  # on disk: of the data themselves, or of the gzip member that they come from
    is_start: bool  # the first of a member
    is_end: bool  # the last of a member, whose checksum is right


class Tape:
    """A window over the decompressed bytes of a file. `position` counts from the start of `window`."""

    def __init__(self, pieces: Iterator[_Piece | Fault], *, is_stored: bool) -> None:
        """Take pieces as they come; `is_stored`: the file is not compressed, so a byte's place on disk is known."""
        self.window: bytes | bytearray = b""
        self.position = 0
        self.fault: Fault | None = None
        self.ends_member = False
        """A whole member ends where the window ends."""
        self._is_stored = is_stored
        self._pieces = pieces
        self._origin = 0  # of window[0] in all that came out of the file
        self._starts: deque[tuple[int, int | None]] = (
            deque()
        )  # of members: in all that came out, on disk

    @classmethod
    def of(cls, path: Path, offset: int = 0, skip_bytes: int = 0) -> Self:
        """The tape of a file, from `skip_bytes` decompressed bytes after the member (or byte) at `offset`.

        Raises:
            OSError: the file cannot be opened or read.
        """
        magic = _magic(path)
        tape = cls(_pieces(path, magic, offset), is_stored=not magic)
        while skip_bytes > 0 and (tape.fill() or tape.available):
            skip_bytes -= tape.advance(min(skip_bytes, tape.available))
        return tape

    @property
    def available(self) -> int:
        """Bytes in the window after the position."""
        return len(self.window) - self.position

    @property
    def is_single_member(self) -> bool:
        """The window, from its position on, holds (the end of) one whole member and no other."""
        return self.ends_member and len(self._starts) == 1

    def fill(self) -> bool:
        """Let the window grow; False at the end of the file and at a fault."""
        if self.fault is not None:
            return False
        piece = next(self._pieces, None)
        if piece is None or isinstance(piece, Fault):
            self.fault = piece
            return False
        if piece.is_start:
            if not self.window:
                self._starts.clear()
            self._starts.append((self._origin + len(self.window), piece.offset))
        self.ends_member = piece.is_end
        if self.window:
            self.window = bytearray(self.window) if isinstance(self.window, bytes) else self.window
            self.window += piece.data
        else:
            self.window = piece.data
        return True

    def reach(self, end: int) -> bool:
        """Let the window grow to `end` bytes (counted from its start); False if a fault or the end comes before."""
        while len(self.window) < end:
            if not self.fill():
                return False
        return True

    def advance(self, num_bytes: int) -> int:
        """Move on by so many bytes of the window; what lies behind may leave it, so indices into it are void."""
        self.position += num_bytes
        if self.position == len(self.window):
            self._origin += self.position
            self.window, self.position = b"", 0
        elif self.position >= _KEPT_BYTES:
            self._origin += self.position
            self.window = bytearray(self.window) if isinstance(self.window, bytes) else self.window
            del self.window[: self.position]
            self.position = 0
        while len(self._starts) > 1 and self._starts[1][0] <= self._origin + self.position:
            self._starts.popleft()
        return num_bytes

    def cross(self) -> Fault:
        """Go over to the other side of the fault; what is left in the window before it is dropped."""
        fault, self.fault = self.fault, None
        assert fault is not None
        self.advance(self.available)
        return fault

    def parse_location(self) -> tuple[int | None, int]:
        """Where the position is: on disk the offset of its member (uncompressed: its own), and how far into that."""
        if not self._starts:
            return None, 0
        start, offset = self._starts[0]
        into_member = self._origin + self.position - start
        if self._is_stored and offset is not None:
            return offset + into_member, 0
        return offset, into_member

    def members_within(self, start: int, end: int) -> Iterator[int]:
        """Where in window[start : end + 1], which lies at or after the position, members begin."""
        places = (member - self._origin for member, _ in self._starts)
        return (place for place in takewhile(lambda place: place <= end, places) if place >= start)


def _magic(path: Path) -> bytes:
    """What tells the compression of a file, b"" if there is none. The beginning of a gzip file may be damaged."""
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    for magic in (_GZIP, _ZSTD, _ZSTD_DICTIONARY, _LZ4):
        if head.startswith(magic):
            return magic
    trials = (
        head[found.start() : found.start() + _MEMBER_TRIAL_BYTES]
        for found in _MEMBER.finditer(head)
    )
    is_damaged_gzip = not head.startswith(b"WARC/") and any(
        _inflate_head(trial) == b"WARC/" for trial in trials
    )
    return _GZIP if is_damaged_gzip else b""


def _pieces(path: Path, magic: bytes, offset: int) -> Iterator[_Piece | Fault]:
    if magic == _GZIP:
        return _gunzip(path, offset)
    if magic in (_ZSTD, _ZSTD_DICTIONARY):
        return _unframe(ZstdReader(str(path)))
    if magic == _LZ4:
        return _unframe(Lz4Reader(str(path)))
    return _stored(path, offset)


def _stored(path: Path, offset: int) -> Iterator[_Piece]:
    with path.open("rb") as file:
        file.seek(offset)
        is_start = True
        while data := file.read(_PIECE_BYTES):
            yield _Piece(data, offset, is_start, is_end=False)
            is_start = False


def _unframe(reader: ZstdReader | Lz4Reader) -> Iterator[_Piece | Fault]:
    """Zstd and lz4: FastWARC's readers do not say where a frame begins, nor can they go on after a break."""
    try:
        while data := reader.read(_PIECE_BYTES):
            yield _Piece(data, None, is_start=False, is_end=False)
    except OSError as error:
        yield Fault("warc.compression_corrupt", None, str(error), is_verified=False, lost_bytes=0)


def _gunzip(path: Path, offset: int) -> Iterator[_Piece | Fault]:
    with path.open("rb") as file:
        file.seek(offset)
        rest = b""
        while rest := rest or file.read(_DISK_BYTES):
            start = file.tell() - len(rest)
            if len(rest) < len(_GZIP):
                rest += file.read(_DISK_BYTES)
            if rest.startswith(_GZIP):
                rest = yield from _member(file, start, rest)
            else:
                file.seek(_next_member(file, start))
                detail = f"{file.tell() - start} bytes between gzip members that are not gzip: {rest[:16]!r}"
                yield Fault(
                    "warc.garbage", start, detail, is_verified=True, lost_bytes=file.tell() - start
                )
                rest = b""


def _member(file: BinaryIO, start: int, rest: bytes) -> Generator[_Piece | Fault, None, bytes]:
    """One gzip member, of which `rest` has been read; returns what was read beyond its end."""
    inflate = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP)
    num_bytes = 0
    try:
        while not inflate.eof:
            if inflate.needs_input and not (rest := rest or file.read(_DISK_BYTES)):
                yield Fault(
                    "warc.truncated", start, "the file ends inside a gzip member", num_bytes == 0, 0
                )
                return b""
            data = inflate.decompress(rest, _PIECE_BYTES)
            rest = b""
            if data or (inflate.eof and num_bytes):
                yield _Piece(data, start, num_bytes == 0, inflate.eof)
                num_bytes += len(data)
    except igzip_lib.IsalError as error:  # pyright: ignore[reportGeneralTypeIssues] - its stubs call it an instance
        num_bytes += yield from _salvage(file, start, num_bytes)
        after = _next_member(file, start + 1)
        yield Fault("warc.compression_corrupt", start, f"gzip: {error}", num_bytes == 0, 0)
        file.seek(after)
        return b""
    return inflate.unused_data


def _salvage(file: BinaryIO, start: int, skip_bytes: int) -> Generator[_Piece, None, int]:
    """What a broken member still gives before its break, after the first `skip_bytes`; returns how much that is.

    An error takes with it all that the failing call had decompressed; zlib in small steps loses next to nothing.
    """
    file.seek(start)
    inflate = zlib.decompressobj(wbits=31)
    num_bytes = 0
    while not inflate.eof and (step := file.read(_SALVAGE_BYTES)):
        try:
            data = inflate.decompress(step)
        except zlib.error:
            break
        if fresh := data[max(0, skip_bytes - num_bytes) :]:
            yield _Piece(fresh, start, skip_bytes == 0 and num_bytes == 0, is_end=False)
        num_bytes += len(data)
    return max(0, num_bytes - skip_bytes)


def _next_member(file: BinaryIO, offset: int) -> int:
    """Where on disk the next gzip member begins, at or after `offset`; the size of the file if there is none."""
    file.seek(offset)
    window = b""
    while chunk := file.read(_DISK_BYTES):
        window += chunk
        is_last = len(chunk) < _DISK_BYTES
        judged = len(window) if is_last else len(window) - _MEMBER_TRIAL_BYTES
        for found in _MEMBER.finditer(window):
            trial = window[found.start() : found.start() + _MEMBER_TRIAL_BYTES]
            if found.start() < judged and _inflate_head(trial):
                return file.tell() - len(window) + found.start()
        window = window[max(0, judged) :]
    return file.tell()


def _inflate_head(trial: bytes) -> bytes:
    """The first five bytes out of a gzip member that begins with `trial`, b"" if it is none."""
    try:
        return zlib.decompressobj(wbits=31).decompress(trial, 5)
    except zlib.error:
        return b""
