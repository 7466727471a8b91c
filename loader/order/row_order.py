"""The order of a dataset's rows, computed from the position alone.

Every row of an epoch has one position. A position is turned into a shard and a row in three steps.
No step needs a table of rows: n look-ups take O(n log S) time and O(S) memory for S shards.

1. Permute the shards and lay their rows end to end. The key is
   `derive_keys(seed, epoch, 1)`.
2. Cut this sequence into `interleave_depth` sections of equal length. Fewer than `interleave_depth`
   rows are left over; they differ from epoch to epoch. Position p is in section
   `p % interleave_depth`, at place `p // interleave_depth`: the sections are read in turn.
3. Inside a section, permute the rows of each window of `window_rows` rows. The key is
   `derive_keys(seed, epoch, 2, section, window)`.

Example: three shards a, b, c of 3, 1 and 5 rows, `seed=2`, `interleave_depth=2`, `window_rows=2`.
In epoch 0 the permutation of the shards is a, b, c:

    shards end to end   a0 a1 a2 b0 | c0 c1 c2 c3 | c4      c4 is left over in this epoch
    section 0           [a0 a1] [b0 a2]                     each window of 2 rows is permuted
    section 1           [c1 c0] [c3 c2]
    position            0  1  2  3  4  5  6  7
    row                 a0 c1 a1 c0 b0 c3 a2 c2             the sections are read in turn

The order is a function of the shards' token counts, `seq_len`, `seed`, `interleave_depth` and
`window_rows`. The number of ranks has no influence. Golden values in the tests pin it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from loader.order.permutation import (
    Int64Array,
    UInt64Array,
    derive_keys,
    extend_keys,
    permute,
)

# Raise this when equal arguments give another order. Old states are refused then.
ORDER_VERSION = 1

# Small: a section reads only a few MiB of one shard at a time. Large: rows of one document
# rarely end up close to each other.
DEFAULT_WINDOW_ROWS = 1024

MAX_DEFAULT_INTERLEAVE_DEPTH = 64
# With at least 64 rows per section, at most one row in 64 is left over in an epoch.
MIN_DEFAULT_SECTION_ROWS = 64

_SHARD_KEY = 1
# The part of a key that separates its uses. mixture.py uses 3.
_WINDOW_KEY = 2


def count_rows(num_tokens: Int64Array, seq_len: int) -> Int64Array:
    """Return how many rows each shard has: `(n - 1) // seq_len`, and 0 for an empty shard.

    A row reads seq_len + 1 tokens, and consecutive rows share one token. See docs/data-format.md,
    "Order and rows".

    Args:
        num_tokens: (S,) int64, tokens of each shard.
        seq_len: tokens per row.
    """
    # The last token of a row is only a label, and is the first input of the next row.
    return np.maximum(num_tokens - 1, 0) // seq_len


def choose_interleave_depth(num_rows: int) -> int:
    """Return the largest power of two, up to 64, with at least 64 rows per section."""
    max_depth = max(1, num_rows // MIN_DEFAULT_SECTION_ROWS)
    power_of_two = 1 << (max_depth.bit_length() - 1)
    return min(MAX_DEFAULT_INTERLEAVE_DEPTH, power_of_two)


@dataclass(frozen=True, eq=False)
class EpochLayout:
    """The rows of one epoch's shards, laid end to end.

    shards:       (S,) int64, shard numbers in the order of this epoch
    row_starts:   (S + 1,) int64, rows before each of them; the last is the number of rows
    section_keys: (interleave_depth,) uint64, the part of the windows' keys that is the same in all
                  windows of a section
    """

    shards: Int64Array
    row_starts: Int64Array
    section_keys: UInt64Array

    def locate(self, layout_rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the shard of each row of the layout, (n,), and its row number in the shard, (n,)."""
        # side="right" skips empty shards, whose start equals the start of the next shard.
        slots = np.searchsorted(self.row_starts, layout_rows, side="right") - 1
        return self.shards[slots], layout_rows - self.row_starts[slots]


