"""Rows of tokens as spans of arrays in memory, and their copies.

A row has pieces of documents: a plain row is one piece, a packed row has one for each of its
documents. A span is the part of a piece that is inside one sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from loader.order.permutation import BoolArray, Int64Array
from loader.reading.row_pieces import RowPieces
from loader.retraction.tombstones import TokenRanges
from shardwriter.format import ShardIndex

Tokens = NDArray[np.unsignedinteger[Any]]

# Slices that are joined at a time. Each is an object that the garbage collector counts, and 700 more
# objects than before start it: with thousands of slices at a time, packed rows took a third longer.
_MAX_SLICES = 512


class Spans(NamedTuple):
    """K spans of one shard.

    rows:       (K,) int64, the row of each span
    columns:    (K,) int64, its first place in the row
    samples:    (K,) int64, its sample
    offsets:    (K,) int64, its first token, counted in tokens from the start of the tar
    num_tokens: (K,) int64
    """

    rows: Int64Array
    columns: Int64Array
    samples: Int64Array
    offsets: Int64Array
    num_tokens: Int64Array

    @classmethod
    def cut(cls, pieces: RowPieces, index: ShardIndex) -> Self:
        """Cut the pieces of rows where a sample ends."""
        sample_starts = index.sample_starts
        # (S,) where the tokens of each sample start in the tar
        sample_offsets = index.sample_offsets // index.token_dtype.itemsize
        stops = pieces.starts + pieces.num_tokens
        firsts = np.searchsorted(sample_starts, pieces.starts, side="right") - 1
        lasts = np.searchsorted(sample_starts, stops - 1, side="right") - 1
        counts = lasts - firsts + 1
        counts_before = np.cumsum(counts) - counts
        numbers = np.repeat(np.arange(len(counts)), counts)
        samples = np.arange(len(numbers)) + (firsts - counts_before)[numbers]
        # Token positions in the shard. A span starts with its piece or with its sample.
        starts = np.maximum(pieces.starts[numbers], sample_starts[samples])
        ends = np.minimum(stops[numbers], sample_starts[samples + 1])
        return cls(
            rows=pieces.rows[numbers],
            columns=(pieces.columns - pieces.starts)[numbers] + starts,
            samples=samples,
            offsets=(sample_offsets - sample_starts[:-1])[samples] + starts,
            num_tokens=ends - starts,
        )

    def select(self, chosen: Any) -> Spans:
        """Return the spans that an index or a mask chooses."""
        return Spans(*(column[chosen] for column in self))

    def list_samples(self, num_samples: int) -> Int64Array:
        """Return each sample that has a span, once, in rising order."""
        is_touched = np.zeros(num_samples, np.bool_)
        is_touched[self.samples] = True
        return np.flatnonzero(is_touched)


class Source(NamedTuple):
    """K spans of one array in memory, and their places in n rows.

    tokens:     (n,) tokens
    starts:     (K,) int64, first token of each span
    num_tokens: (K,) int64
    rows:       (K,) int64, its row
    columns:    (K,) int64, its first place in the row
    """

    tokens: Tokens
    starts: Int64Array
    num_tokens: Int64Array
    rows: Int64Array
    columns: Int64Array


class RowMarks(NamedTuple):
    """The properties of n rows besides their tokens.

    is_whole:   (n,) bool, false for damaged rows
    doc_starts: (n, seq_len) bool, document starts, or None if they were not requested
    ignored:    tokens that must not be labels: of retracted documents, padding, and repeated tokens
                of packed rows; None if no source can have any
    """

    is_whole: BoolArray
    doc_starts: BoolArray | None
    ignored: TokenRanges | None


class LoadedRows:
    """n rows whose samples were checked, and which are not copied yet. Datasets fill it.

    seq_len:    tokens of a row; seq_len + 1 are read
    sources:    the spans of the rows in mapped files and fetched blocks; damaged rows have none
    is_whole:   as in RowMarks
    doc_starts: as in RowMarks
    retracted:  tokens of retracted documents, in any order
    ignored:    other tokens that must not be labels
    """

    def __init__(self, num_rows: int, seq_len: int, *, with_marks: bool) -> None:
        self.seq_len = seq_len
        self.sources: list[Source] = []
        self.is_whole = np.zeros(num_rows, np.bool_)
        self.doc_starts = np.zeros((num_rows, seq_len), np.bool_) if with_marks else None
        self.retracted: list[TokenRanges] = []
        self.ignored: list[TokenRanges] = []

    @property
    def marks(self) -> RowMarks:
        """The properties of the rows."""
        ignored = [*self.ignored, *self.retracted]
        joined = TokenRanges.join(ignored) if ignored else None
        return RowMarks(self.is_whole, self.doc_starts, joined)

    def store(self, dtype: np.dtype[Any], blank: int) -> StoredRows:
        """Return the rows; `blank` is in the places of damaged rows, padding and retracted tokens."""
        return StoredRows(
            self.sources,
            len(self.is_whole),
            row_tokens=self.seq_len + 1,
            dtype=dtype,
            blank=blank,
            retracted=TokenRanges.join(self.retracted) if self.retracted else None,
        )


class StoredRows:
    """n rows of tokens in mapped files and fetched blocks. They are copied when `join` is called.

    A caller that joins the rows of one batch at a time gets them faster than all at once: the copy
    stays in the processor's cache, and its memory was used by an earlier batch.

    Args:
        sources: the spans of the rows. Places that have none get `blank`.
        num_rows: n.
        row_tokens: tokens of a row.
        dtype: of the tokens.
        blank: token for damaged rows, padding and retracted tokens.
        retracted: tokens that are replaced, or None.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        num_rows: int,
        *,
        row_tokens: int,
        dtype: np.dtype[Any],
        blank: int,
        retracted: TokenRanges | None = None,
    ) -> None:
        self._row_tokens, self._dtype, self._blank = row_tokens, dtype, blank
        self._retracted = (
            retracted if retracted is not None and len(retracted.rows) else None
        )
        blanks = _find_blanks(sources, num_rows, row_tokens, np.dtype(dtype).type(blank))
        all_sources = [*sources, blanks] if len(blanks.rows) else sources
        # Bytes, not tokens, because fetched blocks may start at odd addresses.
        buffers = [source.tokens.view(np.uint8).data for source in all_sources]
        numbers = np.repeat(
            np.arange(len(all_sources)), [len(source.rows) for source in all_sources]
        )
        starts, num_tokens, rows, columns = _concatenate(all_sources)
        places = rows * row_tokens + columns
        order = np.argsort(places, kind="stable")
        first_bytes = (starts * dtype.itemsize)[order]
        # The buffer, first byte and last byte of each span. Lists, because reading single numbers from
        # an array takes ten times as long.
        self._buffers = [buffers[number] for number in numbers[order].tolist()]
        self._first_bytes: list[int] = first_bytes.tolist()
        self._stop_bytes: list[int] = (
            first_bytes + (num_tokens * dtype.itemsize)[order]
        ).tolist()
        # (n + 1,) the spans before each row
        row_places = np.arange(num_rows + 1) * row_tokens
        self._bounds: list[int] = np.searchsorted(places[order], row_places).tolist()

    def join(self, rows: slice) -> Tokens:
        """Return the tokens of consecutive rows, (B, row_tokens), as a new array."""
        first, stop = self._bounds[rows.start], self._bounds[rows.stop]
        if stop - first <= _MAX_SLICES:
            joined = self._join_spans(first, stop)
        else:
            firsts = range(first, stop, _MAX_SLICES)
            parts = [self._join_spans(k, min(k + _MAX_SLICES, stop)) for k in firsts]
            joined = bytearray().join(parts)
        shape = rows.stop - rows.start, self._row_tokens
        tokens: Tokens = np.ndarray(shape, self._dtype, joined)
        if self._retracted is not None:
            self._retracted.select(rows).fill(tokens, self._blank)
        return tokens

    def _join_spans(self, first: int, stop: int) -> bytearray:
        spans = zip(
            self._buffers[first:stop],
            self._first_bytes[first:stop],
            self._stop_bytes[first:stop],
            strict=True,
        )
        # Of the ways to copy a few kilobytes each from several files, this one takes least time.
        # A bytearray, unlike bytes, can be changed by the caller.
        return bytearray().join([buffer[start:end] for buffer, start, end in spans])


def _concatenate(sources: Sequence[Source]) -> list[Int64Array]:
    """Return the columns of all sources besides their tokens."""
    if not sources:
        return [np.zeros(0, np.int64)] * 4
    columns = zip(*(source[1:] for source in sources), strict=True)
    return [np.concatenate(column) for column in columns]


def _find_blanks(
    sources: Sequence[Source], num_rows: int, row_tokens: int, blank: Any
) -> Source:
    """Return the ends of rows that have too few tokens: damaged rows are empty."""
    filled = np.zeros(num_rows, np.int64)
    for source in sources:
        np.add.at(filled, source.rows, source.num_tokens)
    rows = np.flatnonzero(filled < row_tokens)
    first = filled[rows]
    tokens = np.full(row_tokens, blank)
    return Source(tokens, np.zeros_like(first), row_tokens - first, rows, first)
