"""Tasks whose process, dispatcher or machine is lost on Ray: what is repeated, and what it counts for."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.execution.on_ray.dispatch import dispatch
from pipeline.execution.on_ray.engine import RayEngine
from pipeline.execution.on_ray.worker import report_group
from pipeline.execution.task import TaskResult
from pipeline.phases.extract import Extract
from pipeline.phases.phase import PartitionPhase
from pipeline.processes import list_descendants
from storage.local import read_umask
from tests.connected_engine import ConnectedEngine
from tests.pipeline.conftest import Small
from tests.shared_ray import SharedRay

DEADLINE_S = 120
TASK_IDS = ["first", "second", "third", "fourth", "fifth"]
OPEN = "open"


class Noted(PartitionPhase):
    """Tasks that note the machine of each attempt, in the phase folder of `extract`."""

    name = "extract"
    version = 0

    def task_ids(self) -> list[str]:
        """Return five ids."""
        return TASK_IDS

    def run(self, task_id: str) -> None:
        """Note the attempt, do what the subclass does, and commit."""
        import ray

        with self.find_file(task_id).open("a") as file:
            file.write(f"{ray.get_runtime_context().get_node_id()}\n")
        with self.folder.commit(task_id) as output:
            self.work(task_id)
            output.path(f"{task_id}.txt").write_text(task_id)

    def work(self, task_id: str) -> None:
        """Do nothing."""

    def find_file(self, name: str) -> Path:
        """Return a file that the driver and the tasks share."""
        return Path(self.folder.path(f"noted-{name}"))

    def list_machines(self, task_id: str) -> list[str]:
        """Return the machine of each attempt at a task."""
        file = self.find_file(task_id)
        return file.read_text().splitlines() if file.exists() else []

    def count_attempts(self) -> list[int]:
        """Return the attempts of each task."""
        return [len(self.list_machines(each)) for each in self.task_ids()]


class Dying(Noted):
    """The second task kills its process at its first attempt."""

    def work(self, task_id: str) -> None:
        """Kill the process."""
        if task_id == "second" and len(self.list_machines(task_id)) == 1:
            os.kill(os.getpid(), signal.SIGKILL)


class Waiting(Noted):
    """All tasks but the first wait for a file."""

    def work(self, task_id: str) -> None:
        """Wait."""
        while task_id != "first" and not self.find_file(OPEN).exists():
            time.sleep(0.01)


class Endless(Extract):
    """After its documents, a task waits for a file."""

    @property
    def gate(self) -> Path:
        """The file."""
        return Path(self.folder.path("gate"))

    def read(self, task_id: str, writer: Any) -> Generator[pa.Table]:
        """Yield the documents, and wait."""
        yield from super().read(task_id, writer)
        while not self.gate.exists():
            time.sleep(0.05)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def collect(
    engine: RayEngine, phase: Noted, then: Callable[[], object]
) -> list[TaskResult]:
    """Run all tasks; after the first result, call a function in a thread."""
    results: Iterator[TaskResult] = engine.run_tasks(phase, TASK_IDS)
    first = next(results)
    thread = threading.Thread(target=then)
    thread.start()
    found = [first, *results]
    thread.join()
    assert sorted(result.task_id for result in found) == sorted(TASK_IDS)
    assert [result.failed for result in found] == [None] * len(TASK_IDS)
    assert phase.folder.list_done() == set(TASK_IDS)
    for task_id in TASK_IDS:
        assert Path(phase.folder.path(f"{task_id}.txt")).read_text() == task_id
    return found


@pytest.mark.ray
def test_a_killed_group_repeats_only_tasks_that_were_not_done(
    small: Small, ray_engine: ConnectedEngine
) -> None:
    """They are repeated alone, so no death counts for a task that did not cause it."""
    import ray

    phase = Dying(small.plan(engine={"kind": "ray"}))
    phase.folder.begin()
    engine = ray_engine.use(phase.plan)
    run_group = partial(report_group, phase, engine.config, read_umask(), 0.5)
    lists = dispatch([TASK_IDS], ray.put(run_group), {"num_cpus": 1})
    results = [TaskResult.from_json(text) for texts in lists for text in texts]
    assert {result.task_id for result in results} == set(TASK_IDS)
    assert not any(result.failed or result.num_deaths for result in results)
    assert phase.count_attempts() == [1, 2, 1, 1, 1]


@pytest.mark.ray
def test_a_death_counts_for_the_task_of_the_process(
    small: Small, ray_engine: ConnectedEngine
) -> None:
    """The event of the task says how often it was repeated."""
    phase = Dying(small.plan(engine={"kind": "ray"}))
    phase.folder.begin()
    results = collect(ray_engine.use(phase.plan), phase, lambda: None)
    deaths = {result.task_id: result.num_deaths for result in results}
    assert deaths == {**dict.fromkeys(TASK_IDS, 0), "second": 1}
    assert phase.count_attempts() == [1, 2, 1, 1, 1]


@pytest.mark.ray
def test_documents_are_reported_while_a_task_runs(
    small: Small, ray_engine: ConnectedEngine
) -> None:
    """The task waits until the driver knows how many it has read."""
    phase = Endless(small.plan(engine={"kind": "ray"}))
    phase.folder.begin()
    (task_id,) = phase.task_ids()
    reported: list[tuple[str, float]] = []

    def on_documents(*report: Any) -> None:
        reported.append(report)
        if report == (task_id, 3.0):
            phase.gate.touch()

    engine = ray_engine.use(phase.plan)
    engine.on_documents = on_documents
    (result,) = engine.run_tasks(phase, [task_id])
    assert (result.failed, result.num_documents) == (None, 3)
    assert reported[-1] == (task_id, 3.0)


@pytest.mark.ray
def test_results_arrive_when_their_tasks_end(
    small: Small, ray_engine: ConnectedEngine
) -> None:
    """The driver has the first result while the other tasks wait for it."""
    phase = Waiting(small.plan(engine={"kind": "ray"}))
    phase.folder.begin()
    collect(ray_engine.use(phase.plan), phase, phase.find_file(OPEN).touch)
    assert phase.count_attempts() == [1, 1, 1, 1, 1]


@pytest.mark.ray
def test_a_killed_dispatcher_loses_no_result(
    small: Small, ray_engine: ConnectedEngine, ray_of_session: SharedRay
) -> None:
    """Its running tasks are repeated, and no death is counted."""
    plan = small.plan(engine={"kind": "ray", "advanced": {"max_attempts": 1}})
    phase = Waiting(plan)
    phase.folder.begin()

    def kill_dispatcher() -> None:
        wait_until(lambda: phase.count_attempts()[1:3] == [1, 1])
        processes = list_descendants(ray_of_session.pid)
        (dispatcher,) = [each for each in processes if each.name.startswith("ray::Map")]
        dispatcher.kill()
        wait_until(lambda: phase.count_attempts()[1:3] == [2, 2])
        phase.find_file(OPEN).touch()

    results = collect(ray_engine.use(plan), phase, kill_dispatcher)
    assert phase.count_attempts() == [1, 2, 2, 1, 1]
    assert not any(result.num_deaths for result in results)


@pytest.mark.ray
def test_a_lost_machine_repeats_only_what_ran_there(
    small: Small, connected_engine: ConnectedEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its tasks are repeated elsewhere, and no death is counted: one would fail a task here."""
    from ray.cluster_utils import Cluster

    connected_engine.leave()
    plan = small.plan(engine={"kind": "ray", "advanced": {"max_attempts": 1}})
    phase = Waiting(plan)
    phase.folder.begin()
    settings: Any = {"object_store_memory": 100 * 2**20, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 4, **settings})
    try:
        machine = cluster.add_node(num_cpus=2, object_store_memory=100 * 2**20)
        cluster.wait_for_nodes()
        monkeypatch.setenv("RAY_ADDRESS", str(cluster.address))
        lost: set[str] = set()

        def remove_machine() -> None:
            wait_until(lambda: phase.count_attempts() == [1, 1, 1, 1, 1])
            for task_id in TASK_IDS[1:]:
                if phase.list_machines(task_id) == [machine.node_id]:
                    lost.add(task_id)
            cluster.remove_node(machine, allow_graceful=False)
            wait_until(lambda: sum(phase.count_attempts()) == len(TASK_IDS) + len(lost))
            phase.find_file(OPEN).touch()

        with RayEngine(phase.config.engine) as engine:
            results = collect(engine, phase, remove_machine)
    finally:
        cluster.shutdown()
    assert lost
    assert phase.count_attempts() == [1 + (task_id in lost) for task_id in TASK_IDS]
    assert not any(result.num_deaths for result in results)
