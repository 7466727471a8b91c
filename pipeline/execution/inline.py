"""The engine interface, and the engine that runs all tasks in this process."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Self

from pipeline.capacity.task_groups import cut, divide_tasks
from pipeline.config import EngineConfig
from pipeline.execution.task import OnDocuments, TaskResult, run_task
from pipeline.execution.task_stats import worker_name
from pipeline.phases.phase import Phase


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
    for part in cut(task_ids, phase.count_tasks_per_read(phase.config)):
        with phase.reading_together(part):
            for task_id in part:
                if phase.folder.is_done(task_id):  # by a process that died afterwards
                    yield TaskResult(task_id, worker=worker_name())
                else:
                    yield run_task(phase, task_id, settings, on_documents)
