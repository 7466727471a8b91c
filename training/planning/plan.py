"""Will it fit, and how long will it take: a config's memory and speed on GPUs, beside what else could be chosen.

Promises: `make_plan` computes a value and starts nothing. What does not fit is told with what would make it fit, the
cheapest change first. Memory is memory.py's; speed is arithmetic from an assumed MFU.
Leaves to others: presenting it (plan_report.py), the trainer's own measure of both (watch.py).

    plan = make_plan(load("train-1b.yaml"), num_gpus=16, gpu=GPUS["h100-80gb"], vocab_size=50304)
    plan.here.fits(plan.gpu), plan.here.footprint.peak.total / GIB, plan.here.tokens_per_s
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from loader.reading.manifest_columns import read_manifest_columns
from loader.storage import ReadFailed, ReadSettings
from training.config import TrainConfig
from training.model.decoder import flops_per_token, num_parameters, vocab_size_of
from training.observability.metrics_log import PEAK_FLOPS
from training.parallel.distributed import IncompatibleConfig
from training.planning.memory import FP32, GIB, Footprint, compute_bytes, footprint

DEFAULT_MFU = 0.40
"""Llama-shaped models of 1 to 8 B on H100: torchtitan 33 to 39 %, llm-foundry 38 to 46 %, fms-fsdp 46 %, OLMo-core 40 %
(their published logs, counted as watch.Clock counts)."""

SPARE_SHARE = 0.05
"""Of the GPU's memory: assumed to be lost between the blocks of torch's caching allocator."""

HOST_LINK_BYTES_PER_S = 25e9
"""Assumed, from pinned CPU memory to a GPU and back: PCIe 4.0 x16 has 31.5 GB/s each way by its standard."""

HOST_ADAM_BYTES_PER_S = 20e9
"""Assumed, per GPU: CPU memory that AdamW on the host reads and writes, where eight ranks share a node."""

ADAM_BYTES = 28
"""That it reads and writes per parameter: gradient, and parameter and two moments twice."""

NODE_LINK_BYTES_PER_S = 300e9
"""Assumed, of collectives between the GPUs of a node, per GPU: NVLink 4 has 450 GB/s each way by its data sheet."""

MAX_CHANGES = 3
MAX_REMEDIES = 4
CHANGE_SHARE = 0.02
"""What each change counts for, as a loss of speed, when remedies are ranked: smaller products, more to go wrong."""


@dataclass(frozen=True)
class Gpu:
    """memory_bytes: what torch reports as total; peak_flops: dense bf16 FLOP/s."""

    name: str
    memory_bytes: int
    peak_flops: float


def _gpu(name: str, memory_gib: float, product: str) -> Gpu:
    return Gpu(name, int(memory_gib * GIB), PEAK_FLOPS[product])


GPUS: Mapping[str, Gpu] = {
    gpu.name: gpu
    for gpu in (
        _gpu("a100-40gb", 39.4, "A100"),
        _gpu("a100-80gb", 79.1, "A100"),
        _gpu("h100-80gb", 79.1, "H100"),
        _gpu("h100-pcie-80gb", 79.1, "H100 PCIe"),
        _gpu("h100-nvl-94gb", 93.1, "H100 NVL"),
        _gpu("h200-141gb", 139.8, "H200"),
        _gpu("b200-180gb", 178.3, "B200"),
        _gpu("l40s-48gb", 44.4, "L40S"),
    )
}
"""Total memory as torch.cuda.get_device_properties tells it: in GiB, and without the driver's part."""


def gpu_of(name: str) -> Gpu:
    """The GPU of that name; raises IncompatibleConfig with those there are."""
    if name.lower() not in GPUS:
        raise IncompatibleConfig(
            f"--gpu is {name}, which is not known; there are {', '.join(GPUS)}"
        )
    return GPUS[name.lower()]


@dataclass(frozen=True)
class Option:
    """One way to run the config. Either a footprint, or why it cannot be: `refusal`."""

    name: str
    footprint: Footprint | None
    refusal: str
    tokens_per_s: float

    def fits(self, gpu: Gpu) -> bool:
        """Whether its fullest moment leaves SPARE_SHARE of the memory."""
        return self.footprint is not None and self.footprint.peak.total <= gpu.memory_bytes * (
            1 - SPARE_SHARE
        )


@dataclass(frozen=True)
class Plan:
    """A config on so many GPUs: itself, other layouts, and where it does not fit changes with which it would."""

    gpu: Gpu
    num_gpus: int
    vocab_size: int
    num_parameters: int
    flops_per_token: int
    mfu: float
    tokens: float
    here: Option
    others: tuple[Option, ...]
    remedies: tuple[Option, ...]

    def hours(self, option: Option) -> float:
        """Of training on `tokens`; NaN where it cannot run."""
        return self.tokens / option.tokens_per_s / 3600 if option.tokens_per_s else math.nan


