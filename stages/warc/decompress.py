"""Decompress a file in chunks, and find where its bytes cannot be trusted.

The file may be gzip (one or many members), zstd, lz4 or uncompressed. Where decompression fails,
the bytes before the failure are returned, then a `Fault`; reading continues at the next gzip
member. What expands to very many bytes without a record is not decompressed to its end.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Generator, Iterator
from typing import NamedTuple

from fastwarc.stream_io import Lz4Reader, ZstdReader
from isal import igzip_lib

from stages.warc.input_content import FileReader, InputContent

_DISK_BYTES = 64 << 10  # per read from disk
_CHUNK_BYTES = 256 << 10  # per decompression step
_HEAD_BYTES = 1 << 20  # searched for an intact member if the file does not begin with one

_GZIP = b"\x1f\x8b"
# Magic number, method, flags and time: the same in all members of nearly every file.
_MEMBER_HEAD_BYTES = 8
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


class Chunk(NamedTuple):
    """Decompressed bytes of one gzip member, or of a file in another format."""

    data: bytes
    # on disk: of the data themselves, or of the gzip member they come from
    offset: int | None
    is_start: bool  # the first chunk of a member
    is_end: bool  # the last chunk of a member, and the checksum is right


class Expansion:
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
        """Measure from here on."""
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


def detect_compression(content: InputContent) -> bytes:
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


def read_chunks(
    file: FileReader, magic: bytes, expansion: Expansion
) -> Iterator[Chunk | Fault]:
    """Yield the decompressed data and the faults of a file, in its order.

    Args:
        file: positioned at a gzip member, or anywhere in an uncompressed file.
        magic: of its compression.
        expansion: measures the chunks; `Expansion.begin_item` starts each item.

    Raises:
        OSError: the file cannot be read.
    """
    if magic == _GZIP:
        return _read_gzip(file, expansion)
    if magic in (_ZSTD, _ZSTD_DICTIONARY):
        return _read_frames(file, ZstdReader(file), expansion)
    if magic == _LZ4:
        return _read_frames(file, Lz4Reader(file), expansion)
    return _read_stored(file)


def _read_stored(file: FileReader) -> Iterator[Chunk]:
    offset, is_start = file.tell(), True
    while data := file.read(_CHUNK_BYTES):
        yield Chunk(data, offset, is_start, is_end=False)
        is_start = False


def _read_frames(
    file: FileReader, reader: ZstdReader | Lz4Reader, expansion: Expansion
) -> Iterator[Chunk | Fault]:
    """Read zstd or lz4.

    FastWARC's readers do not tell where a frame begins and cannot continue after a failure.
    """
    try:
        while data := reader.read(_CHUNK_BYTES):
            yield Chunk(data, None, is_start=False, is_end=False)
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


def _read_gzip(file: FileReader, expansion: Expansion) -> Iterator[Chunk | Fault]:
    rest = b""  # read from disk, not used yet
    while rest := rest or file.read(_DISK_BYTES):
        if len(rest) < len(_GZIP):
            rest += file.read(_DISK_BYTES)
        if rest.startswith(_GZIP):
            rest = yield from _read_whole_members(file, rest, expansion)
            if rest:
                rest = yield from _read_member(file, rest, expansion)
            continue
        start = file.tell() - len(rest)
        file.seek(_find_next_member(file, start))
        lost_bytes = file.tell() - start
        detail = f"{lost_bytes} bytes between gzip members that are not gzip: {rest[:16]!r}"
        yield Fault("warc.garbage", start, detail, is_verified=True, lost_bytes=lost_bytes)
        rest = b""


def _read_whole_members(
    file: FileReader, rest: bytes, expansion: Expansion
) -> Generator[Chunk | Fault, None, bytes]:
    """Read small, intact gzip members up to the first one that `_read_member` must read.

    The chunks are those of `_read_member`. Cutting members where the next one begins is faster: a
    decompressor copies all bytes after the end of its member.

    Args:
        file: positioned after `rest`.
        rest: begins with a gzip member.
        expansion: measures the expansion of the members.

    Returns:
        The part of `rest` that was not read, which begins with a gzip member or is empty.
    """
    start, origin = 0, file.tell() - len(rest)
    head = rest[:_MEMBER_HEAD_BYTES]
    while (end := rest.find(head, start + 1)) > 0:
        data = _inflate_whole(rest[start:end])
        if not data:
            break
        yield Chunk(data, origin + start, True, True)
        expansion.add(len(data), origin + len(rest))
        if bomb := expansion.find_bomb():
            yield from _skip_bomb(file, origin + start, bomb, expansion)
            return b""
        start = end
    return rest[start:]


def _inflate_whole(member: bytes) -> bytes:
    """Return the content of an intact gzip member, b"" if the bytes are anything else.

    Members with more than `_CHUNK_BYTES` of content are not read here either.
    """
    inflate = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP)
    try:
        data = inflate.decompress(member, _CHUNK_BYTES)
    # The stubs of isal declare the exception class as an instance.
    except igzip_lib.IsalError:  # pyright: ignore[reportGeneralTypeIssues]
        return b""
    return data if inflate.eof and not inflate.unused_data else b""


def _skip_bomb(
    file: FileReader, start: int, bomb: str, expansion: Expansion
) -> Iterator[Fault]:
    """Yield the fault of a decompression bomb, and move the file to the next member."""
    # The member may end in the block that was read last.
    after = _find_next_member(file, max(start + 1, file.tell() - _DISK_BYTES))
    yield Fault("warc.record_too_large", start, bomb, False, 0)
    expansion.begin_item()
    file.seek(after)


def _read_member(
    file: FileReader, rest: bytes, expansion: Expansion
) -> Generator[Chunk | Fault, None, bytes]:
    """Read one gzip member.

    Args:
        file: positioned after `rest`.
        rest: the first bytes of the member.
        expansion: measures its expansion.

    Returns:
        The bytes that were read after the end of the member.
    """
    start = file.tell() - len(rest)
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
                yield Chunk(data, start, num_bytes == 0, inflate.eof)
                num_bytes += len(data)
                expansion.add(len(data), file.tell())
                if bomb := expansion.find_bomb():
                    yield from _skip_bomb(file, start, bomb, expansion)
                    return b""
    # The stubs of isal declare the exception class as an instance.
    except igzip_lib.IsalError as error:  # pyright: ignore[reportGeneralTypeIssues]
        num_bytes += yield from _salvage(file, start, num_bytes)
        after = _find_next_member(file, start + 1)
        yield Fault("warc.compression_corrupt", start, f"gzip: {error}", num_bytes == 0, 0)
        file.seek(after)
        return b""
    return inflate.unused_data


def _salvage(file: FileReader, start: int, skip_bytes: int) -> Generator[Chunk, None, int]:
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
            yield Chunk(fresh, start, skip_bytes == 0 and num_bytes == 0, is_end=False)
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
