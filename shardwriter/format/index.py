"""The index beside each shard: where its samples and documents start, and checksums of the samples.

The layout is in docs/data-format.md, "Index".
"""

from __future__ import annotations

import mmap
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from shardwriter.format.errors import REFETCH, FormatError, ShardCorrupt
from shardwriter.format.members import FORMAT_VERSION, check_version

# The first byte has its high bit set and the last two are a line ending, so a transfer in
# text mode changes them. PNG's signature does the same.
INDEX_MAGIC = b"\x93CMIDX\r\n"

# 64 bytes: magic, version, shard, shard_bytes, num_samples, num_docs, num_tokens,
# token_bytes, eight zeros, crc32.
INDEX_HEADER = struct.Struct("<8sIIQQQQI8xI")

_CHECKSUM = struct.Struct("<I")
# The checksum covers these bytes of the header, and then everything after the header.
_CHECKED_HEADER_BYTES = INDEX_HEADER.size - _CHECKSUM.size

_TOKEN_DTYPES = {2: np.dtype("<u2"), 4: np.dtype("<u4")}


@dataclass(frozen=True, eq=False)
class ShardIndex:
    """The index of a shard with S samples and D documents.

    shard:          number of the shard
    shard_bytes:    bytes of the tar
    token_dtype:    uint16 or uint32
    sample_offsets: (S,) int64, byte of the tar at which the raw tokens of a sample start, after the
                    .npy header
    sample_starts:  (S + 1,) int64, tokens of the shard before each sample; the last is `num_tokens`
    doc_starts:     (D + 1,) int64, tokens of the shard before each document; the last is
                    `num_tokens`
    doc_ids:        (D,) uint64
    sample_crcs:    (S,) uint32, zlib's crc32 of the raw tokens of each sample

    Positions are int64 and not unsigned, because numpy adds uint64 and int64 to float64.
    """

    shard: int
    shard_bytes: int
    token_dtype: np.dtype[Any]
    sample_offsets: NDArray[np.int64]
    sample_starts: NDArray[np.int64]
    doc_starts: NDArray[np.int64]
    doc_ids: NDArray[np.uint64]
    sample_crcs: NDArray[np.uint32]

    @property
    def num_samples(self) -> int:
        """Number of samples in the shard."""
        return len(self.sample_offsets)

    @property
    def num_docs(self) -> int:
        """Number of documents in the shard."""
        return len(self.doc_ids)

    @property
    def num_tokens(self) -> int:
        """Number of tokens in the shard."""
        return int(self.sample_starts[-1])

    def to_bytes(self) -> bytes:
        """Return the index file: the header, then the arrays as they are declared above."""
        # int64 and uint64 arrays first, uint32 last: every array is then aligned when the file is
        # mapped.
        arrays = [
            self.sample_offsets.astype("<i8"),
            self.sample_starts.astype("<i8"),
            self.doc_starts.astype("<i8"),
            self.doc_ids.astype("<u8"),
            self.sample_crcs.astype("<u4"),
        ]
        payload = b"".join(array.tobytes() for array in arrays)
        # sample_crcs has 4 bytes per sample: pad to a multiple of 8.
        payload += bytes(-len(payload) % 8)
        header = INDEX_HEADER.pack(
            INDEX_MAGIC,
            FORMAT_VERSION,
            self.shard,
            self.shard_bytes,
            self.num_samples,
            self.num_docs,
            self.num_tokens,
            self.token_dtype.itemsize,
            0,
        )
        # crc32 of the header without its checksum field, continued over the payload.
        checked_header = header[:_CHECKED_HEADER_BYTES]
        checksum = zlib.crc32(payload, zlib.crc32(checked_header))
        return checked_header + _CHECKSUM.pack(checksum) + payload

    @classmethod
    def from_bytes(cls, data: bytes | memoryview | mmap.mmap, where: str) -> Self:
        """Read an index and check it against its checksum. The arrays are views of `data`.

        Args:
            data: one whole index file.
            where: name of the file in error messages, usually its path or address.

        Raises:
            FormatError: the data is not an index, or has another version.
            ShardCorrupt: the data is cut off, too long, or was changed after it was written.
        """
        # The arrays keep a reference to the view, and so keep a memory map open.
        view = memoryview(data)
        header = _read_header(view, where)
        offset = INDEX_HEADER.size

        def take(dtype: str, count: int) -> NDArray[Any]:
            nonlocal offset
            array = np.frombuffer(view, dtype, count, offset)
            offset += array.nbytes
            return array

        # Keyword arguments are evaluated in this order: that of the arrays in the file.
        index = cls(
            shard=header.shard,
            shard_bytes=header.shard_bytes,
            token_dtype=_TOKEN_DTYPES[header.token_bytes],
            sample_offsets=take("<i8", header.num_samples),
            sample_starts=take("<i8", header.num_samples + 1),
            doc_starts=take("<i8", header.num_docs + 1),
            doc_ids=take("<u8", header.num_docs),
            sample_crcs=take("<u4", header.num_samples),
        )
        _check_last_start(f"{where}: last of sample_starts", index.sample_starts, header)
        _check_last_start(f"{where}: last of doc_starts", index.doc_starts, header)
        return index


