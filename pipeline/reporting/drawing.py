"""The shapes of a histogram of a score with the lines of its limits, for SVG."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from terminal_output import format_count

WIDTH = 320.0
HEIGHT = 140.0
TOP = 26.0  # of the bars; the labels of two lines are above
BOTTOM = 18.0  # for the labels of the axis
LABEL_ROW = 11.0

Scale = Callable[[float], float]


@dataclass(frozen=True)
class Text:
    """A text in a picture."""

    x: str
    y: str
    anchor: str
    label: str


@dataclass(frozen=True)
class Drawing:
    """A histogram as shapes.

    Attributes:
        view_box: the size of the picture.
        label: what it shows, in words.
        paths: class and outline of each shape, the lowest one first.
        texts: the labels of the axis and of the lines.
        edges: the places of the edges of the bins.
    """

    view_box: str
    label: str
    paths: Sequence[tuple[str, str]]
    texts: Sequence[Text]
    edges: Sequence[float]


def draw_histogram(
    histogram: Mapping[str, Any],
    edges: Sequence[float],
    sides: Sequence[str],
    *,
    is_log: bool,
    is_stacked: bool,
) -> Drawing:
    """Return the shapes of a histogram.

    Args:
        histogram: `language`, `num_docs`, the counts of each side by bin, and `lines`, whose value
            `before` is drawn too if it differs.
        edges: of the bins.
        sides: names of the counts, from the bottom up. They are also the classes of the bars.
        is_log: whether the axis is logarithmic.
        is_stacked: whether the bars of a side begin at the top of those of the side before.
    """
    scale = _make_scale(edges, is_log)
    counts = [histogram[side] for side in sides]
    places = [round(scale(edge), 1) for edge in edges]
    outlines = _draw_bars(counts, places, is_stacked)
    paths = [(side, path) for side, path in zip(sides, outlines, strict=True) if path]
    paths.append(("axis", f"M0 {HEIGHT - BOTTOM:g}H{WIDTH:g}"))
    texts = list(_label_axis(edges, is_log, scale))
    documents = format_count(histogram["num_docs"], "document")
    labels = [f"{histogram['language'] or 'all languages'}: {documents}"]
    for number, line in enumerate(histogram["lines"]):
        # Labels of neighbours are in two rows.
        bottom, x = 9 + number % 2 * LABEL_ROW, scale(line["value"])
        anchor = "end" if x > WIDTH / 2 else "start"
        label = f"{line['label']} {format_number(line['value'])}"
        end = f"{bottom + 2:g}V{HEIGHT - BOTTOM:g}"
        before = line.get("before")
        if before is not None and before != line["value"]:
            paths.append(("limit before", f"M{scale(before):.1f} {end}"))
        paths.append(("limit", f"M{x:.1f} {end}"))
        texts.append(Text(f"{x:.1f}", f"{bottom:g}", anchor, label))
        labels.append(label)
    return Drawing(f"0 0 {WIDTH:g} {HEIGHT:g}", ", ".join(labels), paths, texts, places)


def format_number(value: float) -> str:
    """Return a number with at most four digits that count: `1,234`, `0.6512`."""
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _make_scale(edges: Sequence[float], is_log: bool) -> Scale:
    """Return the function from a score to its place on the axis."""
    transform: Scale = math.log if is_log else float
    low, high = transform(edges[0]), transform(edges[-1])

    def scale(value: float) -> float:
        inside = min(max(value, edges[0]), edges[-1])
        return WIDTH * (transform(inside) - low) / (high - low)

    return scale


def _draw_bars(
    counts: Sequence[Sequence[int]], edges: Sequence[float], is_stacked: bool
) -> Iterator[str]:
    """Yield a path for each side: one element for all of its bars keeps a page small.

    Args:
        counts: of each side, by bin.
        edges: of the bins, on the axis.
        is_stacked: as in `draw_histogram`.
    """
    combine = sum if is_stacked else max
    highest = max(map(combine, zip(*counts, strict=True)), default=0)
    doc_height = (HEIGHT - TOP - BOTTOM) / max(1, highest)
    bottoms = [HEIGHT - BOTTOM] * (len(edges) - 1)
    for numbers in counts:
        shapes: list[str] = []
        for place, number in enumerate(numbers):
            if not number:
                continue
            left, width = edges[place], edges[place + 1] - edges[place]
            height = number * doc_height
            top = bottoms[place] - height
            shapes.append(f"M{left:.1f} {top:.1f}h{width:.1f}v{height:.1f}h{-width:.1f}z")
            if is_stacked:
                bottoms[place] = top
        yield "".join(shapes)


def _label_axis(edges: Sequence[float], is_log: bool, scale: Scale) -> Iterator[Text]:
    low, high = edges[0], edges[-1]
    middle = math.sqrt(low * high) if is_log else (low + high) / 2
    for value, anchor in zip((low, middle, high), ("start", "middle", "end"), strict=True):
        label = format_number(float(f"{value:.3g}"))
        yield Text(f"{scale(value):.1f}", f"{HEIGHT - 4:g}", anchor, label)
