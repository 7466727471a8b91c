"""Conversion between the plan of a run and its run folder."""

from __future__ import annotations

from dataclasses import replace

from pipeline.config import RunConfig
from pipeline.inputs.input_splits import InputSplit
from pipeline.phases.registry import find_phase
from pipeline.phases.run_plan import RunPlan
from pipeline.planning.plan import plan_splits
from pipeline.runs.run_folder import RunFolder, number_splits


def record_plan(plan: RunPlan) -> RunFolder:
    """Write run.json for a plan and return the run folder that it describes."""
    run = RunFolder(
        run_dir=plan.run_dir,
        recorded_config=plan.config.model_dump(mode="json"),
        folders={phase.name: plan.folder(phase.name).root.name for phase in plan.phases},
        splits=number_splits([split.key for split in plan.splits]),
        stage_versions={
            phase.name: {spec.stage.name: spec.stage.version for spec in phase.stages}
            for phase in plan.phases
            if find_phase(phase.name).is_enabled(plan.config)
        },
        previous=plan.previous,
    )
    run.record()
    return run


def load_plan(run: RunFolder, config: RunConfig | None = None) -> RunPlan:
    """Build a plan that reads the stored outputs of a run. The input files are not needed.

    Args:
        run: the run.
        config: a config that differs from the run's in `select` only; default: the run's own.
    """
    config = (config or run.config).model_copy(
        update={"run_dir": run.config.run_dir, "storage": run.config.storage}
    )
    splits = [InputSplit(split.index, split.key) for split in run.splits]
    plan = plan_splits(config, splits, run.previous)
    # The outputs may come from other versions of the stages than those installed now.
    stored = {name: folder.removeprefix(f"{name}-") for name, folder in run.folders.items()}
    phases = [
        replace(phase, fingerprint=stored.get(phase.name, phase.fingerprint))
        for phase in plan.phases
    ]
    return replace(plan, phases=tuple(phases))