class _Header(NamedTuple):
    """The values of an index's header."""

    shard: int
    shard_bytes: int
    num_samples: int
    num_docs: int
    num_tokens: int
    token_bytes: int


def _read_header(view: memoryview, where: str) -> _Header:
    """Check magic, version, size and checksum of an index, in this order; return its header."""
    if view.nbytes < INDEX_HEADER.size:
        wanted = f"a header of {INDEX_HEADER.size} bytes"
        raise ShardCorrupt(where, f"{view.nbytes} bytes", wanted, REFETCH)
    magic, version, *values, checksum = INDEX_HEADER.unpack_from(view)
    if magic != INDEX_MAGIC:
        wanted = f"the magic {INDEX_MAGIC!r}"
        raise FormatError(
            f"{where}, byte 0", repr(magic), wanted, "give the .idx file of a shard"
        )
    check_version(f"{where}, byte 8", version)
    header = _Header(*values)
    num_bytes = _count_index_bytes(header.num_samples, header.num_docs)
    # Check the size before the checksum: a file that was cut off gets the more helpful message.
    if view.nbytes != num_bytes:
        counts = f"{header.num_samples} samples and {header.num_docs} documents"
        raise ShardCorrupt(
            where, f"{view.nbytes} bytes", f"{num_bytes} bytes for {counts}", REFETCH
        )
    # memoryviews: slicing them copies nothing.
    found = zlib.crc32(view[INDEX_HEADER.size :], zlib.crc32(view[:_CHECKED_HEADER_BYTES]))
    if found != checksum:
        place = f"{where}, byte {_CHECKED_HEADER_BYTES}"
        raise ShardCorrupt(place, f"crc32 {found:08x}", f"{checksum:08x}", REFETCH)
    if header.token_bytes not in _TOKEN_DTYPES:
        found_width = f"{header.token_bytes} bytes per token"
        raise FormatError(
            f"{where}, byte 48", found_width, "2 or 4", "write the shard again"
        )
    return header


def _check_last_start(where: str, starts: NDArray[np.int64], header: _Header) -> None:
    last = int(starts[-1])
    if last != header.num_tokens:
        raise ShardCorrupt(where, f"{last}", f"num_tokens = {header.num_tokens}", REFETCH)


def _count_index_bytes(num_samples: int, num_docs: int) -> int:
    """Return the size of an index file: docs/data-format.md, "Index"."""
    # sample_offsets, sample_starts, doc_starts, doc_ids
    int64_arrays = 8 * (num_samples + (num_samples + 1) + (num_docs + 1) + num_docs)
    crc_array = 8 * ((num_samples + 1) // 2)  # 4 bytes each, padded to a multiple of 8
    return INDEX_HEADER.size + int64_arrays + crc_array


def read_index(path: Path) -> ShardIndex:
    """Map the index at `path` into memory and check it.

    Only the checksum reads the whole file. The system can drop pages of it again.

    Raises:
        OSError: the file cannot be opened.
        FormatError: see `ShardIndex.from_bytes`.
    """
    with path.open("rb") as file:
        is_empty = not file.read(1)
        # mmap raises ValueError for an empty file.
        data = b"" if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return ShardIndex.from_bytes(data, where=str(path))
