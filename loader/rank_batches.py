"""Which positions each rank takes in each step, for any number of ranks, with equal counts on all of them.

Promises: a step takes the next `global_batch_rows` positions, rank r of W the r-th of W equal parts of them; what comes
next follows from two integers (position, carried_rows), so any number of ranks and any batch can go on from there. No
position is taken twice, none is passed over but for fewer than W at the very end of a stream, which `rows_left` names.
Leaves to others: what row is at a position (`order`).

Where W does not divide the batch, `uneven="carry"` deals `W * ((global_batch_rows + carried_rows) // W)` rows and
carries what is left to the next step: 10 rows over 4 ranks are steps of 8, 12, 8, 12, ... rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from loader.order import Ints

Uneven = Literal["refuse", "carry"]


class Step(NamedTuple):
    """One step on one rank: it takes `rows_per_rank` positions from `first` on; then comes (position, carried_rows)."""

    first: int
    rows_per_rank: int
    position: int
    carried_rows: int

    @property
    def positions(self) -> Ints:
        """(rows_per_rank,) int64."""
        return np.arange(self.first, self.first + self.rows_per_rank)


@dataclass(frozen=True)
class Deal:
    """How positions are dealt out. `end` is where the stream ends, or None; ValueError where ranks do not fit."""

    global_batch_rows: int
    rank: int
    world_size: int
    uneven: Uneven = "refuse"
    end: int | None = None
    drop_last: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank is {self.rank}, must lie in 0..{self.world_size - 1} for {self.world_size} ranks"
            )
        if self.uneven not in ("refuse", "carry"):
            raise ValueError(f"uneven is {self.uneven!r}, must be 'refuse' or 'carry'")
        if self.global_batch_rows < self.world_size:
            found = f"global_batch_rows is {self.global_batch_rows} for {self.world_size} ranks"
            raise ValueError(
                f"{found}; each rank needs a row in each step: give at least {self.world_size}"
            )
        if self.uneven == "refuse" and (rest := self.global_batch_rows % self.world_size):
            below, above = (
                self.global_batch_rows - rest,
                self.global_batch_rows - rest + self.world_size,
            )
            raise ValueError(
                f"global_batch_rows is {self.global_batch_rows}, which {self.world_size} ranks cannot share equally; "
                f"give {below} or {above}, or uneven='carry' to let steps differ by {self.world_size} rows"
            )
        if self.end is not None and self.end < self.world_size:
            found = f"{self.end} rows in the whole stream for {self.world_size} ranks"
            raise ValueError(
                f"{found}; give at most {self.end} ranks, a smaller seq_len or more epochs"
            )

    def step(self, position: int, carried_rows: int = 0) -> Step | None:
        """The step that comes at `position`, or None at the end of the stream."""
        wanted = self.global_batch_rows + carried_rows
        left = wanted if self.end is None else max(0, self.end - position)
        if left < wanted and self.drop_last:
            return None
        rows_per_rank = min(wanted, left) // self.world_size
        if rows_per_rank == 0:
            return None
        dealt = rows_per_rank * self.world_size
        carried = 0 if left < wanted else wanted - dealt
        return Step(position + self.rank * rows_per_rank, rows_per_rank, position + dealt, carried)

    def rows_left(self, position: int) -> int:
        """Rows from here to the end that no step will take, once `step` has said None."""
        return 0 if self.end is None else max(0, self.end - position)
