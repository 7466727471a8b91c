"""A plan as tables on the terminal, and as a picture.

Promises: nothing is computed here but sums and shares; the picture is one SVG file that needs nothing else.
Leaves to others: what is in a plan (plan.py).
"""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import fields

from rich.console import Console
from rich.table import Table

from training.planning.memory import GIB, Memory
from training.planning.plan import MAX_CHANGES, SPARE_SHARE, Option, Plan

_COLUMNS = tuple(field.name for field in fields(Memory))
_MOMENTS = {
    "loss": "when forward is done",
    "last": "in backward of the last block",
    "first": "in backward of the first block",
    "end": "when backward is done",
}


def show(plan: Plan, console: Console) -> None:
    """Print the verdict, what would make it fit, and all layouts side by side."""
    for line in _verdict(plan):
        console.print(line, highlight=False, soft_wrap=True)
    console.print()
    console.print(_table(plan))
    for option in plan.others:
        if option.footprint is None:
            console.print(
                f"{option.name}: cannot be: {option.refusal}",
                highlight=False,
                soft_wrap=True,
                style="dim",
            )
    console.print(f"\n{_NOTE}", highlight=False, soft_wrap=True, style="dim")


_NOTE = f"""\
GiB on the fullest GPU at its fullest moment. Parameters, gradients and optimizer's state are exact; the context is
assumed, and so are {SPARE_SHARE:.0%} of the memory to spare for the allocator; compiled blocks keep less. Speed knows
of computing again, of tensor's exchange within a node and of the CPU's link; not of what zero3 asks of the network
beyond the others."""


def _verdict(plan: Plan) -> Iterator[str]:
    gpu, here, found = plan.gpu, plan.here, plan.here.footprint
    assert found is not None
    fits, capacity = here.fits(gpu), gpu.memory_bytes / GIB
    yield (
        f"{plan.num_parameters / 1e9:.2f} B parameters (vocabulary {plan.vocab_size:,}) on {plan.num_gpus} x "
        f"{gpu.name}, {found.micro_batches} micro-batches a step"
    )
    yield (
        f"[bold]{'fits' if fits else 'does not fit'}[/]: {found.peak.total / GIB:.1f} of {capacity:.1f} GiB "
        f"{_MOMENTS[found.moment]}; {found.host / GIB:.1f} GiB of CPU memory per GPU"
    )
    yield (
        f"{here.tokens_per_s:,.0f} tokens/s at {plan.mfu:.0%} MFU: {plan.tokens / 1e9:,.1f} B tokens in "
        f"{plan.hours(here):,.1f} hours ({plan.flops_per_token / 1e9:.1f} GFLOP a token)"
    )
    for option in plan.remedies:
        assert option.footprint is not None
        yield f"  fits with {_total(option)} GiB, {option.tokens_per_s:,.0f} tokens/s: {option.name}"
    if not fits and not plan.remedies:
        yield (
            f"  no {MAX_CHANGES} changes of layout make it fit: take more GPUs, shorter rows (data.seq_len) or a "
            f"smaller model; the table tells what takes most"
        )


def _total(option: Option) -> str:
    assert option.footprint is not None
    return f"{option.footprint.peak.total / GIB:,.1f}"


def _table(plan: Plan) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 1, 0, 0))
    table.add_column("", no_wrap=True)
    names = ("params", "gathered", "grads", "optim", "activ", "loss", "buffers", "context")
    for name in (*names, "total", "left", "CPU", "tokens/s", "hours"):
        table.add_column(name, justify="right", no_wrap=True)
    for option in (plan.here, *plan.others):
        found = option.footprint
        if found is not None:
            left = plan.gpu.memory_bytes - found.peak.total
            numbers = [getattr(found.peak, name) for name in _COLUMNS] + [
                found.peak.total,
                left,
                found.host,
            ]
            cells = [f"{number / GIB:,.1f}" for number in numbers]
            cells += [f"{option.tokens_per_s:,.0f}", f"{plan.hours(option):,.1f}"]
            style = "red" if not option.fits(plan.gpu) else "bold" if option is plan.here else ""
            table.add_row(option.name, *cells, style=style)
    return table


# ------------------------------------------------------------------------------------------------------------- picture

