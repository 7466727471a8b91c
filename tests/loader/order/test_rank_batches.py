"""Steps of a rank: positions, sizes and carried rows."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from loader.order.rank_batches import RankBatches, Step


def steps(
    rank_batches: RankBatches, at: tuple[int, int] = (0, 0), num: int | None = None
) -> list[Step]:
    """Return the next `num` steps, or all."""
    found: list[Step] = []
    while (num is None or len(found) < num) and (step := rank_batches.make_step(*at)):
        found.append(step)
        at = step.next_position, step.carried_rows
    return found


@given(
    batch=st.integers(1, 40),
    world_size=st.integers(1, 9),
    end=st.integers(1, 300),
    drop_last=st.booleans(),
)
def test_ranks_read_each_position_once_and_equally_many(
    batch: int, world_size: int, end: int, drop_last: bool
) -> None:
    """All positions are read, except those that `count_rows_left` counts."""
    if world_size > min(batch, end):
        return
    ranks = [
        RankBatches(batch, rank, world_size, "carry", end, drop_last)
        for rank in range(world_size)
    ]
    by_rank = [steps(rank_batches) for rank_batches in ranks]
    assert len({len(found) for found in by_rank}) == 1
    taken: list[int] = []
    for together in zip(*by_rank, strict=True):
        assert (
            len(
                {
                    (step.rows_per_rank, step.next_position, step.carried_rows)
                    for step in together
                }
            )
            == 1
        )
        taken += [position for step in together for position in step.positions.tolist()]
    assert taken == list(range(len(taken)))
    left = ranks[0].count_rows_left(len(taken))
    assert left == end - len(taken)
    assert left < (batch + world_size if drop_last else world_size)


@given(
    batch=st.integers(1, 40),
    ranks=st.tuples(st.integers(1, 9), st.integers(0, 8)),
    at=st.tuples(st.integers(0, 320), st.integers(0, 60)),
    end=st.none() | st.integers(9, 300),
    drop_last=st.booleans(),
    num_steps=st.integers(1, 50),
)
def test_several_steps_are_those_of_single_calls(
    batch: int,
    ranks: tuple[int, int],
    at: tuple[int, int],
    end: int | None,
    drop_last: bool,
    num_steps: int,
) -> None:
    """From any state, also one with more carried rows than this number of ranks leaves."""
    world_size, rank = ranks
    assume(rank < world_size <= batch)
    rank_batches = RankBatches(batch, rank, world_size, "carry", end, drop_last)
    found = rank_batches.make_steps(*at, num_steps)
    assert found == steps(rank_batches, at, num_steps)
    assert all(type(value) is int for step in found for value in step)


@given(batch=st.integers(1, 50), world_size=st.integers(1, 12), num=st.integers(1, 60))
def test_carried_rows_keep_the_mean_batch_size(
    batch: int, world_size: int, num: int
) -> None:
    """Fewer than world_size rows are carried; none if the ranks divide the batch."""
    assume(world_size <= batch)
    last = steps(RankBatches(batch, 0, world_size, "carry"), num=num)[-1]
    assert last.next_position + last.carried_rows == num * batch
    assert last.carried_rows < world_size
    assert batch % world_size or last.carried_rows == 0


@given(
    batches=st.tuples(st.integers(1, 30), st.integers(1, 30)),
    worlds=st.tuples(st.integers(1, 8), st.integers(1, 8)),
    kill_after=st.integers(0, 20),
    end=st.integers(30, 400),
)
def test_another_number_of_ranks_continues_at_the_same_position(
    batches: tuple[int, int], worlds: tuple[int, int], kill_after: int, end: int
) -> None:
    """After a stop at any step, other ranks with another batch read each later position once."""
    assume(worlds[0] <= batches[0] and worlds[1] <= batches[1])
    before = [
        steps(RankBatches(batches[0], rank, worlds[0], "carry", end), num=kill_after)
        for rank in range(worlds[0])
    ]
    last = before[0][-1] if before[0] else Step(0, 0, 0, 0)
    at = last.next_position, last.carried_rows
    after = [
        steps(RankBatches(batches[1], rank, worlds[1], "carry", end), at)
        for rank in range(worlds[1])
    ]
    taken = sorted(
        p for found in (*before, *after) for step in found for p in step.positions.tolist()
    )
    assert taken == list(range(len(taken)))
    assert end - len(taken) < max(worlds)


def test_the_example_of_the_docstring() -> None:
    """10 rows over 4 ranks are steps of 8 and 12 rows."""
    assert [
        4 * step.rows_per_rank for step in steps(RankBatches(10, 0, 4, "carry"), num=4)
    ] == [
        8,
        12,
        8,
        12,
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (10, 0, 4),
            r"10, which is not divisible by 4 ranks; set it to 8 or 12, or set uneven='carry'",
        ),
        ((3, 0, 4), r"global_batch_rows is 3 for 4 ranks, .* set it to at least 4"),
        ((8, 4, 4), r"rank is 4, must be in 0\.\.3"),
        ((8, 0, 4, "refuse", 3), r"the stream has 3 rows for 4 ranks; use at most 3 ranks"),
        ((8, 0, 4, "share"), r"uneven is 'share', must be"),
    ],
)
def test_batches_that_do_not_fit_the_ranks_are_refused(
    arguments: tuple[int, ...], message: str
) -> None:
    """The error names sizes that fit."""
    with pytest.raises(ValueError, match=message):
        RankBatches(*arguments)
