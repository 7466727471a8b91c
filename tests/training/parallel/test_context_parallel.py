"""Ranks that share the tokens of rows have the losses of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.training.conftest import (
    losses,
    make_config,
    make_settings,
    read_log,
    train_all,
    train_here,
)
from training.config import TrainConfig

STEPS = 4

# Enough heads for four ranks. The rows have several documents, and a token sees only its own.
SETTINGS: dict[str, Any] = {
    "steps": STEPS,
    "model": {"num_heads": 8, "num_kv_heads": 4},
    # Constant: the schedule must not depend on where a part of a run ends.
    "optimizer": {"schedule": "constant", "z_loss": 0.01},
    "data": {"micro_batch_rows": 3},
}

MODES: dict[int, dict[str, dict[str, Any]]] = {
    2: {
        "ddp": {"strategy": "ddp", "context": 2},
        "zero3": {"strategy": "zero3", "context": 2},
        "full-checkpointing": {"context": 2, "activation_checkpointing": "full"},
    },
    4: {
        "four": {"strategy": "zero3", "context": 4},
        "shard": {"context": 2, "activation_checkpointing": "selective"},
        "hsdp": {"strategy": "zero3", "context": 2, "shard_degree": 2},
        "copies": {"context": 2, "shard_degree": 1},
        "zero1": {"strategy": "zero1", "context": 2},
        "tensor": {"strategy": "zero3", "context": 2, "tensor": 2},
    },
}


def make_run(run_dir: Path, language: Path, parallel: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a run with validation at its end."""
    validation = {"manifest": str(language), "documents": 40}
    changes = {**SETTINGS, "parallel": parallel, "validation": validation}
    return make_settings(run_dir, language, **changes)


def read_validation(run_dir: Path) -> float:
    """Return the validation loss at the end."""
    return next(
        line["validation/loss"]
        for line in read_log(run_dir)
        if line["step"] == STEPS and "validation/loss" in line
    )


@pytest.fixture(scope="module")
def reference(language: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run of one process."""
    run_dir = tmp_path_factory.mktemp("reference")
    train_here(TrainConfig.model_validate(make_run(run_dir, language, {"strategy": "ddp"})))
    found = losses(run_dir)
    assert found[-1] < found[0] - 0.3
    return run_dir


@pytest.mark.parametrize(
    ("num_ranks", "names"),
    [
        (2, ("full-checkpointing",)),
        (4, ("shard", "tensor")),
        *(
            pytest.param(n, tuple(modes), marks=pytest.mark.heavy)
            for n, modes in MODES.items()
        ),
    ],
)
def test_every_layout_has_the_losses_of_one_process(
    num_ranks: int,
    names: tuple[str, ...],
    reference: Path,
    language: Path,
    tmp_path: Path,
) -> None:
    """In fp32 within 1e-5, in training and in validation; one process resumes the last run."""
    runs = [make_run(tmp_path / name, language, MODES[num_ranks][name]) for name in names]
    runs.append({**runs[-1], "run_dir": str(tmp_path / "resumed"), "steps": 2})
    train_all(num_ranks, runs, tmp_path)
    train_here(
        TrainConfig.model_validate(
            make_run(tmp_path / "resumed", language, {"strategy": "ddp"})
        )
    )
    for name in (*names, "resumed"):
        run_dir = tmp_path / name
        assert losses(run_dir) == pytest.approx(losses(reference), rel=1e-5), name
        expected = pytest.approx(read_validation(reference), rel=1e-5)
        assert read_validation(run_dir) == expected, name


def test_a_row_that_cannot_be_divided_is_refused(tmp_path: Path, language: Path) -> None:
    """The error names the heads, and the row length, that the degree does not divide."""
    with pytest.raises(
        ValueError,
        match=r"context 3 x parallel.tensor 1 does not divide model.num_kv_heads 2; .* "
        r"data.seq_len 64",
    ):
        make_config(tmp_path, language, parallel={"context": 3})
