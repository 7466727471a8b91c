"""Draws the figures of a run over its steps, from its log.jsonl, as one HTML file.

runs/train-tiny/log.jsonl   {"step": 10, "loss": 9.8, ...}
runs/train-tiny/report.html a chart of each figure, with its range and its newest value
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.local import put_file
from training.errors import IncompatibleConfig

LOG_FILE, REPORT_FILE = "log.jsonl", "report.html"

_WIDTH, _HEIGHT = 400, 120
_MAX_POINTS = 1000  # per curve; more would not be visible

# They number the lines of the log, and are no figures.
_NOT_DRAWN = ("step", "time", "position")

_STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 1040px; margin: 2rem auto; padding: 0 1rem; }
.charts { display: grid; gap: 1.5rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 300px), 1fr)); }
figure { margin: 0; } figcaption { font-size: 13px; }
svg { width: 100%; border-block: 1px solid #8886; } polyline { fill: none; stroke: #0072b2; stroke-width: 1.6; }
pre { font-size: 12px; overflow-x: auto; }
"""


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
    names = [name for name in point if name not in _NOT_DRAWN]
    return names[0].split("/")[0] if names else ""


def make_report(
    name: str, points: Sequence[Mapping[str, Any]], settings: Mapping[str, Any] | None
) -> str:
    """Return the HTML page: a chart of each figure, and the config.

    Args:
        name: of the run.
        points: lines of log.jsonl.
        settings: the config, or None.
    """
    title = html.escape(f"Training run {name}, step {points[-1]['step']:,}")
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{title}</title><style>{_STYLE}</style></head><body><h1>{title}</h1>",
        '<div class="charts">',
    ]
    for figure, curve in _list_curves(points).items():
        # A count that stays 0 needs no curve.
        if any(value for _, value in curve):
            parts += _draw_chart(figure, curve)
    parts.append("</div>")
    if settings is not None:
        text = html.escape(json.dumps(settings, indent=1))
        parts.append(f"<h2>Config</h2><pre>{text}</pre>")
    parts.append("</body></html>")
    return "\n".join(parts) + "\n"


def _list_curves(
    points: Sequence[Mapping[str, Any]],
) -> dict[str, list[tuple[int, float]]]:
    """Return (step, value) of each figure, without values that are not finite."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for point in points:
        for figure, value in point.items():
            is_number = isinstance(value, int | float) and math.isfinite(value)
            if is_number and figure not in _NOT_DRAWN:
                curves.setdefault(figure, []).append((point["step"], value))
    return curves


def _draw_chart(figure: str, curve: Sequence[tuple[int, float]]) -> Iterator[str]:
    """Yield a chart from step 0 to the last one, from the lowest to the highest value."""
    stride = math.ceil(len(curve) / _MAX_POINTS)
    # Counted from the end, so that the last point is always drawn.
    drawn = curve[::-1][::stride][::-1]
    low, high = min(value for _, value in curve), max(value for _, value in curve)
    last_step, last = curve[-1]
    # A flat line is drawn at the bottom.
    height = (high - low) or 1.0
    line = " ".join(
        f"{_WIDTH * step / max(1, last_step):.1f},{_HEIGHT * (high - value) / height:.1f}"
        for step, value in drawn
    )
    yield f"<figure><figcaption><b>{html.escape(figure)}</b> {last:,.6g}<br>"
    yield f"{low:,.6g} to {high:,.6g}, step 0 to {last_step:,}</figcaption>"
    yield f'<svg viewBox="0 -2 {_WIDTH} {_HEIGHT + 4}"><polyline points="{line}"/></svg>'
    yield "</figure>"
