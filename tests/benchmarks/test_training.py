"""The benchmarks of the trainer run in their small forms, and their results can be read."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.training.apart import Skipped, call_apart
from benchmarks.training.cases import FULL, TINY
from benchmarks.training.entrants import measure_ours, read_memory
from benchmarks.training.gpu_suite import Suite
from benchmarks.training.gpu_tables import judge_goals, measure_overlap
from tests.benchmarks.run_module import run_module
from tests.conftest import REPOSITORY
from training.config import ModelConfig
from training.model.size import count_parameters


def run_gpu_suite(folder: Path, *arguments: str) -> dict[str, Any]:
    """Return the figures of the suite in its tiny form."""
    arguments = ("--tiny", "--save", str(folder), *arguments)
    done = run_module("benchmarks.training.gpu_suite", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = folder.glob("*-training_gpu_tiny.json")
    return json.loads(path.read_text())["figures"]


def test_the_gpu_suite_measures_the_trainer_and_the_bare_loop(tmp_path: Path) -> None:
    """Its first part runs on a CPU and writes a result file."""
    figures = run_gpu_suite(tmp_path, "--only", "short", "loss", "attention")
    for seq_len, width in ((16, 8), (32, 16)):
        key = f"flash, {seq_len}, head {width}"
        assert figures["findings"]["attention"][key]["ms"] > 0
    assert "error" in figures["findings"]["attention"]["cudnn, 16, head 8"]
    assert figures["findings"]["loss"]["eager, vocabulary 256"]["ms"] > 0
    assert figures["entrants"].keys() >= {"ours, 16", "bare, 16"}
    assert figures["entrants"]["ours, 16"]["planned_gib"] > 0
    assert "garbage" in figures["findings"]
    assert all(row["tokens_per_s"] > 0 for row in figures["entrants"].values())


def test_an_entrant_without_tensors_has_no_memory_figures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On a GPU, CUDA has no statistics before its first use."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert read_memory() == {}


@pytest.mark.heavy
def test_the_gpu_suite_runs_on_a_cpu_in_its_tiny_form(tmp_path: Path) -> None:
    """Every installed entrant has figures; the others are skipped with the reason."""
    figures = run_gpu_suite(tmp_path)
    flex = {"ours, 16, document masks, flex", "ours, 32, document masks, flex"}
    others = figures["skipped"].keys() - flex
    assert all(figures["skipped"][name].endswith("is not installed") for name in others)
    variants = {name.partition(", ")[2] for name in figures["entrants"]}
    assert variants >= {
        "16",
        "32",
        "16, offload",
        "16, checkpointing full",
        "16, ddp",
    }
    assert figures["entrants"]["ours, 16"]["planned_gib"] > 0
    assert figures["findings"].keys() >= {"garbage", "overlap: ours, 16, offload"}
    assert all(row["tokens_per_s"] > 0 for row in figures["entrants"].values())


def test_the_cost_of_checkpoint_digests_is_measured() -> None:
    """Both forms load what they saved, and four ratios are printed."""
    module = "benchmarks.training.checkpoint_digests"
    done = run_module(module, "--gigabytes", "0.05", "--rounds", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ratio, ") == 4


def test_entrants_without_enough_time_are_listed_as_skipped(tmp_path: Path) -> None:
    """They are not started, and the time that was left is recorded."""
    suite = Suite(FULL, 10, tmp_path)
    suite.measure(suite.entrants, "ours", measure_ours, suite.make_case(0))
    assert suite.skipped == {"ours": "10 s left"}
    assert suite.entrants == {}


@pytest.mark.parametrize(
    ("function", "argument", "reason"),
    [
        (int, "two", "ValueError: invalid literal"),
        (os._exit, 1, "it died: "),
        (time.sleep, 600, "the time was over"),
    ],
)
def test_an_entrant_that_fails_has_a_reason(
    function: Any, argument: Any, reason: str, tmp_path: Path
) -> None:
    """Its error, its death, or the limit of its time."""
    limit_s = 1 if function is time.sleep else 60
    with pytest.raises(Skipped, match=reason):
        call_apart(function, argument, log=tmp_path / "log", limit_s=limit_s)


def test_overlap_is_the_hidden_share_of_copy_time() -> None:
    """1 GiB each way at 1 GiB/s takes 2 s. A step is 0.5 s longer, so 75 % are hidden."""

    def make(step_s: float) -> dict[str, Any]:
        speeds = {"out_gb_per_s": 2**30 / 1e9, "back_gb_per_s": 2**30 / 1e9}
        rounds = [{"step_s": [step_s], "offloaded_gib_per_step": 1.0}]
        return {"rounds": rounds, **speeds}

    found = measure_overlap(make(1.5), make(1.0))
    assert found["copy_s"] == pytest.approx(2.0)
    assert found["overlap_share"] == pytest.approx(0.75)
    assert found["hideable_share"] == pytest.approx(0.5)


def test_goals_are_met_or_missed_by_the_better_of_two_strategies() -> None:
    """The goal of 55 % MFU is met, because ddp reaches 56 %. Goals without figures are marked."""
    rows = {
        "ours, 2048": {"mfu": 0.48, "tokens_per_s": 65e3, "stall_share": 0.007},
        "ours, 2048, ddp": {"mfu": 0.56, "tokens_per_s": 69e3, "stall_share": 0.001},
        "ours, 2048, float8": {"mfu": 0.6, "tokens_per_s": 78e3, "stall_share": 0.001},
    }
    found = judge_goals(rows, FULL)
    assert found["MFU 55% at 2,048"] == "met: 0.56 (ours, 2048, ddp)"
    assert found["float8 1.17 x bf16 at 2,048"] == "met: 1.2"
    assert found["stall below 0.5% at 2,048"] == "missed: 0.007"
    assert found["not slower than torchtitan at 2,048"] == "not measured"
    assert found["MFU 50% at 8,192"] == "not measured"


def test_unused_modules_of_torchtitan_may_be_missing() -> None:
    """Its imports work on a machine without tensorboard and pandas, of which it uses nothing here."""
    code = (
        "import sys\n"
        "sys.modules |= dict.fromkeys(['tensorboard', 'datasets'])\n"
        "from benchmarks.training.titan import replace_missing_modules\n"
        "replace_missing_modules()\n"
        "from torch.utils.tensorboard import SummaryWriter\n"
        "from datasets import Dataset, load_dataset\n"
        "from datasets.distributed import split_dataset_by_node\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False)
    assert done.returncode == 0


def test_the_shape_of_torchtitan_is_ours() -> None:
    """Its parameters are those of our decoder, for the tiny and the full shape."""
    pytest.importorskip("torchtitan")
    code = (
        "import json, torch\n"
        "from benchmarks.training.cases import FULL, TINY, Case\n"
        "from benchmarks.training.titan import make_model_args, open_trainer\n"
        "from torchtitan.models.llama3 import Transformer\n"
        "case = Case(TINY, 'unused', 16)\n"
        "trainer = open_trainer(case)\n"
        "count = lambda model: sum(p.numel() for p in model.parameters())\n"
        "with torch.device('meta'):\n"
        "    whole = Transformer(make_model_args(FULL))\n"
        "print(json.dumps([count(trainer.model_parts[0]), count(whole)]))\n"
    )
    expected = [
        count_parameters(ModelConfig(**size.shape), size.vocab_size)
        for size in (TINY, FULL)
    ]
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == expected
