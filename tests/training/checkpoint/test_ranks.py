"""Damaged checkpoints of two ranks: all ranks stop, or go back together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.training.checkpoint.test_damage import flip
from tests.training.conftest import losses, make_settings, train_all, train_each
from tests.training.rank_processes import run_world
from training.checkpoint.marker import list_complete_checkpoints, read_marker
from training.errors import CheckpointDamaged

CHANGES: dict[str, Any] = {
    "steps": 4,
    "parallel": {"strategy": "zero3"},
    "checkpoint": {"every_steps": 2, "keep_last": 9},
}


def train_damaged(settings: Mapping[str, Any]) -> None:
    """Train on this rank; it must find the damage of rank 1's file."""
    with pytest.raises(CheckpointDamaged, match=r"__1_0.distcp: bytes .*step-00000002\. "):
        train_each([settings])


def test_ranks_agree_about_damage(language: Path, tmp_path: Path) -> None:
    """Damage in one rank's file stops 2 ranks, and 1; then they repeat the steps exactly."""
    run = make_settings(tmp_path / "run", language, **CHANGES)
    train_all(2, [run], tmp_path)
    expected = losses(tmp_path / "run")
    (_, newest) = list_complete_checkpoints(tmp_path / "run" / "checkpoints")
    assert sorted(read_marker(newest).files) == [
        ".metadata",
        "__0_0.distcp",
        "__1_0.distcp",
    ]
    flip(newest / "__1_0.distcp", 70_000)
    run_world(2, train_damaged, run, folder=tmp_path)
    run_world(1, train_damaged, run, folder=tmp_path)
    run["checkpoint"] = {**run["checkpoint"], "on_damaged": "previous"}
    train_all(2, [run], tmp_path)
    assert losses(tmp_path / "run") == expected
    assert (tmp_path / "run/checkpoints/damaged-step-00000004").is_dir()
