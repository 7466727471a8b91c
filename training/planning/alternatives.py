"""Alternatives to a config, their memory and speed, and changes that make a config fit."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from training.config import TrainConfig
from training.errors import IncompatibleConfig
from training.planning.gpus import Gpu
from training.planning.memory.footprint import Footprint, estimate_footprint
from training.planning.step_time import estimate_step_s

# Assumed share of the GPU's memory that the caching allocator loses to fragmentation.
SPARE_SHARE = 0.05

MAX_CHANGES = 3
MAX_REMEDIES = 4

# Share of the speed that each change costs in the ranking of remedies: between equal
# speeds, fewer changes are better.
CHANGE_PENALTY = 0.02


@dataclass(frozen=True)
class Option:
    """One way to run a config: its memory and speed, or the reason why it is impossible.

    Attributes:
        footprint: None if the option is impossible.
        error: the reason; "" if it is possible.
        tokens_per_s: over all GPUs; 0 if it is impossible.
    """

    name: str
    footprint: Footprint | None
    error: str
    tokens_per_s: float

    def fits(self, gpu: Gpu) -> bool:
        """Return whether its peak leaves SPARE_SHARE of the GPU's memory free."""
        if self.footprint is None:
            return False
        return self.footprint.peak.total <= gpu.memory_bytes * (1 - SPARE_SHARE)


@dataclass(frozen=True)
class Estimator:
    """Estimates variants of a config on given GPUs."""

    config: TrainConfig
    num_gpus: int
    gpu: Gpu
    vocab_size: int
    mfu: float

    def estimate(self, name: str, changes: Mapping[str, Any]) -> Option:
        """Estimate the config with some changes.

        Args:
            name: of the option.
            changes: keys of the `parallel` section, or micro_batch_rows of `data`.
        """
        # Validate the changed config anew: changes can contradict each other.
        settings = self.config.model_dump()
        for key, value in changes.items():
            settings[_find_section(key)][key] = value
        try:
            config = TrainConfig.model_validate(settings)
            footprint = estimate_footprint(config, self.vocab_size, self.num_gpus)
        except ValidationError as error:
            reasons = [
                fault["msg"].removeprefix("Value error, ") for fault in error.errors()
            ]
            return Option(name, None, "; ".join(reasons), 0.0)
        except IncompatibleConfig as error:
            return Option(name, None, str(error), 0.0)
        return Option(name, footprint, "", self._estimate_tokens_per_s(config, footprint))

    def _estimate_tokens_per_s(self, config: TrainConfig, footprint: Footprint) -> float:
        """Return the speed over all GPUs."""
        step_s = estimate_step_s(
            config,
            footprint,
            num_gpus=self.num_gpus,
            gpu=self.gpu,
            vocab_size=self.vocab_size,
            utilization=self.mfu,
        )
        return config.data.global_batch_rows * config.data.seq_len / step_s


def list_alternatives(config: TrainConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (name, changes): every strategy, and every other setting alone.

    Settings that a strategy does not allow are reset along with it.
    """
    parallel = config.parallel
    unsharded = {"shard_degree": None, "tensor": 1, "accumulate": "sharded"}
    no_parameters = {
        "offload": "none" if parallel.offload == "parameters" else parallel.offload
    }
    sharded = {} if parallel.strategy in ("zero2", "zero3") else {"strategy": "zero3"}
    yield "ddp", {"strategy": "ddp", **unsharded, **no_parameters}
    yield "zero1", {"strategy": "zero1", **unsharded, "offload": "none"}
    yield "zero2", {"strategy": "zero2", "shard_degree": None}
    yield "zero3", {"strategy": "zero3", "shard_degree": None}
    yield "hsdp: zero3, shard_degree 8", {"strategy": "zero3", "shard_degree": 8}
    for degree in (2, 8):
        yield f"tensor {degree}", {**sharded, "tensor": degree, "shard_degree": None}
    yield "context 2", {"context": 2}
    for kind in ("none", "selective", "full"):
        yield f"checkpointing {kind}", {"activation_checkpointing": kind}
    yield "activation offload", {"activation_offload": True}
    not_zero1 = {"strategy": "zero2"} if parallel.strategy == "zero1" else {}
    yield "offload optimizer", {**not_zero1, "offload": "optimizer"}
    yield "offload parameters", {**sharded, "offload": "parameters"}


def find_remedies(estimator: Estimator) -> list[Option]:
    """Return the fastest sets of changes that make the config fit.

    Each set is minimal: without any one of its changes, the config does not fit. Names are
    written as `--set` takes them.
    """
    found: list[tuple[frozenset[str], Option]] = []
    changes = _list_memory_savers(estimator.config)
    for num_changes in range(1, MAX_CHANGES + 1):
        for chosen in itertools.combinations(changes, num_changes):
            names = frozenset(name for name, _ in chosen)
            # Combinations grow in size, so a set that contains a smaller remedy is not minimal.
            if any(smaller < names for smaller, _ in found):
                continue
            merged: dict[str, Any] = {}
            for _, change in chosen:
                merged |= change
            if len(merged) < num_changes:
                continue  # two values for one key
            option = estimator.estimate(", ".join(name for name, _ in chosen), merged)
            if option.fits(estimator.gpu):
                found.append((names, option))

    def rank(entry: tuple[frozenset[str], Option]) -> float:
        names, option = entry
        return -option.tokens_per_s * (1 - CHANGE_PENALTY) ** len(names)

    return [option for _, option in sorted(found, key=rank)[:MAX_REMEDIES]]


def _list_memory_savers(config: TrainConfig) -> list[tuple[str, dict[str, Any]]]:
    """Return (name, change) of single changes that save memory, the cheapest first.

    The order decides between remedies of equal estimated speed.
    """
    parallel, rows = config.parallel, config.data.micro_batch_rows
    changes: list[dict[str, Any]] = []
    half = rows
    while half > 1 and half % 2 == 0:
        half //= 2
        changes.append({"micro_batch_rows": half})
    if parallel.activation_checkpointing == "none":
        changes.append({"activation_checkpointing": "selective"})
    strategies = ["ddp", "zero1", "zero2", "zero3"]
    stronger = strategies[strategies.index(parallel.strategy) + 1 :]
    changes += [{"strategy": strategy} for strategy in stronger]
    if parallel.accumulate == "whole":
        changes.append({"accumulate": "sharded"})
    if parallel.shard_degree is not None:
        changes.append({"shard_degree": None})
    if parallel.activation_checkpointing != "full":
        changes.append({"activation_checkpointing": "full"})
    if not parallel.activation_offload:
        changes.append({"activation_offload": True})
    changes += [{"tensor": degree} for degree in (2, 4, 8) if degree > parallel.tensor]
    if rows == 1:
        # Halving the rows of a micro-batch needs no communication, so it comes first.
        changes += [
            {"context": degree} for degree in (2, 4, 8) if degree > parallel.context
        ]
    offloads = ["none", "optimizer", "parameters"]
    more_offload = offloads[offloads.index(parallel.offload) + 1 :]
    changes += [{"offload": offload} for offload in more_offload]
    return [(_format_change(change), change) for change in changes]


def _format_change(change: Mapping[str, Any]) -> str:
    """Return a change of one key as `--set` takes it."""
    ((key, value),) = change.items()
    return f"{_find_section(key)}.{key}={json.dumps(value).strip(chr(34))}"


def _find_section(key: str) -> str:
    return "data" if key == "micro_batch_rows" else "parallel"
