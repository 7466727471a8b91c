"""What running Ray tasks tell the driver before they end: documents read so far, and tasks that are done.

A Ray task may run a group of tasks for many minutes, and Ray returns their results when the last
one is done. So tasks report to an actor, and the driver asks it from time to time. Neither waits
for an answer. A lost message only makes the progress less smooth: Ray returns each result anyway.

    reports = TaskReports()
    reporter = reports.make_reporter("annotate")    # in a Ray task
    reporter.report_documents("a1b2", 120.0)
    reporter.report_result(result)
    reports.take("annotate")                        # in the driver

Phases have tasks of the same ids, and a message may arrive when its phase has ended: so each names
its phase.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

# The process of the actor imports this file: nothing that is slow.
if TYPE_CHECKING:
    from pipeline.execution.task import TaskResult

# Between two reports of documents.
REPORT_PAUSE_S = 0.5

# Documents by phase and task, and phases with the JSON texts of results.
Reports = tuple[Mapping[tuple[str, str], float], Sequence[tuple[str, str]]]


class _Latest:
    """The actor: what was reported since it was asked. Of documents, the latest number per task."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, str], float] = {}
        self._results: list[tuple[str, str]] = []

    def report_documents(self, phase: str, task_id: str, number: float) -> None:
        self._numbers[phase, task_id] = number

    def report_result(self, phase: str, result: str) -> None:
        self._results.append((phase, result))

    def take(self) -> Reports:
        found = self._numbers, self._results
        self._numbers, self._results = {}, []
        return found


class TaskReporter:
    """Reports to the actor from within a Ray task of a phase."""

    def __init__(self, actor: Any, phase: str) -> None:
        self._actor = actor
        self._phase = phase
        self._next_report_s = 0.0

    def report_documents(self, task_id: str, number: float) -> None:
        """Report the documents that a task has processed so far."""
        if time.monotonic() >= self._next_report_s:
            self._next_report_s = time.monotonic() + REPORT_PAUSE_S
            self._actor.report_documents.remote(self._phase, task_id, number)

    def report_result(self, result: TaskResult) -> None:
        """Report a task that is done. A failed one may be repeated with its group, so it is not reported."""
        if result.failed is None:
            self._actor.report_result.remote(self._phase, result.to_json())


class TaskReports:
    """The actor of a run, and the answer that the driver has asked it for."""

    def __init__(self) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # On the driver's machine: the actor must not keep an idle machine of the cluster running.
        beside_driver = NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=True
        )
        actor: Any = ray.remote(_Latest)
        self._actor = actor.options(
            num_cpus=0, max_restarts=-1, scheduling_strategy=beside_driver
        ).remote()
        self._answer = self._actor.take.remote()

    def make_reporter(self, phase: str) -> TaskReporter:
        """Return what a Ray task of a phase reports with."""
        return TaskReporter(self._actor, phase)

    def take(self, phase: str) -> tuple[Mapping[str, float], Sequence[str]]:
        """Return documents by task, and results, that tasks of a phase reported since the last answer.

        Both are empty if no new answer has arrived.
        """
        import ray
        from ray.exceptions import RayError

        answered, _ = ray.wait([self._answer], timeout=0)
        if not answered:
            return {}, []
        answer, self._answer = self._answer, self._actor.take.remote()
        try:
            reports: Reports = ray.get(answer)
        except RayError:  # the actor was restarted on another machine
            return {}, []
        numbers, results = reports
        return (
            {
                task_id: number
                for (name, task_id), number in numbers.items()
                if name == phase
            },
            [result for name, result in results if name == phase],
        )