def make_plan(
    config: TrainConfig,
    *,
    num_gpus: int,
    gpu: Gpu,
    vocab_size: int,
    mfu: float = DEFAULT_MFU,
    tokens: float | None = None,
) -> Plan:
    """Memory and speed of a config and of its neighbours.

    Args:
        config: what to run.
        num_gpus: ranks, one on each.
        gpu: the kind of all of them.
        vocab_size: rows of the embedding (`vocab_size_for`).
        mfu: model FLOP/s that are reached, of the peak; computing again comes on top of the model's.
        tokens: to be trained on; None: as many as the config's steps take.

    Raises:
        IncompatibleConfig: numbers out of range, or the config cannot run on so many GPUs at all.
    """
    data = config.data
    if tokens is None:
        tokens = float(config.steps * data.global_batch_rows * data.seq_len)
    if num_gpus < 1 or not 0 < mfu <= 1 or tokens <= 0:
        raise IncompatibleConfig(
            f"--gpus is {num_gpus}, must be at least 1; --mfu {mfu:g}, in 0..1; --tokens {tokens:g}, above 0"
        )
    world = _World(config, num_gpus, gpu, vocab_size, mfu)
    here = world.option("as configured", {})
    if here.footprint is None:
        raise IncompatibleConfig(here.refusal)
    return Plan(
        gpu=gpu,
        num_gpus=num_gpus,
        vocab_size=vocab_size,
        num_parameters=num_parameters(config.model, vocab_size),
        flops_per_token=flops_per_token(config.model, vocab_size, data.seq_len),
        mfu=mfu,
        tokens=tokens,
        here=here,
        others=tuple(
            world.option(name, changes)
            for name, changes in _neighbours(config)
            if config.parallel.model_copy(update=changes) != config.parallel
        ),
        remedies=() if here.fits(gpu) else tuple(_remedies(world)),
    )


def vocab_size_for(config: TrainConfig) -> int:
    """Rows of the embedding: as configured, or of the dataset's tokenizer, which is read for it.

    Raises:
        IncompatibleConfig: it is not configured, and the dataset or tokenizer is not there.
    """
    data = config.data
    if config.model.vocab_size is not None:
        return config.model.vocab_size
    try:
        if data.instructions is not None:
            from tokenizers import Tokenizer

            assert data.tokenizer is not None
            found = Tokenizer.from_str(
                Path(data.tokenizer).read_text(encoding="utf-8")
            ).get_vocab_size()
        else:
            sources = (
                [data.manifest]
                if data.mixture is None
                else [source.manifest for source in data.mixture.values()]
            )
            found = max(
                read_manifest_columns(str(s), ReadSettings()).tokenizer.vocab_size for s in sources
            )
    except (ReadFailed, OSError) as error:
        raise IncompatibleConfig(
            f"model.vocab_size is null, so the dataset's tokenizer has to say it, but {error}. To plan before "
            f"there is a dataset, give it: --set model.vocab_size=50304"
        ) from error
    return vocab_size_of(config.model, found)


# ------------------------------------------------------------------------------------------------------------- options


@dataclass(frozen=True)
class _World:
    config: TrainConfig
    num_gpus: int
    gpu: Gpu
    vocab_size: int
    mfu: float

    def option(self, name: str, changes: Mapping[str, Any]) -> Option:
        """The config with changes to `parallel`, and to `data` under the name `micro_batch_rows`."""
        parallel = {key: value for key, value in changes.items() if key != "micro_batch_rows"}
        settings = self.config.model_dump()
        settings["parallel"] |= parallel
        settings["data"]["micro_batch_rows"] = changes.get(
            "micro_batch_rows", self.config.data.micro_batch_rows
        )
        try:
            config = TrainConfig.model_validate(settings)
            found = footprint(config, self.vocab_size, self.num_gpus)
        except ValidationError as error:
            reasons = [fault["msg"].removeprefix("Value error, ") for fault in error.errors()]
            return Option(name, None, "; ".join(reasons), 0.0)
        except IncompatibleConfig as error:
            return Option(name, None, str(error), 0.0)
        return Option(name, found, "", self._tokens_per_s(config, found))

    def _tokens_per_s(self, config: TrainConfig, found: Footprint) -> float:
        """Over all GPUs: peak x MFU / FLOPs with those of computing again, less what the CPU and its link take."""
        data, parallel = config.data, config.parallel
        flops = flops_per_token(config.model, self.vocab_size, data.seq_len)
        if (
            parallel.activation_checkpointing == "full"
        ):  # blocks' forward, a third of their 6 per weight, once more
            flops += (flops - 6 * self.vocab_size * config.model.dim) // 3
        tokens = data.global_batch_rows * data.seq_len
        computing_s = tokens * flops / (self.num_gpus * self.gpu.peak_flops * self.mfu)
        # Korthikanti et al. 2022, section 4.2.2: gathers and scatters around attention and feed-forward, both ways
        passed_bytes = 8 * config.model.num_layers * config.model.dim * compute_bytes(config)
        share = (parallel.tensor - 1) / parallel.tensor
        passing_s = (
            tokens * parallel.tensor / self.num_gpus * passed_bytes * share / NODE_LINK_BYTES_PER_S
        )
        # out and back, while it computes
        beside_s = 2 * found.offloaded * found.micro_batches / HOST_LINK_BYTES_PER_S
        waiting_s = 0.0
        if parallel.offload != "none":
            # gradients go out; masters come back, and parameters each time that they are gathered
            gathers = found.micro_batches * (2 if parallel.strategy == "zero3" else 1)
            times = gathers if parallel.offload == "parameters" else 1
            waiting_s = (found.gradients + times * found.parameters) / HOST_LINK_BYTES_PER_S
            waiting_s += found.gradients / FP32 * ADAM_BYTES / HOST_ADAM_BYTES_PER_S
        return tokens / (max(computing_s + passing_s, beside_s) + waiting_s)


