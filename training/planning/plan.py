"""Estimates whether a config fits on given GPUs, and how long training takes.

For example:

    config = load_config("train-1b.yaml")
    plan = make_plan(config, num_gpus=16, gpu=GPUS["h100-80gb"], vocab_size=50304)
    plan.configured.fits(plan.gpu), plan.configured.footprint.peak.total / GIB
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from loader.reading.manifest_columns import read_manifest_columns
from loader.storage import ReadFailed, ReadSettings
from training.config import DataConfig, TrainConfig
from training.data.tokenizer import open_tokenizer
from training.errors import IncompatibleConfig
from training.model.size import count_flops_per_token, count_parameters, resolve_vocab_size
from training.planning.alternatives import (
    Estimator,
    Option,
    find_remedies,
    list_alternatives,
)
from training.planning.gpus import Gpu
from training.planning.utilization import find_utilization


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
    tokens = _count_tokens(config) if tokens is None else tokens
    num_parameters = count_parameters(config.model, vocab_size)
    flops = count_flops_per_token(config.model, vocab_size, config.data.seq_len)
    _check_arguments(num_gpus, mfu, tokens)
    mfu, source = _choose_mfu(config, num_parameters, num_gpus, mfu)
    estimator = Estimator(config, num_gpus, gpu, vocab_size, mfu)
    configured = _estimate_configured(estimator)
    return Plan(
        gpu=gpu,
        num_gpus=num_gpus,
        vocab_size=vocab_size,
        num_parameters=num_parameters,
        flops_per_token=flops,
        mfu=mfu,
        mfu_source=source,
        tokens=tokens,
        configured=configured,
        alternatives=tuple(_estimate_alternatives(estimator)),
        # Remedies take hundreds of estimates, so they are computed only if they are needed.
        remedies=() if configured.fits(gpu) else tuple(find_remedies(estimator)),
    )


def _count_tokens(config: TrainConfig) -> float:
    return float(config.steps * config.data.global_batch_rows * config.data.seq_len)


def _choose_mfu(
    config: TrainConfig, num_parameters: int, num_gpus: int, given: float | None
) -> tuple[float, str]:
    """Return the MFU, and where it comes from."""
    if given is not None:
        return given, "as given"
    nearest = find_utilization(num_parameters, config.data.seq_len, num_gpus)
    return nearest.share, f"published for {nearest.describe()}"


def _estimate_configured(estimator: Estimator) -> Option:
    configured = estimator.estimate("as configured", {})
    if configured.footprint is None:
        raise IncompatibleConfig(configured.error)
    return configured


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


def _estimate_alternatives(estimator: Estimator) -> Iterator[Option]:
    """Yield all alternatives that differ from the config."""
    parallel = estimator.config.parallel
    for name, changes in list_alternatives(estimator.config):
        if parallel.model_copy(update=changes) != parallel:
            yield estimator.estimate(name, changes)


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
