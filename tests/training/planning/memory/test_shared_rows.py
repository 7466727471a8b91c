"""Planned memory and communication of context parallelism, beside those of two ranks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.training.planning.memory.test_footprint import (
    VOCAB_SIZE,
    Step,
    kept_bytes,
    make_settings,
)
from tests.training.rank_processes import run_world
from training.config import TrainConfig
from training.parallel import distributed
from training.planning.memory.activations import count_tokens
from training.planning.memory.footprint import estimate_footprint
from training.planning.step_time import count_exchanged_bytes


class ExchangedBytes(TorchDispatchMode):
    """Counts the bytes that this rank sends by all-to-all inside a `with` block."""

    num_bytes = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops._c10d_functional.all_to_all_single.default:
            self.num_bytes += args[0].nbytes
        return func(*args, **(kwargs or {}))


def exchanged_bytes(settings: Mapping[str, Any]) -> int:
    """Return the bytes that a forward and a backward exchange for context parallelism."""
    step = Step(settings)
    with ExchangedBytes() as exchanged:
        step.forward().backward()
    return exchanged.num_bytes


def measure_each(settings: Sequence[Mapping[str, Any]], folder: Path) -> None:
    """Write what forwards of several models keep, and what steps exchange, as one rank."""
    measured = [
        {"kept": kept_bytes(each), "exchanged": exchanged_bytes(each)} for each in settings
    ]
    path = folder / f"rank-{torch.distributed.get_rank()}.json"
    path.write_text(json.dumps(measured))
    distributed.shutdown_distributed()


SHARED_ROWS: list[dict[str, Any]] = [
    {
        "parallel": {
            "strategy": "ddp",
            "context": 2,
            "activation_checkpointing": checkpointing,
        },
        "model": {"num_layers": num_layers},
    }
    for checkpointing in ("none", "selective", "full")
    for num_layers in (2, 4)
]


@pytest.fixture(scope="module")
def shared_rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, int]]:
    """Return the measured bytes of SHARED_ROWS on the first of two ranks."""
    folder = tmp_path_factory.mktemp("shared-rows")
    settings = [make_settings(changes) for changes in SHARED_ROWS]
    run_world(2, measure_each, settings, folder, folder=folder)
    measured: list[dict[str, int]] = json.loads((folder / "rank-0.json").read_text())
    return measured


def test_planned_activations_of_shared_rows_are_exact(
    shared_rows: list[dict[str, int]],
) -> None:
    """With context parallelism, two more blocks keep the planned bytes of half of the tokens."""
    measured = [found["kept"] for found in shared_rows]
    planned: list[int] = []
    for changes in SHARED_ROWS:
        config = TrainConfig.model_validate(make_settings(changes))
        found = estimate_footprint(config, VOCAB_SIZE, 2, device_type="cpu").moments["last"]
        planned.append(found.activations + found.gathered)
    for few, many in ((0, 1), (2, 3), (4, 5)):
        assert planned[many] - planned[few] == measured[many] - measured[few]


def test_planned_exchanges_of_shared_rows_are_exact(
    shared_rows: list[dict[str, int]],
) -> None:
    """Every block exchanges the planned bytes. With full checkpointing it does so once more."""
    for changes, found in zip(SHARED_ROWS, shared_rows, strict=True):
        config = TrainConfig.model_validate(make_settings(changes))
        assert found["exchanged"] == count_tokens(config) * count_exchanged_bytes(config)
