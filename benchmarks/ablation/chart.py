"""Line charts next to each other in one SVG.

    svg = draw("Loss on held-out text", {"Wikipedia": {"raw": [[(100, 7.1), (200, 6.5)], ...]}})

There is one panel per held-out set. Each dataset has a strong line (the mean of its seeds) over weak lines (one per
seed). The legend has the last means, the highest first.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from html import escape

# Grey for the reference, then colours of Okabe and Ito, which colour-blind readers can
# distinguish.
COLOURS = ("#8c8c8c", "#0072b2", "#d55e00", "#009e73")

WIDTH, HEIGHT = 430, 300
LEFT, RIGHT, TOP, BOTTOM = 46, 152, 56, 44
LINE = 16
FONT = 'font-family="system-ui, sans-serif" font-size="11"'

# Pairs of tokens and loss, one curve per seed.
Curve = Sequence[tuple[float, float]]


def draw(title: str, panels: Mapping[str, Mapping[str, Sequence[Curve]]]) -> str:
    """Return the chart as SVG: title of each panel -> dataset -> its curves."""
    width = WIDTH * len(panels)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {HEIGHT}" {FONT}>',
        f'<rect width="{width}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14" font-weight="600">{escape(title)}</text>',
    ]
    for number, (name, curves) in enumerate(panels.items()):
        parts.append(f'<g transform="translate({number * WIDTH} 0)">')
        parts += [*_draw_panel(name, curves), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def _draw_panel(title: str, datasets: Mapping[str, Sequence[Curve]]) -> Iterator[str]:
    points = [point for curves in datasets.values() for curve in curves for point in curve]
    longest = max(tokens for tokens, _ in points)
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM

    def place(tokens: float, loss: float) -> str:
        x = LEFT + tokens / longest * (right - LEFT)
        y = TOP + (high - loss) / ((high - low) or 1) * (bottom - TOP)
        return f"{x:.1f},{y:.1f}"

    yield f'<text x="{LEFT}" y="42" fill="#444">{escape(title)}</text>'
    for y, loss in ((TOP, high), (bottom, low)):
        yield f'<line x1="{LEFT}" x2="{right}" y1="{y}" y2="{y}" stroke="#e6e6e6"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4}" text-anchor="end" fill="#666">{loss:.2f}</text>'
    yield (
        f'<text x="{right}" y="{bottom + LINE}" text-anchor="end" fill="#666">'
        f"{longest:,.0f} tokens trained on</text>"
    )
    colours = dict(zip(datasets, COLOURS, strict=False))
    ends: dict[str, float] = {}
    for name, curves in datasets.items():
        mean = average(curves)
        ends[name] = mean[-1][1]
        styles = [(curve, 'stroke-opacity="0.3"') for curve in curves if len(curves) > 1]
        for curve, style in [*styles, (mean, 'stroke-width="2"')]:
            line = " ".join(place(*point) for point in curve)
            yield f'<polyline points="{line}" fill="none" stroke="{colours[name]}" {style}/>'
    for number, name in enumerate(sorted(ends, key=lambda name: -ends[name])):
        label = f"{escape(name)} {ends[name]:.2f}"
        y = TOP + LINE * number
        yield f'<text x="{right + 6}" y="{y}" fill="{colours[name]}">{label}</text>'


def average(curves: Sequence[Curve]) -> list[tuple[float, float]]:
    """Return the mean curve of curves with the same numbers of tokens."""
    points = zip(*curves, strict=True)
    return [(each[0][0], statistics.mean(loss for _, loss in each)) for each in points]
