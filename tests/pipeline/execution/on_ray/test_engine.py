"""Start and end of Ray: privacy of its session, file modes of outputs, failures of its start."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.capacity.estimate import estimate_task_seconds
from pipeline.capacity.task_groups import divide_tasks
from pipeline.errors import RunAborted
from pipeline.execution.engine import run
from pipeline.execution.on_ray.engine import RayEngine, name_operator
from pipeline.execution.on_ray.task_reports import TaskReports
from pipeline.execution.task import TaskResult, run_task
from pipeline.phases.annotate import Annotate
from pipeline.phases.dedup.paragraph_dedup import ParagraphDedup
from pipeline.phases.extract import Extract
from pipeline.phases.phase import PartitionPhase, Phase
from storage.local import read_umask
from tests.pipeline.conftest import Small

# Neither Ray's private 077 nor the usual 022.
UMASK = 0o027


@pytest.fixture
def umask() -> Iterator[int]:
    """A umask for one test."""
    before = os.umask(UMASK)
    yield UMASK
    os.umask(before)


def test_operators_are_named_after_the_phase_and_its_stages(small: Small) -> None:
    """Ray's plan, metrics and dashboard show these names."""
    plan = small.plan()
    assert name_operator(Annotate(plan)) == "annotate[paragraphs > length > language]"
    assert name_operator(ParagraphDedup(plan)) == "paragraph_dedup"


