"""Only tasks that read their input together are run as one group."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.capacity.task_groups import divide_tasks
from pipeline.phases.extract import Extract
from pipeline.phases.write_shards import WriteShards
from tests.pipeline.conftest import Small

TASK_IDS = [f"{number:06d}" for number in range(100)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(num_tasks=st.integers(0, 100), num_slots=st.integers(0, 200))
def test_all_tasks_are_in_groups_in_order(
    small: Small, num_tasks: int, num_slots: int
) -> None:
    """Only the last group may be smaller."""
    phase = WriteShards(small.plan(write_shards={"shard_tokens": 16_000_000}))
    groups = divide_tasks(phase, TASK_IDS[:num_tasks], num_slots)
    assert list(itertools.chain(*groups)) == TASK_IDS[:num_tasks]
    assert len({len(group) for group in groups[:-1]}) <= 1


@pytest.mark.parametrize(("phase", "size"), [(Extract, 1), (WriteShards, 10)])
def test_only_tasks_that_read_together_share_a_group(
    small: Small, phase: type[Extract | WriteShards], size: int
) -> None:
    """A process that dies with any other task loses only this task."""
    plan = small.plan(write_shards={"shard_tokens": 16_000_000})
    groups = divide_tasks(phase(plan), TASK_IDS, num_slots=2)
    assert {len(group) for group in groups} == {size}
