"""What a run would take, shown as tables, or as JSON.

Promises: says where the rates come from, and that they are of another machine where they are.
Leaves to others: the figures (cost.py).
"""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table

from pipeline.capacity.estimate import OBJECT_STORE_MB, Cost


def print_cost(cost: Cost, console: Console) -> None:
    """A line per phase, the whole, and what will not fit."""
    cluster, amounts = cost.cluster, cost.amounts
    machines = f"{cluster.nodes:,} x {cluster.cores} cores, {cluster.memory_gb:,.0f} GB"
    console.print(
        f"{cost.num_files:,} files in {cost.num_splits:,} units: {_bytes(amounts['input'])}, "
        f"{amounts['documents']:,.0f} documents, {_bytes(amounts['text'])} of text; on {machines}",
        markup=False,
    )
    console.print(_table(cost))
    steps = sorted(
        ((f"{p.name}: {step}", s) for p in cost.phases for step, s in p.cpu_s.items()),
        key=lambda item: -item[1],
    )
    shown = ", ".join(f"{name} {_hours(seconds / 3600)}" for name, seconds in steps[:6])
    console.print(f"CPU hours, most first: {shown}", markup=False)
    console.print(
        f"{amounts['kept']:,.0f} documents, {amounts['tokens']:,.0f} tokens are kept; {_bytes(cost.bytes_written)} on "
        f"disk at the end; {_bytes(cost.network_bytes)} over the network where the run folder is shared storage; "
        f"{OBJECT_STORE_MB} MB of object store a machine",
        markup=False,
    )
    if cost.price is not None:
        each = f"{cluster.nodes * cluster.cores:,} cores at {cluster.price_per_core_hour:g} an hour"
        console.print(
            f"Price: {cost.price:,.2f} ({each}, for {_hours(cost.hours)} hours)", markup=False
        )
    console.print(
        f"Rates measured on {cost.calibration}; `make bench` measures yours, --calibration RUN takes a run's",
        markup=False,
    )
    for warning in cost.warnings:
        console.print(f"! {warning}", markup=False, style="yellow")


def _table(cost: Cost) -> Table:
    """A line for each phase that has work, and one for them all."""
    columns = (
        "phase",
        "task_id",
        "files",
        "read",
        "written",
        "CPU hours",
        "MB a task",
        "tasks at a time",
        "hours",
        "idle",
    )
    table = Table(header_style="bold", box=None, padding=(0, 2, 0, 0))
    for name in columns:
        table.add_column(name, justify="left" if name == "phase" else "right", no_wrap=True)
    for phase in cost.phases:
        if not phase.task_ids:
            continue
        table.add_row(
            phase.name,
            f"{phase.task_ids:,}",
            f"{phase.num_files:,}",
            _bytes(phase.bytes_read),
            _bytes(phase.bytes_written),
            _hours(phase.cpu_hours),
            f"{phase.memory_mb:,.0f}",
            f"{phase.slots:,}",
            _hours(phase.hours),
            f"{phase.idle_share:.0%}",
        )
    num_files = sum(phase.num_files for phase in cost.phases)
    read = sum(phase.bytes_read for phase in cost.phases)
    whole = (
        "total",
        "",
        f"{num_files:,}",
        _bytes(read),
        _bytes(cost.bytes_written),
        _hours(cost.cpu_hours),
        "",
        "",
    )
    table.add_row(*whole, _hours(cost.hours), "", style="bold")
    return table


def to_json(cost: Cost) -> str:
    """The same for programs."""
    return json.dumps(cost.to_json(), indent=1) + "\n"


def _bytes(number: float) -> str:
    for split in ("B", "kB", "MB", "GB", "TB"):
        if number < 1000:
            return (
                f"{number:,.0f} {split}" if split in ("B", "kB", "MB") else f"{number:,.1f} {split}"
            )
        number /= 1000
    return f"{number:,.1f} PB"


def _hours(hours: float) -> str:
    return f"{hours:,.0f}" if hours >= 100 else f"{hours:,.3g}"
