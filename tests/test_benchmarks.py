"""The benchmarks run, and what they print can be read. Their figures are no test's business."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks import engine_overhead, near_duplicate_truth
from benchmarks.process_tree import ProcessTree
from benchmarks.result_file import machine, save
from tests.conftest import REPOSITORY


@pytest.mark.models
@pytest.mark.ray
def test_every_benchmark_runs_in_its_small_form() -> None:
    """`python -m benchmarks.all --quick` ends with exit code 0 and prints the ratios and tables of each."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.all", "--quick"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for expected in (
        "cpu_s ratio per mb",
        "annotate.perplexity",
        "Peak resident MB",
        "hash_paragraphs",
    ):
        assert expected in done.stdout


def test_a_process_tree_counts_grandchildren_whose_parent_has_ended() -> None:
    """A daemon is still a descendant; its CPU time is counted while it lives and after it has ended."""
    burn = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    start_and_leave = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}])"
    with ProcessTree() as tree:
        subprocess.run([sys.executable, "-c", start_and_leave], check=True)
        deadline = time.monotonic() + 20
        while tree.cpu_seconds() < 0.3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert tree.cpu_seconds() >= 0.3


def test_fixed_cost_and_ratio_come_from_the_line_through_both_sizes() -> None:
    """A fixed 10 s more and a tenth more per MB are told apart."""

    def run(fixed: float, per_mb: float, megabytes: float) -> engine_overhead.Figures:
        seconds = {"cpu_s": fixed + per_mb * megabytes, "wall_s": 1.0 + megabytes}
        return dict.fromkeys(
            ("start", *engine_overhead.registry.list_phase_names(), "whole"), seconds
        )

    sizes = {"small": 20.0, "large": 100.0}
    medians = {f"bare pool, {name}": run(2.0, 0.2, size) for name, size in sizes.items()}
    medians |= {f"ray, {name}": run(12.0, 0.22, size) for name, size in sizes.items()}
    figures = engine_overhead.summarize(medians, sizes)["cpu_s"]
    assert figures["fixed"] == {"bare pool": 2.0, "ray": 12.0}
    assert figures["ratio_per_mb"] == 1.1
    assert figures["ratio_with_fixed"] == round(34 / 22, 3)


def test_a_result_says_where_it_comes_from(tmp_path: Path) -> None:
    """Machine, commit, command and versions stand beside the figures."""
    result = json.loads(save("speed", {"mb_per_s": 3}, tmp_path).read_text())
    assert result["figures"] == {"mb_per_s": 3}
    assert result["machine"] == machine()
    assert result.keys() >= {"benchmark", "date", "command", "commit", "versions"}


@pytest.mark.models
def test_near_duplicates_are_datasketchs_and_verified_ones_are_right() -> None:
    """The small form of near_duplicate_truth: no pair and no document decided otherwise; exact lets none in below."""
    figures = near_duplicate_truth.measure_texts(40, 0.8)
    assert figures["candidates_as_datasketch"]["different"] == 0
    assert figures["candidates_as_datasketch"]["equal"] > 0
    assert [row["as_datasketch"]["different"] for row in figures["verify"].values()] == [0, 0, 0]
    assert figures["verify"]["exact"]["precision"] == 1.0
