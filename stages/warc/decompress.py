r"""Read the decompressed bytes of a file through a window, and find where they cannot be trusted.

The file may be gzip (one or many members), zstd, lz4 or uncompressed. Memory is bounded by the
window that the caller asks for, regardless of the size of the decompressed file. Time is bounded
too: what expands to very many bytes without a record is not decompressed to its end.

Where decompression fails, the bytes before the failure are returned, then a `Fault`; reading
continues at the next gzip member. A window never contains bytes from both sides of a fault: it
stops growing until the caller calls `skip_fault`.

    window = StreamWindow.open(content, max_item_bytes=64 << 20)
    window.begin_item()      # of a record, or of a broken stretch
    window.read_more()       # True: the buffer has grown
    window.buffer            # bytearray(b"WARC/1.0\r\n...")
    window.advance(8)        # window.position is 8 further; bytes before it may be dropped
    window.read_more()       # False: at the end of the file, or at a fault
    window.fault             # Fault("warc.compression_corrupt", offset=167, ...)
"""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import Generator, Iterator
from itertools import takewhile
from typing import NamedTuple, Self

from fastwarc.stream_io import Lz4Reader, ZstdReader
from isal import igzip_lib

from stages.warc.input_content import FileReader, InputContent

_DISK_BYTES = 64 << 10  # per read from disk
_CHUNK_BYTES = 256 << 10  # per decompression step
_HEAD_BYTES = 1 << 20  # searched for an intact member if the file does not begin with one
_KEPT_BYTES = 1 << 20  # bytes before the position that may stay in the buffer

_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"  # RFC 8878, section 3.1.1
_ZSTD_DICTIONARY = (
    b"\x5d\x2a\x4d\x18"  # skippable frame with a dictionary, first in a .warc.zst
)
_LZ4 = b"\x04\x22\x4d\x18"  # LZ4 frame format, version 1.6.4
# RFC 1952, section 2.3: deflate, no reserved flag, any time, the flags of a known writer,
# any system.
_MEMBER = re.compile(rb"\x1f\x8b\x08[\x00-\x1f].{4}[\x00\x02\x04].", re.DOTALL)
_MEMBER_TRIAL_BYTES = (
    1024  # a candidate that inflates this far without an error is a member
)
_SALVAGE_BYTES = 64  # on disk, per step: at most this much before a failure is lost
_GZIP_WBITS = 31  # zlib's argument for the gzip format

# An item (a record or broken stretch) is a decompression bomb if it expands more than this
# and to more than `max_item_bytes`. Deflate expands zeros 1,032 times, HTML 5 to 20 times.
_BOMB_RATIO = 100
# zstd and lz4 files end at a bomb, because reading cannot continue after it. So it must be
# this many times larger.
_FRAME_BOMB_FACTOR = 16


class Fault(NamedTuple):
    """A place where the bytes cannot be trusted."""

    cause: str
    offset: int | None  # on disk, of the member or of the bytes that are not gzip
    detail: str
    is_verified: (
        bool  # all bytes before the fault are intact: the broken member returned none
    )
    lost_bytes: int  # bytes on disk that were never decompressed

    def cuts_member(self, offset: int | None) -> bool:
        """Return whether the member at `offset` breaks after it has returned some bytes."""
        return not self.is_verified and self.offset == offset


class _Chunk(NamedTuple):
    data: bytes
    # on disk: of the data themselves, or of the gzip member they come from
    offset: int | None
    is_start: bool  # the first chunk of a member
    is_end: bool  # the last chunk of a member, and the checksum is right


