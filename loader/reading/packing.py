"""Document boundaries inside rows: position ids, document ids and cumulative sequence lengths.

Everything is computed from the document starts in the shard's index. Token ids are not read, so a
token inside a document that equals the end-of-document id has no effect.

Example: a row of 8 tokens that starts inside document a and continues with b and c.

    tokens         a a a b b c c c
    starts         1 0 0 1 0 1 0 0        (the first token of a row always counts as a start)
    document_ids   0 0 0 1 1 2 2 2
    position_ids   0 1 2 0 1 0 1 2
    cu_seqlens     0 3 5 8
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loader.order.permutation import BoolArray, Int64Array

Int32Array = NDArray[np.int32]


def mark_document_starts(
    doc_starts: Int64Array, row_starts: Int64Array, seq_len: int
) -> BoolArray:
    """Mark the tokens at which a document starts, and the first token of each row.

    Args:
        doc_starts: (D + 1,) token position of each document in the shard, rising; the last is the
            number of tokens.
        row_starts: (n,) token position of each row in the shard.
        seq_len: tokens per row.

    Returns:
        (n, seq_len) bool.
    """
    marks = np.zeros((len(row_starts), seq_len), np.bool_)
    marks[:, 0] = True
    # (n,) range of doc_starts inside each row
    first_docs = np.searchsorted(doc_starts, row_starts, side="left")
    stop_docs = np.searchsorted(doc_starts, row_starts + seq_len, side="left")
    counts = stop_docs - first_docs
    # (counts.sum(),) for each document start inside a row: the row, and its index in doc_starts
    rows = np.repeat(np.arange(len(row_starts)), counts)
    counts_before = np.cumsum(counts) - counts
    docs = np.arange(counts.sum()) + np.repeat(first_docs - counts_before, counts)
    marks[rows, doc_starts[docs] - row_starts[rows]] = True
    return marks


def compute_document_ids(marks: BoolArray) -> Int32Array:
    """Number the documents of each row from 0: (n, seq_len) int32.

    Tokens may attend to each other if their ids are equal.
    """
    # Column 0 is always marked, so the sum starts at 1.
    return np.cumsum(marks, axis=1, dtype=np.int32) - np.int32(1)


def compute_position_ids(marks: BoolArray) -> Int32Array:
    """Number the tokens of each document in a row from 0: (n, seq_len) int32."""
    columns = np.arange(marks.shape[1], dtype=np.int32)
    # (n, seq_len) column at which the current document starts
    starts = np.maximum.accumulate(np.where(marks, columns, 0), axis=1)
    return columns - starts


class SequenceLengths(NamedTuple):
    """Document lengths of a batch whose rows are laid end to end.

    cu_seqlens: (documents + 1,) int32, tokens before each document; the last is the total
    max_seqlen: tokens of the longest document
    """

    cu_seqlens: Int32Array
    max_seqlen: int


def compute_sequence_lengths(marks: BoolArray) -> SequenceLengths:
    """Compute the arguments of variable-length attention (`flash_attn_varlen_func`)."""
    # Marked first columns end the last document of the previous row: no document crosses rows.
    starts = np.append(np.flatnonzero(marks), marks.size).astype(np.int32)
    return SequenceLengths(starts, int(np.diff(starts).max(initial=0)))
