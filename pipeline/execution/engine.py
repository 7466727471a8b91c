"""Running a plan: phase by phase, every task without a done-record, on an engine.

When a task fails, the other tasks of its phase still run; then the run stops with RunAborted. A full
disk stops it at once.

    for event in run(make_plan(config)):
        print(event)        # PhaseStarted, TaskFinished..., PhaseFinished
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.config import RunConfig
from pipeline.errors import RunAborted, TaskFailed
from pipeline.execution.choose_engine import make_engine
from pipeline.execution.inline import Engine
from pipeline.execution.repair import Repairs
from pipeline.execution.task import OnDocuments, TaskResult, format_error
from pipeline.phases import registry
from pipeline.phases.phase import Phase
from pipeline.phases.run_plan import RunPlan
from pipeline.planning.fingerprints import fingerprint
from pipeline.planning.recorded_plan import record_plan
from pipeline.retraction import apply_requests
from pipeline.runs.event_log import open_log
from pipeline.runs.removed_outputs import REMOVED
from pipeline.runs.run_lock import RunLock, hold, identify_machine
from pipeline.runs.verified_file import Damage, DamagedOutput
from stages.contract import Counters
from storage.local import DISK_FULL

# In the run folder: a link to the dataset of the latest finished run, whose folder name
# changes with the config.
DATASET_LINK = "dataset"

MAX_FAILURES_SHOWN = 10


@dataclass(frozen=True)
class PhaseStarted:
    """A phase starts.

    Attributes:
        phase: its name.
        num_tasks: its tasks.
        num_done: tasks that were done before this run.
        share_done: their share of the phase's work, by the sizes of the tasks.
    """

    phase: str
    num_tasks: int
    num_done: int
    share_done: float = 0.0


@dataclass(frozen=True)
class TaskFinished:
    """A task is committed, or has failed.

    The fields are those of `TaskResult`, and `share`: the share of the phase's work, by the sizes of the tasks.
    """

    phase: str
    task_id: str
    seconds: Mapping[str, float]
    failed: str | None
    cpu_seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    peak_mb: float | None = None
    worker: str = ""
    num_documents: int = 0
    num_deaths: int = 0
    share: float = 0.0


@dataclass(frozen=True)
class PhaseFinished:
    """A phase is complete. `was_complete`: it was complete before this run."""

    phase: str
    counters: Counters
    was_complete: bool


@dataclass(frozen=True)
class OutputDamaged:
    """A stored file differs from what was written. Its phase makes it again.

    Attributes:
        phase: the phase that writes it.
        file: its address.
        fault: the place in the file, what was found there, and what should be there.
        moved_to: where the damaged file is now; None: there was none, or it is whole after all.
    """

    phase: str
    file: str
    fault: str
    moved_to: str | None


Event = PhaseStarted | TaskFinished | PhaseFinished | OutputDamaged


def check_run_dir(config: RunConfig) -> None:
    """Refuse a run folder that workers of a cluster cannot find, before models are made.

    Raises:
        RunAborted: the run folder is relative, on a cluster. Each machine has its own working folder there.
    """
    is_relative = "://" not in config.run_dir and not Path(config.run_dir).is_absolute()
    if config.engine.kind != "inline" and "RAY_ADDRESS" in os.environ and is_relative:
        raise RunAborted(
            f"run_dir is {config.run_dir!r}; on a cluster (RAY_ADDRESS is set) it must be an "
            f"absolute path on storage that all machines share, or a URL: "
            f"--run-dir /shared/runs/ccnet"
        )


def run(
    plan: RunPlan,
    engine: Engine | None = None,
    on_documents: OnDocuments | None = None,
) -> Iterator[Event]:
    """Run the tasks of a plan that are not done, and yield what happens.

    Args:
        plan: its tasks.
        engine: runs them; default: the engine that the config names.
        on_documents: called while tasks run, with the documents of a task so far.

    Raises:
        RunAborted: a task failed (others of its phase are done), or another process runs this plan.
    """
    check_run_dir(plan.config)
    with (
        _hold_run_lock(plan) as run_lock,
        open_log(plan.run_dir) as log,
        engine or make_engine(plan) as workers,
    ):
        workers.on_documents = on_documents
        recorded = record_plan(plan)
        log({"event": "RunStarted", "machine": identify_machine(), "pid": os.getpid()})
        why = "its driver was stopped"
        try:
            repairs = Repairs(plan)
            for phase in registry.list_enabled(plan.config):
                for event in _run_phase(phase(plan), workers, repairs):
                    log(_make_log_entry(event))
                    run_lock.check()
                    yield event
            # Before readers can find the dataset: requests of retraction stay in force.
            for entry in apply_requests(recorded):
                log({"event": "RetractionApplied", **vars(entry)})
            plan.run_dir.set_latest_link(
                DATASET_LINK, plan.folder("write_shards").root.name
            )
            why = ""
        except Exception as error:
            why = str(error) if isinstance(error, RunAborted) else format_error(error)
            raise
        finally:
            log({"event": "RunEnded", "why": why})


def _run_phase(phase: Phase, engine: Engine, repairs: Repairs) -> Iterator[Event]:
    """Run a phase until it is complete. Damaged outputs that it reads are made again first."""
    while damages := (yield from _try_phase(phase, engine)):
        owners: set[type[Phase]] = set()
        for damage in damages:
            owner = repairs.find_owner(damage)
            owners.add(owner)
            if damage.found == REMOVED:
                repairs.restore(owner)
                continue
            moved_to = repairs.set_aside(owner, damage)
            yield OutputDamaged(owner.name, damage.address, str(damage), moved_to)
        for owner in registry.PHASES:
            if owner in owners and owner is not type(phase):
                yield from _run_phase(owner(phase.plan), engine, repairs)
        phase = type(phase)(phase.plan)  # forget what was computed from damaged records
    repairs.check_remade()


def _try_phase(phase: Phase, engine: Engine) -> Generator[Event, None, list[Damage]]:
    """Run the tasks of a phase that are not done, and finish it.

    Returns:
        The damaged outputs that were found; then the phase is not complete.
    """
    try:
        return (yield from _run_remaining_tasks(phase, engine))
    except DamagedOutput as error:  # in the driver, while it read records or merged outputs
        return [error.damage]


def _run_remaining_tasks(
    phase: Phase, engine: Engine
) -> Generator[Event, None, list[Damage]]:
    folder = phase.folder
    # The folder of extract outlives a change of the input. It is complete only for the splits it names.
    input_fingerprint = fingerprint([split.key for split in phase.plan.splits])
    if folder.is_complete() and folder.summary().get("of") == input_fingerprint:
        if damaged := {damage.address: damage for damage in phase.find_damage()}:
            return list(damaged.values())
        yield PhaseFinished(phase.name, phase.counters(), was_complete=True)
        return []
    folder.begin()
    task_ids = phase.task_ids()
    done = folder.list_done()
    remaining = [task_id for task_id in task_ids if task_id not in done]
    shares = _compute_shares(phase, task_ids)
    share_done = 1.0 - sum(shares[task_id] for task_id in remaining)
    num_done = len(task_ids) - len(remaining)
    yield PhaseStarted(phase.name, len(task_ids), num_done, share_done)
    failures: dict[str, str] = {}
    damages: dict[str, Damage] = {}
    for result in _run_tasks(phase, remaining, engine):
        if result.damage is not None:
            damages[result.damage.address] = result.damage
            continue
        if result.failed is not None:
            if DISK_FULL in result.failed:  # all other tasks would fail too
                raise RunAborted(f"phase {phase.name}, {result.task_id}: {result.failed}")
            failures[result.task_id] = result.failed
        yield _make_task_event(phase, result, shares[result.task_id])
    if damages:
        return list(damages.values())
    for task_id in set(remaining) - failures.keys() - folder.list_done():
        failures[task_id] = "the engine returned neither a result nor a failure"
    if failures:
        raise RunAborted(_format_failures(phase, failures, len(task_ids)))
    phase.finish()
    counters = phase.sum_records().to_json()
    of = {"task_ids": len(task_ids), "of": input_fingerprint}
    folder.finish({**of, "counters": counters})
    yield PhaseFinished(phase.name, phase.counters(), was_complete=False)
    return []


def _compute_shares(phase: Phase, task_ids: Sequence[str]) -> dict[str, float]:
    """Return task_id -> its share of the phase's work, by the sizes of the tasks."""
    sizes = {task_id: phase.measure_task(task_id) for task_id in task_ids}
    total = sum(sizes.values())
    return {task_id: size / total for task_id, size in sizes.items()}


