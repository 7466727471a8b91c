"""Choosing the engine that runs a plan, and saying why."""

from __future__ import annotations

import importlib.util
import logging
import os

from pipeline.capacity.estimate import list_names
from pipeline.config import RunConfig
from pipeline.execution.inline import Engine, InlineEngine
from pipeline.execution.on_ray.engine import RayEngine
from pipeline.phases.run_plan import RunPlan

log = logging.getLogger(__name__)

# Bytes of input up to which the start of a local Ray takes longer than it saves with two cores: 22 s for import,
# `ray.init`, shutdown, and workers that load kernels and models (2026-11-22, quiet; the demo took 41 s on Ray, 29 s
# in process). A WARC file has the text of a WET file of a tenth of its size.
MAX_INLINE_BYTES, MAX_INLINE_WARC_BYTES = 64_000_000, 320_000_000


def make_engine(plan: RunPlan) -> Engine:
    """Return the engine that the config names. Nothing is started yet.

    `engine.kind: auto` takes the faster engine by the size of the input, and logs its choice.
    """
    kind = plan.config.engine.kind
    if kind == "auto":
        kind, reason = choose_kind(plan)
        log.info("engine: %s (%s)", kind, reason)
    if kind == "ray":
        return RayEngine(plan.config.engine)
    for key in list_requests_without_effect(plan.config):
        log.warning("%s has no effect in one process; engine.kind: ray follows it", key)
    return InlineEngine(plan.config.engine)


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
    if required := _find_requirement(plan.config):
        return required
    num_workers = plan.config.engine.workers or os.cpu_count() or 1
    if num_workers == 1:
        return "inline", "one worker"
    has_html = plan.config.input.has_html(list_names(plan))
    limit = MAX_INLINE_WARC_BYTES if has_html else MAX_INLINE_BYTES
    num_bytes = sum(split.num_bytes for split in plan.splits)
    kind = "inline" if num_bytes <= limit else "ray"
    than = "at most" if kind == "inline" else "more than"
    return kind, f"{num_bytes / 1e6:,.1f} MB of input are {than} {limit / 1e6:,.0f} MB"


def _find_requirement(config: RunConfig) -> tuple[str, str] | None:
    """Return the kind that `auto` has to take, and the reason; None: both are possible."""
    if address := os.environ.get("RAY_ADDRESS"):
        return "ray", f"RAY_ADDRESS is {address}"
    if importlib.util.find_spec("ray") is None:
        return "inline", "Ray is not installed"
    if config.engine.metrics_port is not None:
        return "ray", "engine.metrics_port needs Ray"
    return None
