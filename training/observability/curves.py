"""Draws the curves of a run, read from its log.jsonl, as one self-contained HTML file.

runs/train-tiny/log.jsonl   {"step": 10, "loss": 9.8, ...}
runs/train-tiny/report.html loss, gradient norm, learning rate, tokens/s, ... over steps
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from storage.local import put_file
from training.errors import IncompatibleConfig
from training.observability.summary import split_groups

LOG_FILE, REPORT_FILE = "log.jsonl", "report.html"

# Colours of Okabe and Ito 2008, which colour-blind readers can distinguish.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8a8a00")

# Curves of one chart.
_MAX_CURVES = len(_COLOURS)

_WIDTH, _HEIGHT = 480, 220
_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 12, 12, 26
_NUM_TICKS = 4
# Values that differ by less are a flat line. Ticks of the smallest numbers would have a distance
# of 0.
_MIN_SPAN = 1e-12
_MAX_POINTS = 1000  # per curve; more would not be visible

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 1040px; margin: 2rem auto; padding: 0 1rem; }
.charts { display: grid; gap: 1.5rem; align-items: end; grid-template-columns: repeat(auto-fit, minmax(min(100%, 400px), 1fr)); }
figure { margin: 0; } svg { width: 100%; height: auto; }
text { font-size: 11px; fill: currentColor; } .grid { stroke: currentColor; opacity: .18; }
table { border-collapse: collapse; margin-bottom: 1.5rem; } td, th { padding: .15rem .9rem .15rem 0; text-align: left; }
th { font-weight: normal; opacity: .75; } td { white-space: nowrap; font-variant-numeric: tabular-nums; }
.legend { display: flex; flex-wrap: wrap; gap: 0 .9rem; font-size: 13px; } .legend b { font-weight: normal; }
.legend b::before { content: ""; display: inline-block; width: 1em; border-top: 3px solid var(--colour); margin: 0 .35em .25em 0; }
.wide { overflow-x: auto; } pre { font-size: 12px; }
@media print { figure { break-inside: avoid; } }
"""


@dataclass(frozen=True)
class _Chart:
    """A chart of one or more figures of log.jsonl.

    Attributes:
        names: keys of log.jsonl, with the label of each.
        format: of values, for str.format.
    """

    title: str
    names: Mapping[str, str]
    format: str = "{:.4g}"


_CHARTS = (
    _Chart("Loss", {"loss": "training", "validation/loss": "validation"}, "{:.3f}"),
    _Chart("Gradient norm", {"grad_norm": "norm"}),
    _Chart("Learning rate", {"learning_rate": "rate"}, "{:.3g}"),
    _Chart("Tokens per second", {"tokens_per_s": "tokens/s"}, "{:,.0f}"),
    _Chart("Model FLOPs utilization", {"mfu": "MFU"}, "{:.1%}"),
    _Chart("Time spent waiting for rows", {"stall_share": "share"}, "{:.2%}"),
    _Chart(
        "Memory, peak, GiB",
        {
            "memory_reserved_peak_gib": "reserved on the GPU",
            "memory_active_peak_gib": "in use on the GPU",
            "memory_process_peak_gib": "of the process",
        },
        "{:.1f}",
    ),
    _Chart("Bad steps", {"bad_steps": "steps"}, "{:.0f}"),
)

# Charts of several runs: title, key of log.jsonl, format of values.
_COMPARED = (
    ("Loss", "loss", "{:.3f}"),
    ("Validation loss", "validation/loss", "{:.3f}"),
    ("Bits per byte of held-out text", "validation/bits_per_byte", "{:.3f}"),
    ("Gradient norm", "grad_norm", "{:.4g}"),
)


def write_report(run_dir: Path, settings: Mapping[str, Any] | None = None) -> Path:
    """Write run_dir/report.html from run_dir/log.jsonl.

    Args:
        run_dir: folder of the run.
        settings: the config, to be shown below the curves.

    Returns:
        Path of the report.

    Raises:
        IncompatibleConfig: the run has no log.jsonl, or it has no figures.
    """
    points = read_log(run_dir / LOG_FILE)
    path = run_dir / REPORT_FILE
    put_file(path, make_report(run_dir.name, points, settings).encode())
    return path


