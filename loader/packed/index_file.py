"""The file of a packing: a header, a table of shards, and a section per shard.

The layout is in docs/data-format.md, "Packing index".
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loader.order.permutation import Int64Array
from loader.packed.best_fit import PackedShard
from loader.storage import Buffer
from shardwriter.format import FormatError, ShardCorrupt
from terminal_output import format_command

# Like the magic of a shard's index: a transfer in text mode changes it.
PACKING_MAGIC = b"\x93CMPAK\r\n"
PACKING_VERSION = 1

REPACK = "run `python -m loader pack` again"

# Magic, version, seq_len, digest of the manifest, then the counts of PackingCounts.
_HEADER = struct.Struct("<8sII32s10Q")
_DIGEST_BYTES = 32
HEADER_BYTES = _HEADER.size + _DIGEST_BYTES

_TABLE = np.dtype([("num_rows", "<i8"), ("num_pieces", "<i8"), ("sha256", "u1", (32,))])

# A sum above this is damage, and could overflow.
_MAX_COUNT = 2**53 - 1


@dataclass(frozen=True)
class PackingCounts:
    """What a packing did to the documents of a dataset.

    num_shards:         shards of the dataset
    window_tokens:      tokens that were packed together
    num_docs:           documents
    num_tokens:         their tokens; each is in exactly one row, except for `num_repeated`
    num_rows:           packed rows of seq_len + 1 places
    num_pieces:         pieces of documents in them
    num_cut_docs:       documents of more than seq_len + 1 tokens, which are cut
    num_cut_tokens:     tokens whose rows do not have the beginning of their document
    plain_num_cut_docs, plain_num_cut_tokens: the same for plain rows
    """

    num_shards: int
    window_tokens: int
    num_docs: int
    num_tokens: int
    num_rows: int
    num_pieces: int
    num_cut_docs: int
    num_cut_tokens: int
    plain_num_cut_docs: int
    plain_num_cut_tokens: int

    @property
    def num_repeated(self) -> int:
        """Tokens that end one piece and start the next, as context only."""
        return self.num_pieces - self.num_docs

    def count_padding(self, seq_len: int) -> int:
        """Return the number of places without a token."""
        return self.num_rows * (seq_len + 1) - self.num_tokens - self.num_repeated


class PackingHead(NamedTuple):
    """Header and table of a packing.

    digest:         SHA-256 of header and table, which has that of each section
    counts:         see PackingCounts
    shard_rows:     (S,) int64, rows of each shard
    shard_pieces:   (S,) int64, pieces of each shard
    section_sha256: (S, 32) uint8
    """

    digest: str
    counts: PackingCounts
    shard_rows: Int64Array
    shard_pieces: Int64Array
    section_sha256: NDArray[np.uint8]

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole file."""
        num_shards = len(self.shard_rows)
        numbers = self.counts.num_rows + num_shards + self.counts.num_pieces
        return count_head_bytes(num_shards) + 8 * numbers

    def locate_section(self, shard: int) -> tuple[int, int]:
        """Return start and stop of a shard's section, in bytes of the file."""
        sizes = 8 * (self.shard_rows[: shard + 1] + 1 + self.shard_pieces[: shard + 1])
        stop = count_head_bytes(len(self.shard_rows)) + int(sizes.sum())
        return stop - int(sizes[-1]), stop


def name_packing_file(seq_len: int) -> str:
    """Return the name of the file beside the manifest."""
    return f"packed-{seq_len}.rows"


def count_head_bytes(num_shards: int) -> int:
    """Return the bytes of header and table."""
    return HEADER_BYTES + num_shards * _TABLE.itemsize


def dump_section(packed: PackedShard) -> bytes:
    """Return the section of a shard."""
    arrays = packed.row_starts, packed.piece_starts
    return b"".join(array.astype("<i8").tobytes() for array in arrays)


def dump_head(
    seq_len: int,
    manifest_digest: str,
    counts: PackingCounts,
    shards: list[tuple[int, int, bytes]],
) -> bytes:
    """Return header and table.

    Args:
        seq_len: tokens per row.
        manifest_digest: of the dataset.
        counts: of all shards.
        shards: rows, pieces and SHA-256 of the section of each shard.
    """
    fields = _HEADER.pack(
        PACKING_MAGIC,
        PACKING_VERSION,
        seq_len,
        bytes.fromhex(manifest_digest),
        *astuple(counts),
    )
    table = np.zeros(len(shards), _TABLE)
    for shard, (num_rows, num_pieces, sha256) in enumerate(shards):
        table[shard] = num_rows, num_pieces, np.frombuffer(sha256, np.uint8)
    content = table.tobytes()
    return fields + hashlib.sha256(fields + content).digest() + content


