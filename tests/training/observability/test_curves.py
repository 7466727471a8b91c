"""The curves of a run are drawn from its log, as one file that needs no network."""

from __future__ import annotations

import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest

from terminal_output import format_command
from tests.training.conftest import make_config, train_here
from training.errors import IncompatibleConfig
from training.observability.curves import (
    make_report,
    read_log,
    write_report,
)


def make_points(num_steps: int, **figures: Any) -> list[dict[str, Any]]:
    """Return lines of a log whose loss falls."""
    return [{"step": step, "loss": 9 / step, **figures} for step in range(1, num_steps + 1)]


def test_a_finished_run_says_where_its_results_are(
    language: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Checkpoint, curves and the next command; the curves exist."""
    caplog.set_level(logging.INFO, logger="training")
    config = make_config(tmp_path / "run", language, steps=2)
    train_here(config)
    message = caplog.messages[-1]
    assert message.startswith(f"{tmp_path / 'run'}: 2 of 2 steps\n")
    assert re.search(r"run: 2 steps, [\d.]+ [kM] parameters, 1 rank,", caplog.messages[0])
    paths = re.findall(r"^  (?:checkpoint|curves) +(.+)$", message, re.MULTILINE)
    assert len(paths) == 2
    assert all(Path(path).exists() for path in paths)
    assert f"{format_command('training')} export" in message
    page = (tmp_path / "run" / "report.html").read_text()
    assert "<b>loss</b>" in page
    assert "&quot;steps&quot;: 2" in page


def test_a_repeated_step_counts_once(tmp_path: Path) -> None:
    """A killed run logs steps again; its last line counts, and validations stay beside it."""
    lines = [
        {"step": 1, "loss": 5.0},
        {"step": 2, "loss": 4.0},
        {"step": 2, "validation/loss": 4.5},
        {"step": 2, "loss": 3.0},
    ]
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"step": 3, "lo')
    assert read_log(log) == [lines[0], lines[2], lines[3]]


def test_figures_that_are_not_finite_are_left_out() -> None:
    """They would break the scale. A count that stays 0 has no chart."""
    points = make_points(3, bad_steps=0, **{"validation/loss/en": 2.5})
    page = make_report("run", [*points, {"step": 4, "loss": float("nan")}], None)
    assert "nan" not in page
    assert re.findall("<b>([^<]+)</b> (.+)<br>", page) == [
        ("loss", "3"),
        ("validation/loss/en", "2.5"),
    ]


def test_one_step_and_many_steps_can_be_drawn() -> None:
    """A curve has at most 1,000 points, including the last point of the run."""
    assert "<polyline" in make_report("run", make_points(1), None)
    page = make_report("run", make_points(123_456), None)
    (points,) = re.findall(r'points="([^"]+)"', page)
    places = points.split()
    assert 500 < len(places) <= 1000
    # The loss falls, so its last point is in the corner at the bottom right.
    assert places[-1] == "400.0,120.0"


def test_names_and_settings_are_escaped() -> None:
    """A run folder named like a script does not run."""
    page = make_report("<script>x()</script>", make_points(2), {"a": "</pre><script>"})
    assert "<script>" not in page
    assert "http" not in page


def test_a_folder_without_a_log_is_refused(tmp_path: Path) -> None:
    """The message names the file."""
    with pytest.raises(IncompatibleConfig, match=r"log\.jsonl: there is no such file"):
        write_report(tmp_path)
    (tmp_path / "log.jsonl").write_text("{}\n")
    with pytest.raises(IncompatibleConfig, match="no line has figures"):
        write_report(tmp_path)
