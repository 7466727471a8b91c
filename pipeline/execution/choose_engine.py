"""Choosing the engine that runs a plan, and saying why."""

from __future__ import annotations

import importlib.util
import logging
import os

from pipeline.capacity.estimate import ENOUGH_MEMORY_GB, estimate_plan
from pipeline.capacity.model import Cluster
from pipeline.config import RunConfig
from pipeline.execution.inline import Engine, InlineEngine
from pipeline.execution.on_ray.engine import RayEngine
from pipeline.phases import registry
from pipeline.phases.phase import Phase
from pipeline.phases.run_plan import RunPlan

log = logging.getLogger(__name__)

# Time that a local Ray adds to a run that chooses it after its plan, measured on 2026-11-22 on a
# quiet, warm machine with two cores: import 1.2 s, `ray.init` 5.5 s, first dataset 2.7 s, shutdown
# 1.4 s, and 11 s in which the workers import the stages and load kernels and models. The demo took
# 41 s on Ray, 29 s in process.
RAY_START_S = 22.0


def make_engine(plan: RunPlan) -> Engine:
    """Return the engine that the config names. Nothing is started yet.

    `engine.kind: auto` takes the faster engine by the cost estimate of the tasks that are left, and logs its choice.
    """
    kind = plan.config.engine.kind
    if kind == "auto":
        kind, reason = choose_kind(plan)
        _log_choice(kind, reason)
    if kind == "ray":
        return RayEngine(plan.config.engine)
    for key in list_requests_without_effect(plan.config):
        log.warning("%s has no effect in one process; engine.kind: ray follows it", key)
    return InlineEngine(plan.config.engine)


def start_ray_early(config: RunConfig) -> Engine | None:
    """Return the engine on Ray, which starts while the run is planned; None: the plan decides.

    Use it in a `with` block that also contains the planning: the end of the block stops Ray.
    """
    kind = config.engine.kind
    if kind == "auto" and (required := _find_requirement(config)):
        kind = required[0]
        if kind == "ray":
            _log_choice(*required)
    return _start_early(config) if kind == "ray" else None


def start_planned_ray(plan: RunPlan) -> Engine | None:
    """Return the engine on Ray, which starts while models are opened; None: `make_engine` gives another one.

    For runs whose engine is chosen by their plan; see `start_ray_early`.
    """
    if plan.config.engine.kind != "auto":
        return None
    kind, reason = choose_kind(plan)
    if kind != "ray":
        return None
    _log_choice(kind, reason)
    return _start_early(plan.config)


def _start_early(config: RunConfig) -> Engine:
    engine = RayEngine(config.engine)
    engine.start_early()
    return engine


def _log_choice(kind: str, reason: str) -> None:
    log.info("engine: %s (%s)", kind, reason)


def runs_in_this_process(plan: RunPlan) -> bool:
    """Return whether `make_engine` gives the engine without Ray."""
    kind = plan.config.engine.kind
    return (choose_kind(plan)[0] if kind == "auto" else kind) == "inline"


def list_requests_without_effect(config: RunConfig) -> list[str]:
    """Return the keys of GPUs and custom resources, which only Ray gives to tasks."""
    keys: list[str] = []
    for phase, section in sorted(config.engine.phases.items()):
        keys += [
            f"engine.phases.{phase}.{key}"
            for key in ("num_gpus", "custom")
            if getattr(section, key)
        ]
    return keys


def choose_kind(plan: RunPlan) -> tuple[str, str]:
    """Return "inline" or "ray", and the reason."""
    config = plan.config
    if required := _find_requirement(config):
        return required
    num_workers = config.engine.workers or os.cpu_count() or 1
    inline_s = estimate_seconds_left(plan, num_workers=1)
    ray_s = RAY_START_S + estimate_seconds_left(plan, num_workers)
    comparison = f"about {inline_s:,.0f} s in this process, {ray_s:,.0f} s on Ray with {num_workers} workers"
    return ("inline" if inline_s <= ray_s else "ray"), comparison


def _find_requirement(config: RunConfig) -> tuple[str, str] | None:
    """Return the kind that `auto` has to take, and the reason; None: both are possible."""
    if address := os.environ.get("RAY_ADDRESS"):
        return "ray", f"RAY_ADDRESS is {address}"
    if importlib.util.find_spec("ray") is None:
        return "inline", "Ray is not installed"
    if config.engine.metrics_port is not None:
        return "ray", "engine.metrics_port needs Ray"
    return None


def estimate_seconds_left(plan: RunPlan, num_workers: int) -> float:
    """Return the estimated seconds of the tasks that are not done, with the shipped calibration."""
    if not any(split.files for split in plan.splits):
        return 0.0
    cluster = Cluster(nodes=1, cores=num_workers, memory_gb=ENOUGH_MEMORY_GB)
    found = estimate_plan(plan, _ignore_resources(plan.config), cluster)
    seconds = 0.0
    for phase, phase_estimate in zip(registry.PHASES, found.phases, strict=True):
        if phase_estimate.num_tasks:
            share_left = (
                _count_left(plan, phase, phase_estimate.num_tasks)
                / phase_estimate.num_tasks
            )
            seconds += phase_estimate.hours * 3600 * share_left
    return seconds


def _ignore_resources(config: RunConfig) -> RunConfig:
    """Return the config without requests of phases: one process runs every task."""
    engine = config.engine.model_copy(update={"phases": {}})
    return config.model_copy(update={"engine": engine})


def _count_left(plan: RunPlan, phase: type[Phase], num_tasks: int) -> int:
    folder = plan.folder(phase.name)
    done = folder.list_done()
    if phase.task_kind == "splits":
        return len({split.key for split in plan.splits} - done)
    return 0 if folder.is_complete() else max(0, num_tasks - len(done))
