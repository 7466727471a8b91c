"""Line charts next to each other in one SVG.

    svg = draw("Loss on held-out text", [Panel("Wikipedia", {"raw": [[(100, 7.1), (200, 6.5)], ...]})])

There is one panel per held-out set. Each dataset has a strong line (the mean of its seeds) over weak lines (one per
seed), with its name and last mean at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

# Grey for the reference, then colours of Okabe and Ito, which colour-blind readers can
# distinguish.
COLOURS = ("#8c8c8c", "#0072b2", "#d55e00", "#009e73")

WIDTH, HEIGHT = 430, 300
LEFT, RIGHT, TOP, BOTTOM = 46, 152, 56, 44
LABEL_GAP = 14
FONT = 'font-family="system-ui, sans-serif" font-size="11"'

Curve = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Panel:
    """A held-out set: the curves (tokens, loss) of each dataset, one per seed."""

    title: str
    curves: Mapping[str, Sequence[Curve]]


def draw(title: str, panels: Sequence[Panel], x_label: str = "tokens trained on") -> str:
    """Return the chart as SVG."""
    width = WIDTH * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" {FONT}>',
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="600">{escape(title)}</text>',
    ]
    for number, panel in enumerate(panels):
        parts += [
            f'<g transform="translate({number * WIDTH} 0)">',
            *_panel(panel, x_label),
            "</g>",
        ]
    return "\n".join([*parts, "</svg>", ""])


def mean(curves: Sequence[Curve]) -> list[tuple[float, float]]:
    """Return the mean curve of curves with the same x values."""
    result: list[tuple[float, float]] = []
    for points in zip(*curves, strict=True):
        losses = [loss for _, loss in points]
        result.append((points[0][0], sum(losses) / len(losses)))
    return result


def _panel(panel: Panel, x_label: str) -> list[str]:
    points = [
        point for curves in panel.curves.values() for curve in curves for point in curve
    ]
    low, high = min(y for _, y in points), max(y for _, y in points)
    margin = 0.05 * (high - low) or 0.1
    low, high, longest = low - margin, high + margin, max(x for x, _ in points)

    def x(tokens: float) -> float:
        return LEFT + tokens / longest * (WIDTH - LEFT - RIGHT)

    def y(loss: float) -> float:
        return TOP + (high - loss) / (high - low) * (HEIGHT - TOP - BOTTOM)

    parts = [f'<text x="{LEFT}" y="42" fill="#444">{escape(panel.title)}</text>']
    for tick in _ticks(low, high):
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#e6e6e6"/>'
        )
        parts.append(
            f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end" fill="#666">{tick:g}</text>'
        )
    below = f'y="{HEIGHT - BOTTOM + 16}" text-anchor="middle" fill="#666"'
    parts += [
        f'<text x="{x(tick):.1f}" {below}>{_short(tick)}</text>'
        for tick in _ticks(0, longest)
    ]
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{HEIGHT - 8}" text-anchor="middle" fill="#666">{escape(x_label)}</text>'
    )
    return parts + _curves(panel, x, y)


def _curves(
    panel: Panel, x: Callable[[float], float], y: Callable[[float], float]
) -> list[str]:
    """Return the runs, their means, and a label at the end of each mean."""

    def line(curve: Curve, style: str) -> str:
        places = " ".join(f"{x(tokens):.1f},{y(loss):.1f}" for tokens, loss in curve)
        return f'<polyline points="{places}" fill="none" {style}/>'

    parts: list[str] = []
    colours = dict(zip(panel.curves, COLOURS, strict=False))
    for name, curves in panel.curves.items():
        if len(curves) > 1:
            parts += [
                line(curve, f'stroke="{colours[name]}" stroke-opacity="0.3"')
                for curve in curves
            ]
    means = {name: mean(curves) for name, curves in panel.curves.items()}
    parts += [
        line(curve, f'stroke="{colours[name]}" stroke-width="2"')
        for name, curve in means.items()
    ]
    ends = {name: curve[-1][1] for name, curve in means.items()}
    places = _apart({name: y(loss) for name, loss in ends.items()})
    for name, place in places.items():
        label = f"{escape(name)} {ends[name]:.2f}"
        parts.append(
            f'<text x="{WIDTH - RIGHT + 6}" y="{place + 4:.1f}" fill="{colours[name]}">{label}</text>'
        )
    return parts


def _apart(places: Mapping[str, float]) -> dict[str, float]:
    """Return label positions in their order, moved so that no label covers another.

    Labels move down first; then all of them move up by the average distance.
    """
    found: dict[str, float] = {}
    last = float("-inf")
    for name, place in sorted(places.items(), key=lambda item: item[1]):
        last = found[name] = max(place, last + LABEL_GAP)
    shift = sum(found[name] - places[name] for name in found) / max(1, len(found))
    shift = min(shift, max(0.0, min(found.values()) - TOP))
    return {name: place - shift for name, place in found.items()}


def _ticks(low: float, high: float) -> list[float]:
    """Return three to seven round numbers in the range."""
    power = 10.0 ** math.floor(math.log10(high - low))
    step = next(
        power * share for share in (1, 0.5, 0.2, 0.1) if (high - low) / (power * share) >= 3
    )
    return [
        round(k * step, 10)
        for k in range(math.ceil(low / step), math.floor(high / step) + 1)
    ]


def _short(number: float) -> str:
    if number >= 1e6:
        return f"{number / 1e6:g} M"
    return f"{number / 1e3:g} k" if number >= 1e3 else f"{number:g}"
