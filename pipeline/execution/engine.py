"""Carries out a plan: phase by phase, whatever has no done-record, on Ray Data or in this process.

Promises: both engines run the same steps (flow.py) over the same work and commit the same bytes; what is done is not
done again; when one piece of work fails, the others of its phase are still finished before the run stops; a process
that dies costs at most `max_attempts` tries of the unit it worked on.
Leaves to others: what the steps do (phases.py), and what a person sees of it (cli.py prints the events).

    for event in run(make_plan(config)):
        print(event)        # PhaseStarted, WorkFinished..., PhaseFinished
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from pipeline.config import EngineConfig, RunConfig
from pipeline.errors import RunAborted, TaskFailed
from pipeline.execution.resources import Amounts, Request, request_of, requests_of, unmet
from pipeline.execution.task import (
    Handover,
    SinkStep,
    Source,
    StageStep,
    check_attempts,
    finished,
    format_error,
)
from pipeline.execution.task_stats import Stopwatch, reset_peak_memory
from pipeline.phases import registry
from pipeline.phases.phase import PartitionPhase, Phase, SplitPhase
from pipeline.planning.fingerprints import fingerprint
from pipeline.planning.recorded_plan import record_plan
from pipeline.planning.run_plan import RunPlan
from pipeline.runs.event_log import open_log
from pipeline.runs.run_lock import HeldByAnother, RunLock, hold
from stages.contract import Counters

Step = Callable[[Any], Any]

METRICS_STAY_S = 6.0
"""A local Ray whose metrics are fetched stays so long behind the end of the run, that its last figures are fetched too:
each second they reach the port, and configs/prometheus/ asks it each 5 s."""

DATASET_LINK = "dataset"
"""In the run folder: leads to the dataset of the latest finished run, under a name that stays."""


@dataclass(frozen=True)
class PhaseStarted:
    """A phase is about to run; `num_done` of its `num_works` pieces of work were done before."""

    phase: str
    num_tasks: int
    num_done: int


@dataclass(frozen=True)
class TaskFinished:
    """One piece of work is committed, or has failed."""

    phase: str
    task_id: str
    seconds: Mapping[str, float]  # by step
    failed: str | None
    cpu_seconds: Mapping[str, float] = field(
        default_factory=dict[str, float]
    )  # by step, as it is in what follows
    peak_mb: float | None = None
    worker: str = ""  # the process that did it


@dataclass(frozen=True)
class PhaseFinished:
    """A phase is complete. `was_complete`: it was so before this run."""

    phase: str
    counters: Counters
    was_complete: bool


Event = PhaseStarted | TaskFinished | PhaseFinished


def check(config: RunConfig) -> None:
    """Refuse what could only fail later, before anything is made ready.

    Raises:
        RunAborted: on a cluster the run's folder is relative: to each machine's own working folder, which a job loses.
    """
    is_relative = "://" not in config.run_dir and not Path(config.run_dir).is_absolute()
    if config.engine.kind == "ray" and "RAY_ADDRESS" in os.environ and is_relative:
        raise RunAborted(
            f"run_dir is {config.run_dir!r}; on a cluster (RAY_ADDRESS is set) it must be an absolute path on storage "
            f"that all machines share, or a URL: --run-dir /shared/runs/ccnet"
        )


def run(plan: RunPlan, engine: Engine | None = None) -> Iterator[Event]:
    """Do what is left of a plan.

    Args:
        plan: what is to be done.
        engine: who does it; default: the engine that the config names.

    Raises:
        RunAborted: work failed (its phase was finished for all other work), or another process works on this run.
    """
    check(plan.config)
    with (
        _run_lock(plan) as run_lock,
        open_log(plan.run_dir) as log,
        engine or engine_of(plan.config.engine) as workers,
    ):
        record_plan(plan)
        log({"event": "RunStarted"})
        why = "its driver was stopped"
        try:
            for make_phase in registry.PHASES:
                for event in _run_phase(make_phase(plan), workers):
                    log(_loggable(event))
                    run_lock.check()
                    yield event
            plan.run_dir.set_latest_link(DATASET_LINK, plan.folder("write_shards").root.name)
            why = ""
        except Exception as error:
            why = str(error) if isinstance(error, RunAborted) else format_error(error)
            raise
        finally:
            log({"event": "RunEnded", "why": why})


def _run_phase(phase: Phase, engine: Engine) -> Iterator[Event]:
    folder = phase.folder
    # Extract's folder outlives a change of the input: complete is what is complete for these units.
    splits = fingerprint([split.key for split in phase.plan.splits])
    if folder.complete() and folder.summary().get("of") == splits:
        yield PhaseFinished(phase.name, phase.counters(), was_complete=True)
        return
    folder.begin()
    task_ids = phase.task_ids()
    done = folder.done()
    todo = [task_id for task_id in task_ids if task_id not in done]
    yield PhaseStarted(phase.name, len(task_ids), len(task_ids) - len(todo))
    failures: dict[str, str] = {}
    for result in _results(phase, todo, engine):
        told: dict[str, Any] = {"seconds": {}, "failed": None, **result}
        event = TaskFinished(phase.name, **told)
        if event.failed is not None:
            failures[event.task_id] = event.failed
        yield event
    if missing := set(todo) - failures.keys() - folder.done():
        failures |= dict.fromkeys(
            missing, "it was handed out, and neither a result nor a failure came back"
        )
    if failures:
        raise RunAborted(_abort_message(phase, failures, len(task_ids)))
    phase.finish()
    folder.finish(
        {"task_ids": len(task_ids), "of": splits, "counters": phase.sum_of_records().to_json()}
    )
    yield PhaseFinished(phase.name, phase.counters(), was_complete=False)


def _results(phase: Phase, todo: Sequence[str], engine: Engine) -> Iterator[dict[str, Any]]:
    try:
        yield from engine.results(phase, todo)
    except TaskFailed as error:  # of the phase as a whole: its steps cannot be built
        raise RunAborted(f"phase {phase.name} cannot begin: {error}") from error


def _abort_message(phase: Phase, failures: Mapping[str, str], num_tasks: int) -> str:
    shown = [f"  {task_id}: {why}" for task_id, why in sorted(failures.items())[:10]]
    more = [f"  ... and {len(failures) - 10} more"] if len(failures) > 10 else []
    return "\n".join(
        [
            f"phase {phase.name}: {len(failures)} of {num_tasks} pieces of work failed; the rest stays done",
            *shown,
            *more,
            "mend the cause and run the same command again: only what failed, and what follows, is done",
        ]
    )


def _loggable(event: Event) -> dict[str, Any]:
    if isinstance(event, PhaseFinished):
        return {"event": "PhaseFinished", "phase": event.phase, "was_complete": event.was_complete}
    return {"event": type(event).__name__, **vars(event)}


@contextlib.contextmanager
def _run_lock(plan: RunPlan) -> Generator[RunLock]:
    """One driver per run folder at a time."""
    with contextlib.ExitStack() as stack:
        try:
            run_lock = stack.enter_context(hold(plan.run_dir))
        except OSError as error:
            raise RunAborted(
                f"the run folder {plan.run_dir} cannot be written: {error}; set run_dir or --run-dir"
            ) from error
        except HeldByAnother as error:
            raise RunAborted(str(error)) from error
        try:
            yield run_lock
        except HeldByAnother as error:
            raise RunAborted(str(error)) from error


class Engine(ABC):
    """Hands out work and yields a result per piece: {"work", "seconds"} or {"work", "failed"}."""

    def __init__(self, config: EngineConfig) -> None:
        self.config = config

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        """Give back what was started."""

    def start(self) -> None:
        """Start what the work needs; `results` does so by itself once there is work."""

    @abstractmethod
    def results(self, phase: Phase, task_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        """Do the work, in any order."""


class _Inline(Engine):
    """In this process, one after another: the reference that Ray is tested against."""

    def results(self, phase: Phase, task_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        for task_id in task_ids:
            yield from do_here(phase, task_id, self.config)


def do_here(phase: Phase, task_id: str, config: EngineConfig) -> Iterator[dict[str, Any]]:
    """One piece of work in this process: its steps, one into the next."""
    flow: Iterator[Any] = iter([task_id])
    for _, step in steps_of(phase, config):
        flow = _through(step, flow)
    return flow


def _through(step: Step, flow: Iterator[Any]) -> Iterator[Any]:
    for item in flow:
        out = step(item)
        if isinstance(out, pa.Table):
            yield out
        else:
            yield from out


class _OnRay(Engine):
    """One Ray Data dataset per phase: a task per unit, in which the phase's steps are fused operators."""

    _started = False
    _checked = False

    def results(self, phase: Phase, task_ids: Sequence[str]) -> Iterator[dict[str, Any]]:
        if not task_ids:
            return
        self.start()
        import ray.data

        self._refuse_what_no_machine_has(phase.plan.config)
        tasks = tasks_of(phase, self.config)
        # A unit that goes on in another task goes there in one piece: its steps need its opening and closing row.
        is_handed_over = len(tasks) > 1
        ray.data.DataContext.get_current().target_max_block_size = (
            None if is_handed_over else int(self.config.advanced.batch_mb * 2**20)
        )
        flow = ray.data.from_items(
            [{"task_id": task_id} for task_id in task_ids], override_num_blocks=len(task_ids)
        )
        for request, steps in tasks:  # Ray fuses neighbours that ask for the same
            for name, step in steps:
                flow = flow.map_batches_internal(  # `map_batches`, but for a rule: GPUs want batches of so many rows
                    _operator(name, step),
                    batch_size=None,  # whatever is there: a task sees one unit only
                    batch_format="pyarrow",
                    zero_copy_batch=True,
                    **request.remote_args(),
                )
        for batch in flow.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
            assert isinstance(batch, pa.Table)
            for result in batch.column("result").to_pylist():
                yield json.loads(result)

    def start(self) -> None:
        """Join the cluster that RAY_ADDRESS names, or start a local one; keep Ray's own words off the terminal."""
        if self._started:
            return
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray
        import ray._private.worker as ray_worker
        from ray.data import DataContext

        on_terminate = signal.getsignal(signal.SIGTERM)
        quiet: dict[str, Any] = {"logging_level": logging.ERROR, "log_to_driver": False}
        if "RAY_ADDRESS" in os.environ:
            ray.init(**quiet)
        else:
            os.umask(0o077)  # Ray's session folder and token are for this user only
            hands_over = any(phase.stages for phase in self.config.phases.values())
            ray.init(
                num_cpus=self.config.workers or os.cpu_count(),
                include_dashboard=False,
                object_store_memory=None
                if hands_over
                else 200 * 2**20,  # else only done-records pass through it
                **_metrics_settings(self.config.metrics_port),
                **quiet,
            )
            # This machine has what it has: a default that is meant for larger ones does not keep it from working.
            memory_mb = int(ray.cluster_resources()["memory"] / 2**20)
            self.config = self.config.model_copy(
                update={"memory_mb": min(self.config.memory_mb, memory_mb)}
            )
        if callable(on_terminate) and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_terminate)  # Ray has put its own in its place
        # What the raylet says of a worker that died is printed whatever log_to_driver is; the unit's failure says it.
        ray_worker._worker_logs_enabled = False  # noqa: SLF001  # pyright: ignore[reportPrivateUsage] - the only switch
        for name in ("ray.data", "ray"):
            logging.getLogger(name).setLevel(logging.ERROR)
        context = DataContext.get_current()
        context.enable_progress_bars = False
        self._started = True

    def _refuse_what_no_machine_has(self, config: RunConfig) -> None:
        """Once, before the first task: what cannot be met would wait for ever, without a word."""
        if self._checked:
            return
        requests = requests_of(config.model_copy(update={"engine": self.config}))
        if faults := unmet(requests, _machines()):
            raise RunAborted(
                "\n".join(
                    [
                        "no machine of the cluster, even with nothing else on it, has what these tasks ask for:",
                        *(f"  {fault}" for fault in faults),
                        "lower engine.phases or engine.memory_mb, or add a machine; nothing was begun",
                    ]
                )
            )
        self._checked = True

    def __exit__(self, *exc: object) -> None:
        if self._started:
            import ray

            was_told_to_end = exc[0] is not None and not isinstance(exc[1], Exception)
            if (
                self.config.metrics_port is not None
                and "RAY_ADDRESS" not in os.environ
                and not was_told_to_end
            ):
                time.sleep(METRICS_STAY_S)
            ray.shutdown()