class _Expansion:
    """Measures how far the current item expands.

    Args:
        max_bytes: decompressed bytes of an item up to which it may expand any number of times.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._disk_offset = 0
        self._item_bytes = 0
        # Where the item begins on disk; None: no item has begun, and nothing is too large.
        self._item_start: int | None = None

    def begin_item(self) -> None:
        self._item_start, self._item_bytes = self._disk_offset, 0

    def add(self, num_bytes: int, disk_offset: int) -> None:
        """Count decompressed bytes.

        Args:
            num_bytes: their number.
            disk_offset: the end of the compressed bytes that were read for them.
        """
        self._item_bytes += num_bytes
        self._disk_offset = disk_offset

    def find_bomb(self, factor: int = 1) -> str:
        """Return a message if the item is a decompression bomb, otherwise ""."""
        if self._item_start is None or self._item_bytes <= factor * self._max_bytes:
            return ""
        disk_bytes = self._disk_offset - self._item_start
        if self._item_bytes <= _BOMB_RATIO * disk_bytes:
            return ""
        return (
            f"{disk_bytes} bytes expand to {self._item_bytes} and more without a record: a "
            f"decompression bomb"
        )


class StreamWindow:
    """A window over the decompressed bytes of a file.

    Attributes:
        buffer: the bytes in the window.
        position: index into `buffer` of the next byte to use.
        fault: the fault that stops the window, or None.
        ends_member: an intact gzip member ends where the buffer ends.
    """

    def __init__(
        self,
        chunks: Iterator[_Chunk | Fault],
        expansion: _Expansion,
        *,
        is_stored: bool,
    ) -> None:
        """Create a window.

        Args:
            chunks: decompressed data and faults, in the order of the file.
            expansion: measures the chunks.
            is_stored: the file is not compressed, so each byte has a known offset on disk.
        """
        self.buffer: bytes | bytearray = b""
        self.position = 0
        self.fault: Fault | None = None
        self.ends_member = False
        self._expansion = expansion
        self._is_stored = is_stored
        self._chunks = chunks
        self._origin = 0  # offset of buffer[0] in the decompressed stream
        # Start of each member in the window: offset in the decompressed stream, offset on disk.
        self._starts: deque[tuple[int, int | None]] = deque()

    @classmethod
    def open(
        cls,
        content: InputContent,
        *,
        max_item_bytes: int,
        offset: int = 0,
        skip_bytes: int = 0,
    ) -> Self:
        """Open a file at a member.

        Args:
            content: the file.
            max_item_bytes: decompressed bytes of one item above which a fault ends it, if it
                is a decompression bomb.
            offset: of a gzip member, or of any byte of an uncompressed file.
            skip_bytes: decompressed bytes to skip from there.

        Raises:
            OSError: the file cannot be read.
        """
        magic = _detect_compression(content)
        expansion = _Expansion(max_item_bytes)
        chunks = _read_chunks(content.open(offset), magic, expansion)
        window = cls(chunks, expansion, is_stored=not magic)
        while skip_bytes > 0 and (window.read_more() or window.available):
            skip_bytes -= window.advance(min(skip_bytes, window.available))
        return window

    def begin_item(self) -> None:
        """State that a record or broken stretch begins, whose size is measured from here on."""
        self._expansion.begin_item()

    @property
    def num_bytes(self) -> int:
        """Decompressed bytes so far."""
        return self._origin + len(self.buffer)

    @property
    def available(self) -> int:
        """Bytes in the buffer from the position on."""
        return len(self.buffer) - self.position

    @property
    def is_single_member(self) -> bool:
        """Whether the buffer ends with the member of the position, and that member is intact."""
        return self.ends_member and len(self._starts) == 1

    def read_more(self) -> bool:
        """Extend the buffer. Return False at the end of the file and at a fault."""
        if self.fault is not None:
            return False
        chunk = next(self._chunks, None)
        if chunk is None or isinstance(chunk, Fault):
            self.fault = chunk
            return False
        if chunk.is_start:
            if not self.buffer:
                self._starts.clear()
            self._starts.append((self._origin + len(self.buffer), chunk.offset))
        self.ends_member = chunk.is_end
        # The usual member fits into one chunk: use it without a copy.
        if self.buffer:
            self._make_mutable()
            self.buffer += chunk.data
        else:
            self.buffer = chunk.data
        return True

    def read_until(self, end: int) -> bool:
        """Extend the buffer to at least `end` bytes. Return False if there are fewer."""
        while len(self.buffer) < end:
            if not self.read_more():
                return False
        return True

    def advance(self, num_bytes: int) -> int:
        """Move the position forward. Indices into `buffer` become invalid."""
        self.position += num_bytes
        if self.position == len(self.buffer):
            self._origin += self.position
            self.buffer, self.position = b"", 0
        elif self.position >= _KEPT_BYTES:
            self._origin += self.position
            del self._make_mutable()[: self.position]
            self.position = 0
        while len(self._starts) > 1 and self._starts[1][0] <= self._origin + self.position:
            self._starts.popleft()
        return num_bytes

    def skip_fault(self) -> Fault:
        """Drop the rest of the buffer and continue after the fault."""
        fault, self.fault = self.fault, None
        assert fault is not None
        self.advance(self.available)
        return fault

    def locate(self) -> tuple[int | None, int]:
        """Return the position on disk.

        Returns:
            The offset on disk of the position's member (uncompressed: of the position itself), and
            the decompressed bytes from there to the position.
        """
        if not self._starts:
            return None, 0
        start, offset = self._starts[0]
        into_member = self._origin + self.position - start
        if self._is_stored and offset is not None:
            return offset + into_member, 0
        return offset, into_member

    def find_members(self, start: int, end: int) -> Iterator[int]:
        """Yield the indices in buffer[start : end + 1] where gzip members begin.

        Args:
            start: at or after the position.
            end: the last index to include.
        """
        indices = (member - self._origin for member, _ in self._starts)
        return (index for index in takewhile(lambda i: i <= end, indices) if index >= start)

    def _make_mutable(self) -> bytearray:
        if isinstance(self.buffer, bytes):
            self.buffer = bytearray(self.buffer)
        return self.buffer


def _detect_compression(content: InputContent) -> bytes:
    """Return the magic number of the compression, b"" if there is none.

    The beginning of a gzip file may be damaged. Then a later member that contains a WARC record
    shows that the file is gzip.
    """
    head = content.read_range(0, _HEAD_BYTES)
    for magic in (_GZIP, _ZSTD, _ZSTD_DICTIONARY, _LZ4):
        if head.startswith(magic):
            return magic
    if head.startswith(b"WARC/"):
        return b""
    for found in _MEMBER.finditer(head):
        trial = head[found.start() : found.start() + _MEMBER_TRIAL_BYTES]
        if _inflate_head(trial) == b"WARC/":
            return _GZIP
    return b""


def _read_chunks(
    file: FileReader, magic: bytes, expansion: _Expansion
) -> Iterator[_Chunk | Fault]:
    if magic == _GZIP:
        return _read_gzip(file, expansion)
    if magic in (_ZSTD, _ZSTD_DICTIONARY):
        return _read_frames(file, ZstdReader(file), expansion)
    if magic == _LZ4:
        return _read_frames(file, Lz4Reader(file), expansion)
    return _read_stored(file)


def _read_stored(file: FileReader) -> Iterator[_Chunk]:
    offset, is_start = file.tell(), True
    while data := file.read(_CHUNK_BYTES):
        yield _Chunk(data, offset, is_start, is_end=False)
        is_start = False


def _read_frames(
    file: FileReader, reader: ZstdReader | Lz4Reader, expansion: _Expansion
) -> Iterator[_Chunk | Fault]:
    """Read zstd or lz4.

    FastWARC's readers do not tell where a frame begins and cannot continue after a failure.
    """
    try:
        while data := reader.read(_CHUNK_BYTES):
            yield _Chunk(data, None, is_start=False, is_end=False)
            expansion.add(len(data), file.tell())
            if bomb := expansion.find_bomb(_FRAME_BOMB_FACTOR):
                detail = f"{bomb}; the rest of the file was not read"
                yield Fault(
                    "warc.record_too_large", None, detail, is_verified=False, lost_bytes=0
                )
                return
    except OSError as error:
        yield Fault(
            "warc.compression_corrupt", None, str(error), is_verified=False, lost_bytes=0
        )


def _read_gzip(file: FileReader, expansion: _Expansion) -> Iterator[_Chunk | Fault]:
    rest = b""  # read from disk, not used yet
    while rest := rest or file.read(_DISK_BYTES):
        start = file.tell() - len(rest)
        if len(rest) < len(_GZIP):
            rest += file.read(_DISK_BYTES)
        if rest.startswith(_GZIP):
            rest = yield from _read_member(file, start, rest, expansion)
            continue
        file.seek(_find_next_member(file, start))
        lost_bytes = file.tell() - start
        detail = f"{lost_bytes} bytes between gzip members that are not gzip: {rest[:16]!r}"
        yield Fault("warc.garbage", start, detail, is_verified=True, lost_bytes=lost_bytes)
        rest = b""


def _read_member(
    file: FileReader, start: int, rest: bytes, expansion: _Expansion
) -> Generator[_Chunk | Fault, None, bytes]:
    """Read one gzip member.

    Args:
        file: positioned after `rest`.
        start: offset of the member.
        rest: its first bytes.
        expansion: measures its expansion.

    Returns:
        The bytes that were read after the end of the member.
    """
    inflate = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP)
    num_bytes = 0
    try:
        while not inflate.eof:
            if inflate.needs_input and not (rest := rest or file.read(_DISK_BYTES)):
                detail = "the file ends inside a gzip member"
                yield Fault("warc.truncated", start, detail, num_bytes == 0, 0)
                return b""
            data = inflate.decompress(rest, _CHUNK_BYTES)
            rest = b""
            if data or (inflate.eof and num_bytes):
                yield _Chunk(data, start, num_bytes == 0, inflate.eof)
                num_bytes += len(data)
                expansion.add(len(data), file.tell())
                if bomb := expansion.find_bomb():
                    # The member may end in the block that was read last.
                    after = _find_next_member(
                        file, max(start + 1, file.tell() - _DISK_BYTES)
                    )
                    yield Fault("warc.record_too_large", start, bomb, False, 0)
                    expansion.begin_item()
                    file.seek(after)
                    return b""
    # The stubs of isal declare the exception class as an instance.
    except igzip_lib.IsalError as error:  # pyright: ignore[reportGeneralTypeIssues]
        num_bytes += yield from _salvage(file, start, num_bytes)
        after = _find_next_member(file, start + 1)
        yield Fault("warc.compression_corrupt", start, f"gzip: {error}", num_bytes == 0, 0)
        file.seek(after)
        return b""
    return inflate.unused_data


def _salvage(file: FileReader, start: int, skip_bytes: int) -> Generator[_Chunk, None, int]:
    """Decompress a broken member again, up to its failure.

    A call of igzip that fails loses everything it decompressed. zlib, called in small steps, loses
    next to nothing.

    Args:
        file: the file.
        start: offset of the member.
        skip_bytes: decompressed bytes that were returned already.

    Returns:
        The number of further bytes.
    """
    file.seek(start)
    inflate = zlib.decompressobj(wbits=_GZIP_WBITS)
    num_bytes = 0
    while not inflate.eof and (step := file.read(_SALVAGE_BYTES)):
        try:
            data = inflate.decompress(step)
        except zlib.error:
            break
        if fresh := data[max(0, skip_bytes - num_bytes) :]:
            yield _Chunk(fresh, start, skip_bytes == 0 and num_bytes == 0, is_end=False)
        num_bytes += len(data)
    return max(0, num_bytes - skip_bytes)


def _find_next_member(file: FileReader, offset: int) -> int:
    """Return the offset of the first gzip member at or after `offset`, or the size of the file."""
    file.seek(offset)
    window = b""
    while chunk := file.read(_DISK_BYTES):
        window += chunk
        is_last = len(chunk) < _DISK_BYTES
        # A candidate near the end of the window is tried when more bytes are available.
        judged = len(window) if is_last else len(window) - _MEMBER_TRIAL_BYTES
        for found in _MEMBER.finditer(window):
            trial = window[found.start() : found.start() + _MEMBER_TRIAL_BYTES]
            if found.start() < judged and _inflate_head(trial):
                return file.tell() - len(window) + found.start()
        window = window[max(0, judged) :]
    return file.tell()


def _inflate_head(trial: bytes) -> bytes:
    """Return the first five bytes of a gzip member that begins with `trial`, b"" if it is none."""
    try:
        return zlib.decompressobj(wbits=_GZIP_WBITS).decompress(trial, 5)
    except zlib.error:
        return b""