def test_a_ray_that_does_not_start_is_tried_twice_and_reported(
    small: Small, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    """The error has the cause, the log and the alternative.

    Umask and SIGTERM handler are restored.
    """
    import ray

    started: list[dict[str, Any]] = []

    def fail(**settings: Any) -> None:
        started.append(settings)
        assert read_umask() == 0o077
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise RuntimeError("The current node timed out during startup")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", fail)

    def on_terminate(*_: object) -> None:
        """The handler of the command line."""

    before = signal.signal(signal.SIGTERM, on_terminate)
    try:
        message = (
            r"^Ray did not start on this machine in 2 attempts \(RuntimeError: The current node "
            r"timed out during startup\); its logs are in \S+/logs; `--engine inline` runs without Ray$"
        )
        with pytest.raises(RunAborted, match=message):
            list(run(small.plan(engine={"kind": "ray"})))
        assert len(started) == 2
        assert read_umask() == umask
        assert signal.getsignal(signal.SIGTERM) is on_terminate
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_second_start_that_works_is_enough(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine may need more than one attempt."""
    import ray

    attempts: list[int] = []

    def start(**_: Any) -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise TimeoutError("busy")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", start)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"memory": 300.0 * 2**20})
    engine = RayEngine(small.plan(engine={"kind": "ray"}).config.engine)
    engine.start()
    assert len(attempts) == 2
    assert engine.config.memory_mb == 300


def test_a_request_that_this_machine_cannot_serve_stops_the_run_at_once(
    small: Small, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise Ray would wait for a CPU without a message when a late phase starts.

    tests/e2e/test_resources.py is the same with a real Ray.
    """
    import ray

    machine = {"CPU": 1.0, "memory": 3000.0 * 2**20}
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(ray, "init", lambda **_: None)
    monkeypatch.setattr(ray, "cluster_resources", lambda: machine)
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": machine}])
    plan = small.plan(engine={"kind": "ray", "phases": {"tokenize": {"num_cpus": 64}}})
    with pytest.raises(RunAborted, match="nothing was started") as caught:
        list(run(plan))
    line = "  tokenize requests CPU 64, memory 2,000 MB; the nearest machine has CPU 1"
    assert line in str(caught.value).splitlines()
    assert not plan.folder("extract").list_done()


@pytest.mark.ray
@pytest.mark.usefixtures("shared_ray")
def test_small_input_splits_share_a_ray_task(small: Small, wet_file: Path) -> None:
    """Each has its own result and record, with the same bytes as in one process."""
    files = [small.folder / f"{number:02d}.wet.gz" for number in range(16)]
    for file in files:
        file.write_bytes(wet_file.read_bytes())
    config = {"input": {"files": [str(file) for file in files]}}
    alone, grouped = (Extract(small.plan(name, **config)) for name in ("alone", "grouped"))
    task_ids, settings = alone.task_ids(), alone.config.engine
    groups = divide_tasks(alone, task_ids, 2, estimate_task_seconds(alone.plan, "extract"))
    assert [len(group) for group in groups] == [4, 3, 2, *[1] * 7]
    for phase in (alone, grouped):
        phase.folder.begin()
    for task_id in task_ids:
        assert run_task(alone, task_id, settings).failed is None
    with RayEngine(settings) as engine:
        engine.start()
        results = list(engine.run_groups(grouped, groups))
    assert not any(result.failed for result in results)
    assert sorted(result.task_id for result in results) == task_ids
    assert read_files(grouped) == read_files(alone)


def read_files(phase: Phase) -> dict[str, bytes]:
    """Return name -> bytes of the outputs and done-records of a phase."""
    folder = Path(phase.folder.path(""))
    files = [*folder.glob("*.*"), *folder.glob("done/*")]
    return {file.name: file.read_bytes() for file in files if file.is_file()}


@pytest.mark.ray
@pytest.mark.usefixtures("shared_ray")
def test_running_tasks_report_to_the_driver(small: Small) -> None:
    """The first number at once, and later ones after a pause; of results, those of tasks that are done.

    Late reports of another phase, whose tasks have the same ids, do not count.
    """
    import ray

    done, failed = TaskResult("first", {"read": 1.0}), TaskResult("third", failed="why")

    def report(reports: TaskReports) -> None:
        late = reports.make_reporter("extract")
        late.report_documents("first", 9.0)
        late.report_result(TaskResult("second"))
        reporter = reports.make_reporter("annotate")
        reporter.report_documents("first", 1.0)
        reporter.report_documents("first", 2.0)
        reports.make_reporter("annotate").report_documents("second", 5.0)
        reporter.report_result(failed)
        reporter.report_result(done)

    with RayEngine(small.plan(engine={"kind": "ray"}).config.engine) as engine:
        engine.start()
        reports = TaskReports()
        task: Any = ray.remote(report)
        ray.get(task.remote(reports))
        numbers: dict[str, float] = {}
        results: list[str] = []
        while len(numbers) < 2 or not results:
            new_numbers, new_results = reports.take("annotate")
            numbers |= new_numbers
            results += new_results
            time.sleep(0.01)
    assert numbers == {"first": 1.0, "second": 5.0}
    assert [TaskResult.from_json(text) for text in results] == [done]


def ignore(_task_id: str, _number: float) -> None:
    """Show no progress. With it, results arrive when tasks end."""


class Noted(PartitionPhase):
    """Tasks that note their attempts in the run folder, in the phase folder of `extract`."""

    name = "extract"
    version = 0

    def task_ids(self) -> list[str]:
        """Return three ids."""
        return ["first", "second", "third"]

    def run(self, task_id: str) -> None:
        """Note the attempt, do what the subclass does, and commit."""
        with self.find_file(task_id).open("ab") as file:
            file.write(b".")
        with self.folder.commit(task_id):
            self.work(task_id)

    def work(self, task_id: str) -> None:
        """Do nothing."""

    def find_file(self, name: str) -> Path:
        """Return a file that the driver and the tasks share."""
        return Path(self.folder.path(f"noted-{name}"))

    def count_attempts(self) -> list[int]:
        """Return the attempts of each task."""
        return [self.find_file(each).stat().st_size for each in self.task_ids()]


class Dying(Noted):
    """The second task kills its process at its first attempt."""

    def work(self, task_id: str) -> None:
        """Kill the process."""
        if task_id == "second" and self.find_file(task_id).stat().st_size == 1:
            os.kill(os.getpid(), signal.SIGKILL)


class Waiting(Noted):
    """The last task waits for a file."""

    def work(self, task_id: str) -> None:
        """Wait."""
        while task_id == "third" and not self.find_file("go on").exists():
            time.sleep(0.01)


@pytest.mark.ray
@pytest.mark.usefixtures("shared_ray")
def test_a_killed_group_repeats_only_the_task_that_ran(small: Small) -> None:
    """Each task of a group has its own commit, and one result."""
    phase = Dying(small.plan(engine={"kind": "ray"}))
    phase.folder.begin()
    with RayEngine(phase.config.engine) as engine:
        engine.start()
        engine.on_documents = ignore
        results = list(engine.run_groups(phase, [phase.task_ids()]))
    assert sorted(result.task_id for result in results) == phase.task_ids()
    assert not any(result.failed for result in results)
    assert phase.count_attempts() == [1, 2, 1]
    assert phase.folder.list_done() == set(phase.task_ids())


@pytest.mark.ray
@pytest.mark.usefixtures("shared_ray")
def test_results_of_a_group_arrive_when_its_tasks_end(small: Small) -> None:
    """The driver has the first two results while the third task waits for it. It gets each once."""
    phase = Waiting(small.plan(engine={"kind": "ray"}))
    phase.folder.begin()
    with RayEngine(phase.config.engine) as engine:
        engine.start()
        engine.on_documents = ignore
        results = engine.run_groups(phase, [phase.task_ids()])
        early = [next(results).task_id, next(results).task_id]
        phase.find_file("go on").touch()
        assert [*early, *(result.task_id for result in results)] == phase.task_ids()
    assert phase.count_attempts() == [1, 1, 1]
