"""Files that end with digests of their blocks, so that any range of them can be verified.

    content | digest of block 0 | digest of block 1 | ...

The digest of these digests identifies the whole file. It is stored elsewhere, in a `FileDigest`.
Programs that read the content by offsets, such as torch.distributed.checkpoint, do not notice the
digests behind it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO

import xxhash

from training.errors import CheckpointDamaged

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer, WriteableBuffer

BLOCK_BYTES = 2**20

# XXH3-128 reads more than 10 GB/s on a core, SHA-256 about 1.5. The digests find damage. They are
# no protection against somebody who can write to the folder, because they are stored in it too.
DIGEST_BYTES = 16
compute_digest = xxhash.xxh3_128_digest


@dataclass(frozen=True)
class FileDigest:
    """Identifies the content of a file.

    Attributes:
        num_bytes: length of the content, without the digests at the end.
        xxh3_128: digest of the digests of its blocks, in hexadecimal.
    """

    num_bytes: int
    xxh3_128: str

    @property
    def num_blocks(self) -> int:
        """The number of blocks; the last one may be short."""
        return -(-self.num_bytes // BLOCK_BYTES)

    @property
    def file_bytes(self) -> int:
        """The length of the file, with the digests at the end."""
        return self.num_bytes + self.num_blocks * DIGEST_BYTES


class DigestWriter(io.RawIOBase):
    """Passes everything on to a file, and computes the digests of its blocks meanwhile.

    Call `finish` at the end. Closing the writer does not close the file.

    Attributes:
        error: the error of the last write that failed.
    """

    def __init__(self, file: BinaryIO) -> None:
        self.error: OSError | None = None
        self._file = file
        self._num_bytes = 0
        self._block = xxhash.xxh3_128()
        self._digests = bytearray()

    def writable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the number of bytes that were written."""
        return self._num_bytes

    def fileno(self) -> int:
        """Return the descriptor of the file."""
        return self._file.fileno()

    def flush(self) -> None:
        """Pass buffered bytes to the operating system."""
        self._file.flush()

    def write(self, data: ReadableBuffer, /) -> int:
        """Write all bytes of a buffer."""
        view = memoryview(data).cast("B")
        start = 0
        while start < len(view):
            # The rest of the block that previous calls began.
            room = BLOCK_BYTES - self._num_bytes % BLOCK_BYTES
            part = view[start : start + room]
            self._block.update(part)
            self._num_bytes += len(part)
            start += len(part)
            if len(part) == room:
                self._end_block()
        try:
            self._file.write(view)
        except OSError as error:
            self.error = error
            raise
        return len(view)

    def finish(self) -> FileDigest:
        """Write the digests behind the content, and wait until the disk has both."""
        if self._num_bytes % BLOCK_BYTES:
            self._end_block()
        self._file.write(self._digests)
        self._file.flush()
        os.fsync(self._file.fileno())
        return FileDigest(self._num_bytes, compute_digest(self._digests).hex())

    def _end_block(self) -> None:
        self._digests += self._block.digest()
        self._block.reset()


class _VerifiedBlocks(io.RawIOBase):
    """The content of a file. A block is compared with its digest before its bytes are returned."""

    def __init__(self, file: BinaryIO, name: str, expected: FileDigest) -> None:
        self._file, self._name, self._expected = file, name, expected
        self._position = 0
        self._digests = self._read_digests()

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def tell(self) -> int:
        """Return the position in the content."""
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        """Set the position in the content, which ends where the digests begin."""
        starts = {
            os.SEEK_SET: 0,
            os.SEEK_CUR: self._position,
            os.SEEK_END: self._expected.num_bytes,
        }
        self._position = starts[whence] + offset
        return self._position

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        """Read at most to the end of the current block; return the number of bytes.

        Raises:
            CheckpointDamaged: the block differs from its digest.
        """
        if self._position >= self._expected.num_bytes:
            return 0
        index, offset = divmod(self._position, BLOCK_BYTES)
        target = memoryview(buffer).cast("B")
        part = self._read_block(index)[offset : offset + len(target)]
        target[: len(part)] = part
        self._position += len(part)
        return len(part)

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()

    def _read_digests(self) -> bytes:
        found_bytes = self._file.seek(0, os.SEEK_END)
        if found_bytes != self._expected.file_bytes:
            raise CheckpointDamaged(
                f"{self._name} has {found_bytes} bytes, expected {self._expected.file_bytes}"
            )
        self._file.seek(self._expected.num_bytes)
        digests = self._file.read()
        if compute_digest(digests).hex() != self._expected.xxh3_128:
            raise CheckpointDamaged(
                f"{self._name}: the digests at its end (byte {self._expected.num_bytes}) differ "
                f"from the digest in complete.json"
            )
        return digests

    def _read_block(self, index: int) -> memoryview:
        start = index * BLOCK_BYTES
        length = min(BLOCK_BYTES, self._expected.num_bytes - start)
        self._file.seek(start)
        block = self._file.read(length)
        first = index * DIGEST_BYTES
        if compute_digest(block) != self._digests[first : first + DIGEST_BYTES]:
            raise CheckpointDamaged(
                f"{self._name}: bytes {start} to {start + length - 1} differ from their digest"
            )
        return memoryview(block)


def open_verified(
    open_file: Callable[[], BinaryIO], name: str, expected: FileDigest
) -> io.BufferedReader:
    """Open a file that DigestWriter wrote. Every byte that it returns is verified.

    Args:
        open_file: opens the file.
        name: path or address, for messages.
        expected: the digest that `DigestWriter.finish` returned.

    Raises:
        CheckpointDamaged: the file is missing, has another length, or its digests are damaged.
            Reading raises it at a damaged block.
    """
    try:
        file = open_file()
    except FileNotFoundError as error:
        raise CheckpointDamaged(f"{name} is missing") from error
    try:
        # The buffer holds a block, which is then verified once for all its small reads.
        return io.BufferedReader(_VerifiedBlocks(file, name, expected), BLOCK_BYTES)
    except BaseException:
        file.close()
        raise
