"""Where documents begin inside rows: position ids, document ids, and cumulative lengths for attention per document.

Promises: pure functions of where documents start; the tokens themselves are never looked at. Documents are the
dataset's own, so a token that happens to have the id of the end of a document changes nothing.
Leaves to others: cutting rows (`reader`), tensors (`loader`).

A row of 8 tokens that begins in the middle of document a, followed by b and the start of c:

    tokens         a a a b b c c c        starts       0 3 5          (the row's own start counts as one)
    document_ids   0 0 0 1 1 2 2 2
    position_ids   0 1 2 0 1 0 1 2        cu_seqlens   0 3 5 8
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loader.order import Ints

Ids = NDArray[np.int32]
Flags = NDArray[np.bool_]


def mark_starts(doc_starts: Ints, row_starts: Ints, seq_len: int) -> Flags:
    """(n, seq_len) true where a document begins in a row, and at the start of every row.

    Args:
        doc_starts: (D + 1,) token position of each document in the shard, rising.
        row_starts: (n,) token position of each row in the shard.
        seq_len: tokens per row.
    """
    marks = np.zeros((len(row_starts), seq_len), np.bool_)
    marks[:, 0] = True
    firsts = np.searchsorted(doc_starts, row_starts, side="left")
    lasts = np.searchsorted(doc_starts, row_starts + seq_len, side="left")
    counts = lasts - firsts
    # (documents that begin in some row,) the row of each, then its place in doc_starts
    rows = np.repeat(np.arange(len(row_starts)), counts)
    docs = (
        np.arange(counts.sum())
        - np.repeat(np.cumsum(counts) - counts, counts)
        + np.repeat(firsts, counts)
    )
    marks[rows, doc_starts[docs] - row_starts[rows]] = True
    return marks


def document_ids(marks: Flags) -> Ids:
    """(n, seq_len) int32: documents that began in the row before this token's; attention is where ids are equal."""
    return np.cumsum(marks, axis=1, dtype=np.int32) - np.int32(1)


def position_ids(marks: Flags) -> Ids:
    """(n, seq_len) int32: tokens of the same document before this one in the row."""
    places = np.arange(marks.shape[1], dtype=np.int32)
    return places - np.maximum.accumulate(np.where(marks, places, 0), axis=1)


class Lengths(NamedTuple):
    """cu_seqlens: (documents + 1,) int32 into the rows laid end to end; max_seqlen: the longest document's tokens."""

    cu_seqlens: Ids
    max_seqlen: int


def lengths(marks: Flags) -> Lengths:
    """What kernels for sequences of varying length take (flash-attention's `flash_attn_varlen_func`)."""
    starts = np.append(np.flatnonzero(marks), marks.size).astype(np.int32)
    return Lengths(starts, int(np.diff(starts).max(initial=0)))
