"""Mapping a dataset of groups of tasks to what they report, with one Ray task of Ray Data that dispatches them.

It sends each group as a plain Ray task. Ray Data's executor takes 10 ms or more to start one of its
Ray tasks, one after another; a plain one takes 1 ms. It also says whether the process died that ran
a group, or its machine was lost.

The process that dispatches loads no stages. So this module imports nothing that is slow, and the
function that runs the tasks stays in the object store until a worker calls it.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

# Runs a group of tasks, and yields what they report. The number says how often processes that ran
# the only task of the group have died.
RunGroup = Callable[[Sequence[str], int], Iterator[str]]

# Ray tasks at a time, running or waiting. Ray's autoscaler starts machines for the waiting ones.
MAX_RAY_TASKS = 10_000

# Between two lists of reports. Each takes 3 ms of the driver.
PAUSE_S = 0.1


def map_groups(
    name: str,
    groups: Sequence[Sequence[str]],
    run_group: RunGroup,
    options: Mapping[str, Any],
) -> Iterator[list[str]]:
    """Run each group of tasks as one Ray task, and yield lists of what they report.

    Args:
        name: of the operator and the Ray tasks, in Ray's metrics and dashboard.
        groups: task ids that one process runs, in order.
        run_group: runs a group.
        options: arguments of `ray.remote`, such as the resources.

    Raises:
        Exception: from `run_group`, or because Ray failed otherwise than by the loss of a process
            or a machine.
    """
    import ray.data

    stored = ray.put(run_group)
    # Ray Data spreads its own Ray tasks, too.
    options = {**options, "name": name, "scheduling_strategy": "SPREAD"}

    def run_groups(batch: Any) -> Iterator[dict[str, list[list[str]]]]:
        for reports in dispatch(batch.column("task_ids").to_pylist(), stored, options):
            yield {"reports": [reports]}

    run_groups.__name__ = run_groups.__qualname__ = name
    rows = [{"task_ids": group} for group in groups]
    dataset = ray.data.from_items(rows, override_num_blocks=1)
    dataset.context.target_max_block_size = 1  # of bytes: each row is passed on at once
    mapped = dataset.map_batches(
        run_groups,
        batch_size=None,
        batch_format="pyarrow",
        num_cpus=0,
        # Beside the driver: it is lost with the driver only.
        label_selector={"ray.io/node-id": ray.get_runtime_context().get_node_id()},
    )
    # Reports are small. Reading ahead takes three more threads.
    batches: Any = mapped.iter_batches(
        batch_size=None, batch_format="pyarrow", prefetch_batches=0
    )
    for batch in batches:
        yield from batch.column("reports").to_pylist()


def dispatch(
    groups: Sequence[Sequence[str]], run_group: Any, options: Mapping[str, Any]
) -> Iterator[list[str]]:
    """Do what `map_groups` does, with a reference to the function in the object store."""
    reports: list[str] = []
    with asyncio.Runner() as runner:
        loop = runner.get_loop()
        running = loop.create_task(_Dispatcher(run_group, options, reports).run(groups))
        while not running.done():
            loop.run_until_complete(asyncio.wait([running], timeout=PAUSE_S))
            if reports:
                yield reports.copy()
                reports.clear()
        running.result()


class _Dispatcher:
    """Runs groups of tasks, and repeats those whose process or machine was lost."""

    def __init__(
        self, run_group: Any, options: Mapping[str, Any], reports: list[str]
    ) -> None:
        import ray

        # Ray must not repeat a Ray task itself: it would not say what was lost.
        decorate: Any = ray.remote(**options, num_returns="streaming", max_retries=0)
        self._ray_task = decorate(_run_in_worker)
        self._run_group = run_group
        self._reports = reports

    async def run(self, groups: Sequence[Sequence[str]]) -> None:
        """Run all groups, at most MAX_RAY_TASKS at a time."""
        waiting = deque(groups)

        async def run_next() -> None:
            while waiting:
                await self._run(waiting.popleft())

        num_at_a_time = min(len(groups), MAX_RAY_TASKS)
        await asyncio.gather(*(run_next() for _ in range(num_at_a_time)))

    async def _run(self, group: Sequence[str], num_deaths: int = 0) -> None:
        """Run a group until its Ray task ends. Tasks that are done are not repeated."""
        from ray.exceptions import NodeDiedError, OutOfMemoryError, WorkerCrashedError

        try:
            async for report in self._ray_task.remote([self._run_group], group, num_deaths):
                self._reports.append(await report)
        except NodeDiedError:
            await self._run(group, num_deaths)
        except (WorkerCrashedError, OutOfMemoryError):
            if len(group) == 1:
                await self._run(group, num_deaths + 1)
            else:  # alone, so that the next death counts for the task that causes it
                await asyncio.gather(*(self._run([task_id]) for task_id in group))


def _run_in_worker(
    run_group: Sequence[Any], group: Sequence[str], num_deaths: int
) -> Iterator[str]:
    """Run a group. The reference is in a sequence, because Ray loads other arguments for each call."""
    # Ray sends values into this generator. `yield from` would pass them on to a list.
    for report in _load(run_group[0])(group, num_deaths):  # noqa: UP028
        yield report


@functools.lru_cache(maxsize=1)
def _load(run_group: Any) -> RunGroup:
    """Return what a reference refers to. A process loads the plan of a phase once."""
    import ray

    return ray.get(run_group)
