"""The engine interface, and the engine that runs all tasks in this process."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Self

from pipeline.capacity.task_groups import divide_tasks
from pipeline.config import EngineConfig
from pipeline.execution.task import OnDocuments, TaskResult, run_task
from pipeline.execution.task_stats import worker_name
from pipeline.phases.phase import PartitionPhase, Phase


class Engine(ABC):
    """Runs the tasks of a phase. It is a context manager that releases what it has started.

    Attributes:
        config: the engine's section of the config.
        on_documents: called as tasks go on; see `run_task`.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.on_documents: OnDocuments | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Release what was started."""

    def start(self) -> None:
        """Start what tasks need. `run_tasks` does it when there is a task."""

    @abstractmethod
    def run_tasks(self, phase: Phase, task_ids: Sequence[str]) -> Iterator[TaskResult]:
        """Run tasks in any order, and yield each result when the task ends."""


class InlineEngine(Engine):
    """Runs one task after another in this process. Tests compare Ray's outputs with its outputs."""

    def run_tasks(self, phase: Phase, task_ids: Sequence[str]) -> Iterator[TaskResult]:
        """Run the tasks in their order."""
        for group in divide_tasks(phase, task_ids, num_slots=1):
            yield from run_group(phase, group, self.config, self.on_documents)


def run_group(
    phase: Phase,
    task_ids: Sequence[str],
    settings: EngineConfig,
    on_documents: OnDocuments | None = None,
) -> Iterator[TaskResult]:
    """Run tasks one after another, and yield each result.

    If the process dies, the group is repeated without the tasks that were done. Their times are lost.
    """
    done = [task_id for task_id in task_ids if phase.folder.is_done(task_id)]
    for task_id in done:  # by a process that died afterwards
        yield TaskResult(task_id, worker=worker_name())
    left = [task_id for task_id in task_ids if task_id not in done]
    if not isinstance(phase, PartitionPhase):
        for task_id in left:
            yield run_task(phase, task_id, settings, on_documents)
        return
    while left:
        with contextlib.closing(phase.run_each(tuple(left))) as runs:
            failed: TaskResult | None = None
            while left and failed is None:
                result = run_task(phase, left.pop(0), settings, runs=runs)
                failed = result if result.failed else None
                yield result
        if failed is not None and failed.damage is not None:
            # The others would read the same file.
            yield from (replace(failed, task_id=task_id) for task_id in left)
            return
