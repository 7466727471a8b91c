"""Estimates whether a config fits on given GPUs, how long training takes, and what would be better.

For example:

    config = load_config("train-1b.yaml")
    plan = make_plan(config, num_gpus=16, gpu=GPUS["h100-80gb"], vocab_size=50304)
    plan.configured.fits(plan.gpu), plan.configured.footprint.peak.total / GIB
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from loader.reading.manifest_columns import read_manifest_columns
from loader.storage import ReadFailed, ReadSettings
from training.config import DataConfig, TrainConfig
from training.data.tokenizer import open_tokenizer
from training.errors import IncompatibleConfig
from training.model.size import count_flops_per_token, count_parameters, resolve_vocab_size
from training.planning.gpus import Gpu
from training.planning.memory import Footprint, estimate_footprint
from training.planning.speed import estimate_step_s, find_utilization

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
    error: str = ""
    tokens_per_s: float = 0.0

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
            return Option(name, None, "; ".join(reasons))
        except IncompatibleConfig as error:
            return Option(name, None, str(error))
        step_s = estimate_step_s(
            config,
            footprint,
            num_gpus=self.num_gpus,
            peak_flops=self.gpu.peak_flops,
            vocab_size=self.vocab_size,
            utilization=self.mfu,
        )
        tokens = config.data.global_batch_rows * config.data.seq_len
        return Option(name, footprint, tokens_per_s=tokens / step_s)


@dataclass(frozen=True)
class Plan:
    """Memory and speed of a config and of its alternatives.

    Attributes:
        mfu: model FLOPs utilization that is assumed.
        mfu_source: where it comes from.
        tokens: tokens to train on.
        configured: the config as it is.
        alternatives: other strategies and activation settings.
        remedies: changes that make the config fit, fastest first; empty if it fits.
    """

    gpu: Gpu
    num_gpus: int
    vocab_size: int
    num_parameters: int
    flops_per_token: int
    mfu: float
    mfu_source: str
    tokens: float
    configured: Option
    alternatives: tuple[Option, ...]
    remedies: tuple[Option, ...]

    def estimate_hours(self, option: Option) -> float:
        """Return the hours to train on `tokens`; NaN for an impossible option."""
        return self.tokens / option.tokens_per_s / 3600 if option.tokens_per_s else math.nan


def make_plan(
    config: TrainConfig,
    *,
    num_gpus: int,
    gpu: Gpu,
    vocab_size: int,
    mfu: float | None = None,
    tokens: float | None = None,
) -> Plan:
    """Estimate a config and its alternatives. Nothing is started.

    Args:
        config: the run.
        num_gpus: GPUs, with one rank on each.
        gpu: type of all GPUs.
        vocab_size: rows of the embedding (see `find_vocab_size`).
        mfu: model FLOPs utilization to assume; None: the published one of the nearest shape.
            Recomputation is added to the model's FLOPs.
        tokens: tokens to train on; None: those of the config's steps.

    Raises:
        IncompatibleConfig: an argument is out of range, or the config cannot run on these GPUs.
    """
    data = config.data
    if tokens is None:
        tokens = float(config.steps * data.global_batch_rows * data.seq_len)
    _check_arguments(num_gpus, mfu, tokens)
    num_parameters = count_parameters(config.model, vocab_size)
    source = "as given"
    if mfu is None:
        nearest = find_utilization(num_parameters, data.seq_len)
        mfu, source = nearest.share, f"published for {nearest.describe()}"
    estimator = Estimator(config, num_gpus, gpu, vocab_size, mfu)
    configured = estimator.estimate("as configured", {})
    if configured.footprint is None:
        raise IncompatibleConfig(configured.error)
    return Plan(
        gpu=gpu,
        num_gpus=num_gpus,
        vocab_size=vocab_size,
        num_parameters=num_parameters,
        flops_per_token=count_flops_per_token(config.model, vocab_size, data.seq_len),
        mfu=mfu,
        mfu_source=source,
        tokens=tokens,
        configured=configured,
        alternatives=tuple(_estimate_alternatives(estimator)),
        # Remedies take hundreds of estimates, so they are computed only if they are needed.
        remedies=() if configured.fits(gpu) else tuple(_find_remedies(estimator)),
    )


def _check_arguments(num_gpus: int, mfu: float | None, tokens: float) -> None:
    """Refuse arguments out of their ranges.

    Raises:
        IncompatibleConfig: lists all that are out of range.
    """
    faults: list[str] = []
    if num_gpus < 1:
        faults.append(f"--gpus is {num_gpus}, must be at least 1")
    if mfu is not None and not 0 < mfu <= 1:
        faults.append(f"--mfu is {mfu:g}, must be above 0 and at most 1")
    if not tokens > 0:
        faults.append(f"--tokens is {tokens:g}, must be above 0")
    if faults:
        raise IncompatibleConfig("; ".join(faults))


# ---- alternatives and remedies ----


def _estimate_alternatives(estimator: Estimator) -> Iterator[Option]:
    """Yield every other strategy, and every other setting alone.

    Settings that a strategy does not allow are reset along with it.
    """
    parallel = estimator.config.parallel
    unsharded = {"shard_degree": None, "tensor": 1, "accumulate": "sharded"}
    no_parameters = {
        "offload": "none" if parallel.offload == "parameters" else parallel.offload
    }
    sharded = {} if parallel.strategy in ("zero2", "zero3") else {"strategy": "zero3"}
    not_zero1 = {"strategy": "zero2"} if parallel.strategy == "zero1" else {}
    options: dict[str, dict[str, Any]] = {
        "ddp": {"strategy": "ddp", **unsharded, **no_parameters},
        "zero1": {"strategy": "zero1", **unsharded, "offload": "none"},
        "zero2": {"strategy": "zero2", "shard_degree": None},
        "zero3": {"strategy": "zero3", "shard_degree": None},
        "hsdp: zero3, shard_degree 8": {"strategy": "zero3", "shard_degree": 8},
        "tensor 2": {**sharded, "tensor": 2, "shard_degree": None},
        "tensor 8": {**sharded, "tensor": 8, "shard_degree": None},
        "context 2": {"context": 2},
        "checkpointing none": {"activation_checkpointing": "none"},
        "checkpointing selective": {"activation_checkpointing": "selective"},
        "checkpointing full": {"activation_checkpointing": "full"},
        "activation offload": {"activation_offload": True},
        "offload optimizer": {**not_zero1, "offload": "optimizer"},
        "offload parameters": {**sharded, "offload": "parameters"},
    }
    for name, changes in options.items():
        if parallel.model_copy(update=changes) != parallel:
            yield estimator.estimate(name, changes)


def _find_remedies(estimator: Estimator) -> list[Option]:
    """Return the fastest sets of changes that make the config fit.

    Each set is minimal: without any one of its changes, the config does not fit. Names are
    written as `--set` takes them.
    """
    found: list[tuple[frozenset[str], Option]] = []
    savers = _list_memory_savers(estimator.config)
    changes = {_format_change(key, value): (key, value) for key, value in savers}
    for num_changes in range(1, MAX_CHANGES + 1):
        for names in itertools.combinations(changes, num_changes):
            # Combinations grow in size, so a set that contains a smaller remedy is not minimal.
            if any(smaller < frozenset(names) for smaller, _ in found):
                continue
            merged = dict(changes[name] for name in names)
            if len(merged) < num_changes:
                continue  # two values for one key
            option = estimator.estimate(", ".join(names), merged)
            if option.fits(estimator.gpu):
                found.append((frozenset(names), option))

    def rank(entry: tuple[frozenset[str], Option]) -> float:
        names, option = entry
        return -option.tokens_per_s * (1 - CHANGE_PENALTY) ** len(names)

    return [option for _, option in sorted(found, key=rank)[:MAX_REMEDIES]]


def _list_memory_savers(config: TrainConfig) -> Iterator[tuple[str, Any]]:
    """Yield single changes of a key that save memory, the cheapest first.

    The order decides between remedies of equal estimated speed.
    """
    parallel, rows = config.parallel, config.data.micro_batch_rows
    half = rows
    while half > 1 and half % 2 == 0:
        half //= 2
        yield "micro_batch_rows", half
    if parallel.activation_checkpointing == "none":
        yield "activation_checkpointing", "selective"
    strategies = ["ddp", "zero1", "zero2", "zero3"]
    for strategy in strategies[strategies.index(parallel.strategy) + 1 :]:
        yield "strategy", strategy
    if parallel.accumulate == "whole":
        yield "accumulate", "sharded"
    if parallel.shard_degree is not None:
        yield "shard_degree", None
    if parallel.activation_checkpointing != "full":
        yield "activation_checkpointing", "full"
    if not parallel.activation_offload:
        yield "activation_offload", True
    # Halving the rows of a micro-batch needs no communication, so it comes before sharing rows.
    for key in ("tensor", "context") if rows == 1 else ("tensor",):
        for degree in (2, 4, 8):
            if degree > getattr(parallel, key):
                yield key, degree
    offloads = ["none", "optimizer", "parameters"]
    for offload in offloads[offloads.index(parallel.offload) + 1 :]:
        yield "offload", offload


def _format_change(key: str, value: Any) -> str:
    """Return a change of one key as `--set` takes it."""
    return f"{_find_section(key)}.{key}={json.dumps(value).strip(chr(34))}"


def _find_section(key: str) -> str:
    return "data" if key == "micro_batch_rows" else "parallel"


# ---- the vocabulary ----


def find_vocab_size(config: TrainConfig) -> int:
    """Return the rows of the embedding: as configured, or from the dataset's tokenizer.

    Raises:
        IncompatibleConfig: it is not configured, and dataset or tokenizer cannot be read.
    """
    if config.model.vocab_size is not None:
        return config.model.vocab_size
    try:
        tokenizer_vocab_size = _read_tokenizer_vocab_size(config.data)
    except (ReadFailed, OSError) as error:
        raise IncompatibleConfig(
            f"model.vocab_size is null, so the dataset's tokenizer is needed, but {error}. To "
            f"plan without a dataset, set it: --set model.vocab_size=50304"
        ) from error
    return resolve_vocab_size(config.model, tokenizer_vocab_size)


def _read_tokenizer_vocab_size(data: DataConfig) -> int:
    if data.instructions is not None:
        assert data.tokenizer is not None
        return open_tokenizer(data.tokenizer).vocab_size
    manifests = [str(data.manifest)]
    if data.mixture is not None:
        manifests = [source.manifest for source in data.mixture.values()]
    settings = ReadSettings()
    # The tokenizers of a mixture must be equal; opening the data checks that.
    return max(
        read_manifest_columns(name, settings).tokenizer.vocab_size for name in manifests
    )
