"""Checkpoints of a few tensors, saved by one rank in this process."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from training.anomaly_guard import AnomalyGuard
from training.checkpoint.checkpointer import Checkpointer, TrainState
from training.config import AnomalyGuardConfig, CheckpointConfig, ParallelConfig
from training.parallel.distributed import init_distributed


def make_tensors(step: int) -> dict[str, Tensor]:
    """Return 8 matrices of 1.3 MB in total, with other values for each step."""
    generator = torch.Generator().manual_seed(step)
    return {f"w{i}": torch.randn(200, 200, generator=generator) for i in range(8)}


def make_state(tensors: Mapping[str, Tensor], step: int) -> TrainState:
    """Return a state with the keys of a real one."""
    guard = AnomalyGuard(AnomalyGuardConfig(), torch.device("cpu")).state_dict()
    progress = {
        "step": step,
        "rows": {"position": 12 * step},
        "skipped_steps": 0,
        "guard": guard,
    }
    return TrainState(tensors, {}, progress)


def make_checkpointer(run_dir: Path, **config: Any) -> Checkpointer:
    """Return the checkpointer of a run in this process."""
    dump_dir = Path(tempfile.gettempdir())
    context = init_distributed(ParallelConfig(), timeout_s=600, dump_dir=dump_dir)
    return Checkpointer(run_dir, CheckpointConfig(keep_last=100, **config), context)


def save_steps(run_dir: Path, steps: range) -> None:
    """Save a checkpoint for each step."""
    checkpointer = make_checkpointer(run_dir)
    for step in steps:
        checkpointer.save(make_state(make_tensors(step), step))
    checkpointer.close()


def restore(run_dir: Path, **config: Any) -> tuple[int, dict[str, Tensor]]:
    """Restore the newest checkpoint; return its step and its tensors."""
    checkpointer = make_checkpointer(run_dir, **config)
    tensors = {name: torch.zeros(200, 200) for name in make_tensors(0)}
    newest = checkpointer.find_newest()
    assert newest is not None
    try:
        progress = checkpointer.restore(newest, make_state(tensors, 0))
    finally:
        checkpointer.close()
    return progress["step"], tensors
