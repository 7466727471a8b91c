"""Which row stands at which position of an epoch: pure arithmetic on the shards' token counts.

Promises: `RowOrder.locate` is a function of (token counts, seq_len, seed, lanes, window_rows) and the position alone,
the same on any number of ranks, machines and releases (golden values in the tests pin it); each position of an epoch is
one row and each row, but for fewer than `lanes` left over, one position. Looking up n positions takes O(n log S) time,
a plan O(S) memory for S shards, nothing O(rows).
Leaves to others: which rank takes which positions (`deal`), reading (`reader`).

With 2 lanes, windows of 2 rows, and shards of 3, 1 and 5 rows (in the order that seed and epoch put them in):

    laid end to end   a0 a1 a2 b0 | c0 c1 c2 c3 | c4          c4 is left over in this epoch
    lane 0, windows   [a1 a0] [a2 b0]                         rows are shuffled inside windows
    lane 1, windows   [c0 c1] [c3 c2]
    position          0  1  2  3  4  5  6  7
    row               a1 c0 a0 c1 a2 c3 b0 c2                 position p is row p // 2 of lane p % 2
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

ORDER_VERSION = 1
"""Rises when equal arguments would give another order: then old states are refused."""

DEFAULT_WINDOW_ROWS = 1024
"""Few enough that a lane stays within some MiB of one shard, many enough that neighbours of a shard rarely meet."""

DEFAULT_LANES = 64
MIN_ROWS_PER_DEFAULT_LANE = 64
"""The default spends at most one row in this many on the rows left over (fewer than one per lane)."""

Ints = NDArray[np.int64]
_Words = NDArray[np.uint64]
_MASK = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS, _MIN_BITS = 8, 6
"""Four rounds make a pseudo-random permutation (Luby and Rackoff 1988) of large domains. Tiny ones need more of both:
over 40,000 keys, the places of five indices are uniform with these, and off by a tenth with 6 rounds on 3 bits."""


def count_rows(num_tokens: Ints, seq_len: int) -> Ints:
    """(S,) rows of each shard: (n - 1) // seq_len, and 0 of an empty one (docs/data-format.md, "Order and rows")."""
    return np.maximum(num_tokens - 1, 0) // seq_len


