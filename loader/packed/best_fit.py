"""Lay documents out in rows by best-fit decreasing, so that documents that fit are not cut.

A row has seq_len + 1 places for tokens. A document of more tokens is cut into pieces as plain rows
are: every piece but the last fills a row, and starts with the last token of the piece before it.
All other documents are one piece. Example with seq_len = 7, documents of 12, 3, 5 and 4 tokens:

    row 0    a0 a1 a2 a3 a4 a5 a6 a7
    row 1    a7 a8 a9 a10 a11 b0 b1 b2
    row 2    c0 c1 c2 c3 c4  .  .  .            3 places are padding
    row 3    d0 d1 d2 d3  .  .  .  .

See Ding et al. 2024, "Fewer Truncations Improve Language Modeling", and Johnson 1974 for bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loader.order.permutation import Int64Array

# Documents of this many tokens are packed together. Larger: fewer places are padding. Smaller:
# the pieces of a row are closer to each other in the shard, so fewer blocks are fetched for it.
DEFAULT_WINDOW_TOKENS = 2**22


class Pieces(NamedTuple):
    """P pieces of documents of one shard.

    starts:     (P,) int64, token position in the shard
    num_tokens: (P,) int64
    """

    starts: Int64Array
    num_tokens: Int64Array


@dataclass(frozen=True, eq=False)
class PackedShard:
    """The R packed rows of one shard, of P pieces.

    row_starts:   (R + 1,) int64, pieces before each row; the last is P
    piece_starts: (P,) int64, token position in the shard of each piece. A piece ends with its
                  document, or after seq_len + 1 tokens
    """

    row_starts: Int64Array
    piece_starts: Int64Array


def cut_documents(doc_starts: Int64Array, seq_len: int) -> Pieces:
    """Cut the documents of a shard into pieces of at most seq_len + 1 tokens, in order.

    Args:
        doc_starts: (D + 1,) token position of each document; the last is the number of tokens.
        seq_len: tokens per row.
    """
    num_tokens = np.diff(doc_starts)
    # As many pieces as plain rows would take; consecutive pieces share one token.
    counts = np.maximum(1, -(-(num_tokens - 1) // seq_len))
    docs = np.repeat(np.arange(len(counts)), counts)
    # 0, 1, .. counts[0] - 1, 0, 1, .. counts[1] - 1, ...
    numbers = np.arange(len(docs)) - np.repeat(np.cumsum(counts) - counts, counts)
    starts = doc_starts[docs] + numbers * seq_len
    stops = np.minimum(starts + seq_len + 1, doc_starts[docs + 1])
    return Pieces(starts, stops - starts)


def pack_best_fit(num_tokens: Int64Array, capacity: int) -> Int64Array:
    """Put pieces into rows, the longest first, each into the fullest row that has room for it.

    Of equal pieces the first is placed first; of equal rows, the one that was filled last is used.

    Args:
        num_tokens: (P,) tokens of each piece, at most `capacity`.
        capacity: tokens of a row.

    Returns:
        (P,) int64, the row of each piece. Rows are numbered in the order of their longest pieces.
    """
    by_length = np.argsort(-num_tokens, kind="stable")
    rows_by_room: list[list[int]] = [[] for _ in range(capacity + 1)]
    # Bit r is set if some row has room for exactly r tokens. The lowest bit that is high enough
    # is the fullest row with room: one operation on integers, where a search would be a loop.
    rooms = 0
    num_rows = 0
    placed: list[int] = []
    for length in num_tokens[by_length].tolist():
        if fitting := rooms >> length:
            room = length + (fitting & -fitting).bit_length() - 1
            row = rows_by_room[room].pop()
            if not rows_by_room[room]:
                rooms ^= 1 << room
        else:
            row, room = num_rows, capacity
            num_rows += 1
        placed.append(row)
        rows_by_room[room - length].append(row)
        rooms |= 1 << room - length
    rows = np.empty(len(placed), np.int64)
    rows[by_length] = placed
    return rows


def pack_shard(
    doc_starts: Int64Array, seq_len: int, window_tokens: int = DEFAULT_WINDOW_TOKENS
) -> PackedShard:
    """Lay out the documents of a shard in packed rows.

    Documents are packed in windows of `window_tokens` to twice as many tokens; a shorter shard is
    one window.

    Args:
        doc_starts: (D + 1,) token position of each document; the last is the number of tokens.
        seq_len: tokens per row; a row has seq_len + 1.
        window_tokens: see above.
    """
    pieces = cut_documents(doc_starts, seq_len)
    shard_tokens = int(doc_starts[-1])
    num_windows = max(1, shard_tokens // window_tokens)
    stops = np.arange(1, num_windows + 1) * shard_tokens // num_windows
    row_counts = [np.zeros(1, np.int64)]
    piece_starts = [np.zeros(0, np.int64)]
    first = 0
    for stop in np.searchsorted(pieces.starts, stops, side="left").tolist():
        counts, order = _pack_window(pieces.num_tokens[first:stop], seq_len + 1)
        row_counts.append(counts)
        piece_starts.append(pieces.starts[first:stop][order])
        first = stop
    return PackedShard(np.cumsum(np.concatenate(row_counts)), np.concatenate(piece_starts))


def _pack_window(num_tokens: Int64Array, capacity: int) -> tuple[Int64Array, Int64Array]:
    """Return the number of pieces of each row, and the pieces row by row.

    Best-fit decreasing leaves rows and pieces sorted by length, and training must not see the long
    documents first. A row therefore has the place of its longest piece in the shard, and the
    pieces of a row are in the order of the shard, which is random.
    """
    rows = pack_best_fit(num_tokens, capacity)
    by_length = np.argsort(-num_tokens, kind="stable")
    # (R,) the longest piece of each row
    _, firsts = np.unique(rows[by_length], return_index=True)
    longest = by_length[firsts]
    # (R,) rank of each row when rows are sorted by their longest pieces
    ranks = np.empty_like(longest)
    ranks[np.argsort(longest)] = np.arange(len(longest))
    return np.bincount(ranks[rows]), np.argsort(ranks[rows], kind="stable")
