"""Reading objects by range: one range with resumption, and a seekable file of ranges."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any

from storage.client import IncompleteAnswer
from storage.retries import RequestCounters

# Largest range of one request; `request_timeout_s` is the time limit for this many bytes.
REQUEST_BYTES = 16 << 20

# Read when a file is opened: the whole of a small file, the footer of a Parquet or Arrow
# file, and the size, in one request.
TAIL_BYTES = 256 << 10

# A gap up to this size is read and dropped. At 20 ms per request, this is faster than a new
# request.
GAP_BYTES = 1 << 20


class RangeDownload:
    """Bytes start..stop-1 of one object, received in one or more attempts."""

    def __init__(
        self,
        key: str,
        start: int,
        stop: int,
        version: str | None,
        counters: RequestCounters,
    ) -> None:
        self._key, self._start, self._stop, self._version = key, start, stop, version
        self._counters = counters
        self._received = bytearray()
        self._is_first_attempt = True

    @property
    def num_received(self) -> int:
        """Number of bytes that later attempts need not fetch."""
        return len(self._received)

    def receive(self, client: Any) -> memoryview:
        """Fetch the missing bytes; return all of them."""
        if self._is_first_attempt:
            self._is_first_attempt = False
            # Most requests succeed, so the fast way comes first. Its bytes are lost if it fails.
            return self._receive_at_once(client)
        return self._receive_rest(client)

    def _receive_at_once(self, client: Any) -> memoryview:
        """Fetch all bytes by one call: three times as fast as a stream, but without resumption."""
        import obstore

        if self._version is None:
            content = obstore.get_range(
                client, self._key, start=self._start, end=self._stop
            )
        else:
            content = obstore.get(client, self._key, options=self._make_options()).bytes()
        self._counters.add("fetched_bytes", len(content))
        check_complete(len(content), self._stop - self._start)
        return memoryview(content)

    def _receive_rest(self, client: Any) -> memoryview:
        """Stream the missing bytes. Those that arrive before the connection breaks are kept."""
        import obstore

        num_before = len(self._received)
        if self._start + num_before < self._stop:
            result = obstore.get(client, self._key, options=self._make_options())
            try:
                # Smallest chunks: bytes in obstore's buffer are lost when the connection breaks.
                for chunk in result.stream(min_chunk_size=1):
                    self._received += memoryview(chunk)
            finally:
                self._counters.add("fetched_bytes", len(self._received) - num_before)
        check_complete(len(self._received), self._stop - self._start)
        return memoryview(self._received)

    def _make_options(self) -> Any:
        options: dict[str, Any] = {"range": (self._start + len(self._received), self._stop)}
        if self._version is not None:
            # The server refuses the request if the object was replaced in between. Otherwise a
            # resumed download could mix both contents.
            options["if_match"] = self._version
        return options


def check_complete(num_received: int, num_expected: int) -> None:
    """Raise IncompleteAnswer if an answer ended early without an error."""
    if num_received != num_expected:
        raise IncompleteAnswer(
            f"the answer ended after {num_received:,} of {num_expected:,} bytes"
        )


class ObjectFile(io.RawIOBase):
    """An object as a seekable file. Sequential reads fetch more and more at a time."""

    def __init__(
        self,
        name: str,
        read_tail: Callable[[int], tuple[bytes, int]],
        read_range: Callable[[int, int], memoryview],
    ) -> None:
        """Open an object.

        Args:
            name: The address, for messages.
            read_tail: Returns the last bytes, at most the given number, and the object's size.
            read_range: Returns bytes start..stop-1.
        """
        super().__init__()
        self.name, self._read_range = name, read_range
        self._position = 0
        tail, self.size = read_tail(TAIL_BYTES)
        self._tail = (
            self.size - len(tail),
            memoryview(tail),
        )  # offset of the first byte, bytes
        self._ahead = 0, memoryview(b"")  # the same, of the range fetched last
        self._stride = TAIL_BYTES

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the offset of the next read."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the offset of the next read. Sends no request."""
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}
        self._position = offset + bases[whence]
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer; return the number of bytes, which is smaller only at the end."""
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        """Return the rest of the file."""
        return self.read(self.size)

    def read(self, size: int | None = -1) -> bytes:
        """Return `size` bytes, fewer only at the end."""
        stop = self.size
        if size is not None and size >= 0:
            stop = min(self._position + size, self.size)
        chunks: list[memoryview] = []
        while self._position < stop:
            chunk = self._read_chunk(self._position, stop)
            chunks.append(chunk)
            self._position += len(chunk)
        return bytes(chunks[0]) if len(chunks) == 1 else b"".join(chunks)

    def _read_chunk(self, start: int, stop: int) -> memoryview:
        """Return some of the bytes start..stop-1, beginning with the first."""
        # Serve from memory if possible: the footer, or the range fetched last.
        for first, data in (self._tail, self._ahead):
            if first <= start < first + len(data):
                return data[start - first : stop - first]
        first, data = self._ahead
        is_sequential = bool(data) and 0 <= start - (first + len(data)) <= GAP_BYTES
        # Sequential reads double the range, up to 16 MiB: few requests for a scan, few unused bytes
        # for random access.
        self._stride = min(2 * self._stride, REQUEST_BYTES) if is_sequential else TAIL_BYTES
        end = min(max(stop, start + self._stride), start + REQUEST_BYTES)
        end = min(end, self._tail[0])  # the tail is not fetched twice
        self._ahead = start, self._read_range(start, end)
        return self._ahead[1][: stop - start]
