"""`bench` trains on random rows, and prints measured beside planned figures."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.training.conftest import make_settings
from training import bench
from training.cli import app
from training.config import TrainConfig
from training.data.batches import open_batches
from training.parallel import distributed


def run_bench(folder: Path) -> list[str]:
    """Return the printed lines of two measured steps of the small model."""
    settings = make_settings(
        folder / "run",
        folder / "missing",
        model={"vocab_size": 256},
        observability={"peak_tflops": 0.5},
    )
    path = folder / "config.yaml"
    path.write_text(json.dumps(settings))
    result = CliRunner().invoke(
        app, ["bench", str(path), "--steps", "2"], catch_exceptions=False
    )
    return result.stdout.splitlines()


def test_bench_prints_measured_and_planned_figures(tmp_path: Path) -> None:
    """Without the config's data, and without leaving files in run_dir."""
    first, _, *rows = run_bench(tmp_path)
    assert "1 rank, zero2, fp32; 12 rows of 64 tokens per step, 1 at a time" in first
    assert [row.split("  ")[0] for row in rows] == [
        "tokens/s",
        "MFU",
        "step, s",
        "peak, GiB",
    ]
    for row in rows:
        assert re.fullmatch(r"\S+(?:, \S+)? +[\d.,]+%? +[\d.,]+%?", row), row
    assert not list((tmp_path / "run").glob("*.jsonl"))
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_bench_measures_speed_where_the_system_gives_no_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Linux's files about the process, the peak is unknown."""
    monkeypatch.setattr(bench, "_PROCESS", tmp_path / "missing")
    rows = run_bench(tmp_path)[2:]
    assert re.fullmatch(r"tokens/s +[\d.,]+ +[\d.,]+", rows[0])
    assert re.fullmatch(r"peak, GiB +- +[\d.,]+", rows[3])


def test_random_rows_depend_on_seed_and_position_only(tmp_path: Path) -> None:
    """A resumed iterator continues; documents have 1,000 tokens, but for the last of a row."""
    settings = make_settings(
        tmp_path,
        None,
        data={"synthetic": True, "seq_len": 2500, "micro_batch_rows": 3},
        model={"vocab_size": 256},
    )
    config = TrainConfig.model_validate(settings)
    context = distributed.init_distributed(
        config.parallel, timeout_s=600, dump_dir=tmp_path
    )
    batches, vocab_size = open_batches(config, context)
    assert vocab_size == 256
    batches.read_step(0)
    state = batches.state_dict()
    expected = batches.read_step(1)
    resumed, _ = open_batches(config, context)
    resumed.load_state_dict(state)
    found = resumed.read_step(1)
    assert len(found) == 4
    for left, right in zip(found, expected, strict=True):
        assert left.input_ids.equal(right.input_ids)
        assert left.labels[:, :-1].equal(right.input_ids[:, 1:])
    allowed = found[0].mask.allowed
    assert allowed is not None
    pairs = 2 * (1000 * 1001 // 2) + 500 * 501 // 2
    assert allowed[0].squeeze().sum().item() == pairs


def test_random_rows_need_a_vocabulary(tmp_path: Path) -> None:
    """There is no tokenizer to take it from."""
    settings = make_settings(tmp_path, None, data={"synthetic": True})
    with pytest.raises(ValueError, match=r"data.synthetic needs model.vocab_size"):
        TrainConfig.model_validate(settings)