def _metrics_settings(port: int | None) -> dict[str, Any]:
    """What a local Ray has to know to tell its metrics on a port.

    Raises:
        RunAborted: the port is taken. Ray itself would wait for half a minute, and not say why.
    """
    if port is None:
        return {}
    try:
        socket.create_server(("", port)).close()
    except OSError as error:
        raise RunAborted(
            f"engine.metrics_port is {port}, which cannot be had: {error}; name another one, or null"
        ) from error
    return {"_metrics_export_port": port, "_system_config": {"metrics_report_interval_ms": 1_000}}


def _machines() -> list[Amounts]:
    """What each machine of the cluster has, and each kind that its autoscaler may start."""
    import ray
    from ray._private.state import state  # the autoscaler's plans are told nowhere else

    machines: list[Amounts] = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    planned = state.get_cluster_config()
    kinds = planned.node_group_configs if planned else []
    return machines + [dict(kind.resources) for kind in kinds if kind.max_count != 0]


def tasks_of(phase: Phase, engine: EngineConfig) -> list[tuple[Request, list[tuple[str, Step]]]]:
    """A phase's steps by the tasks that do them: one task, unless a stage asks for something else than its phase."""
    tasks: list[tuple[Request, list[tuple[str, Step]]]] = []
    for name, step in steps_of(phase, engine):
        request = request_of(engine, phase.name, name)
        if not tasks:
            tasks.append((request, []))
        elif not tasks[-1][0].is_like(request):
            batch_bytes = int(engine.advanced.batch_mb * 2**20)
            tasks.append(
                (
                    request,
                    [
                        (
                            "handover",
                            Handover(
                                name,
                                phase.folder.attempt,
                                engine.advanced.max_attempts,
                                batch_bytes,
                            ),
                        )
                    ],
                )
            )
        tasks[-1][1].append((name, step))
    return tasks


