"""Mixtures: several datasets read as one stream of rows, with weights and a schedule.

A position determines its source and the position inside that source, so a mixture resumes and
scales like one dataset. Positions are cut into blocks of 65,536. In every block each source has
exactly its share, rounded to whole rows. Each source has its own row order and its own epochs.

    Mixture(
        {"web": "s3://bucket/web", "code": "/data/code"},
        weights={"web": 0.9, "code": 0.1},
        schedule={2_000_000: {"web": 0.5, "code": 0.5}},     # from this position on
    )

A position in the schedule is `step * global_batch_rows`. A source that is named in `sources` and
has its first weight in the schedule is added there, and a source without a weight there is removed.
Neither changes an earlier row, so a run can be continued with a source added or removed.

Example with blocks of 8 positions in place of 65,536, sources A and B with weights 3 and 1, and
seed 4. Each block gets 6 rows of A and 2 of B. A permutation with the key
`derive_keys(seed, 3, segment, block)` distributes them over the block:

    position             0  1  2  3  4  5  6  7 | 8  9  10 11 ...
    source               A  A  B  A  A  A  B  A | A  A  B  A
    position in source   0  1  0  2  3  4  1  5 | 6  7  2  8
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from loader.order.permutation import Int64Array, derive_keys, permute

# The precision of a share is 1 / 65,536. Computing a block takes a few milliseconds, once.
BLOCK_ROWS = 2**16

# The part of a key that separates its uses. row_order.py uses 1 and 2.
_MIXTURE_KEY = 3

# Reading ahead covers fewer blocks than this.
_NUM_CACHED_BLOCKS = 4


@dataclass(frozen=True)
class Mixture:
    """Datasets by name, with their weights.

    sources:  name -> path or address of the manifest or of its folder
    weights:  name -> weight; weights need not add up to 1, and 0 is allowed
    schedule: first position -> weights from this position on

    Raises:
        ValueError: a name is unknown or a weight is not usable.
    """

    sources: Mapping[str, str | Path]
    weights: Mapping[str, float]
    schedule: Mapping[int, Mapping[str, float]] = field(
        default_factory=dict[int, Mapping[str, float]]
    )

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError(
                "mixture: no sources; give at least one name with its manifest"
            )
        if self.schedule and min(self.schedule) <= 0:
            raise ValueError(
                f"mixture: the schedule starts at position {min(self.schedule)}, must start above "
                f"0; the weights from position 0 on are given as `weights`"
            )
        for weights in (self.weights, *self.schedule.values()):
            self._check_names(weights)
        for first_position, weights in self.segments.items():
            self._check_weights(first_position, weights)

    @property
    def segments(self) -> dict[int, tuple[float, ...]]:
        """First position of each segment -> weights in the order of `sources`."""
        weights_by_start = {0: self.weights, **dict(sorted(self.schedule.items()))}
        segments: dict[int, tuple[float, ...]] = {}
        for first_position, weights in weights_by_start.items():
            segments[first_position] = tuple(
                float(weights.get(name, 0)) for name in self.sources
            )
        return segments

    def _check_names(self, weights: Mapping[str, float]) -> None:
        if unknown := sorted(weights.keys() - self.sources.keys()):
            raise ValueError(
                f"mixture: weights are given for {unknown}, which are not sources; "
                f"the sources are {sorted(self.sources)}"
            )

    def _check_weights(self, first_position: int, weights: tuple[float, ...]) -> None:
        total = sum(weights)
        for name, weight in zip(self.sources, weights, strict=True):
            where = f"mixture: weight of {name!r} from position {first_position}"
            if not (math.isfinite(weight) and weight >= 0):
                raise ValueError(
                    f"{where} is {weight}, must be a finite number of at least 0"
                )
        for name, weight in zip(self.sources, weights, strict=True):
            if 0 < weight < total / BLOCK_ROWS:
                raise ValueError(
                    f"mixture: weight of {name!r} from position {first_position} is "
                    f"{weight / total:.2e} of the sum, must be 0 or at least 1/{BLOCK_ROWS}"
                )
        if total == 0:
            raise ValueError(
                f"mixture: all weights from position {first_position} are 0; "
                f"give at least one source a weight above 0"
            )


def apportion(weights: tuple[float, ...], num: int) -> Int64Array:
    """Divide `num` rows among sources by the largest-remainder method (Hamilton's method).

    Ties go to the source that is listed first.

    Returns:
        (sources,) int64 that add up to `num`.
    """
    quotas = np.array(weights) / sum(weights) * num
    counts = np.floor(quotas).astype(np.int64)
    # counts - quotas is minus the remainder, so the largest remainders come first. The stable sort
    # keeps ties in the order of the sources.
    by_remainder = np.argsort(counts - quotas, kind="stable")
    num_missing = num - int(counts.sum())
    counts[by_remainder[:num_missing]] += 1
    return counts


class _Block(NamedTuple):
    """One block of BLOCK_ROWS positions.

    sources:      (BLOCK_ROWS,) int64, source of each position
    rows_in_block: (BLOCK_ROWS,) int64, rows of the same source before it in the block
    """

    sources: Int64Array
    rows_in_block: Int64Array


class MixtureOrder:
    """Maps positions of a mixture to sources and positions in them.

    Args:
        segments: first position -> weights of the sources; the first segment starts at 0.
        seed: of the permutation inside the blocks.
    """

    def __init__(self, segments: Mapping[int, tuple[float, ...]], seed: int) -> None:
        self._seed = seed
        # Segment s starts at position _starts[s]; its blocks hold _block_counts[s][source] rows.
        self._starts = np.array(sorted(segments), np.int64)
        self._block_counts = [
            apportion(segments[first_position], BLOCK_ROWS)
            for first_position in self._starts.tolist()
        ]
        self._blocks: dict[tuple[int, int], _Block] = {}
        # _rows_before[s][source]: rows of the source before segment s
        self._rows_before = [np.zeros_like(self._block_counts[0])]
        for segment in range(len(self._starts) - 1):
            # A segment may end inside a block. Then its last block is used in part, and the next
            # segment starts a new block.
            next_start = int(self._starts[segment + 1])
            self._rows_before.append(self._count_rows(segment, next_start))

    def count_rows_before(self, position: int) -> Int64Array:
        """Return how many rows each source has before this position, as (sources,) int64."""
        segment = int(np.searchsorted(self._starts, position, side="right")) - 1
        return self._count_rows(segment, position)

    def locate(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the (n,) sources and the (n,) positions in them."""
        sources, in_source = np.empty_like(positions), np.empty_like(positions)
        # (n,) segment of each position; then block in the segment, and offset in the block
        segments = np.searchsorted(self._starts, positions, side="right") - 1
        blocks, offsets = np.divmod(positions - self._starts[segments], BLOCK_ROWS)
        # (distinct blocks, 2) segment and number of each block that the positions touch
        segment_blocks = np.unique(np.stack([segments, blocks]), axis=1).T
        for segment, number in segment_blocks.tolist():
            chosen = (segments == segment) & (blocks == number)
            block = self._block(segment, number)
            found = block.sources[offsets[chosen]]
            # (sources,) rows of each source before this block
            rows_before = self._rows_before[segment] + self._block_counts[segment] * number
            sources[chosen] = found
            in_source[chosen] = rows_before[found] + block.rows_in_block[offsets[chosen]]
        return sources, in_source

    def _count_rows(self, segment: int, position: int) -> Int64Array:
        """Return the (sources,) rows before a position of this segment."""
        counts = self._block_counts[segment]
        num_blocks, offset = divmod(position - int(self._starts[segment]), BLOCK_ROWS)
        rows = self._rows_before[segment] + counts * num_blocks
        if offset:
            # Only a partial block needs the permutation. Full blocks have known counts.
            sources = self._block(segment, num_blocks).sources[:offset]
            rows = rows + np.bincount(sources, minlength=len(counts))
        return rows

    def _block(self, segment: int, number: int) -> _Block:
        block = self._blocks.get((segment, number))
        if block is None:
            block = self._blocks[segment, number] = self._make_block(segment, number)
            # Oldest first. pop with a default, because another reading thread may have removed the
            # block already.
            for old in list(self._blocks)[:-_NUM_CACHED_BLOCKS]:
                self._blocks.pop(old, None)
        return block

    def _make_block(self, segment: int, number: int) -> _Block:
        keys = derive_keys(self._seed, _MIXTURE_KEY, segment, number)
        shuffled = permute(np.arange(BLOCK_ROWS), BLOCK_ROWS, keys)
        # The first counts[0] shuffled numbers are of source 0, the next counts[1] of source 1, ...
        source_stops = np.cumsum(self._block_counts[segment])
        sources = np.searchsorted(source_stops, shuffled, side="right")
        rows_in_block = np.empty(BLOCK_ROWS, np.int64)
        for source, count in enumerate(self._block_counts[segment].tolist()):
            # The rows of a source are numbered in the order of their positions in the block.
            rows_in_block[sources == source] = np.arange(count)
        return _Block(sources, rows_in_block)