@dataclass(frozen=True, eq=False)
class RowOrder:
    """The order of one dataset's rows over all epochs.

    shard_rows:       (S,) int64, rows of each shard
    seed:             of the permutations
    interleave_depth: number of sections that are read in turn
    window_rows:      rows that are permuted among each other

    Raises:
        ValueError: a value is out of range, or there are fewer rows than sections.
    """

    shard_rows: Int64Array
    seed: int
    interleave_depth: int
    window_rows: int = DEFAULT_WINDOW_ROWS
    _layouts: dict[int, EpochLayout] = field(
        default_factory=dict[int, EpochLayout], init=False, repr=False
    )

    def __post_init__(self) -> None:
        for name, least in (("seed", 0), ("interleave_depth", 1), ("window_rows", 1)):
            value = getattr(self, name)
            if not least <= value < 2**63:
                raise ValueError(f"{name} is {value}, must be in {least}..2**63 - 1")
        if self.interleave_depth > self.num_rows:
            raise ValueError(
                f"interleave_depth is {self.interleave_depth}, but the dataset has {self.num_rows} "
                f"rows; set it to at most {self.num_rows}"
            )

    @property
    def num_rows(self) -> int:
        """Number of rows in the dataset."""
        return int(self.shard_rows.sum())

    @property
    def section_rows(self) -> int:
        """Number of rows in one section."""
        return self.num_rows // self.interleave_depth

    @property
    def epoch_rows(self) -> int:
        """Number of positions in one epoch. The other rows, if any, are left over."""
        return self.section_rows * self.interleave_depth

    def layout(self, epoch: int) -> EpochLayout:
        """Return the shards in the order of this epoch."""
        layout = self._layouts.get(epoch)
        if layout is None:
            layout = self._layouts[epoch] = self._make_layout(epoch)
            # Reading ahead alternates between two epochs at most: keep the two nearest ones.
            # Threads share the cache without a lock: a lost update only costs one more computation.
            by_distance = sorted(self._layouts, key=lambda other: abs(other - epoch))
            for old_epoch in by_distance[2:]:
                self._layouts.pop(old_epoch, None)
        return layout

    def locate(self, positions: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return the shard at each position, (n,), and the row number in the shard, (n,).

        Positions continue from epoch to epoch: epoch e starts at position `e * epoch_rows`.
        """
        # A batch is nearly always inside one epoch: then no masks are needed.
        epochs, in_epoch = np.divmod(positions, self.epoch_rows)
        first, last = (int(epochs.min()), int(epochs.max())) if len(epochs) else (0, 0)
        if first == last:
            return self.layout(first).locate(self._find_layout_rows(first, in_epoch))
        shards, rows = np.empty_like(positions), np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            chosen = epochs == epoch
            layout_rows = self._find_layout_rows(epoch, in_epoch[chosen])
            shards[chosen], rows[chosen] = self.layout(epoch).locate(layout_rows)
        return shards, rows

    def find_position(self, epoch: int, shard: int, row: int) -> int | None:
        """Return the position of a row in an epoch, or None if the row is left over there.

        It is the inverse of `locate`, in O(window_rows + S).
        """
        layout = self.layout(epoch)
        slot = int(np.flatnonzero(layout.shards == shard)[0])
        layout_row = int(layout.row_starts[slot]) + row
        if layout_row >= self.epoch_rows:
            return None
        # Rows move only within their window of their section: one of its places holds the row.
        section, in_section = divmod(layout_row, self.section_rows)
        first_place = in_section // self.window_rows * self.window_rows
        last_place = min(first_place + self.window_rows, self.section_rows)
        places = np.arange(first_place, last_place)
        positions = places * self.interleave_depth + section
        found = np.flatnonzero(self._find_layout_rows(epoch, positions) == layout_row)
        return epoch * self.epoch_rows + int(positions[found[0]])

    def locate_left_over(self, epoch: int) -> tuple[Int64Array, Int64Array]:
        """Return the shards and rows that have no position in this epoch."""
        return self.layout(epoch).locate(np.arange(self.epoch_rows, self.num_rows))

    def _make_layout(self, epoch: int) -> EpochLayout:
        num_shards = len(self.shard_rows)
        keys = derive_keys(self.seed, epoch, _SHARD_KEY)
        # Slot i of the epoch holds shard permute(i).
        shards = permute(np.arange(num_shards), num_shards, keys)
        row_starts = np.concatenate(
            [np.zeros(1, np.int64), np.cumsum(self.shard_rows[shards])]
        )
        sections = np.arange(self.interleave_depth)
        section_keys = derive_keys(self.seed, epoch, _WINDOW_KEY, sections)
        return EpochLayout(shards, row_starts, section_keys)

    def _find_layout_rows(self, epoch: int, positions: Int64Array) -> Int64Array:
        """Return the (n,) rows of the epoch's layout at (n,) positions of the epoch."""
        # Each (n,): place in the section, section; then window of the section, place in the window
        places, sections = np.divmod(positions, self.interleave_depth)
        windows, offsets = np.divmod(places, self.window_rows)
        # (n,) one key per position: windows are permuted independently of each other.
        keys = extend_keys(self.layout(epoch).section_keys[sections], windows)
        num_full_windows, last_window_rows = divmod(self.section_rows, self.window_rows)
        # Never true if window_rows divides section_rows.
        is_last = windows == num_full_windows
        if not is_last.any():
            shuffled = permute(offsets, self.window_rows, keys)
        else:
            # The last window of a section is shorter, so it is a permutation of fewer rows.
            shuffled = np.empty_like(offsets)
            for chosen, num in ((~is_last, self.window_rows), (is_last, last_window_rows)):
                shuffled[chosen] = permute(offsets[chosen], num, keys[chosen])
        return sections * self.section_rows + windows * self.window_rows + shuffled
