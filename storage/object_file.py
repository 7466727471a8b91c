"""Reading objects by range: one range with resumption, and a seekable file of ranges."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable, Mapping
from typing import Any

from storage.client import CHANGED_REMEDY, IncompleteAnswer
from storage.errors import ObjectChanged
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
    """Bytes start..stop-1 of one object, received in one or more attempts.

    Attributes:
        received_at: When the last byte arrived, as `time.monotonic`; at first, the present time.
    """

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
        self._chunks: list[Any] = []  # as obstore yields them, in order
        self._num_received = 0
        self.received_at = time.monotonic()

    @property
    def num_received(self) -> int:
        """Number of bytes that later attempts need not fetch."""
        return self._num_received

    def receive(self, client: Any) -> memoryview:
        """Fetch the missing bytes; return all of them.

        Bytes that arrive before a connection breaks are kept.

        Raises:
            ObjectChanged: the object is another version than requested, or is too short.
            IncompleteAnswer: the answer has too few or too many bytes.
        """
        num_wanted = self._stop - self._start
        # All bytes may have arrived before the connection broke.
        if self._num_received < num_wanted:
            self._receive_rest(client, num_wanted)
        check_complete(self._num_received, num_wanted)
        # One copy of each byte. A buffer that grows with each chunk took twice the time.
        return memoryview(b"".join(self._chunks))

    def _receive_rest(self, client: Any, num_wanted: int) -> None:
        import obstore

        num_before = self._num_received
        result = obstore.get(client, self._key, options=self._make_options())
        self._check_version(result.meta)
        try:
            # Smallest chunks: bytes in obstore's buffer are lost when the connection breaks, and
            # a slow connection must show progress. This takes 0.2 CPU seconds per GB more than
            # `obstore.get_range`.
            for chunk in result.stream(min_chunk_size=1):
                self._chunks.append(chunk)
                self._num_received += len(chunk)
                self.received_at = time.monotonic()
                if self._num_received > num_wanted:
                    break
        finally:
            num_received = self._num_received
            self._counters.add("fetched_bytes", num_received - num_before)
            if num_received > num_wanted:
                # obstore checks the range that the server names, but not the length of the body.
                # None of these bytes can be trusted.
                self._chunks.clear()
                self._num_received = 0
        check_complete(num_received, num_wanted)

    def _make_options(self) -> Any:
        options: dict[str, Any] = {"range": (self._start + self._num_received, self._stop)}
        if self._version is not None:
            # The server refuses the request if the object was replaced in between. Otherwise a
            # resumed download could mix both contents.
            options["if_match"] = self._version
        return options

    def _check_version(self, meta: Mapping[str, Any]) -> None:
        size, etag = int(meta["size"]), meta["e_tag"]
        if size < self._stop:
            # The server would send less than requested, in every attempt.
            cause = f"the object has {size:,} bytes, at least {self._stop:,} were expected"
            raise ObjectChanged(self._key, cause, CHANGED_REMEDY)
        # Not every server obeys If-Match.
        if self._version is not None and etag is not None and etag != self._version:
            cause = f"the object has the ETag {etag}, {self._version} was expected"
            raise ObjectChanged(self._key, cause, CHANGED_REMEDY)


def check_complete(num_received: int, num_expected: int) -> None:
    """Raise IncompleteAnswer if an answer ended early without an error."""
    if num_received != num_expected:
        raise IncompleteAnswer(f"the answer has {num_received:,} of {num_expected:,} bytes")


def get_version(meta: Mapping[str, Any]) -> str | None:
    """Return the ETag, unless it is weak: If-Match never accepts a weak one (RFC 9110, 13.1.1)."""
    etag = meta["e_tag"]
    return None if etag is None or etag.startswith("W/") else etag


class ObjectFile(io.RawIOBase):
    """An object as a seekable file. Sequential reads fetch more and more at a time."""

    def __init__(
        self,
        name: str,
        read_tail: Callable[[int], tuple[bytes, int, str | None]],
        read_range: Callable[[int, int, str | None], memoryview],
    ) -> None:
        """Open an object.

        Args:
            name: The address, for messages.
            read_tail: Returns the last bytes, at most the given number, the object's size, and
                its version if the server names one.
            read_range: Returns bytes start..stop-1 of a version. All reads are of one version.
        """
        super().__init__()
        self.name, self._read_range = name, read_range
        self._position = 0
        tail, self.size, self._version = read_tail(TAIL_BYTES)
        # Offset of the first byte, and the bytes.
        self._tail = self.size - len(tail), memoryview(tail)
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
        self._ahead = start, self._read_range(start, end, self._version)
        return self._ahead[1][: stop - start]
