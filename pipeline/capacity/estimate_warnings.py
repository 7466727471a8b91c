"""Warnings of an estimate: what does not fit or runs badly, and the setting that helps."""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.capacity.costs import suggest_smaller_tasks
from pipeline.capacity.fit import opens_all_splits
from pipeline.capacity.model import CostModel, PhaseEstimate, RunEstimate
from pipeline.inputs.input_splits import MAX_SPLITS
from pipeline.phases import registry
from pipeline.phases.phase import Phase
from terminal_output import format_count

# Warn above this share of a phase's core-hours that is unused while its last tasks end.
MAX_IDLE_SHARE = 0.2

# Idle cores are reported only for phases that take at least this share of the run's hours, and in
# runs of at least this length.
MIN_PHASE_SHARE = 0.05
MIN_RUN_HOURS = 1 / 60


def find_warnings(model: CostModel, found: RunEstimate) -> Iterator[str]:
    """Yield one line per problem of the estimated run."""
    for phase in found.phases:
        yield from _check_phase_memory(model, phase)
        yield from _check_idle_cores(phase, found.hours)
    yield from _check_cores_per_machine(model)
    yield from _check_number_of_files(found)
    yield from _check_disk(found)
    yield from _check_measured(model)


def _check_phase_memory(model: CostModel, phase: PhaseEstimate) -> Iterator[str]:
    if not phase.slots:
        yield (
            f"{phase.name}: a task requests {phase.requested_mb:,} MB, but a machine has "
            f"{model.cluster.memory_gb:g} GB, so it would never start; "
            f"lower engine.memory_mb, or use larger machines"
        )
    elif phase.num_tasks and phase.memory_mb > phase.requested_mb:
        yield _describe_large_task(model, phase)


def _describe_large_task(model: CostModel, estimated: PhaseEstimate) -> str:
    """Say that a task exceeds its memory request, and name the setting that makes it fit."""
    phase = registry.find_phase(estimated.name)
    base_mb = model.calibration.phases[phase.name].base_mb
    message = (
        f"{phase.name}: a task would take {estimated.memory_mb:,.0f} MB, "
        f"but requests {estimated.requested_mb:,}"
    )
    raise_memory = f"raise engine.memory_mb to {estimated.memory_mb:,.0f}"
    room_mb = max(1.0, estimated.requested_mb - base_mb)
    if estimated.memory_mb - base_mb > room_mb:
        remedy = suggest_smaller_tasks(phase, room_mb * 2**20)
        if remedy:
            return f"{message}; {remedy}, or {raise_memory}"
        if not opens_all_splits(phase) and model.num_splits < model.num_files:
            return f"{message}; lower input.files_per_split, or {raise_memory}"
    return (
        f"{message}; raise engine.memory_mb (or engine.phases.{phase.name}.memory_mb) "
        f"to {estimated.memory_mb:,.0f}"
    )


def _check_idle_cores(phase: PhaseEstimate, total_hours: float) -> Iterator[str]:
    is_relevant = (
        total_hours >= MIN_RUN_HOURS and phase.hours > MIN_PHASE_SHARE * total_hours
    )
    if not phase.slots or phase.idle_share <= MAX_IDLE_SHARE or not is_relevant:
        return
    message = (
        f"{phase.name}: {format_count(phase.num_tasks, 'task')} on "
        f"{format_count(phase.slots, 'slot')}: {phase.idle_share:.0%} of its core-hours are idle"
    )
    if phase.num_tasks <= phase.slots:
        yield f"{message}; fewer cores are as fast"
    else:
        yield f"{message} in the last wave"


def _check_cores_per_machine(model: CostModel) -> Iterator[str]:
    cluster, memory_mb = model.cluster, model.config.engine.memory_mb
    machine_mb = cluster.memory_gb * 1e9 / 2**20
    num_tasks = int(machine_mb / memory_mb)
    if num_tasks < cluster.cores:
        yield (
            f"engine.memory_mb {memory_mb:,} allows {format_count(num_tasks, 'task')} on a "
            f"machine of {format_count(cluster.cores, 'core')}, the other cores are idle; "
            f"{int(machine_mb / cluster.cores):,} would use all"
        )


def _check_number_of_files(found: RunEstimate) -> Iterator[str]:
    if found.num_splits > MAX_SPLITS:
        num_files = sum(phase.num_files for phase in found.phases)
        yield (
            f"{found.num_splits:,} input splits make {num_files:,} files; "
            f"input.files_per_split: auto makes at most {MAX_SPLITS:,} splits"
        )


def _check_disk(found: RunEstimate) -> Iterator[str]:
    free_gb = found.cluster.disk_gb
    needed_gb = found.bytes_written / 1e9
    if free_gb is not None and needed_gb > free_gb:
        yield (
            f"the run folder takes {needed_gb:,.0f} GB, {free_gb:,.0f} GB are free there; "
            f"set run_dir to a larger disk"
        )


def _check_measured(model: CostModel) -> Iterator[str]:
    missing: list[str] = []
    for phase in registry.PHASES:
        missing += _list_unmeasured(model, phase)
    if missing:
        yield (
            f"not measured, counted as zero: {', '.join(missing)}; "
            f"use --calibration with a run that has them"
        )


def _list_unmeasured(model: CostModel, phase: type[Phase]) -> list[str]:
    """Return the phase, or its stages, that the calibration has no rates for."""
    if not model.count_tasks(phase):
        return []
    rates = model.calibration.phases.get(phase.name)
    if rates is None and not phase.stages:
        return [phase.name]
    measured = rates.cpu_s if rates else {}
    stages = [
        spec.stage.name
        for spec in phase.plan_stages(model.config)
        if spec.stage in phase.stages
    ]
    return [f"{phase.name}.{stage}" for stage in stages if stage not in measured]
