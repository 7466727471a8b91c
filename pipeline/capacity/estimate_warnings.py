"""Warnings of an estimate: what does not fit or runs badly, and the setting that helps."""

from __future__ import annotations

import math
from collections.abc import Iterator

from pipeline.capacity import costs
from pipeline.capacity.fit import opens_all_splits
from pipeline.capacity.model import (
    UNMEASURED,
    WET_FILE,
    CostModel,
    PhaseEstimate,
    RunEstimate,
)
from pipeline.inputs.input_splits import MAX_SPLITS
from pipeline.phases import registry
from pipeline.phases.phase import Phase
from pipeline.phases.write_shards import BYTES_PER_TOKEN
from terminal_output import format_count

# Warn above this share of a phase's core-hours that is unused while its last tasks end.
MAX_IDLE_SHARE = 0.2

# Idle cores are reported only for phases that take at least this share of the run's hours, and in
# runs of at least this length.
MIN_PHASE_SHARE = 0.05
MIN_RUN_HOURS = 1 / 60

# One run is for one snapshot: with more, ranges and tasks no longer fit in memory.
SNAPSHOT_DOCUMENTS = 90_000 * WET_FILE["documents"]
MAX_SNAPSHOTS = 1.5

# A manifest has 1 kB per shard with four languages, and each process of a loader reads it.
MAX_SHARDS = 100_000

# In $. A snapshot takes a tenth of it.
MAX_REQUEST_PRICE = 100


def find_warnings(model: CostModel, found: RunEstimate) -> Iterator[str]:
    """Yield one line per problem of the estimated run."""
    for phase in found.phases:
        yield from _check_phase_memory(model, phase)
        yield from _check_idle_cores(phase, found.hours)
    yield from _check_cores_per_machine(model)
    yield from _check_size(found)
    yield from _check_disks(found)
    yield from _check_head_memory(found)
    yield from _check_requests(found)
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
    message = (
        f"{phase.name}: a task would take {estimated.memory_mb:,.0f} MB, "
        f"but requests {estimated.requested_mb:,}"
    )
    raise_memory = (
        f"raise engine.memory_mb (or engine.phases.{phase.name}.memory_mb) "
        f"to {estimated.memory_mb:,.0f}"
    )
    rates = model.calibration.phases.get(phase.name, UNMEASURED)
    room_mb = estimated.requested_mb - rates.base_mb
    if room_mb > 0 and phase.name == "write_shards":
        shard_tokens = int(room_mb * 2**20 / BYTES_PER_TOKEN / costs.LARGEST_TASK)
        return f"{message}; set write_shards.shard_tokens to {shard_tokens:,}, or {raise_memory}"
    if room_mb > 0 and not opens_all_splits(phase) and model.num_splits < model.num_files:
        return f"{message}; lower input.files_per_split, or {raise_memory}"
    return f"{message}; {raise_memory}"


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
    if phase.num_tasks <= phase.slots or phase.idle_share > 1 / 2:  # one wave of groups
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


def _check_size(found: RunEstimate) -> Iterator[str]:
    if found.num_splits > MAX_SPLITS:
        maximum = f"input.files_per_split: auto makes at most {MAX_SPLITS:,}"
        yield f"{found.num_splits:,} input splits make many small files; {maximum}"
    num_snapshots = found.amounts["documents"] / SNAPSHOT_DOCUMENTS
    if num_snapshots > MAX_SNAPSHOTS:
        yield (
            f"the input is {num_snapshots:,.1f} snapshots of Common Crawl; run each in another "
            f"run_dir (input.common_crawl.crawl), so that tasks stay small"
        )
    (num_shards,) = (p.num_tasks for p in found.phases if p.name == "write_shards")
    if num_shards > MAX_SHARDS:
        shard_tokens = 10**6 * math.ceil(found.amounts["tokens"] / MAX_SHARDS / 1e6)
        yield (
            f"{num_shards:,} shards are more than {MAX_SHARDS:,}, which a loader lists when it "
            f"starts; raise write_shards.shard_tokens to {shard_tokens:,}"
        )


def _check_disks(found: RunEstimate) -> Iterator[str]:
    cluster, needed_gb = found.cluster, found.bytes_written / 1e9
    if cluster.disk_gb is not None and needed_gb > cluster.disk_gb:
        yield (
            f"the run folder takes {needed_gb:,.0f} GB, {cluster.disk_gb:,.0f} GB are free there; "
            f"set run_dir to a larger disk"
        )
    largest = max(found.phases, key=lambda phase: phase.scratch_gb)
    if cluster.scratch_gb is not None and largest.scratch_gb > cluster.scratch_gb:
        yield (
            f"{largest.name}: its tasks write {largest.scratch_gb:,.0f} GB of scratch on a machine, "
            f"{cluster.scratch_gb:,.0f} GB are free there; set storage.scratch_dir to a larger disk, "
            f"or raise engine.phases.{largest.name}.memory_mb, so that fewer tasks run at a time"
        )


def _check_head_memory(found: RunEstimate) -> Iterator[str]:
    head_gb = found.cluster.head_memory_gb or found.cluster.memory_gb
    if found.driver_bytes > head_gb * 1e9:
        yield (
            f"the driver needs {found.driver_bytes / 1e9:,.1f} GB of memory on the head, which has "
            f"{head_gb:g} GB; start the run on a larger one (--head-memory-gb)"
        )


def _check_requests(found: RunEstimate) -> Iterator[str]:
    largest = max(found.phases, key=lambda phase: phase.request_price)
    if found.request_price > MAX_REQUEST_PRICE:
        is_upload = costs.PUT_PRICE * largest.num_puts > largest.request_price / 2
        remedy = "raise input.files_per_split"
        if largest.name == "write_shards" and is_upload:
            remedy = "raise write_shards.shard_tokens"
        yield (
            f"requests to the object store cost {found.request_price:,.0f} $, "
            f"{largest.request_price:,.0f} of them in {largest.name}; "
            f"{remedy}"
        )
    for phase in found.phases:
        hours = phase.num_gets / costs.MAX_GETS_PER_S / 3600
        is_relevant = hours > max(MIN_RUN_HOURS, MIN_PHASE_SHARE * found.hours)
        if phase.gets_per_s > costs.MAX_GETS_PER_S and is_relevant:
            yield (
                f"{phase.name}: {phase.gets_per_s:,.0f} GETs per s; S3 answers "
                f"{costs.MAX_GETS_PER_S:,} for a prefix until it has divided it, so the phase can "
                f"take {hours:,.2g} hours; raise engine.phases.{phase.name}.num_cpus, so "
                f"that fewer tasks run at a time"
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
