r"""A window over the decompressed bytes of a file, whose memory does not grow with the file.

A window never contains bytes from both sides of a fault: it stops growing until the caller calls
`skip_fault`.

    window = StreamWindow.open(content, max_item_bytes=64 << 20)
    window.begin_item()      # of a record, or of a broken stretch
    window.read_more()       # True: the buffer has grown
    window.buffer            # bytearray(b"WARC/1.0\r\n...")
    window.advance(8)        # window.position is 8 further; bytes before it may be dropped
    window.read_more()       # False: at the end of the file, or at a fault
    window.fault             # Fault("warc.compression_corrupt", offset=167, ...)
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import takewhile
from typing import Self

from stages.warc.decompress import (
    Chunk,
    Expansion,
    Fault,
    detect_compression,
    read_chunks,
)
from stages.warc.input_content import InputContent

_KEPT_BYTES = 1 << 20  # bytes before the position that may stay in the buffer


class StreamWindow:
    """A window over the decompressed bytes of a file.

    Attributes:
        buffer: the bytes in the window.
        position: index into `buffer` of the next byte to use.
        fault: the fault that stops the window, or None.
        ends_member: an intact gzip member ends where the buffer ends.
        is_stored: the file is not compressed, so each byte has a known offset on disk.
    """

    def __init__(
        self,
        chunks: Iterator[Chunk | Fault],
        expansion: Expansion,
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
        self.is_stored = is_stored
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
        magic = detect_compression(content)
        expansion = Expansion(max_item_bytes)
        chunks = read_chunks(content.open(offset), magic, expansion)
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
        if self.is_stored and offset is not None:
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
