"""Divide the positions of a stream into steps and ranks, with equal row counts on all ranks.

A step takes the next `global_batch_rows` positions and divides them into equal parts: rank r of W
takes part r. The next step depends on two integers only, `position` and `carried_rows`, so a run
can continue on any number of ranks and with any global batch.

If W does not divide the batch, `uneven="carry"` takes the largest multiple of W that fits and
carries the rest to the next step. Example: 10 rows over 4 ranks.

    step                 0   1   2   3
    wanted (10 + carried) 10  12  10  12
    rows taken           8   12  8   12
    carried to the next  2   0   2   0

No position is read twice or skipped. Only at the end of a finite stream can fewer than W positions
be left without a step; `count_rows_left` reports them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal, NamedTuple

import numpy as np

from loader.order.permutation import Int64Array
from terminal_output import format_count

Uneven = Literal["refuse", "carry"]


class Step(NamedTuple):
    """The part of one step that one rank reads, and the state after the step.

    first_position: of this rank's rows
    rows_per_rank:  number of this rank's rows
    next_position:  position of the next step, over all ranks
    carried_rows:   rows that the next step takes in addition
    """

    first_position: int
    rows_per_rank: int
    next_position: int
    carried_rows: int

    @property
    def end(self) -> tuple[int, int]:
        """The position and the carried rows after the step."""
        return self.next_position, self.carried_rows

    @property
    def positions(self) -> Int64Array:
        """(rows_per_rank,) int64 positions of this rank's rows."""
        return np.arange(self.first_position, self.first_position + self.rows_per_rank)


def list_positions(steps: Sequence[Step]) -> Int64Array:
    """Return the (n,) int64 positions of the rows of several steps on this rank, in order."""
    firsts = np.array([step.first_position for step in steps], np.int64)
    counts = np.array([step.rows_per_rank for step in steps], np.int64)
    rows_before = np.cumsum(counts) - counts
    return np.repeat(firsts - rows_before, counts) + np.arange(counts.sum())


@dataclass(frozen=True)
class RankBatches:
    """Computes the steps of one rank.

    global_batch_rows: rows of one step, over all ranks
    rank, world_size:  this rank and the number of ranks
    uneven:            "refuse" or "carry" rows if `world_size` does not divide the batch
    end:               position after the last row of the stream, or None for an endless stream
    drop_last:         skip the last step if it is smaller than the others

    Raises:
        ValueError: the values do not fit each other.
    """

    global_batch_rows: int
    rank: int
    world_size: int
    uneven: Uneven = "refuse"
    end: int | None = None
    drop_last: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank is {self.rank}, must be in 0..{self.world_size - 1}, because "
                f"world_size is {self.world_size}"
            )
        if self.uneven not in ("refuse", "carry"):
            raise ValueError(f"uneven is {self.uneven!r}, must be 'refuse' or 'carry'")
        if self.global_batch_rows < self.world_size:
            raise ValueError(
                f"global_batch_rows is {self.global_batch_rows} for "
                f"{format_count(self.world_size, 'rank')}, but "
                f"each rank needs a row in each step; set it to at least {self.world_size}"
            )
        if self.uneven == "refuse":
            self._check_divisible()
        if self.end is not None and self.end < self.world_size:
            raise ValueError(
                f"the stream has {format_count(self.end, 'row')} for {self.world_size} ranks; "
                f"use at most {format_count(self.end, 'rank')}, a smaller seq_len or more epochs"
            )

    def _check_divisible(self) -> None:
        remainder = self.global_batch_rows % self.world_size
        if remainder:
            below = self.global_batch_rows - remainder
            above = below + self.world_size
            raise ValueError(
                f"global_batch_rows is {self.global_batch_rows}, which is not divisible by "
                f"{self.world_size} ranks; set it to {below} or {above}, or set uneven='carry' "
                f"to let the size of steps differ by {self.world_size} rows"
            )

    def make_step(self, position: int, carried_rows: int = 0) -> Step | None:
        """Return the step that starts at `position`, or None at the end of the stream."""
        wanted_rows = self.global_batch_rows + carried_rows
        # An endless stream always has enough rows.
        rows_left = wanted_rows if self.end is None else max(0, self.end - position)
        is_last = rows_left < wanted_rows
        if is_last and self.drop_last:
            return None
        # Rounding down keeps the ranks equal; the remainder is carried, or left at the end.
        rows_per_rank = min(wanted_rows, rows_left) // self.world_size
        if rows_per_rank == 0:
            return None
        step_rows = rows_per_rank * self.world_size
        return Step(
            # Rank r takes the r-th contiguous part, so all ranks together read the step in order.
            first_position=position + self.rank * rows_per_rank,
            rows_per_rank=rows_per_rank,
            next_position=position + step_rows,
            carried_rows=0 if is_last else wanted_rows - step_rows,
        )

    def iterate(self, position: int, carried_rows: int = 0) -> Iterator[Step]:
        """Yield the steps from `position` to the end of the stream."""
        while step := self.make_step(position, carried_rows):
            yield step
            position, carried_rows = step.end

    def make_steps(self, position: int, carried_rows: int, num_steps: int) -> list[Step]:
        """Return the next steps, at most `num_steps`; fewer at the end of the stream.

        They are those of repeated calls of `make_step`, in a tenth of the time.
        """
        # (num_steps + 1,) rows that were wanted, and taken, before each step and after the last
        wanted = carried_rows + np.arange(num_steps + 1) * self.global_batch_rows
        taken = wanted // self.world_size * self.world_size
        taken[0] = 0
        num_full = num_steps
        if self.end is not None:
            # Of wanted rows, those that were not taken were carried: the sums are equal.
            num_full = int(np.searchsorted(wanted[1:], self.end - position, side="right"))
        positions = position + taken
        rows_per_rank = np.diff(taken) // self.world_size
        columns = (
            positions[:-1] + self.rank * rows_per_rank,
            rows_per_rank,
            positions[1:],
            (wanted - taken)[1:],
        )
        rows = zip(*(column[:num_full].tolist() for column in columns), strict=True)
        steps = [Step(*row) for row in rows]
        if num_full < num_steps:
            at = steps[-1].end if steps else (position, carried_rows)
            steps += islice(self.iterate(*at), 1)
        return steps

    def count_rows_left(self, position: int) -> int:
        """Return the number of rows from `position` to the end of the stream.

        After `make_step` has returned None, these rows are in no step.
        """
        return 0 if self.end is None else max(0, self.end - position)
