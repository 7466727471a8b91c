"""Show the estimate of a run as tables or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from rich.table import Table

from pipeline.capacity.costs import GET_PRICE, PUT_PRICE
from pipeline.capacity.model import OBJECT_STORE_MB, PhaseEstimate, RunEstimate
from terminal_output import format_count
from terminal_output.console import SafeConsole

# Title of a column -> its text in the row of a phase.
Columns = Mapping[str, Callable[[PhaseEstimate], str]]

NUM_STEPS_SHOWN = 6


def print_estimate(found: RunEstimate, console: SafeConsole) -> None:
    """Print two tables with one row per phase, the totals and the warnings."""
    console.print(_describe_input(found))
    console.print(_make_table(found, WORK_COLUMNS))
    has_requests = any(phase.num_gets for phase in found.phases)
    console.print(_make_table(found, STORE_COLUMNS if has_requests else DISK_COLUMNS))
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
    if found.request_price:
        lines.append(
            f"Requests to the object store: {found.request_price:,.2f} $ (Amazon S3: "
            f"{GET_PRICE * 1e6:.2f} $ per million GETs, {PUT_PRICE * 1e6:.2f} $ per million PUTs)"
        )
    serial_hours = sum(phase.serial_hours for phase in found.phases)
    lines.append(
        f"The head needs {_format_bytes(found.driver_bytes)} of memory; the driver works alone in "
        f"{_format_hours(serial_hours)} hours"
    )
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
    steps = [(s, f"{p.name}: {step}") for p in found.phases for step, s in p.cpu_s.items()]
    largest = sorted(steps, reverse=True)[:NUM_STEPS_SHOWN]
    return ", ".join(f"{name} {_format_hours(seconds / 3600)}" for seconds, name in largest)


def _make_table(found: RunEstimate, columns: Columns) -> Table:
    """Return a table with one row per phase that has tasks, and the total."""
    table = Table(header_style="bold", box=None, padding=(0, 2, 0, 0))
    for name in ("phase", *columns):
        table.add_column(name, justify="left" if name == "phase" else "right", no_wrap=True)
    phases = [phase for phase in found.phases if phase.num_tasks]
    for phase in phases:
        table.add_row(phase.name, *(describe(phase) for describe in columns.values()))
    sums: dict[str, Any] = {
        name: sum(getattr(phase, name) for phase in phases) for name in TOTALS.values()
    }
    sums["cpu_s"] = {"all": 3600 * sums.pop("cpu_hours")}
    total = PhaseEstimate("total", 0, 0, **sums)
    texts = [columns[name](total) if name in TOTALS else "" for name in columns]
    table.add_row("total", *texts, style="bold")
    return table


def _format_known(phase: PhaseEstimate, text: str) -> str:
    """Return the text; "?" where it depends on rates that were not measured."""
    return text if phase.is_measured else "?"


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


def _format_count(number: float) -> str:
    """Return a count in powers of 1000: 1,280,000 is `1.3 M`."""
    for name in ("", " k", " M"):
        if number < 1000:
            return f"{number:,.3g}{name}"
        number /= 1000
    return f"{number:,.1f} G"


WORK_COLUMNS: Columns = {
    "tasks": lambda phase: f"{phase.num_tasks:,}",
    "files": lambda phase: f"{phase.num_files:,}",
    "CPU hours": lambda phase: _format_known(phase, _format_hours(phase.cpu_hours)),
    "MB per task": lambda phase: f"{phase.memory_mb:,.0f}",
    "parallel tasks": lambda phase: f"{phase.slots:,}",
    "slowest s": lambda phase: _format_known(phase, f"{phase.slowest_s:,.0f}"),
    "hours": lambda phase: _format_known(phase, _format_hours(phase.hours)),
    "idle": lambda phase: f"{phase.idle_share:.0%}",
}
STORE_COLUMNS: Columns = {
    "read": lambda phase: _format_bytes(phase.bytes_read),
    "written": lambda phase: _format_known(phase, _format_bytes(phase.bytes_written)),
    "GETs": lambda phase: _format_count(phase.num_gets),
    "PUTs": lambda phase: _format_count(phase.num_puts),
    "GETs per s": lambda phase: _format_known(phase, f"{phase.gets_per_s:,.0f}"),
    "latency s": lambda phase: f"{phase.latency_s:,.1f}",
    "scratch GB": lambda phase: f"{phase.scratch_gb:,.0f}",
}
DISK_COLUMNS = {name: STORE_COLUMNS[name] for name in ("read", "written", "scratch GB")}
# Title of a column with a total -> the quantity.
TOTALS = {
    "files": "num_files",
    "CPU hours": "cpu_hours",
    "hours": "hours",
    "read": "bytes_read",
    "written": "bytes_written",
    "GETs": "num_gets",
    "PUTs": "num_puts",
    "latency s": "latency_s",
}
