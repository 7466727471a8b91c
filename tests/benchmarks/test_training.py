"""The benchmarks of the trainer run in their small forms, and their results can be read."""

from __future__ import annotations

import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from benchmarks.ablation.chart import Panel, draw
from benchmarks.ablation.datasets import NGRAM_WORDS, NgramSet
from benchmarks.training import gpu_suite
from tests.conftest import REPOSITORY


def _run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_gpu_suite_runs_on_a_cpu_in_its_tiny_form(tmp_path: Path) -> None:
    """Every installed entrant has figures; the others are skipped with the reason."""
    done = _run("benchmarks.training.gpu_suite", "--tiny", "--save", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*-training_gpu_tiny.json")
    figures = json.loads(path.read_text())["figures"]
    assert {reason.partition(" is not ")[2] for reason in figures["skipped"].values()} <= {
        "installed"
    }
    variants = {name.partition(", ")[2] for name in figures["entrants"]}
    assert variants >= {
        "16",
        "32",
        "16, offload",
        "16, save_on_cpu",
        "16, checkpointing full",
        "16, ddp",
    }
    assert figures["entrants"]["ours, 16"]["planned_gib"] > 0
    assert figures["findings"].keys() >= {"garbage", "offload: offload"}
    assert all(row["tokens_per_s"] > 0 for row in figures["entrants"].values())


def test_the_cost_of_checkpoint_digests_is_measured() -> None:
    """Both forms load what they saved, and four ratios are printed."""
    module = "benchmarks.training.checkpoint_digests"
    done = _run(module, "--gigabytes", "0.05", "--rounds", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ratio, ") == 4


def test_entrants_without_enough_time_are_listed_as_skipped(tmp_path: Path) -> None:
    """They are not started, and the time that was left is recorded."""
    suite = gpu_suite.Suite(gpu_suite.FULL, 10, tmp_path, None)
    suite.measure({"ours": suite.spec("ours", 2048)})
    assert suite.skipped == {"ours": "10 s left"}
    assert suite.entrants == {}


def test_overlap_is_the_hidden_share_of_copy_time(tmp_path: Path) -> None:
    """1 GiB each way at 1 GiB/s takes 2 s. A step is 0.5 s longer, so 75 % are hidden."""
    suite = gpu_suite.Suite(gpu_suite.TINY, 60, tmp_path, None)
    for name, step_s in (("with", 1.5), ("without", 1.0)):
        suite.entrants[name] = {
            "rounds": [
                {"tokens_per_s": 1.0, "step_s": [step_s], "offloaded_gib_per_step": 1.0}
            ]
        }
    suite.findings["copy"] = {"out_gb_per_s": 2**30 / 1e9, "back_gb_per_s": 2**30 / 1e9}
    found = gpu_suite.overlap(suite, "with", "without")
    assert found is not None
    assert found["copy_s"] == pytest.approx(2.0)
    assert found["overlap_share"] == pytest.approx(0.75)
    assert found["hideable_share"] == pytest.approx(0.5)


def test_goals_are_met_or_missed_by_the_better_of_two_strategies() -> None:
    """An MFU of 51 % with ddp meets 50 %. Goals without measurements are marked."""
    rows = {
        "ours, 2048": {"mfu": 0.48, "tokens_per_s": 65e3},
        "ours, 2048, ddp": {"mfu": 0.51, "tokens_per_s": 69e3},
    }
    found = gpu_suite.goals(rows, gpu_suite.FULL)
    assert found["MFU 50% at 2,048"].startswith("met: 51.0%")
    assert (
        found["MFU 45% at 8,192"] == found["not slower than torchtitan"] == "not measured"
    )


@pytest.mark.models
def test_the_ablation_runs_in_its_tiny_form(tmp_path: Path) -> None:
    """Four datasets, four runs of the trainer, one result and one chart."""
    done = _run("benchmarks.ablation", "--tiny", "--save", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = tmp_path.glob("*.json")
    datasets = json.loads(path.read_text())["figures"]["datasets"]
    assert list(datasets) == ["raw", "deduplicated", "head", "head + reference"]
    sizes = [row["num_tokens"] for row in datasets.values()]
    assert sizes == sorted(sizes, reverse=True)
    ET.fromstring(path.with_suffix(".svg").read_text())  # noqa: S314 - our own


def test_texts_that_share_a_word_ngram_are_found() -> None:
    """13 common words are found in spite of case and punctuation; 12 are not."""
    words = [f"word{k}" for k in range(30)]
    known = NgramSet([" ".join(words)])
    assert known.shares(
        "Before that, " + ", ".join(words[5 : 5 + NGRAM_WORDS]).upper() + "!"
    )
    assert not known.shares(" ".join(words[5 : 4 + NGRAM_WORDS]))
    assert not NgramSet([]).shares(" ".join(words))


def test_a_chart_is_xml_and_names_every_curve_once_with_its_last_mean() -> None:
    """Labels have the mean of the seeds at the end, and do not overlap."""
    curves = {
        "raw": [[(100.0, 7.0), (2000.0, 6.0)], [(100.0, 7.2), (2000.0, 6.2)]],
        "a < b": [[(100.0, 7.0), (2000.0, 6.1)]],
    }
    root = ET.fromstring(draw("Loss", [Panel("held out", curves)]))  # noqa: S314 - our own
    labels = {
        e.text: float(e.attrib["y"])
        for e in root.iter()
        if (e.text or "").endswith(" 6.10")
    }
    assert labels.keys() == {"raw 6.10", "a < b 6.10"}
    assert abs(labels["raw 6.10"] - labels["a < b 6.10"]) >= 14
