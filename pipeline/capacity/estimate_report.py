"""Show the estimate of a run as tables or as JSON."""

from __future__ import annotations

import json

from rich.table import Table

from pipeline.capacity.model import OBJECT_STORE_MB, PhaseEstimate, RunEstimate
from terminal_output import format_count
from terminal_output.console import SafeConsole

COLUMNS = (
    "phase",
    "tasks",
    "files",
    "read",
    "written",
    "CPU hours",
    "MB per task",
    "parallel tasks",
    "hours",
    "idle",
)
NUM_STEPS_SHOWN = 6


def print_estimate(found: RunEstimate, console: SafeConsole) -> None:
    """Print one row per phase, the totals and the warnings."""
    console.print(_describe_input(found))
    console.print(_make_table(found))
    for line in _describe_totals(found):
        console.print(line)
    for warning in found.warnings:
        console.print(f"! {warning}", style="yellow")


def to_json(found: RunEstimate) -> str:
    """Return the estimate as JSON text."""
    return json.dumps(found.to_json(), indent=1) + "\n"


def _describe_input(found: RunEstimate) -> str:
    cluster, amounts = found.cluster, found.amounts
    return (
        f"{format_count(found.num_files, 'file')} in "
        f"{format_count(found.num_splits, 'input split')}: "
        f"{_format_bytes(amounts['input'])}, {format_count(round(amounts['documents']), 'document')}, "
        f"{_format_bytes(amounts['text'])} of text; on {cluster.nodes:,} x "
        f"{format_count(cluster.cores, 'core')}, "
        f"{cluster.memory_gb:,.0f} GB"
    )


def _describe_totals(found: RunEstimate) -> list[str]:
    amounts = found.amounts
    lines = [f"CPU hours, largest first: {_describe_largest_steps(found)}"]
    lines.append(
        f"{amounts['kept']:,.0f} documents and {amounts['tokens']:,.0f} tokens are kept; "
        f"{_format_bytes(found.bytes_written)} on disk at the end; "
        f"{_format_bytes(found.network_bytes)} over the network if the run folder is shared "
        f"storage; {OBJECT_STORE_MB} MB of object store per machine"
    )
    opened = {p.name: p.num_opened for p in found.phases if p.num_opened}
    if opened:
        counts = ", ".join(f"{name} {count:,}" for name, count in opened.items())
        lines.append(f"Files opened by tasks that read every input split: {counts}")
    if found.price is not None:
        cluster = found.cluster
        lines.append(
            f"Price: {found.price:,.2f} ({cluster.nodes * cluster.cores:,} cores at "
            f"{cluster.price_per_core_hour:g} per hour, for {_format_hours(found.hours)} hours)"
        )
    lines.append(
        f"Rates measured on {found.calibration}; `make bench` measures this machine, "
        f"--calibration RUN uses the rates of a run"
    )
    return lines


def _describe_largest_steps(found: RunEstimate) -> str:
    seconds: dict[str, float] = {}
    for phase in found.phases:
        for step, step_s in phase.cpu_s.items():
            seconds[f"{phase.name}: {step}"] = step_s
    largest = sorted(seconds, key=lambda step: -seconds[step])[:NUM_STEPS_SHOWN]
    return ", ".join(f"{step} {_format_hours(seconds[step] / 3600)}" for step in largest)


def _make_table(found: RunEstimate) -> Table:
    """Return a table with one row per phase that has tasks, and the total."""
    table = Table(header_style="bold", box=None, padding=(0, 2, 0, 0))
    for name in COLUMNS:
        table.add_column(name, justify="left" if name == "phase" else "right", no_wrap=True)
    for phase in found.phases:
        if phase.num_tasks:
            table.add_row(*_make_row(phase))
    total = (
        "total",
        "",
        f"{sum(phase.num_files for phase in found.phases):,}",
        _format_bytes(sum(phase.bytes_read for phase in found.phases)),
        _format_bytes(found.bytes_written),
        _format_hours(found.cpu_hours),
        "",
        "",
        _format_hours(found.hours),
        "",
    )
    table.add_row(*total, style="bold")
    return table


def _make_row(phase: PhaseEstimate) -> tuple[str, ...]:
    return (
        phase.name,
        f"{phase.num_tasks:,}",
        f"{phase.num_files:,}",
        _format_bytes(phase.bytes_read),
        _format_bytes(phase.bytes_written),
        _format_hours(phase.cpu_hours),
        f"{phase.memory_mb:,.0f}",
        f"{phase.slots:,}",
        _format_hours(phase.hours),
        f"{phase.idle_share:.0%}",
    )


def _format_bytes(number: float) -> str:
    """Return bytes in powers of 1000: 4,900,000,000 is `4.9 GB`."""
    for name in ("B", "kB", "MB"):
        if number < 1000:
            return f"{number:,.0f} {name}"
        number /= 1000
    for name in ("GB", "TB"):
        if number < 1000:
            return f"{number:,.1f} {name}"
        number /= 1000
    return f"{number:,.1f} PB"


def _format_hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:,.3g}"
