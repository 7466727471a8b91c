"""Join rows from spans of tokens.

A span is inside one sample. A plain row is one span, or several if it crosses samples; a packed row
has at least one span for each of its documents.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from loader.order.permutation import Int64Array
from loader.packed.row_pieces import RowPieces
from loader.reading.open_shard import OpenShard, Tokens

# Slices that are joined at a time. `join` releases the GIL while it copies 1 MiB or more: 512 plain
# rows of 2,048 tokens have 2 MiB. Each slice is an object that the garbage collector counts, and
# 700 more objects than before start it: with thousands of slices at a time, packed rows took a
# third longer.
_MAX_SLICES = 512


class Spans(NamedTuple):
    """K spans of one shard.

    pieces:     (K,) int64, the piece of a row that each span belongs to
    columns:    (K,) int64, its first place in the row
    samples:    (K,) int64, its sample
    offsets:    (K,) int64, its first token, counted in tokens from the start of the tar
    num_tokens: (K,) int64
    """

    pieces: Int64Array
    columns: Int64Array
    samples: Int64Array
    offsets: Int64Array
    num_tokens: Int64Array

    @classmethod
    def cut(cls, pieces: RowPieces, shard: OpenShard) -> Self:
        """Cut the pieces of rows where a sample ends."""
        sample_starts = shard.index.sample_starts
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
            pieces=numbers,
            columns=(pieces.columns - pieces.starts)[numbers] + starts,
            samples=samples,
            offsets=(shard.token_offsets - sample_starts[:-1])[samples] + starts,
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
    """K spans of one array in memory, and their places in the result.

    tokens:     (n,) tokens
    starts:     (K,) int64, first token of each span
    num_tokens: (K,) int64
    places:     (K,) int64, its first place in the result
    """

    tokens: Tokens
    starts: Int64Array
    num_tokens: Int64Array
    places: Int64Array


def join_spans(sources: Sequence[Source], dtype: np.dtype[Any]) -> Tokens:
    """Return the tokens of all spans, ordered by place, as one new array.

    The spans must fill the result without gaps.
    """
    counts = [len(source.places) for source in sources]
    numbers = np.repeat(np.arange(len(sources)), counts)
    starts, num_tokens, places = (
        np.concatenate(columns)
        for columns in zip(*(source[1:] for source in sources), strict=True)
    )
    order = np.argsort(places, kind="stable")
    # Bytes, not tokens, because fetched blocks may start at odd addresses.
    buffers = [source.tokens.view(np.uint8).data for source in sources]
    first_bytes, num_bytes = starts * dtype.itemsize, num_tokens * dtype.itemsize
    result = np.empty(int(num_bytes.sum()), np.uint8)
    num_joined = 0
    for first in range(0, len(order), _MAX_SLICES):
        chosen = order[first : first + _MAX_SLICES]
        part = first_bytes[chosen]
        bounds = zip(
            numbers[chosen].tolist(),
            part.tolist(),
            (part + num_bytes[chosen]).tolist(),
            strict=True,
        )
        joined = b"".join([buffers[number][start:stop] for number, start, stop in bounds])
        result[num_joined : num_joined + len(joined)] = np.frombuffer(joined, np.uint8)
        num_joined += len(joined)
    return result.view(dtype)