def write_comparison(
    path: Path, title: str, runs: Mapping[str, Sequence[Mapping[str, Any]]]
) -> Path:
    """Write a page on which each chart has the curves of several runs.

    Args:
        path: the page.
        title: what distinguishes the runs.
        runs: label -> lines of log.jsonl. The first runs are drawn, as many as there are colours.
    """
    heading = html.escape(f"Runs by {title}")
    parts = [*_open_page(heading), '<div class="charts">']
    for name, key, form in _COMPARED:
        curves = {label: _list_curve(points, key) for label, points in runs.items()}
        curves = {label: curve for label, curve in curves.items() if curve}
        if curves:
            chart = _Chart(name, {label: label for label in curves}, form)
            parts += _draw_chart(chart, curves)
    parts.append("</div></body></html>")
    put_file(path, ("\n".join(parts) + "\n").encode())
    return path


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the lines of log.jsonl in the order of steps; of a repeated step, the last.

    A run that was killed logs the steps after its checkpoint again. Damaged lines are left out.
    """
    if not path.is_file():
        raise IncompatibleConfig(
            f"{path}: there is no such file; give the run_dir of a run that has begun"
        )
    by_step: dict[tuple[int, str], dict[str, Any]] = {}
    for line in path.read_bytes().splitlines():
        try:
            point = json.loads(line)
        except ValueError:
            continue
        if isinstance(point, dict) and isinstance(point.get("step"), int):
            by_step[point["step"], _find_kind(point)] = point
    if not by_step:
        raise IncompatibleConfig(f"{path}: no line has figures; wait for the first step")
    # The last line of a step is that of training, from which the newest step is read.
    order = sorted(by_step, key=lambda key: (key[0], key[1] == "training"))
    return [by_step[key] for key in order]


def _find_kind(point: Mapping[str, Any]) -> str:
    """Return what a line is about: training, validation, tasks, ..."""
    if "loss" in point:
        return "training"
    names = [name for name in point if name not in ("step", "time")]
    return names[0].split("/")[0] if names else ""


def make_report(
    name: str, points: Sequence[Mapping[str, Any]], settings: Mapping[str, Any] | None
) -> str:
    """Return the HTML page: a table of the newest figures, the curves, and the config.

    Args:
        name: of the run.
        points: lines of log.jsonl.
        settings: the config, or None.
    """
    title = html.escape(f"Training run {name}")
    charts = [*_CHARTS, *_list_evaluation_charts(points)]
    parts = [*_open_page(title), *_make_table(points, charts), '<div class="charts">']
    for chart in charts:
        curves = {key: _list_curve(points, key) for key in chart.names}
        # A count that stays 0 needs no curve.
        if any(value for curve in curves.values() for _, value in curve):
            parts += _draw_chart(chart, curves)
    parts.append("</div>")
    if settings is not None:
        text = html.escape(json.dumps(settings, indent=1))
        parts.append(f'<h2>Config</h2><div class="wide"><pre>{text}</pre></div>')
    parts.append("</body></html>")
    return "\n".join(parts) + "\n"


def _open_page(title: str) -> Iterator[str]:
    """Yield the head of a page and its heading."""
    yield '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    yield '<meta name="viewport" content="width=device-width, initial-scale=1">'
    yield f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>"


def _list_evaluation_charts(points: Sequence[Mapping[str, Any]]) -> Iterator[_Chart]:
    """Yield charts of the languages, of the buckets and of the tasks that were evaluated."""
    newest: dict[str, Any] = {}
    for point in points:
        newest |= point
    tasks: dict[str, str] = {}
    for name in newest:
        match name.split("/"):
            case ["tasks", task, "acc"]:
                tasks[name] = task
                tasks[f"tasks/{task}/acc_norm"] = f"{task}, normalized"
            case _:
                pass
    measure, key = "Loss", "validation/loss"
    if "validation/bits_per_byte" in newest:
        measure, key = "Bits per byte", "validation/bits_per_byte"
    languages, buckets = split_groups(newest)
    if key in newest:
        groups = {f"{key}/{group}": group for group in languages[: _MAX_CURVES - 1]}
        yield _Chart(f"{measure} of held-out text", {key: "total", **groups}, "{:.3f}")
    if buckets:
        groups = {f"{key}/{bucket}": bucket for bucket in buckets}
        yield _Chart(f"{measure} by bucket", groups, "{:.3f}")
    if tasks:
        yield _Chart("Accuracy on tasks", tasks, "{:.1%}")


def _make_table(
    points: Sequence[Mapping[str, Any]], charts: Sequence[_Chart]
) -> Iterator[str]:
    """Yield a table of the newest figure of each curve."""
    yield f"<table><tr><th>Step</th><td>{points[-1]['step']:,}</td></tr>"
    for chart in charts:
        for key, label in chart.names.items():
            if curve := _list_curve(points, key):
                name = chart.title if len(chart.names) == 1 else f"{chart.title}, {label}"
                value = chart.format.format(curve[-1][1])
                yield f"<tr><th>{html.escape(name)}</th><td>{value}</td></tr>"
    yield "</table>"


def _list_curve(points: Iterable[Mapping[str, Any]], key: str) -> list[tuple[int, float]]:
    """Return (step, value) of a figure, without values that are not finite."""
    curve: list[tuple[int, float]] = []
    for point in points:
        value = point.get(key)
        if isinstance(value, int | float) and math.isfinite(value):
            curve.append((point["step"], value))
    stride = max(1, math.ceil(len(curve) / _MAX_POINTS))
    # Counted from the end, so that the last point is always drawn.
    return curve[::-1][::stride][::-1]


def _draw_chart(
    chart: _Chart, curves: Mapping[str, Sequence[tuple[int, float]]]
) -> Iterator[str]:
    """Yield the SVG elements of a chart, with a legend if it has several curves."""
    drawn = [point for curve in curves.values() for point in curve]
    last_step = max(step for step, _ in drawn)
    low, high = min(value for _, value in drawn), max(value for _, value in drawn)
    ticks = list_ticks(low, high)
    low, high = ticks[0], ticks[-1]
    x_scale = (_WIDTH - _LEFT - _RIGHT) / max(1, last_step)
    y_scale = (_HEIGHT - _TOP - _BOTTOM) / (high - low)
    present = [key for key in curves if curves[key]]
    yield f"<figure><figcaption><b>{html.escape(chart.title)}</b>"
    if len(present) > 1:
        yield from _draw_legend([chart.names[key] for key in present])
    yield "</figcaption>"
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{chart.title}">'
    for value in ticks:
        y = _HEIGHT - _BOTTOM - (value - low) * y_scale
        yield f'<path class="grid" d="M {_LEFT} {y:.1f} H {_WIDTH - _RIGHT}"/>'
        label = format_tick(value, ticks[1] - ticks[0], is_share="%" in chart.format)
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
    baseline = _HEIGHT - 8
    yield f'<text x="{_LEFT}" y="{baseline}">step 0</text>'
    yield f'<text x="{_WIDTH - _RIGHT}" y="{baseline}" text-anchor="end">{last_step:,}</text>'
    for colour, key in zip(_COLOURS, present, strict=False):
        line = " ".join(
            f"{_LEFT + step * x_scale:.1f},{_HEIGHT - _BOTTOM - (value - low) * y_scale:.1f}"
            for step, value in curves[key]
        )
        yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.6"/>'
    yield "</svg></figure>"


def list_ticks(low: float, high: float) -> list[float]:
    """Return round numbers at equal distances, from at most `low` to at least `high`."""
    span = (high - low) or abs(high)
    if span < _MIN_SPAN:
        span = 1.0
    power = 10.0 ** math.floor(math.log10(span / _NUM_TICKS))
    distance = next(f * power for f in (1, 2, 5, 10) if span / (f * power) <= _NUM_TICKS)
    first = math.floor(low / distance)
    last = max(first + 1, math.ceil(high / distance))
    return [number * distance for number in range(first, last + 1)]


def format_tick(value: float, distance: float, *, is_share: bool) -> str:
    """Return the label of a tick, with as many decimals as the distance of ticks needs.

    Args:
        value: of the tick.
        distance: to the next tick.
        is_share: write it in percent.
    """
    shown = distance * 100 if is_share else distance
    # Rounding may put log10 of a distance such as 0.1 slightly below the integer -1.
    decimals = max(0, -math.floor(math.log10(shown) + 1e-9))
    return f"{value:.{decimals}%}" if is_share else f"{value:,.{decimals}f}"


def _draw_legend(labels: Sequence[str]) -> Iterator[str]:
    """Yield the names of curves, each with a line of its colour."""
    yield '<div class="legend">'
    for label, colour in zip(labels, _COLOURS, strict=False):
        yield f'<b style="--colour: {colour}">{html.escape(label)}</b>'
    yield "</div>"