def parse_head(
    data: Buffer, where: str, *, seq_len: int, manifest_digest: str
) -> PackingHead:
    """Read header and table.

    Args:
        data: the file, or at least header and table.
        where: path or address of the file, for messages.
        seq_len: tokens per row that the packing must have.
        manifest_digest: digest of the dataset that it must belong to.

    Raises:
        ShardCorrupt: the bytes are damaged or cut off.
        FormatError: it is no packing of this dataset, or has another version or seq_len.
    """
    view = memoryview(data)
    if view.nbytes < HEADER_BYTES:
        raise ShardCorrupt(where, f"{view.nbytes} bytes", f"{HEADER_BYTES} or more", REPACK)
    magic, version, found_seq_len, found_digest, *numbers = _HEADER.unpack_from(view)
    _check_version(magic, version, where)
    # Before the checksum, because these errors say which file was given.
    found, wanted = found_digest.hex(), f"{manifest_digest} of this dataset"
    if found != manifest_digest:
        raise FormatError(f"{where}: digest of the manifest", found, wanted, REPACK)
    if found_seq_len != seq_len:
        remedy = f"run `{format_command('loader')} pack` with --seq-len {seq_len}"
        raise FormatError(f"{where}: seq_len", f"{found_seq_len}", f"{seq_len}", remedy)
    counts = PackingCounts(*numbers)
    digest = _check_head_digest(view, counts.num_shards, where)
    table: NDArray[Any] = np.frombuffer(view, _TABLE, counts.num_shards, HEADER_BYTES)
    _check_sums(counts, table, where)
    return PackingHead(
        digest,
        counts,
        table["num_rows"].astype(np.int64),
        table["num_pieces"].astype(np.int64),
        table["sha256"].copy(),
    )


def _check_version(magic: bytes, version: int, where: str) -> None:
    """Raise FormatError unless the file is a packing of this version."""
    if magic != PACKING_MAGIC:
        raise FormatError(
            f"{where}, byte 0", repr(magic), f"the magic {PACKING_MAGIC!r}", REPACK
        )
    if version != PACKING_VERSION:
        raise FormatError(
            f"{where}, byte 8", f"version {version}", f"{PACKING_VERSION}", REPACK
        )


def _check_head_digest(view: memoryview, num_shards: int, where: str) -> str:
    """Compare the SHA-256 of header and table with the stored one, and return it in hex.

    Raises:
        ShardCorrupt: the bytes are damaged or cut off.
    """
    stop = count_head_bytes(num_shards)
    if view.nbytes < stop:
        wanted = f"{stop} bytes of header and table"
        raise ShardCorrupt(where, f"{view.nbytes} bytes", wanted, REPACK)
    digest = bytes(view[_HEADER.size : HEADER_BYTES]).hex()
    sha256 = hashlib.sha256(view[: _HEADER.size])
    sha256.update(view[HEADER_BYTES:stop])
    if sha256.hexdigest() != digest:
        raise ShardCorrupt(f"{where}: sha256", sha256.hexdigest(), digest, REPACK)
    return digest


def _check_sums(counts: PackingCounts, table: NDArray[Any], where: str) -> None:
    """Raise FormatError if the table cannot belong to the header."""
    for name in ("num_rows", "num_pieces"):
        values = table[name].tolist()
        # Added up as Python's integers, which do not overflow.
        if min(values, default=0) < 0 or sum(values) != getattr(counts, name):
            wanted = f"the sum of the shards, {sum(values)}"
            raise FormatError(
                f"{where}: {name}", f"{getattr(counts, name)}", wanted, REPACK
            )
        if sum(values) > _MAX_COUNT:
            raise FormatError(
                f"{where}: {name}", f"{sum(values)}", f"at most {_MAX_COUNT}", REPACK
            )


def parse_section(data: Buffer, head: PackingHead, shard: int, where: str) -> PackedShard:
    """Read the section of a shard; the arrays are views of `data`.

    Raises:
        ShardCorrupt: the bytes are damaged.
    """
    found = hashlib.sha256(data).hexdigest()
    wanted = head.section_sha256[shard].tobytes().hex()
    if found != wanted:
        raise ShardCorrupt(f"{where}: sha256 of shard {shard}", found, wanted, REPACK)
    numbers = np.frombuffer(data, "<i8")
    num_rows = int(head.shard_rows[shard])
    return PackedShard(numbers[: num_rows + 1], numbers[num_rows + 1 :])
