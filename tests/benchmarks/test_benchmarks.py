"""The benchmarks run in their small forms and print their tables. Their figures are not tested."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.all import QUICK_ARGUMENTS
from benchmarks.result_file import describe_machine, save
from benchmarks.runs import engine_overhead
from benchmarks.runs.process_tree import ProcessTree
from benchmarks.stages import near_duplicate_truth
from tests.conftest import REPOSITORY

# What each benchmark prints. engine_overhead, which starts Ray, has a test below.
PRINTED = {
    "stages.stages_table": "annotate.perplexity",
    "runs.growth": "Peak resident MB",
    "runs.calibrate": "",
    "runs.driver_scale": "driver in total",
    "stages.perplexity": " 0 with another perplexity",
    "stages.paragraph_hashing": "hash_paragraphs",
    "stages.fasttext_kernel": '"num_different": 0',
    "stages.minhash": "all with datasketch's signatures",
    "stages.reading": "isal, bare",
    "stages.document_time": "CPU with a limit against without",
}


def test_every_benchmark_has_a_test() -> None:
    """`python -m benchmarks.all` runs the benchmarks that are tested here."""
    assert QUICK_ARGUMENTS.keys() == PRINTED.keys() | {"runs.engine_overhead"}


# They run the pipeline several times.
SLOW = ("runs.memory", "runs.growth", "runs.calibrate", "runs.driver_scale")


@pytest.mark.models
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.heavy] if name in SLOW else [])
        for name in PRINTED
    ],
)
def test_every_benchmark_runs_in_its_small_form(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With the arguments of `python -m benchmarks.all --quick`, a benchmark ends without an error."""
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setattr(sys, "argv", [name, *QUICK_ARGUMENTS[name]])
    importlib.import_module(f"benchmarks.{name}").main()
    assert PRINTED[name] in capsys.readouterr().out


def measure_overhead(entrant: str, megabytes: float) -> engine_overhead.Figures:
    """Return the figures of one run, after a check of their steps."""
    figures = engine_overhead.measure(entrant, megabytes)
    assert figures.keys() >= {"start", "extract", "annotate", "write_shards", "whole"}
    assert figures["whole"]["cpu_s"] > 0
    return figures


@pytest.mark.models
def test_engine_overhead_measures_the_bare_pool() -> None:
    """It reports every step of the run."""
    measure_overhead("bare pool", megabytes=0.2)


@pytest.mark.heavy
@pytest.mark.models
@pytest.mark.ray
def test_engine_overhead_measures_both_entrants(capsys: pytest.CaptureFixture[str]) -> None:
    """Both entrants report every step of the run, and the summary has the ratio per MB."""
    megabytes = 0.5
    runs: dict[str, list[engine_overhead.Figures]] = {}
    for entrant in engine_overhead.ENTRANTS:
        small = measure_overhead(entrant, megabytes)
        runs[f"{entrant}, small"] = [small]
        # One size is measured, because each start of Ray takes 11 s.
        doubled = {
            step: {name: 2 * value + 0.1 for name, value in figures.items()}
            for step, figures in small.items()
        }
        runs[f"{entrant}, large"] = [doubled]
    sizes = {"small": megabytes, "large": 2 * megabytes}
    engine_overhead.print_summary(engine_overhead.summarize(runs, sizes))
    assert "cpu_s ratio per mb" in capsys.readouterr().out


def test_a_process_tree_counts_grandchildren_whose_parent_has_ended() -> None:
    """The CPU time of a daemon is counted while it runs and after its end."""
    burn = "import time; end = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    start_and_leave = (
        f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {burn!r}])"
    )
    with ProcessTree() as tree:
        subprocess.run([sys.executable, "-c", start_and_leave], check=True)
        deadline = time.monotonic() + 600
        while tree.cpu_seconds() < 0.3 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert tree.cpu_seconds() >= 0.3


def test_fixed_cost_and_ratio_are_fitted_to_both_sizes() -> None:
    """The fit separates 10 s of fixed cost from 10 % more per MB."""

    def run(fixed: float, per_mb: float, megabytes: float) -> engine_overhead.Figures:
        seconds = {"cpu_s": fixed + per_mb * megabytes, "wall_s": 1.0 + megabytes}
        return dict.fromkeys(
            ("start", *engine_overhead.registry.list_phase_names(), "whole"), seconds
        )

    sizes = {"small": 20.0, "large": 100.0}
    runs = {f"bare pool, {name}": [run(2.0, 0.2, size)] for name, size in sizes.items()}
    runs |= {f"ray, {name}": [run(12.0, 0.22, size)] for name, size in sizes.items()}
    figures = engine_overhead.summarize(runs, sizes)["cpu_s"]
    assert figures["fixed"] == {"bare pool": 2.0, "ray": 12.0}
    assert figures["ratio_per_mb"] == 1.1
    assert figures["ratio_with_fixed"] == round(34 / 22, 3)


def test_a_result_file_records_its_origin(tmp_path: Path) -> None:
    """Machine, commit, command and versions are stored with the figures."""
    result = json.loads(save("speed", {"mb_per_s": 3}, tmp_path).read_text())
    assert result["figures"] == {"mb_per_s": 3}
    assert result["machine"] == describe_machine()
    assert result.keys() >= {"benchmark", "date", "command", "commit", "versions"}


@pytest.mark.models
def test_near_duplicates_agree_with_datasketch_and_the_rule_is_precise() -> None:
    """In the small form of near_duplicate_truth, all pairs and decisions agree, and `jaccard` drops nothing wrongly."""
    figures = near_duplicate_truth.measure_texts(40, 0.8)
    assert figures["candidates_as_datasketch"]["different"] == 0
    assert figures["candidates_as_datasketch"]["equal"] > 0
    rules = figures["rules"]
    assert [row["as_plain_python"]["different"] for row in rules.values()] == [0, 0]
    assert rules["jaccard"]["precision"] == 1.0
    assert rules["jaccard"]["recall"] == 1.0
