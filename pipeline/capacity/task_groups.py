"""Dividing the tasks of a phase into groups, each of which one process runs, one task after another.

Only tasks that read their input together are one group; every other task is alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.phases.phase import Phase


def divide_tasks(phase: Phase, task_ids: Sequence[str], num_slots: int) -> list[list[str]]:
    """Divide tasks into groups that one process runs, in order.

    Args:
        phase: the phase.
        task_ids: the tasks that are left.
        num_slots: tasks that can run at the same time.
    """
    num_splits = len(phase.plan.splits)
    size = phase.count_group_tasks(phase.config, num_splits, len(task_ids), num_slots) or 1
    return [list(task_ids[i : i + size]) for i in range(0, len(task_ids), size)]
