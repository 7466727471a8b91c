"""The time of a step, and peaks and speeds beside published ones."""

from __future__ import annotations

import re

import pytest

from tests.conftest import REPOSITORY
from training.config import TrainConfig, load_config
from training.planning.gpus import GIB, GPUS
from training.planning.memory import estimate_footprint
from training.planning.plan import make_plan
from training.planning.speed import (
    NETWORK_BYTES_PER_S,
    NODE_LINK_BYTES_PER_S,
    estimate_step_s,
    find_utilization,
)

LLAMA_8B = (
    "model.dim=4096",
    "model.num_layers=32",
    "model.ffn_dim=14336",
    "model.vocab_size=128256",
    "parallel.strategy=zero3",
    "parallel.shard_degree=null",
    "parallel.activation_checkpointing=selective",
    "data.document_masks=false",
)


def make_config(*changes: str) -> TrainConfig:
    """Return configs/train-1b.yaml with changes."""
    return load_config("train-1b.yaml", ["model.vocab_size=50304", *changes])


def test_context_parallelism_takes_the_time_of_its_exchanges() -> None:
    """Within a node by NVLink, over several by the network; the plan lists it."""

    def estimate_s(*changes: str) -> float:
        config = make_config("data.micro_batch_rows=1", *changes)
        footprint = estimate_footprint(config, 50304, 16)
        return estimate_step_s(
            config,
            footprint,
            num_gpus=16,
            peak_flops=GPUS["h100-80gb"].peak_flops,
            vocab_size=50304,
            utilization=0.4,
        )

    # Jacobs et al. 2023: 4 N h in forward, here with keys and values of a quarter of the width,
    # and as much in backward; 2 bytes, 16 layers, 128 rows of 8,192 tokens on 16 GPUs.
    num_bytes = 2 * 16 * 2 * (2 * 2048 + 2 * 512) * 128 * 8192 / 16
    heads = ("model.num_heads=32", "model.num_kv_heads=8")
    alone_s = estimate_s(*heads)
    assert estimate_s(*heads, "parallel.context=2") - alone_s == pytest.approx(
        num_bytes * 1 / 2 / NODE_LINK_BYTES_PER_S
    )
    wide = ("model.num_heads=16", "model.num_kv_heads=16", "parallel.shard_degree=null")
    num_bytes = 2 * 16 * 2 * (4 * 2048) * 128 * 8192 / 16
    assert estimate_s(*wide, "parallel.context=16") - estimate_s(*wide) == pytest.approx(
        num_bytes * 15 / 16 / NETWORK_BYTES_PER_S
    )
    plan = make_plan(
        make_config(*heads), num_gpus=16, gpu=GPUS["h100-80gb"], vocab_size=50304
    )
    speeds = {option.name: option.tokens_per_s for option in plan.alternatives}
    assert 0.9 < speeds["context 2"] / plan.configured.tokens_per_s < 1


@pytest.mark.parametrize(("num_gpus", "eager_gib"), [(8, 82.4), (128, 67.0)])
def test_peaks_are_near_those_of_torchtitan(num_gpus: int, eager_gib: float) -> None:
    """Within 5 % of Llama 3.1 8B without torch.compile, if logits are not chunked.

    The default, which computes them in chunks, has the peaks of docs/training.md.
    """
    rows = f"data.global_batch_rows={2 * num_gpus}"
    page = (REPOSITORY / "docs" / "training.md").read_text(encoding="utf-8")
    (in_docs,) = re.findall(r"in chunks, has ([\d.]+) GiB on 8 and ([\d.]+) on 128", page)
    config = make_config(*LLAMA_8B, rows, "precision.loss_chunk_tokens=16384")
    peak = estimate_footprint(config, 128256, num_gpus).peak
    assert peak.total / GIB == pytest.approx(eager_gib, rel=0.05)
    chunked = estimate_footprint(make_config(*LLAMA_8B, rows), 128256, num_gpus).peak
    assert f"{chunked.total / GIB:.1f}" == in_docs[num_gpus == 128]
    assert peak.total - chunked.total == peak.work - chunked.work


def test_the_nearest_published_shape_gives_the_speed() -> None:
    """By size and row length; the plan names it."""
    assert find_utilization(8.03e9, 8192).source == "torchtitan"
    assert find_utilization(1.2e9, 2048).share == pytest.approx(0.4182)
    plan = make_plan(make_config(), num_gpus=16, gpu=GPUS["h100-80gb"], vocab_size=50304)
    assert plan.mfu == pytest.approx(0.3773)
    assert "llm-foundry, 1.3 B, 8,192 tokens" in plan.mfu_source


def test_train_1b_has_the_time_of_its_plan() -> None:
    """The hours and the speed in the comment are those of the plan."""
    plan = make_plan(make_config(), num_gpus=16, gpu=GPUS["h100-80gb"], vocab_size=50304)
    text = (REPOSITORY / "configs" / "train-1b.yaml").read_text(encoding="utf-8")
    hours = round(plan.estimate_hours(plan.configured))
    thousands = round(plan.configured.tokens_per_s / 16 / 1000)
    assert f"take about {hours} hours" in text
    assert f"({thousands},000 tokens/s per GPU)" in text