def engine_of(config: EngineConfig) -> Engine:
    """The engine that a config names; nothing is started yet."""
    return {"ray": _OnRay, "inline": _Inline}[config.kind](config)


def steps_of(phase: Phase, engine: EngineConfig) -> list[tuple[str, Step]]:
    """A phase as named functions, from a piece of work to results, by way of tables."""
    if isinstance(phase, PartitionPhase):
        return [(phase.name, _PartitionStep(phase, engine.advanced.max_attempts))]
    assert isinstance(phase, SplitPhase)
    source = Source(
        "read", phase.schema, phase.read, phase.folder.attempt, engine.advanced.max_attempts
    )
    schema, steps = source.flow_schema, list[tuple[str, Step]]()
    for spec in phase.stage_specs():
        schema = spec.output_schema(schema)
        steps.append((spec.stage.name, StageStep(spec, schema, spec.digests())))
    return [
        ("read", source),
        *steps,
        ("write", SinkStep("write", phase.write, engine.advanced.max_error_share)),
    ]


@dataclass(frozen=True)
class _PartitionStep:
    """The only step of a phase across units."""

    phase: PartitionPhase
    max_attempts: int

    def __call__(self, task_id: str) -> Iterator[dict[str, Any]]:
        watch = Stopwatch()
        reset_peak_memory()
        try:
            with watch:
                check_attempts(self.max_attempts, self.phase.folder.attempt(task_id))
                self.phase.run(task_id)
        except Exception as error:  # noqa: BLE001 - one partition's fault, whatever it is, must not stop the others
            yield {"task_id": task_id, "failed": format_error(error)}
            return
        yield finished(
            task_id, {self.phase.name: watch.seconds}, {self.phase.name: watch.cpu_seconds}
        )


def _operator(name: str, step: Step) -> Callable[[pa.Table], Iterator[pa.Table]]:
    """A step as Ray Data calls it: tables in, tables out, under the stage's own name."""

    def call(table: pa.Table) -> Iterator[pa.Table]:
        inputs = (
            table.column("task_id").to_pylist() if table.column_names == ["task_id"] else [table]
        )
        for out in _through(step, iter(inputs)):
            yield out if isinstance(out, pa.Table) else pa.table({"result": [json.dumps(out)]})

    call.__name__ = call.__qualname__ = name
    return call
