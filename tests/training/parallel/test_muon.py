"""Muon updates equal those of torch's own, however the matrices are sharded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.training.conftest import (
    losses,
    make_config,
    make_settings,
    train_all,
    train_each,
    train_here,
)
from training.build import build_model
from training.config import TrainConfig
from training.errors import IncompatibleConfig
from training.parallel import distributed
from training.parallel.muon import Muon, orthogonalize
from training.parallel.optimizer import Optimizer

MUON = {
    "algorithm": "muon",
    "warmup_steps": 2,
    # Constant: the schedule must not depend on where the first part of a run ends.
    "schedule": "constant",
    # Its gradient has a part on each rank of a vocabulary that is sharded.
    "z_loss": 0.01,
}
MODES: dict[str, dict[str, Any]] = {
    "ddp": {"strategy": "ddp"},
    "zero3": {"strategy": "zero3"},
    "hsdp": {"strategy": "zero2", "shard_degree": 2},
    "tensor-shard": {"strategy": "zero3", "tensor": 2},
}


@settings(max_examples=20)
@given(rows=st.integers(1, 40), columns=st.integers(1, 40), seed=st.integers(0, 99))
def test_all_singular_values_come_near_one(rows: int, columns: int, seed: int) -> None:
    """They lie within 0.6 and 1.3, if none was below a hundredth of the norm; the vectors stay."""
    generator = torch.Generator().manual_seed(seed)
    u, values, v = torch.linalg.svd(
        torch.randn(rows, columns, generator=generator), full_matrices=False
    )
    matrix = u @ torch.diag(values.clamp(min=0.02 * float(values.norm()))) @ v
    found = u.T @ orthogonalize(matrix) @ v.T
    assert torch.allclose(found, torch.diag(found.diag()), atol=1e-3)
    assert float(found.diag().min()) > 0.6
    assert float(found.diag().max()) < 1.3


def test_one_process_has_the_parameters_of_torchs_muon() -> None:
    """In bf16 every bit is the same after ten steps."""
    generator = torch.Generator().manual_seed(5)
    shapes = [(24, 8), (8, 24), (16, 16)]
    ours = [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in shapes]
    theirs = [torch.nn.Parameter(matrix.detach().clone()) for matrix in ours]
    muon = Muon(ours, lr=0.02, momentum=0.9, weight_decay=0.1, compute_dtype=torch.bfloat16)
    for matrix in ours:
        muon.state[matrix] = {"momentum_buffer": torch.zeros_like(matrix)}
    reference = torch.optim.Muon(
        theirs, lr=0.02, momentum=0.9, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"
    )
    for _ in range(10):
        for matrix, copy in zip(ours, theirs, strict=True):
            matrix.grad = torch.randn(matrix.shape, generator=generator)
            copy.grad = matrix.grad.clone()
        muon.step()
        reference.step()
    for matrix, copy in zip(ours, theirs, strict=True):
        assert torch.equal(matrix, copy)


def train_alone(run_dir: Path, language: Path) -> list[float]:
    """Train in this process, from the newest checkpoint, and return the losses."""
    config = make_config(
        run_dir,
        language,
        parallel={"strategy": "ddp"},
        optimizer=MUON,
        data={"micro_batch_rows": 12},
    )
    train_here(config)
    return losses(run_dir)


def test_every_distribution_has_the_losses_of_one_process(
    language: Path, tmp_path: Path
) -> None:
    """In fp32 within 1e-4 per step, also when one process goes on with a sharded checkpoint."""
    runs: list[dict[str, Any]] = []
    for name, parallel in MODES.items():
        changes = {"parallel": parallel, "optimizer": MUON}
        data = {"micro_batch_rows": 3}
        runs.append(make_settings(tmp_path / name, language, data=data, **changes))
    runs.append({**runs[-1], "run_dir": str(tmp_path / "resumed"), "steps": 2})
    train_all(4, runs, tmp_path)
    reference = train_alone(tmp_path / "reference", language)
    train_alone(tmp_path / "resumed", language)
    assert reference[-1] < reference[0] - 0.3
    for name in (*MODES, "resumed"):
        assert losses(tmp_path / name) == pytest.approx(reference, rel=1e-4), name


def test_a_run_with_tied_embeddings_continues_in_every_layout(
    language: Path, tmp_path: Path
) -> None:
    """Each of five layouts takes one step from the checkpoint of the one before."""
    layouts = [{"strategy": "zero2"}, *MODES.values()]
    changes: dict[str, Any] = {
        "optimizer": MUON,
        "model": {"tie_embeddings": True},
        "data": {"micro_batch_rows": 3},
    }
    runs: list[dict[str, Any]] = []
    for step, layout in enumerate(layouts, start=1):
        run = make_settings(tmp_path / "run", language, parallel=layout, **changes)
        runs.append({**run, "steps": step})
    train_all(4, runs, tmp_path)
    alone = make_settings(tmp_path / "alone", language, **changes)
    train_each([{**alone, "steps": len(runs)}])
    reference = losses(tmp_path / "alone")
    assert len(reference) == len(runs)
    assert losses(tmp_path / "run") == pytest.approx(reference, rel=1e-4)


@pytest.mark.parametrize(("first", "then"), [("muon", "adamw"), ("adamw", "muon")])
def test_a_checkpoint_of_the_other_optimizer_is_refused(
    first: str, then: str, language: Path, tmp_path: Path
) -> None:
    """The message names both algorithms, and what to change."""
    runs: list[dict[str, Any]] = []
    for steps, algorithm in enumerate((first, then), start=1):
        changes = {"optimizer": {"algorithm": algorithm}, "steps": steps}
        runs.append(make_settings(tmp_path / "run", language, **changes))
    with pytest.raises(
        IncompatibleConfig,
        match=rf"step-00000001 has the state of optimizer.algorithm {first}, "
        rf"but the config has {then}. Set {first}, or",
    ):
        train_each(runs)


@pytest.mark.parametrize("is_tied", [False, True])
def test_embedding_and_output_have_adamw(
    is_tied: bool, language: Path, tmp_path: Path
) -> None:
    """Also a tied matrix, which is both; Muon has the matrices of the blocks, and no others."""
    config = make_config(
        tmp_path, language, optimizer=MUON, model={"tie_embeddings": is_tied}
    )
    context = distributed.init_distributed(
        config.parallel, timeout_s=600, dump_dir=tmp_path
    )
    _, decoder = build_model(config, vocab_size=256, context=context)
    parameters = dict(decoder.named_parameters())
    optimizer = Optimizer(
        parameters, config.optimizer, config.parallel, context, torch.float32
    )
    states: dict[str, set[str]] = {}
    for key in optimizer.state_tensors():
        name, _, kind = key.rpartition(".")
        states.setdefault(name, set()).add(kind)
    assert states.keys() == parameters.keys()
    outer = (
        {"embed_tokens.weight"} if is_tied else {"embed_tokens.weight", "lm_head.weight"}
    )
    for name, parameter in parameters.items():
        is_hidden = parameter.ndim == 2 and name not in outer
        expected = {"momentum_buffer"} if is_hidden else {"step", "exp_avg", "exp_avg_sq"}
        assert states[name] == expected, name
    matrices = {name for name, kinds in states.items() if kinds == {"momentum_buffer"}}
    assert len(matrices) == 7 * config.model.num_layers


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"parallel": {"strategy": "zero1"}},
            "needs parallel.strategy ddp, zero2 or zero3",
        ),
        (
            {"parallel": {"offload": "optimizer"}},
            "cannot be combined with parallel.offload",
        ),
        ({"lora": {}}, "cannot be combined with lora"),
    ],
)
def test_what_muon_does_not_support_is_refused(
    changes: dict[str, Any], words: str, language: Path, tmp_path: Path
) -> None:
    """The message names both keys."""
    with pytest.raises(ValidationError, match=words):
        TrainConfig.model_validate(
            make_settings(tmp_path, language, optimizer=MUON, **changes)
        )
