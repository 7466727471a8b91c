"""The plan of a run as a table."""

from __future__ import annotations

from pipeline.phases import registry
from pipeline.phases.phase import Phase
from pipeline.planning.run_plan import RunPlan
from pipeline.reporting.tables import make_table
from terminal_output.console import SafeConsole


def print_plan(plan: RunPlan, console: SafeConsole) -> None:
    """Print the phases with their stages, fingerprints and tasks, and what is done already."""
    input_bytes = sum(split.num_bytes for split in plan.splits)
    num_files = sum(len(split.files) for split in plan.splits)
    console.print(
        f"{num_files:,} files, {input_bytes / 2**20:,.1f} MiB, in {len(plan.splits):,} input "
        f"splits; run folder {plan.run_dir}"
    )
    rows: list[tuple[str, ...]] = []
    for phase in registry.PHASES:
        stages = " ".join(stage.name for stage in phase.enabled_stages(plan.config))
        fingerprint = plan.phase(phase.name).fingerprint or "—"
        tasks = phase.task_kind
        if _has_task_per_split(phase):
            tasks = f"{len(plan.splits):,} splits"
        rows.append(
            (phase.name, stages, fingerprint, tasks, _describe_progress(plan, phase))
        )
    console.print(make_table("", ("phase", "stages", "fingerprint", "tasks", "done"), rows))


def _has_task_per_split(phase: type[Phase]) -> bool:
    return phase.task_kind == "splits"


def _describe_progress(plan: RunPlan, phase: type[Phase]) -> str:
    """Return whether a phase is off, done, or how much of it is done."""
    if not phase.is_enabled(plan.config):
        return "off"
    if plan.phase(phase.name).fingerprint is None:
        return "would run"
    folder = plan.folder(phase.name)
    done = folder.done()
    is_complete = folder.complete()
    if _has_task_per_split(phase):
        # The folder may also hold splits of an earlier input.
        done &= {split.key for split in plan.splits}
        is_complete = is_complete and len(done) == len(plan.splits)
    if is_complete:
        return "all"
    return f"{len(done):,}, would continue" if done else "would run"
