"""Draws a histogram of a score with the lines of its limits, as SVG."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pipeline.reporting.report.elements import element
from terminal_output import format_count

WIDTH = 320.0
HEIGHT = 140.0
TOP = 26.0  # of the bars; the labels of two lines are above
BOTTOM = 18.0  # for the labels of the axis
LABEL_ROW = 11.0

Scale = Callable[[float], float]


def draw_histogram(
    histogram: Mapping[str, Any],
    bins: Mapping[str, Any],
    sides: Sequence[str],
    *,
    is_stacked: bool = True,
) -> ET.Element:
    """Return a figure.

    Args:
        histogram: `language`, `num_docs`, the counts of each side by bin, and `lines`.
        bins: their `edges`, and `is_log`.
        sides: names of the counts, from the bottom up. They are also the classes of the bars.
        is_stacked: whether the bars of a side begin at the top of those of the side before.
    """
    scale = _make_scale(bins["edges"], bins["is_log"])
    edges = [scale(edge) for edge in bins["edges"]]
    name = histogram["language"] or "all languages"
    caption = f" {format_count(histogram['num_docs'], 'document')}"
    return element(
        "figure",
        {"class": "histogram"},
        element("figcaption", {}, element("b", {}, name), caption),
        element(
            "svg",
            {
                "viewBox": f"0 0 {WIDTH:g} {HEIGHT:g}",
                "role": "img",
                "aria-label": _describe(name, histogram),
            },
            _draw_bars([histogram[side] for side in sides], sides, edges, is_stacked),
            element("path", {"class": "axis", "d": f"M0 {HEIGHT - BOTTOM:g}H{WIDTH:g}"}),
            _draw_ticks(bins["edges"], bins["is_log"], scale),
            (
                _draw_line(line, place % 2, scale)
                for place, line in enumerate(histogram["lines"])
            ),
        ),
    )


def format_number(value: float) -> str:
    """Return a number with at most four digits that count: `1,234`, `0.6512`."""
    if float(value).is_integer():
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"


def _describe(name: str, histogram: Mapping[str, Any]) -> str:
    limits = [
        f"{line['label']} {format_number(line['value'])}" for line in histogram["lines"]
    ]
    documents = format_count(histogram["num_docs"], "document")
    return ", ".join([f"{name}: {documents}", *limits])


def _make_scale(edges: Sequence[float], is_log: bool) -> Scale:
    """Return the function from a score to its place on the axis."""
    transform: Scale = math.log if is_log else float
    low, high = transform(edges[0]), transform(edges[-1])

    def scale(value: float) -> float:
        inside = min(max(value, edges[0]), edges[-1])
        return WIDTH * (transform(inside) - low) / (high - low)

    return scale


def _draw_bars(
    counts: Sequence[Sequence[int]],
    sides: Sequence[str],
    edges: Sequence[float],
    is_stacked: bool,
) -> Iterator[ET.Element]:
    """Yield a path for each side: one element for all of its bars keeps a page small.

    Args:
        counts: of each side, by bin.
        sides: their names.
        edges: of the bins, on the axis.
        is_stacked: as in `draw_histogram`.
    """
    combine = sum if is_stacked else max
    highest = max(map(combine, zip(*counts, strict=True)), default=0)
    doc_height = (HEIGHT - TOP - BOTTOM) / max(1, highest)
    bottoms = [HEIGHT - BOTTOM] * (len(edges) - 1)
    for side, numbers in zip(sides, counts, strict=True):
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
        if shapes:
            yield element("path", {"class": side, "d": "".join(shapes)})


def _draw_ticks(edges: Sequence[float], is_log: bool, scale: Scale) -> Iterator[ET.Element]:
    low, high = edges[0], edges[-1]
    middle = math.sqrt(low * high) if is_log else (low + high) / 2
    for value, anchor in zip((low, middle, high), ("start", "middle", "end"), strict=True):
        place = {"x": f"{scale(value):.1f}", "y": f"{HEIGHT - 4:g}", "text-anchor": anchor}
        label = format_number(float(f"{value:.3g}"))
        yield element("text", {"class": "tick", **place}, label)


def _draw_line(line: Mapping[str, Any], row: int, scale: Scale) -> Iterator[ET.Element]:
    """Yield a line and its label. Labels of neighbours are in two rows."""
    bottom, x = 9 + row * LABEL_ROW, scale(line["value"])
    anchor = "end" if x > WIDTH / 2 else "start"
    path = f"M{x:.1f} {bottom + 2:g}V{HEIGHT - BOTTOM:g}"
    yield element("path", {"class": "limit", "d": path})
    place = {"x": f"{x:.1f}", "y": f"{bottom:g}", "text-anchor": anchor}
    label = f"{line['label']} {format_number(line['value'])}"
    yield element("text", {"class": "tick", **place}, label)
