"""Read a file and compute the SHA-256 of its content at the same time.

The bytes from which documents are made are then known to be those that the run was planned with,
and the file is read only once.

    with InputContent(path) as content:
        file = content.open()
        file.read(64 << 10)
        content.compute_sha256()      # of the whole file; reads the bytes that were not read yet
"""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Self

_CHUNK_BYTES = 1 << 20


class InputContent:
    """The content of one file, which several readers may read in any order.

    The digest is that of the bytes which the readers got. A byte counts when it is first read;
    bytes that a reader jumps over are read for the digest alone.
    """

    def __init__(self, path: Path) -> None:
        """Open the file. All readers read this file, even if another one gets its name."""
        # A descriptor: `os.pread` gives every reader its own position.
        self._descriptor = os.open(path, os.O_RDONLY)
        self._sha256 = hashlib.sha256(usedforsecurity=False)
        self._num_hashed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self._descriptor)

    def open(self, offset: int = 0) -> FileReader:
        """Return a new reader that is positioned at `offset`."""
        return FileReader(self, offset)

    def read_range(self, start: int, num_bytes: int) -> bytes:
        """Return up to `num_bytes` bytes; fewer only at the end of the file."""
        self._hash_until(start)
        data = os.pread(self._descriptor, num_bytes, start)
        is_new = start + len(data) > self._num_hashed
        if is_new:
            self._sha256.update(memoryview(data)[self._num_hashed - start :])
            self._num_hashed = start + len(data)
        return data

    def compute_sha256(self) -> str:
        """Return the digest of the whole file, in hexadecimal digits."""
        while self.read_range(self._num_hashed, _CHUNK_BYTES):
            pass
        return self._sha256.hexdigest()

    def _hash_until(self, end: int) -> None:
        while self._num_hashed < end:
            step = min(_CHUNK_BYTES, end - self._num_hashed)
            if not self.read_range(self._num_hashed, step):
                return


class FileReader:
    """A position in an InputContent, with the methods of a binary file that reading needs."""

    def __init__(self, content: InputContent, offset: int) -> None:
        self._content = content
        self._position = offset

    def read(self, size: int = _CHUNK_BYTES) -> bytes:
        """Return the next bytes; fewer than `size` only at the end of the file."""
        data = self._content.read_range(self._position, size)
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset from the start of the file."""
        if whence != os.SEEK_SET:
            raise io.UnsupportedOperation("only offsets from the start are supported")
        self._position = offset
        return offset

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def close(self) -> None:
        """Do nothing: the InputContent stays open for other readers."""
