"""The soak: slopes and results; a short one runs with `-m heavy`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from benchmarks.soak.__main__ import count_results
from benchmarks.soak.samples import summarize, take_sample
from tests.benchmarks.run_module import run_module


def test_growth_is_the_slope_after_the_warm_up() -> None:
    """A jump at the start is no growth; 2 MB a minute are 120 MB an hour."""
    samples = [
        {"seconds": 60.0 * i, "flat": 5.0 if i < 20 else 50.0, "growing": 100 + 2.0 * i}
        for i in range(100)
    ]
    found = summarize(samples, ["flat", "growing"])
    assert found["flat"]["growth_per_hour"] == pytest.approx(0, abs=1e-6)
    assert found["growing"]["growth_per_hour"] == pytest.approx(120)
    assert found["growing"]["growth_share"] == pytest.approx(120 / (100 + 2 * 59.5))


def test_a_sample_counts_memory_open_files_and_children(tmp_path: Path) -> None:
    """Of a program that opens a file and starts another one."""
    (tmp_path / "left").touch()
    script = "echo; read line; exec 3</dev/null; sleep 60 & echo; wait"
    # `start_new_session`, to end both processes at once.
    with subprocess.Popen(
        ["sh", "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        try:
            program.stdout.readline()
            before = take_sample({"this": program.pid}, tmp_path)
            program.stdin.write(b"\n")
            program.stdin.flush()
            program.stdout.readline()
            after = take_sample({"this": program.pid}, tmp_path)
        finally:
            os.killpg(program.pid, signal.SIGKILL)
    assert before["temp_files"] == 1
    assert after["this_pss_mb"] > 0
    assert after["this_rss_mb"] >= after["this_pss_mb"]
    assert after["this_open_files"] == before["this_open_files"] + 1
    assert (before["children"], after["children"]) == (0, 1)


def test_a_run_with_other_bytes_is_counted_as_not_held(tmp_path: Path) -> None:
    """Tries, runs with the same bytes, and exit codes, by attack."""
    lines = [
        {"attack": "SIGKILL", "is_equal": True, "exit_code": -9},
        {"attack": "SIGKILL", "is_equal": False, "exit_code": -9},
        {"attack": "none", "is_equal": True},
    ]
    path = tmp_path / "results.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert count_results(path) == {
        "tries": {"SIGKILL": 2, "none": 1},
        "held": {"SIGKILL": 1, "none": 1},
        "endings": {"SIGKILL: exit code -9": 2},
    }


@pytest.mark.heavy
@pytest.mark.models
def test_a_short_soak_holds() -> None:
    """Every run has the same bytes, every epoch the same rows; the exit code says so."""
    done = run_module("benchmarks.soak", "--minutes", "0.5", "--no-ray")
    assert done.returncode == 0, done.stderr
    assert "chain_pss_mb" in done.stdout
