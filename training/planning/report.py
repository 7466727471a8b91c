"""Prints a plan as tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from rich.table import Table

from terminal_output import format_count, format_short
from terminal_output.console import SafeConsole
from training.planning.gpus import GIB
from training.planning.memory import MemoryUse
from training.planning.plan import MAX_CHANGES, SPARE_SHARE, Option, Plan

_COLUMNS = {
    "parameters": "params",
    "gathered": "gathered",
    "gradients": "grads",
    "optimizer": "optim",
    "activations": "activ",
    "work": "work",
    "context": "context",
}
assert tuple(_COLUMNS) == tuple(field.name for field in fields(MemoryUse))

_NOTE = f"""\
GiB at the peak of the fullest GPU. Parameters and gradients are exact, activations an estimate. \
The context is assumed, and so is the {SPARE_SHARE:.0%} of memory left to the allocator. Compiled \
blocks take less than shown. The speed includes recomputation, communication of tensor and \
context parallelism, and transfers to CPU memory. It does not include the additional network \
traffic of zero3, nor Muon's products."""


def print_plan(plan: Plan, console: SafeConsole) -> None:
    """Print whether the config fits, what would make it fit, and all alternatives."""
    for line in _summarize(plan):
        console.print(line)
    console.print()
    console.print(_make_table(plan))
    for option in plan.alternatives:
        if option.footprint is None:
            line = f"{option.name}: not possible: {option.error}"
            console.print(line, style="dim")
    console.print(f"\n{_NOTE}", style="dim")


def _summarize(plan: Plan) -> Iterator[str]:
    gpu, configured = plan.gpu, plan.configured
    footprint = configured.footprint
    assert footprint is not None
    fits = configured.fits(gpu)
    micro_batches = format_count(footprint.micro_batches, "micro-batch", "micro-batches")
    yield (
        f"{format_short(plan.num_parameters)} parameters (vocabulary {plan.vocab_size:,}) on "
        f"{plan.num_gpus} x {gpu.name}, {micro_batches} per step"
    )
    yield (
        f"{'fits' if fits else 'does not fit'}: {footprint.peak.total / GIB:.1f} of "
        f"{gpu.memory_bytes / GIB:.1f} GiB; "
        f"{footprint.host / GIB:.1f} GiB of CPU memory per GPU"
    )
    yield (
        f"{configured.tokens_per_s:,.0f} tokens/s at {plan.mfu:.0%} MFU ({plan.mfu_source}): "
        f"{format_short(plan.tokens)} tokens in {_format_hours(plan.estimate_hours(configured))} "
        f"({plan.flops_per_token / 1e9:.3g} GFLOP per token)"
    )
    for option in plan.remedies:
        assert option.footprint is not None
        total_gib = option.footprint.peak.total / GIB
        speed = f"{option.tokens_per_s:,.0f} tokens/s"
        yield f"  fits with {total_gib:,.1f} GiB, {speed}: {option.name}"
    if not fits and not plan.remedies:
        yield (
            f"  no combination of up to {MAX_CHANGES} changes makes it fit: use more GPUs, shorter "
            f"rows (data.seq_len) or a smaller model; the table shows what takes the memory"
        )


def _format_hours(hours: float) -> str:
    if hours >= 1:
        return f"{hours:,.1f} hours"
    minutes = hours * 60
    return (
        f"{minutes:.0f} minutes"
        if minutes >= 2
        else f"{max(0.1, minutes * 60):.1f} seconds"
    )


def _make_table(plan: Plan) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    for name in (*_COLUMNS.values(), "total", "left", "CPU", "tokens/s", "hours"):
        table.add_column(name, justify="right", no_wrap=True)
    for option in (plan.configured, *plan.alternatives):
        if option.footprint is not None:
            style = ""
            if not option.fits(plan.gpu):
                style = "red"
            elif option is plan.configured:
                style = "bold"
            table.add_row(option.name, *_format_cells(plan, option), style=style)
    return table


def _format_cells(plan: Plan, option: Option) -> list[str]:
    footprint = option.footprint
    assert footprint is not None
    peak = footprint.peak
    left = plan.gpu.memory_bytes - peak.total
    numbers = [getattr(peak, name) for name in _COLUMNS]
    numbers += [peak.total, left, footprint.host]
    cells = [f"{number / GIB:,.1f}" for number in numbers]
    return [*cells, f"{option.tokens_per_s:,.0f}", f"{plan.estimate_hours(option):,.1f}"]