def default_lanes(num_rows: int) -> int:
    """The largest power of two, up to `DEFAULT_LANES`, that leaves enough rows in each lane."""
    wanted = max(1, num_rows // MIN_ROWS_PER_DEFAULT_LANE)
    return min(DEFAULT_LANES, 1 << (wanted.bit_length() - 1))


# -------------------------------------------------------------------------------------------------------- permutations


def _mixed(words: _Words) -> _Words:
    """The finaliser of SplitMix64 (Steele, Lea, Flood 2014), which has every output bit depend on every input bit."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def keys_of(*parts: int | Ints | _Words) -> _Words:
    """(n,) one 64-bit key for each tuple of numbers; scalars are broadcast, and all scalars give (1,)."""
    key = np.zeros(1, np.uint64)
    for part in parts:
        words = (
            np.array([part & _MASK], np.uint64) if isinstance(part, int) else part.astype(np.uint64)
        )
        key = _mixed(key + words + np.uint64(_GOLDEN))
    return key


def permute(indices: Ints, num: int, keys: _Words) -> Ints:
    """Where a keyed bijection of 0 .. num - 1 sends each index; no table is built.

    A Feistel network on just enough bits, walked until the result is below `num` again: a bijection on the bits is one
    on any subset that way (Black and Rogaway 2002, "Ciphers with arbitrary finite domains"). Under two walks on average
    from 33 places on.

    Args:
        indices: (n,) each in 0 .. num - 1.
        num: size of the domain.
        keys: (n,) or (1,); equal keys are the same bijection.
    """
    if num == 1:
        return np.zeros_like(indices)
    bits = max(_MIN_BITS, (num - 1).bit_length())
    words = _feistel(indices.astype(np.uint64), bits, keys)
    while len(outside := np.flatnonzero(words >= np.uint64(num))):
        words[outside] = _feistel(words[outside], bits, keys if len(keys) == 1 else keys[outside])
    return words.astype(np.int64)


def _feistel(words: _Words, bits: int, keys: _Words) -> _Words:
    low_bits = (bits + 1) // 2
    low_mask, high_mask = np.uint64(2**low_bits - 1), np.uint64(2 ** (bits - low_bits) - 1)
    low, high = words & low_mask, words >> np.uint64(low_bits)
    for turn in range(_ROUNDS):
        round_keys = keys + np.uint64(turn * _GOLDEN & _MASK)
        if turn % 2:
            low = low ^ (_mixed(high ^ round_keys) & low_mask)
        else:
            high = high ^ (_mixed(low ^ round_keys) & high_mask)
    return high << np.uint64(low_bits) | low


# --------------------------------------------------------------------------------------------------------------- order

_SHARDS, _WINDOWS = 1, 2  # what a key is for


@dataclass(frozen=True, eq=False)
class EpochLayout:
    """The shards of one epoch, end to end. shards: (S,) in order; row_starts: (S + 1,) rows before each of them."""

    shards: Ints
    row_starts: Ints

    def locate(self, laid: Ints) -> tuple[Ints, Ints]:
        """(n,) shard and (n,) row in it, of rows counted from the start of the layout."""
        slot = np.searchsorted(self.row_starts, laid, side="right") - 1
        return self.shards[slot], laid - self.row_starts[slot]


@dataclass(frozen=True, eq=False)
class RowOrder:
    """The order of a dataset's rows. shard_rows: (S,) int64; raises ValueError where the rows do not fill the lanes."""

    shard_rows: Ints
    seed: int
    lanes: int
    window_rows: int = DEFAULT_WINDOW_ROWS
    _layouts: dict[int, EpochLayout] = field(
        default_factory=dict[int, EpochLayout], init=False, repr=False
    )

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("lanes", 1), ("window_rows", 1)):
            if not least <= getattr(self, name) < 2**63:
                raise ValueError(f"{name} is {getattr(self, name)}, must lie in {least}..2**63 - 1")
        if self.lanes > self.num_rows:
            raise ValueError(
                f"lanes is {self.lanes} for {self.num_rows} rows; give at most as many lanes as rows"
            )

    @property
    def num_rows(self) -> int:
        """Rows of the dataset."""
        return int(self.shard_rows.sum())

    @property
    def lane_rows(self) -> int:
        """Rows of one lane."""
        return self.num_rows // self.lanes

    @property
    def epoch_rows(self) -> int:
        """Positions of one epoch; `num_rows - epoch_rows` < lanes rows are left over, other ones in each epoch."""
        return self.lane_rows * self.lanes

    def layout(self, epoch: int) -> EpochLayout:
        """The shards in the order of this epoch; the last two epochs asked for are kept."""
        layout = self._layouts.get(epoch)
        if layout is None:
            num_shards = len(self.shard_rows)
            shards = permute(np.arange(num_shards), num_shards, keys_of(self.seed, epoch, _SHARDS))
            starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.shard_rows[shards])])
            layout = self._layouts[epoch] = EpochLayout(shards, starts)
            for old in sorted(self._layouts, key=lambda other: abs(other - epoch))[2:]:
                self._layouts.pop(old, None)
        return layout

    def locate(self, positions: Ints) -> tuple[Ints, Ints]:
        """(n,) shards and (n,) rows in them. Positions run on over the epochs: epoch e begins at e * epoch_rows."""
        epochs, in_epoch = np.divmod(positions, self.epoch_rows)
        first, last = (int(epochs.min()), int(epochs.max())) if len(epochs) else (0, 0)
        if first == last:
            return self.layout(first).locate(self._laid(first, in_epoch))
        shards, rows = np.empty_like(positions), np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            shards[here], rows[here] = self.layout(epoch).locate(self._laid(epoch, in_epoch[here]))
        return shards, rows

    def left_over(self, epoch: int) -> tuple[Ints, Ints]:
        """Shards and rows of what no position of this epoch names: fewer than `lanes` of them."""
        return self.layout(epoch).locate(np.arange(self.epoch_rows, self.num_rows))

    def _laid(self, epoch: int, positions: Ints) -> Ints:
        """(n,) places in the epoch's layout of (n,) positions in the epoch."""
        rows, lanes = np.divmod(positions, self.lanes)
        windows, offsets = np.divmod(rows, self.window_rows)
        keys = keys_of(self.seed, epoch, _WINDOWS, lanes, windows)
        num_whole, last_rows = divmod(self.lane_rows, self.window_rows)
        is_last = windows == num_whole
        if not is_last.any():
            shuffled = permute(offsets, self.window_rows, keys)
        else:
            shuffled = np.empty_like(offsets)
            for here, num in ((~is_last, self.window_rows), (is_last, last_rows)):
                shuffled[here] = permute(offsets[here], num, keys[here])
        return lanes * self.lane_rows + windows * self.window_rows + shuffled
