"""Dividing the tasks of a phase into groups, each of which one process runs, one task after another.

Each Ray task takes milliseconds of the driver, so a snapshot of 90,000 files is handed out in
groups. Groups become smaller as a phase goes on, so that all cores end at about the same time
("guided self-scheduling", Polychronopoulos and Kuck 1987).
"""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.phases.phase import Phase

# A group has at most this share of the work that is left for its slot, but never less than the
# other share of all work for its slot: the cores end within about 2 % of the phase's time.
SHARE_OF_REST = 1 / 2
SMALLEST_SHARE = 1 / 64

# Estimated CPU time of a group, at most: a machine that joins the cluster finds work left. Only
# the running task is lost with a process, so groups may be long.
MAX_GROUP_S = 1800.0
MAX_GROUP_TASKS = 100


def divide_tasks(
    phase: Phase, task_ids: Sequence[str], num_slots: int, task_s: float | None = None
) -> list[list[str]]:
    """Divide tasks into groups that one process runs, in order.

    Args:
        phase: the phase.
        task_ids: the tasks that are left.
        num_slots: tasks that can run at the same time. There are enough groups for all of them.
        task_s: the estimated CPU seconds of a task; None: unknown, or dispatch costs nothing. Then
            only tasks that read their input together are a group.
    """
    group_tasks = phase.count_group_tasks(
        phase.config, len(phase.plan.splits), len(task_ids), num_slots
    )
    sizes = [phase.measure_task(task_id) for task_id in task_ids]
    return divide(task_ids, sizes, group_tasks, num_slots, task_s)


def divide(
    task_ids: Sequence[str],
    sizes: Sequence[float],
    group_tasks: int | None,
    num_slots: int,
    task_s: float | None,
) -> list[list[str]]:
    """Divide tasks by their sizes, or into groups of `group_tasks`; see `divide_tasks`."""
    if group_tasks is not None or task_s is None:
        return cut(task_ids, group_tasks or 1)
    mean = sum(sizes) / max(1, len(sizes))
    max_size = mean * MAX_GROUP_S / max(task_s, 1e-9)
    groups: list[list[str]] = []
    first = 0
    for count in count_guided(sizes, num_slots, max_size):
        groups.append(list(task_ids[first : first + count]))
        first += count
    return groups


def count_guided(sizes: Sequence[float], num_slots: int, max_size: float) -> list[int]:
    """Return the number of consecutive tasks in each group.

    Args:
        sizes: the sizes of the tasks, in order.
        num_slots: tasks that run at the same time.
        max_size: of a group with more than one task.
    """
    counts: list[int] = []
    left = sum(sizes)
    smallest = SMALLEST_SHARE * left / max(1, num_slots)
    first = 0
    while first < len(sizes):
        limit = max(smallest, SHARE_OF_REST * left / max(1, num_slots))
        limit = min(limit, max_size)
        end, size = first + 1, sizes[first]
        while end < min(len(sizes), first + MAX_GROUP_TASKS) and size + sizes[end] <= limit:
            size += sizes[end]
            end += 1
        counts.append(end - first)
        left -= size
        first = end
    return counts


def count_groups(
    group_tasks: int | None, num_tasks: int, num_slots: int, task_s: float | None
) -> int:
    """Return the number of groups of `divide`, if all tasks have the same size."""
    if group_tasks is not None or task_s is None:
        return -(-num_tasks // (group_tasks or 1))
    max_tasks = int(min(MAX_GROUP_TASKS, MAX_GROUP_S / max(task_s, 1e-9)))
    smallest = SMALLEST_SHARE * num_tasks / max(1, num_slots)
    num_groups, left = 0, num_tasks
    while left > 0:
        limit = max(smallest, SHARE_OF_REST * left / max(1, num_slots))
        left -= max(1, min(max_tasks, int(limit)))
        num_groups += 1
    return num_groups


def cut(task_ids: Sequence[str], size: int) -> list[list[str]]:
    """Return parts of that many tasks, in order."""
    return [list(task_ids[i : i + size]) for i in range(0, len(task_ids), size)]
