"""Choosing the engine that runs a plan."""

from __future__ import annotations

from pipeline.execution.inline import Engine, InlineEngine
from pipeline.execution.ray_engine import RayEngine
from pipeline.planning.run_plan import RunPlan


def make_engine(plan: RunPlan) -> Engine:
    """Return the engine that the config names. Nothing is started yet."""
    if plan.config.engine.kind == "inline":
        return InlineEngine(plan.config.engine)
    return RayEngine(plan.config.engine)
