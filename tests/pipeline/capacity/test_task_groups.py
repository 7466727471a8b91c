"""Groups of tasks: large ones first, single tasks at the end of a phase."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.capacity.task_groups import (
    MAX_GROUP_S,
    MAX_GROUP_TASKS,
    SHARE_OF_REST,
    SMALLEST_SHARE,
    count_groups,
    divide,
)

SIZES = st.lists(st.integers(1, 1000), max_size=300)
NUM_SLOTS = st.integers(0, 100)


@given(SIZES, NUM_SLOTS, st.floats(0.0, 4000.0))
def test_a_group_leaves_enough_work_for_the_other_slots(
    sizes: list[int], num_slots: int, task_s: float
) -> None:
    """All tasks are in groups, in order. A group of several tasks is within each limit."""
    task_ids = [f"{number:06d}" for number in range(len(sizes))]
    groups = divide(task_ids, sizes, None, num_slots, task_s)
    assert list(itertools.chain(*groups)) == task_ids
    left = sum(sizes)
    for group in groups:
        size = sum(sizes[int(task_id)] for task_id in group)
        assert 1 <= len(group) <= MAX_GROUP_TASKS
        if len(group) > 1:
            limit = max(SHARE_OF_REST * left, SMALLEST_SHARE * sum(sizes))
            assert size * max(1, num_slots) <= limit
            assert size * task_s <= MAX_GROUP_S * sum(sizes) / len(sizes) * (1 + 1e-9)
        left -= size


@pytest.mark.parametrize(
    ("num_slots", "task_s", "fewest", "most"),
    [(2, 7.0, 900, 1000), (320, 7.0, 2560, 5120), (2000, 7.0, 17_000, 20_000)],
)
def test_a_snapshot_is_a_few_thousand_groups(
    num_slots: int, task_s: float, fewest: int, most: int
) -> None:
    """With 320 slots, each runs 8 to 16 groups, and the last group is 2 % of its work."""
    task_ids = [str(number) for number in range(90_000)]
    groups = divide(task_ids, [1.0] * 90_000, None, num_slots, task_s)
    assert fewest <= len(groups) <= most
    assert max(map(len, groups[-num_slots:])) <= max(1, 0.02 * 90_000 / num_slots)
    assert len(groups) == count_groups(None, 90_000, num_slots, task_s)


@pytest.mark.parametrize(
    ("task_s", "expected"), [(None, 1), (0.0, 100), (6.0, 100), (60.0, 30), (901.0, 1)]
)
def test_a_group_takes_half_an_hour_at_most(task_s: float | None, expected: int) -> None:
    """By the estimate. Tasks of unknown length are sent alone."""
    task_ids = [str(number) for number in range(1000)]
    assert len(divide(task_ids, [1.0] * 1000, None, 1, task_s)[0]) == expected
    assert len(divide(task_ids, [1.0] * 1000, 3, 1, task_s)[0]) == 3  # read together


def test_a_large_file_is_alone_in_its_group() -> None:
    """Tasks are counted by the size of their input."""
    groups = divide(list("abcdefgh"), [10.0, 10.0, *[1.0] * 6], None, 2, 0.1)
    assert groups[:2] == [["a"], ["b"]]


@given(SIZES.map(len), NUM_SLOTS, st.floats(0.01, 4000.0), st.none() | st.integers(1, 5))
def test_the_estimate_counts_the_same_groups(
    num_tasks: int, num_slots: int, task_s: float, group_tasks: int | None
) -> None:
    """If all tasks have the same size."""
    task_ids = [str(number) for number in range(num_tasks)]
    groups = divide(task_ids, [1.0] * num_tasks, group_tasks, num_slots, task_s)
    assert len(groups) == count_groups(group_tasks, num_tasks, num_slots, task_s)
