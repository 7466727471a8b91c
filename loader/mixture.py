"""Several datasets read as one stream, in given shares, which a schedule may change.

Promises: which source a position belongs to, and how many rows that source gave before it, are arithmetic on the
position; so a mixture resumes and scales as one dataset does. In every block of 65,536 positions from the start of a
segment of the schedule, each source has its share exactly, to within one row; inside a block the order is that of a
keyed bijection. Every source runs through its own epochs, in its own order.
Leaves to others: the rows of a source (`order`), reading.

    Mixture(
        {"web": "s3://bucket/web", "code": "/data/code"},
        weights={"web": 0.9, "code": 0.1},
        schedule={2_000_000: {"web": 0.5, "code": 0.5}},     # from that position (step * global_batch_rows) on
    )
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from loader.order import Ints, keys_of, permute

BLOCK_ROWS = 2**16
"""Shares are kept to 1 / 65,536; looking into a block costs some milliseconds, once."""

_BLOCKS = 3  # what a key is for; order.py has 1 and 2


@dataclass(frozen=True)
class Mixture:
    """Datasets by name, the weight of each, and from which positions on the weights are others.

    Weights need not add up to 1; a source may have 0 in some segments. Raises ValueError, naming source and value.
    """

    sources: Mapping[str, str | Path]
    weights: Mapping[str, float]
    schedule: Mapping[int, Mapping[str, float]] = field(
        default_factory=dict[int, Mapping[str, float]]
    )

    def __post_init__(self) -> None:
        if not self.sources:
            raise ValueError("mixture: no sources; give at least one name and manifest")
        if self.schedule and min(self.schedule) <= 0:
            raise ValueError(
                f"mixture: schedule begins at {min(self.schedule)}, must lie above 0; 0 is `weights`"
            )
        for first, weights in self.segments.items():
            _check_weights(first, weights, self.sources)

    @property
    def segments(self) -> dict[int, tuple[float, ...]]:
        """Weights of the sources, in their order, by first position."""
        by_start = {0: self.weights, **dict(sorted(self.schedule.items()))}
        return {
            first: tuple(float(weights.get(name, 0)) for name in self.sources)
            + _unknown(weights, self.sources)
            for first, weights in by_start.items()
        }


def _unknown(weights: Mapping[str, float], sources: Mapping[str, str | Path]) -> tuple[float, ...]:
    if unknown := sorted(weights.keys() - sources.keys()):
        raise ValueError(
            f"mixture: weights for {unknown}, which are no sources; there are {sorted(sources)}"
        )
    return ()


def _check_weights(first: int, weights: tuple[float, ...], names: Mapping[str, str | Path]) -> None:
    for name, weight in zip(names, weights, strict=True):
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(
                f"mixture: weight of {name!r} from position {first} is {weight}, must be at least 0"
            )
    for name, weight in zip(names, weights, strict=True):
        if 0 < weight < sum(weights) / BLOCK_ROWS:
            raise ValueError(
                f"mixture: weight of {name!r} from position {first} is {weight / sum(weights):.2e} of the whole, "
                f"must be 0 or at least 1/{BLOCK_ROWS}"
            )
    if sum(weights) == 0:
        raise ValueError(
            f"mixture: all weights from position {first} are 0; give one source a weight"
        )


def apportion(weights: tuple[float, ...], num: int) -> Ints:
    """(sources,) whole numbers that add up to num, by largest remainders (Hamilton's method); ties to the first."""
    quotas = np.array(weights) / sum(weights) * num
    counts = np.floor(quotas).astype(np.int64)
    order = np.argsort(counts - quotas, kind="stable")
    counts[order[: num - int(counts.sum())]] += 1
    return counts


class _Block(NamedTuple):
    """Of each of the block's places: its source, and how many rows that source has in the block before it."""

    sources: NDArray[np.int64]
    ranks: Ints


class Interleaving:
    """Position -> source and position in that source. segments: first position -> weights, the first being 0."""

    def __init__(self, segments: Mapping[int, tuple[float, ...]], seed: int) -> None:
        self._starts = np.array(sorted(segments), np.int64)
        self._counts = [apportion(segments[first], BLOCK_ROWS) for first in self._starts.tolist()]
        self._seed = seed
        self._blocks: dict[tuple[int, int], _Block] = {}
        self._before = [
            np.zeros_like(self._counts[0])
        ]  # rows that each source gave before each segment
        for segment in range(len(self._starts) - 1):
            self._before.append(self._given(segment, int(self._starts[segment + 1])))

    def given(self, position: int) -> Ints:
        """(sources,) rows that each source gave before this position."""
        return self._given(int(np.searchsorted(self._starts, position, side="right")) - 1, position)

    def locate(self, positions: Ints) -> tuple[Ints, Ints]:
        """(n,) sources and (n,) positions in them."""
        sources, in_source = np.empty_like(positions), np.empty_like(positions)
        segments = np.searchsorted(self._starts, positions, side="right") - 1
        blocks, places = np.divmod(positions - self._starts[segments], BLOCK_ROWS)
        for segment, number in np.unique(np.stack([segments, blocks]), axis=1).T.tolist():
            here = (segments == segment) & (blocks == number)
            block = self._block(segment, number)
            found = block.sources[places[here]]
            whole = self._before[segment] + self._counts[segment] * number
            sources[here], in_source[here] = found, whole[found] + block.ranks[places[here]]
        return sources, in_source

    def _given(self, segment: int, position: int) -> Ints:
        counts = self._counts[segment]
        number, places = divmod(position - int(self._starts[segment]), BLOCK_ROWS)
        part = (
            np.bincount(self._block(segment, number).sources[:places], minlength=len(counts))
            if places
            else 0
        )
        return self._before[segment] + counts * number + part

    def _block(self, segment: int, number: int) -> _Block:
        block = self._blocks.get((segment, number))
        if block is None:
            block = self._blocks[segment, number] = self._make_block(segment, number)
            for old in list(self._blocks)[:-4]:  # reading runs ahead by less than that
                self._blocks.pop(old, None)
        return block

    def _make_block(self, segment: int, number: int) -> _Block:
        key = keys_of(self._seed, _BLOCKS, segment, number)
        drawn = permute(np.arange(BLOCK_ROWS), BLOCK_ROWS, key)
        sources = np.searchsorted(np.cumsum(self._counts[segment]), drawn, side="right")
        ranks = np.empty(BLOCK_ROWS, np.int64)
        for source, count in enumerate(self._counts[segment].tolist()):
            ranks[sources == source] = np.arange(count)
        return _Block(sources, ranks)
