"""A sweep trains with several learning rates on the same rows, and goes on where it was."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest

from tests.training.conftest import losses, make_config, read_log
from training.checkpoint.marker import list_complete_checkpoints
from training.config import TrainConfig
from training.errors import IncompatibleConfig
from training.parallel import distributed
from training.sweep import SweptRun, format_table, sweep


def run_sweep(config: TrainConfig, rates: list[float]) -> list[SweptRun]:
    """Sweep in this process, as a single rank."""
    context = distributed.init_distributed(
        config.parallel, timeout_s=600, dump_dir=Path(config.run_dir)
    )
    return list(sweep(config, rates, context))


def test_a_sweep_compares_its_runs_and_goes_on(language: Path, tmp_path: Path) -> None:
    """Same first loss for each rate; a rate that diverges is reported; a second call resumes."""
    config = make_config(
        tmp_path / "sweep",
        language,
        data={"global_batch_rows": 2},
        optimizer={"warmup_steps": 0, "max_grad_norm": 1e30},
        checkpoint={"every_steps": 2},
        anomaly_guard={"on_bad_step": "stop"},
    )
    rates = [1e-5, 1e-3, 1e30]
    runs = run_sweep(config, rates)
    slow, good, diverged = runs
    firsts = {losses(run.run_dir)[0] for run in runs}
    assert len(firsts) == 1
    assert good.loss < slow.loss
    assert "bad steps in a row: 1" in diverged.fault
    assert math.isnan(diverged.loss)
    table = list(format_table(runs))
    assert table[2].endswith("best")
    assert "best" not in table[1] + table[3]
    shutil.rmtree(list_complete_checkpoints(good.run_dir / "checkpoints")[-1])
    again = run_sweep(config, rates)
    assert [run.loss for run in again[:2]] == [slow.loss, good.loss]
    assert [line["step"] for line in read_log(slow.run_dir)] == [1, 2, 3, 4]
    assert [line["step"] for line in read_log(good.run_dir)] == [1, 2, 3, 4, 3, 4]


def test_a_rate_twice_is_refused(language: Path, tmp_path: Path) -> None:
    """Both runs would have one folder."""
    with pytest.raises(IncompatibleConfig, match="has a rate twice"):
        run_sweep(make_config(tmp_path, language), [1e-3, 1e-3])
