"""Find duplicate lines among the hashes of a crawl or of one partition of them.

Hashes are multiplied by GOLDEN (Knuth, The Art of Computer Programming 3, section 6.4).

Memory: 17 bytes per hash including the result, and a table of 16 to 32 bytes per hash of the largest
partition. The table is usually under 2 MB. It is large if nearly all lines are equal.

documents = np.array([0, 0, 1, 1, 1], np.uint64)
find_duplicates(hashes, documents, keep="drop_all_copies")    # [False, True, True, False, True]
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.compilation import compiled
from stages.kernels.splitmix import GOLDEN
from stages.string_buffers import make_read_only

_MAX_HASHES = 2**32 - 2  # ranks of rows and documents have 32 bits, and two are reserved
_HASHES_PER_PARTITION = 2**15  # 0.8 MB with its table: fits into the L2 cache of a core


def find_duplicates(
    hashes: NDArray[np.uint64],
    documents: NDArray[np.uint32] | NDArray[np.uint64],
    keep: Literal["drop_all_copies", "keep_first"],
) -> NDArray[np.bool_]:
    """Find the lines to remove.

    `keep="drop_all_copies"` is CCNet's rule (`cc_net.dedup.DuplicatesRemover`, `finalize_doc`). If a
    hash occurs in two or more documents, all copies are removed. If it occurs in one document only,
    its first copy is kept. `keep="keep_first"` keeps the first copy of each hash. The hash 0 is
    always removed: CCNet uses it for lines that were removed before.

    Args:
        hashes: (n,) in the order of the input, with n below 2**32 - 2.
        documents: (n,) the document of each hash, in non-decreasing order.
        keep: the copies to keep.

    Returns:
        (n,) bool: True where the line must be removed.

    Raises:
        ValueError: lengths differ, `documents` decreases, `keep` is unknown, or there are too many
            hashes.
    """
    if keep not in ("drop_all_copies", "keep_first"):
        raise ValueError(
            f"keep is {keep!r}, must be 'drop_all_copies' (CCNet's rule) or 'keep_first'"
        )
    _check_lengths(hashes, documents)
    # 2**bits partitions; at least two, because a shift by 64 bits is undefined.
    bits = max(1, (len(hashes) // _HASHES_PER_PARTITION).bit_length())
    hashes, documents = make_read_only(hashes), make_read_only(documents)
    records, starts, decrease = _partition(hashes, documents, bits)
    if decrease:
        raise ValueError(
            f"documents[{decrease}] is {documents[decrease]} after {documents[decrease - 1]}: the "
            f"hashes must be in the order of the input, or the wrong copy is kept; sort by document"
        )
    is_removed = np.ones(len(hashes), np.bool_)
    if keep == "keep_first":
        _keep_first(records, starts, bits, is_removed)
    else:
        _keep_unshared(records, starts, bits, is_removed)
    return is_removed


def _check_lengths(hashes: np.ndarray, documents: np.ndarray) -> None:
    if len(hashes) != len(documents):
        raise ValueError(
            f"{len(hashes)} hashes for {len(documents)} documents: pass one document per hash"
        )
    if len(hashes) >= _MAX_HASHES:
        raise ValueError(
            f"{len(hashes)} hashes, must be under {_MAX_HASHES}: use more partitions"
        )


# Reserved ranks of documents.
_MANY = np.uint32(2**32 - 1)  # the hash occurs in two or more documents
_KEPT = np.uint32(2**32 - 2)  # the copy to keep has been seen


@compiled
def _partition(
    hashes: NDArray[np.uint64],
    documents: NDArray[np.uint32] | NDArray[np.uint64],
    bits: int,
) -> tuple[NDArray[np.uint64], NDArray[np.int64], int]:
    """Partition the hashes. The table of each partition then fits into a cache. Omits hash 0.

    The partition is given by the top bits of the hash *times a constant*, because all hashes of one
    call can have the same top bits.

    Returns:
        records: (m, 2) hash, and rank of its document << 32 | row, in input order in each partition.
        starts: (2**bits + 1,) the start of each partition.
        decrease: the first row whose document is lower than the one before, or 0.
    """
    shift = np.uint64(64 - bits)
    # A counting sort: count the hashes of each partition, then write each to its place.
    starts = np.zeros(2**bits + 1, np.int64)
    for h in hashes:
        starts[np.int64(h * GOLDEN >> shift) + 1] += h != 0
    starts = np.cumsum(starts)
    records = np.empty((starts[-1], 2), np.uint64)
    ends = starts[:-1].copy()
    # Ranks of documents fit into 32 bits; their ids do not.
    rank = 0
    for row in range(len(hashes)):
        if row > 0 and documents[row] != documents[row - 1]:
            if documents[row] < documents[row - 1]:
                return records, starts, row
            rank += 1
        h = hashes[row]
        if h != 0:
            p = np.int64(h * GOLDEN >> shift)
            records[ends[p], 0] = h
            records[ends[p], 1] = np.uint64(rank) << np.uint64(32) | np.uint64(row)
            ends[p] += 1
    return records, starts, 0


@njit(nogil=True)
def _num_slots(num_hashes: int) -> int:
    """Return a power of two of slots, of which `num_hashes` fill 3/8 to 3/4."""
    num_slots = 2
    while 3 * num_slots < 4 * num_hashes:
        num_slots *= 2
    return num_slots


@njit(nogil=True)
def _slot(keys: NDArray[np.uint64], h: np.uint64, bits: int) -> np.int64:
    """Return the slot of `h`, or the free slot for it (linear probing; 0 is free)."""
    # All hashes of a partition share the top bits of the product: take the bits below those.
    last = len(keys) - 1
    slot = np.int64(h * GOLDEN << np.uint64(bits) >> np.uint64(32)) & last
    while keys[slot] != 0 and keys[slot] != h:
        slot = (slot + 1) & last
    return slot


@compiled
def _keep_first(
    records: NDArray[np.uint64],
    starts: NDArray[np.int64],
    bits: int,
    is_removed: NDArray[np.bool_],
) -> None:
    """keep="keep_first": write False at the first occurrence of each hash."""
    table = np.empty(_num_slots(np.diff(starts).max()), np.uint64)
    for p in range(len(starts) - 1):
        keys = table[: _num_slots(starts[p + 1] - starts[p])]
        keys[:] = 0
        for k in range(starts[p], starts[p + 1]):
            slot = _slot(keys, records[k, 0], bits)
            if keys[slot] == 0:
                keys[slot] = records[k, 0]
                is_removed[np.int64(records[k, 1] & np.uint64(0xFFFFFFFF))] = False


@compiled
def _keep_unshared(
    records: NDArray[np.uint64],
    starts: NDArray[np.int64],
    bits: int,
    is_removed: NDArray[np.bool_],
) -> None:
    """For keep="drop_all_copies": mark hashes that only one document has as kept.

    Writes False to `is_removed` at their first occurrence.
    """
    largest = _num_slots(np.diff(starts).max())
    table, table_ranks = np.empty(largest, np.uint64), np.empty(largest, np.uint32)
    for p in range(len(starts) - 1):
        num_slots = _num_slots(starts[p + 1] - starts[p])
        keys, ranks = table[:num_slots], table_ranks[:num_slots]
        keys[:] = 0
        for k in range(starts[p], starts[p + 1]):
            slot = _slot(keys, records[k, 0], bits)
            rank = np.uint32(records[k, 1] >> np.uint64(32))
            if keys[slot] == 0:
                keys[slot], ranks[slot] = records[k, 0], rank
            elif ranks[slot] != rank:
                ranks[slot] = _MANY
            records[k, 0] = slot  # so the second loop needs no search
        for k in range(starts[p], starts[p + 1]):
            slot = np.int64(records[k, 0])
            if ranks[slot] < _KEPT:
                ranks[slot] = _KEPT
                is_removed[np.int64(records[k, 1] & np.uint64(0xFFFFFFFF))] = False
