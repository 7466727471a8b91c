"""Compiled blocks and the compiled loss learn the same on ranks that share matrices or rows."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from tests.training.conftest import losses, make_settings
from tests.training.rank_processes import run_world
from training.config import TrainConfig
from training.model import loss
from training.parallel import distributed
from training.trainer import train

# Enough heads for two ranks. Nine blocks, because torch gives up after eight compilations.
SETTINGS: dict[str, Any] = {
    "model": {"num_layers": 9, "num_heads": 4, "num_kv_heads": 2, "dim": 32},
    "optimizer": {"schedule": "constant", "z_loss": 0.01},
    "data": {"micro_batch_rows": 6},
}

MODES: dict[str, dict[str, Any]] = {
    "tensor": {"tensor": 2},
    "tensor-selective": {"tensor": 2, "activation_checkpointing": "selective"},
    "tensor-full": {"tensor": 2, "activation_checkpointing": "full"},
    "context": {"context": 2},
    "context-selective": {"context": 2, "activation_checkpointing": "selective"},
    "context-full-zero3": {
        "context": 2,
        "strategy": "zero3",
        "activation_checkpointing": "full",
    },
    "context-ddp": {"context": 2, "strategy": "ddp"},
}

FRAMES = "compiled-functions"


def train_compiled(runs: Sequence[Mapping[str, Any]], backend: str) -> None:
    """Train several runs, and write the number of compiled functions of each."""
    warnings.resetwarnings()
    warnings.simplefilter("ignore")  # the compiler's own, many
    compile_function = torch.compile
    for settings in runs:
        torch._dynamo.reset()
        loss._compile_chunk_loss.cache_clear()
        counter = CompileCounterWithBackend(backend)
        torch.compile = functools.partial(compile_function, backend=counter)
        config = TrainConfig.model_validate(settings)
        run_dir = Path(config.run_dir)
        train(
            config,
            distributed.init_distributed(config.parallel, timeout_s=300, dump_dir=run_dir),
        )
        (run_dir / FRAMES).write_text(str(counter.frame_count))
    distributed.shutdown_distributed()


@pytest.mark.parametrize(
    ("backend", "modes"),
    [
        # Those that differ most; the others take half a minute more.
        ("aot_eager", ("tensor-selective", "context-full-zero3")),
        pytest.param("aot_eager", tuple(MODES), marks=pytest.mark.heavy),
        # Each takes a minute to compile.
        pytest.param("inductor", ("tensor", "context-selective"), marks=pytest.mark.heavy),
    ],
)
def test_compiled_layouts_have_the_losses_of_plain_ones(
    backend: str, modes: tuple[str, ...], language: Path, tmp_path: Path
) -> None:
    """Losses of four fp32 steps agree to 1e-5. All blocks share one compiled function; the loss has another."""
    precision = {"compile": True, "loss_kernel": "compiled"}
    runs = [make_settings(tmp_path / "plain", language, **SETTINGS)]
    runs += [
        make_settings(
            tmp_path / name, language, **SETTINGS, parallel=MODES[name], precision=precision
        )
        for name in modes
    ]
    run_world(2, train_compiled, runs, backend, folder=tmp_path)
    expected = losses(tmp_path / "plain")
    assert expected[-1] < expected[0] - 0.3
    for name in modes:
        assert losses(tmp_path / name) == pytest.approx(expected, rel=1e-5), name
        assert (tmp_path / name / FRAMES).read_text() == "2", name
