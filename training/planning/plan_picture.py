"""Draws a plan as one self-contained SVG file."""

from __future__ import annotations

import html
from collections.abc import Iterator

from training.planning.alternatives import Option
from training.planning.gpus import GIB
from training.planning.plan import Plan

# Colours of Okabe and Ito 2008, which colour-blind readers can distinguish; greys for
# memory that does not belong to the model.
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

_LEFT, _WIDTH, _RIGHT, _TOP = 230, 640, 120, 96
_ROW_HEIGHT, _BAR_HEIGHT = 26, 17
# Width of the chart in capacities of the GPU. Longer bars are cut off and labelled.
_MAX_CAPACITIES = 2.5


def draw_picture(plan: Plan) -> str:
    """Return an SVG with one bar per option, divided by use, and the capacity of the GPU."""
    options: list[tuple[Option, float]] = []  # with total bytes
    for option in (plan.configured, *plan.alternatives):
        if option.footprint is not None:
            total = option.footprint.peak.total
            options.append((option, total))
    capacity = plan.gpu.memory_bytes
    largest = max(total for _, total in options)
    # Pixels per byte. 2 % of room beside the longest bar, or beside the capacity.
    scale = _WIDTH / min(max(largest, capacity) * 1.02, _MAX_CAPACITIES * capacity)
    bottom = _TOP + _ROW_HEIGHT * len(options)
    lines = [*_draw_frame(plan, bottom), *_draw_legend()]
    for row, (option, _) in enumerate(options):
        lines += _draw_bar(option, _TOP + _ROW_HEIGHT * row, scale)
    edge = _LEFT + capacity * scale
    lines.append(
        f'<path d="M {edge:.1f} {_TOP - 8} V {bottom}" stroke="#1b1f24" stroke-dasharray="4 3"/>'
    )
    lines.append(
        f'<text x="{edge:.1f}" y="{bottom + 18}" text-anchor="middle">'
        f"{capacity / GIB:.1f} GiB</text>"
    )
    # Labels come last, because the line of the capacity may cross them.
    for row, (option, total) in enumerate(options):
        colour = "#1b1f24" if option.fits(plan.gpu) else "#b3261e"
        weight = 600 if option is plan.configured else 400
        lines += _draw_labels(
            option, total, _TOP + _ROW_HEIGHT * row, scale, colour, weight
        )
    return "\n".join([*lines, "</svg>"]) + "\n"


def _draw_frame(plan: Plan, bottom: int) -> Iterator[str]:
    title = (
        f"{plan.num_parameters / 1e9:.2f} B parameters on {plan.num_gpus} x {plan.gpu.name}: "
        f"GiB on each GPU"
    )
    size = f'width="{_LEFT + _WIDTH + _RIGHT}" height="{bottom + 40}"'
    font = 'font-family="system-ui, sans-serif" font-size="13" fill="#1b1f24"'
    yield f'<svg xmlns="http://www.w3.org/2000/svg" {size} {font}>'
    yield '<rect width="100%" height="100%" fill="#ffffff"/>'
    yield f'<text x="16" y="28" font-size="16" font-weight="600">{html.escape(title)}</text>'


def _draw_legend() -> Iterator[str]:
    x = 16.0
    for name, colour in _COLOURS.items():
        yield f'<rect x="{x:.0f}" y="48" width="12" height="12" fill="{colour}"/>'
        yield f'<text x="{x + 17:.0f}" y="59">{name}</text>'
        x += 34 + 7.2 * len(name)  # 7.2: width of a character


def _draw_bar(option: Option, top: int, scale: float) -> Iterator[str]:
    assert option.footprint is not None
    x, end = float(_LEFT), float(_LEFT + _WIDTH)
    for name, colour in _COLOURS.items():
        num_bytes = getattr(option.footprint.peak, name)
        width = min(num_bytes * scale, end - x)
        if width > 0:
            title = html.escape(f"{option.name}, {name}: {num_bytes / GIB:.2f} GiB")
            box = f'x="{x:.1f}" y="{top}" width="{width:.1f}" height="{_BAR_HEIGHT}"'
            yield f'<rect {box} fill="{colour}"><title>{title}</title></rect>'
            x += width


def _draw_labels(
    option: Option, total: float, top: int, scale: float, colour: str, weight: int
) -> Iterator[str]:
    """Yield the name before a bar and the total after it, with a white outline."""
    is_cut_off = total * scale > _WIDTH + 1
    label = f"{total / GIB:,.1f}" + (" (cut off)" if is_cut_off else "")
    style = f'font-weight="{weight}"'
    name = html.escape(option.name)
    yield f'<text x="{_LEFT - 10}" y="{top + 13}" text-anchor="end" {style}>{name}</text>'
    x = _LEFT + min(total * scale, _WIDTH) + 6
    # Drawn twice, outline first: not all SVG viewers know paint-order.
    for paint in ('stroke="#ffffff" stroke-width="4"', f'fill="{colour}"'):
        yield f'<text x="{x:.1f}" y="{top + 13}" {style} {paint}>{label}</text>'
