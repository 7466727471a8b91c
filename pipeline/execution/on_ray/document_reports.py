"""The documents that running Ray tasks have read so far, for the progress on the terminal.

Tasks report to an actor, and the driver asks it from time to time. Neither waits for an answer.
A lost message only makes the progress less smooth.

    reports = DocumentReports()
    report = reports.make_reporter()    # in a task: report("a1b2", 120.0)
    reports.take()                      # in the driver: {"a1b2": 120.0}, or {}
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

# The process of the actor imports this file: nothing that is slow.
if TYPE_CHECKING:
    from pipeline.execution.task import OnDocuments

# Between two reports of a task.
REPORT_PAUSE_S = 0.5


class _Latest:
    """The actor: the latest number of each task that has reported since it was asked."""

    def __init__(self) -> None:
        self._numbers: dict[str, float] = {}

    def report(self, task_id: str, number: float) -> None:
        self._numbers[task_id] = number

    def take(self) -> dict[str, float]:
        numbers, self._numbers = self._numbers, {}
        return numbers


class DocumentReports:
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

    def make_reporter(self) -> OnDocuments:
        """Return the function that a task calls with its id and its documents so far."""
        actor, next_report_s = self._actor, 0.0

        def report(task_id: str, number: float) -> None:
            nonlocal next_report_s
            if time.monotonic() >= next_report_s:
                next_report_s = time.monotonic() + REPORT_PAUSE_S
                actor.report.remote(task_id, number)

        return report

    def take(self) -> Mapping[str, float]:
        """Return the reports since the last answer, or nothing if no new answer has arrived."""
        import ray
        from ray.exceptions import RayError

        answered, _ = ray.wait([self._answer], timeout=0)
        if not answered:
            return {}
        answer, self._answer = self._answer, self._actor.take.remote()
        try:
            return ray.get(answer)
        except RayError:  # the actor was restarted on another machine
            return {}
