"""The pieces of tokens in some rows: their places, and the tokens that are no labels."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple, Self

import numpy as np

from loader.order.permutation import BoolArray, Int64Array
from loader.order.row_order import count_rows
from loader.retraction.tombstones import TokenRanges
from shardwriter.format import ShardIndex


class RowPieces(NamedTuple):
    """K pieces of documents in n packed rows, row by row. A plain row is one piece.

    rows:         (K,) int64, the row of each piece
    columns:      (K,) int64, its first place in the row
    starts:       (K,) int64, its first token, as token position in the shard
    num_tokens:   (K,) int64
    is_continued: (K,) bool, whether it starts inside its document, with a repeated token
    """

    rows: Int64Array
    columns: Int64Array
    starts: Int64Array
    num_tokens: Int64Array
    is_continued: BoolArray

    @classmethod
    def place(
        cls,
        rows: Int64Array,
        starts: Int64Array,
        num_tokens: Int64Array,
        is_continued: BoolArray,
    ) -> Self:
        """Return pieces with their columns: in each row, a piece starts where the last one ends.

        The arguments are in the order of the rows, as (K,) each.
        """
        tokens_before = np.cumsum(num_tokens) - num_tokens
        # (K,) the first piece of the row of each piece
        row_firsts = np.searchsorted(rows, rows, side="left")
        columns = tokens_before - tokens_before[row_firsts]
        return cls(rows, columns, starts, num_tokens, is_continued)

    @classmethod
    def empty(cls) -> Self:
        """Return no pieces."""
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, nothing, nothing, np.zeros(0, np.bool_))

    @classmethod
    def join(cls, parts: Sequence[RowPieces]) -> Self:
        """Return the pieces of several parts of the same rows."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))

    def count_tokens(self, num_rows: int) -> Int64Array:
        """Return how many places of each row have a token, as (num_rows,) int64."""
        filled = np.zeros(num_rows, np.int64)
        np.add.at(filled, self.rows, self.num_tokens)
        return filled

    def mark_starts(self, num_rows: int, seq_len: int) -> BoolArray:
        """Mark the tokens at which a piece, or the padding, starts: (num_rows, seq_len) bool."""
        marks = np.zeros((num_rows, seq_len + 1), np.bool_)
        marks[:, 0] = True
        marks[self.rows, self.columns] = True
        filled = self.count_tokens(num_rows)
        padded = np.flatnonzero(filled <= seq_len)
        marks[padded, filled[padded]] = True
        return marks[:, :seq_len]

    def find_ignored(
        self, num_rows: int, row_tokens: int
    ) -> tuple[TokenRanges, TokenRanges]:
        """Return the tokens that are no labels: padding, and repeated tokens inside a row."""
        filled = self.count_tokens(num_rows)
        padded = np.flatnonzero(filled < row_tokens)
        # A repeated token at the start of a row is no label anyway.
        repeated = np.flatnonzero(self.is_continued & (self.columns > 0))
        firsts = self.columns[repeated]
        padding = TokenRanges(padded, filled[padded], np.full(len(padded), row_tokens))
        return padding, TokenRanges(self.rows[repeated], firsts, firsts + 1)


class RowLayout(ABC):
    """Finds the rows of shards. Safe for several threads.

    seq_len:   tokens of a row; seq_len + 1 are read
    is_packed: whether rows have several pieces and padding
    """

    is_packed = False

    def __init__(self, seq_len: int) -> None:
        self.seq_len = seq_len

    @abstractmethod
    def find_pieces(self, index: ShardIndex, rows: Int64Array) -> RowPieces:
        """Return the pieces of some rows of a shard; rows are numbered as in the request."""

    @abstractmethod
    def find_rows(self, index: ShardIndex, first: int, stop: int) -> list[int]:
        """Return the rows of a shard that read some of its tokens first..stop - 1."""

    @abstractmethod
    def close(self) -> None:
        """Close the files."""


class PlainRows(RowLayout):
    """Plain rows, which start at each multiple of `seq_len` in a shard."""

    def find_pieces(self, index: ShardIndex, rows: Int64Array) -> RowPieces:
        """Return one piece for each row."""
        del index
        return RowPieces(
            rows=np.arange(len(rows)),
            columns=np.zeros_like(rows),
            starts=rows * self.seq_len,
            num_tokens=np.full_like(rows, self.seq_len + 1),
            is_continued=np.zeros(len(rows), np.bool_),
        )

    def find_rows(self, index: ShardIndex, first: int, stop: int) -> list[int]:
        """Return the rows of a shard that read some of its tokens first..stop - 1."""
        num_rows = int(count_rows(np.array([index.num_tokens]), self.seq_len)[0])
        last_row = min((stop - 1) // self.seq_len, num_rows - 1)
        return list(range(first // self.seq_len, last_row + 1))

    def close(self) -> None:
        """Do nothing: there are no files."""