_COLOURS = {
    "parameters": "#0072b2",
    "gathered": "#56b4e9",
    "gradients": "#d55e00",
    "optimizer": "#e69f00",
    "activations": "#009e73",
    "loss": "#cc79a7",
    "buffers": "#7f8c8d",
    "context": "#c8cdd2",
}
"""Okabe and Ito 2008: told apart by all eyes; greys for what is not the model's."""

_LEFT, _WIDTH, _RIGHT, _TOP, _LINE, _BAR = 230, 640, 120, 96, 26, 17
_MAX_CAPACITIES = 2.5
"""The picture ends there; what takes more is cut off and says its number."""


def picture(plan: Plan) -> str:
    """An SVG: a bar of memory for each layout, cut by what takes it, against the GPU's memory."""
    options = [option for option in (plan.here, *plan.others) if option.footprint is not None]
    capacity = plan.gpu.memory_bytes
    largest = max(option.footprint.peak.total for option in options if option.footprint is not None)
    scale = _WIDTH / min(max(largest, capacity) * 1.02, _MAX_CAPACITIES * capacity)
    bottom = _TOP + _LINE * len(options)
    title = f"{plan.num_parameters / 1e9:.2f} B parameters on {plan.num_gpus} x {plan.gpu.name}: GiB on each GPU"
    size = f'width="{_LEFT + _WIDTH + _RIGHT}" height="{bottom + 40}"'
    text = 'font-family="system-ui, sans-serif" font-size="13" fill="#1b1f24"'
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} {text}>',
        '<rect width="100%" height="100%" fill="#ffffff"/>',
        f'<text x="16" y="28" font-size="16" font-weight="600">{html.escape(title)}</text>',
        *_legend(),
    ]
    for place, option in enumerate(options):
        lines += _bar(option, _TOP + _LINE * place, scale)
    edge = _LEFT + capacity * scale
    lines += [
        f'<path d="M {edge:.1f} {_TOP - 8} V {bottom}" stroke="#1b1f24" stroke-dasharray="4 3"/>',
        f'<text x="{edge:.1f}" y="{bottom + 18}" text-anchor="middle">{capacity / GIB:.1f} GiB</text>',
    ]
    for place, option in enumerate(options):
        colour = "#1b1f24" if option.fits(plan.gpu) else "#b3261e"
        lines += _words(
            option, _TOP + _LINE * place, scale, colour, weight=600 if option is plan.here else 400
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _legend() -> Iterator[str]:
    place = 16.0
    for name, colour in _COLOURS.items():
        yield f'<rect x="{place:.0f}" y="48" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{place + 17:.0f}" y="59">{name}</text>'
        place += 34 + 7.2 * len(name)


def _bar(option: Option, top: int, scale: float) -> Iterator[str]:
    assert option.footprint is not None
    place, end = float(_LEFT), float(_LEFT + _WIDTH)
    for column, colour in _COLOURS.items():
        num_bytes = getattr(option.footprint.peak, column)
        width = min(num_bytes * scale, end - place)
        if width > 0:
            label = html.escape(f"{option.name}, {column}: {num_bytes / GIB:.2f} GiB")
            size = f'x="{place:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}"'
            yield f'<rect {size} fill="{colour}"><title>{label}</title></rect>'
            place += width


def _words(option: Option, top: int, scale: float, colour: str, *, weight: int) -> Iterator[str]:
    """The name before a bar and the number behind it; it has a white rim, as the line may cross it."""
    assert option.footprint is not None
    total = option.footprint.peak.total
    is_cut = total * scale > _WIDTH + 1
    number = f"{total / GIB:,.1f}" + (" (cut off)" if is_cut else "")
    style = f'font-weight="{weight}"'
    yield f'<text x="{_LEFT - 10}" y="{top + 13}" text-anchor="end" {style}>{html.escape(option.name)}</text>'
    place = _LEFT + min(total * scale, _WIDTH) + 6
    # twice, as not all that draw SVG know paint-order
    for paint in ('stroke="#ffffff" stroke-width="4"', f'fill="{colour}"'):
        yield f'<text x="{place:.1f}" y="{top + 13}" {style} {paint}>{number}</text>'