def _neighbours(config: TrainConfig) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each strategy, and each other setting alone, all else as it is."""
    parallel = config.parallel
    unsharded = {"shard_degree": None, "tensor": 1}
    no_parameters = {"offload": "none" if parallel.offload == "parameters" else parallel.offload}
    sharded = {} if parallel.strategy in ("zero2", "zero3") else {"strategy": "zero3"}
    yield "ddp", {"strategy": "ddp", **unsharded, **no_parameters}
    yield "zero1", {"strategy": "zero1", **unsharded, "offload": "none"}
    yield "zero2", {"strategy": "zero2", "shard_degree": None}
    yield "zero3", {"strategy": "zero3", "shard_degree": None}
    yield "hsdp: zero3, shard_degree 8", {"strategy": "zero3", "shard_degree": 8}
    for degree in (2, 8):
        yield f"tensor {degree}", {**sharded, "tensor": degree, "shard_degree": None}
    for kind in ("none", "selective", "full"):
        yield f"checkpointing {kind}", {"activation_checkpointing": kind}
    yield "activation offload", {"activation_offload": True}
    has_own_step = {"strategy": "zero2"} if parallel.strategy == "zero1" else {}
    yield "offload optimizer", {**has_own_step, "offload": "optimizer"}
    yield "offload parameters", {**sharded, "offload": "parameters"}


def _remedies(world: _World) -> list[Option]:
    """Sets of changes, none of which can be left out, with which it fits: the fastest four."""
    found: list[tuple[frozenset[str], Option]] = []
    for num_changes in range(1, MAX_CHANGES + 1):
        for chosen in itertools.combinations(_ladder(world.config), num_changes):
            names = frozenset(name for name, _ in chosen)
            merged = {key: value for _, changes in chosen for key, value in changes.items()}
            if len(merged) < num_changes or any(smaller < names for smaller, _ in found):
                continue
            option = world.option(", ".join(name for name, _ in chosen), merged)
            if option.fits(world.gpu):
                found.append((names, option))
    ranked = sorted(
        found, key=lambda entry: -entry[1].tokens_per_s * (1 - CHANGE_SHARE) ** len(entry[0])
    )
    return [option for _, option in ranked[:MAX_REMEDIES]]


def _ladder(config: TrainConfig) -> list[tuple[str, dict[str, Any]]]:
    """Single changes that save memory, as `--set` takes them; where speeds are taken as equal, the cheapest first."""
    parallel, rows = config.parallel, config.data.micro_batch_rows
    steps: list[dict[str, Any]] = []
    halves = [rows // 2**n for n in range(1, rows.bit_length()) if rows % 2**n == 0]
    steps += [{"micro_batch_rows": half} for half in halves]
    if parallel.activation_checkpointing == "none":
        steps.append({"activation_checkpointing": "selective"})
    strategies = ["ddp", "zero1", "zero2", "zero3"]
    steps += [
        {"strategy": strategy} for strategy in strategies[strategies.index(parallel.strategy) + 1 :]
    ]
    if parallel.shard_degree is not None:
        steps.append({"shard_degree": None})
    if parallel.activation_checkpointing != "full":
        steps.append({"activation_checkpointing": "full"})
    if not parallel.activation_offload:
        steps.append({"activation_offload": True})
    steps += [{"tensor": degree} for degree in (2, 4, 8) if degree > parallel.tensor]
    offloads = ["none", "optimizer", "parameters"]
    steps += [{"offload": kind} for kind in offloads[offloads.index(parallel.offload) + 1 :]]
    return [(_setting(step), step) for step in steps]


def _setting(change: Mapping[str, Any]) -> str:
    ((key, value),) = change.items()
    section = "data" if key == "micro_batch_rows" else "parallel"
    return f"{section}.{key}={json.dumps(value).strip(chr(34))}"