def _make_task_event(phase: Phase, result: TaskResult, share: float) -> TaskFinished:
    values = dict(vars(result))
    del values["damage"]  # it has a separate event
    return TaskFinished(phase.name, **values, share=share)


def _run_tasks(
    phase: Phase, task_ids: Sequence[str], engine: Engine
) -> Iterator[TaskResult]:
    if not task_ids:
        return
    try:
        phase.prepare_tasks()
    except TaskFailed as error:
        raise RunAborted(f"phase {phase.name} cannot start: {error}") from error
    yield from engine.run_tasks(phase, task_ids)


def _format_failures(phase: Phase, failures: Mapping[str, str], num_tasks: int) -> str:
    lines = [
        f"phase {phase.name}: {len(failures)} of {num_tasks} tasks failed; the others are done"
    ]
    for task_id, failure in sorted(failures.items())[:MAX_FAILURES_SHOWN]:
        lines.append(f"  {task_id}: {failure}")
    if len(failures) > MAX_FAILURES_SHOWN:
        lines.append(f"  ... and {len(failures) - MAX_FAILURES_SHOWN} more")
    lines.append(
        "fix the cause and run the same command again: it runs the failed tasks and those after them"
    )
    return "\n".join(lines)


def _make_log_entry(event: Event) -> dict[str, Any]:
    if isinstance(event, PhaseFinished):
        return {
            "event": "PhaseFinished",
            "phase": event.phase,
            "was_complete": event.was_complete,
        }
    return {"event": type(event).__name__, **vars(event)}


@contextlib.contextmanager
def _hold_run_lock(plan: RunPlan) -> Generator[RunLock]:
    """Hold the lock of the run folder: one driver at a time."""
    with contextlib.ExitStack() as stack:
        try:
            run_lock = stack.enter_context(hold(plan.run_dir))
        except OSError as error:
            raise RunAborted(
                f"the run folder {plan.run_dir} cannot be written: {error}; set run_dir or --run-dir"
            ) from error
        yield run_lock
