"""The time of a step, and peaks and speeds beside published ones."""

from __future__ import annotations

import re

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.conftest import REPOSITORY
from training.config import TrainConfig, load_config
from training.model.decoder import Block
from training.parallel.muon import orthogonalize
from training.planning.gpus import GIB, GPUS
from training.planning.memory.footprint import estimate_footprint
from training.planning.plan import make_plan
from training.planning.step_time import (
    NETWORK_BYTES_PER_S,
    NODE_LINK_BYTES_PER_S,
    estimate_muon_s,
    estimate_step_s,
)
from training.planning.utilization import find_utilization

MUON = "optimizer.algorithm=muon"
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


def test_muon_has_the_flops_that_torch_counts() -> None:
    """For all matrices of a block, orthogonalized on one rank."""
    config = make_config(
        MUON,
        "model.dim=64",
        "model.num_heads=4",
        "model.num_kv_heads=2",
        "model.ffn_dim=160",
    )
    config = config.model_copy(
        update={"parallel": config.parallel.model_copy(update={"shard_degree": None})}
    )
    counter = FlopCounterMode(display=False)
    with counter:
        for parameter in Block(config.model).parameters():
            if parameter.ndim == 2:
                orthogonalize(torch.rand(parameter.shape))
    flops = config.model.num_layers * counter.get_total_flops()
    assert estimate_muon_s(config, 1, 1.0) == pytest.approx(flops)


def test_muon_divides_matrices_over_ranks_and_sends_them_twice() -> None:
    """With more ranks the products take less time, and the network more than a node's links."""
    config = make_config(MUON, "parallel.shard_degree=null")
    # 2 bytes for each number of the blocks' matrices: 973 M.
    num_bytes = 2 * 16 * (2 * 2048 * 2048 + 2 * 512 * 2048 + 3 * 8192 * 2048)
    slow_math = [estimate_muon_s(config, num_ranks, 1e9) for num_ranks in (1, 8, 16)]
    assert slow_math[0] / 8 < slow_math[1] < slow_math[0] / 5
    assert slow_math[2] < slow_math[1]
    assert estimate_muon_s(config, 8, 1e30) == pytest.approx(
        2 * num_bytes * 7 / 8 / NODE_LINK_BYTES_PER_S
    )
    assert estimate_muon_s(config, 16, 1e30) == pytest.approx(
        2 * num_bytes * 15 / 16 / NETWORK_BYTES_PER_S
    )


def test_context_parallelism_takes_the_time_of_its_exchanges() -> None:
    """Within a node by NVLink, over several by the network; the plan lists it."""

    def estimate_s(*changes: str) -> float:
        config = make_config("data.micro_batch_rows=1", *changes)
        footprint = estimate_footprint(config, 50304, 16)
        return estimate_step_s(
            config,
            footprint,
            num_gpus=16,
            gpu=GPUS["h100-80gb"],
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
    """Within 5 % of Llama 3.1 8B without torch.compile, if logits are not chunked."""
    rows = f"data.global_batch_rows={2 * num_gpus}"
    config = make_config(*LLAMA_8B, rows, "precision.loss_chunk_tokens=16384")
    peak = estimate_footprint(config, 128256, num_gpus).peak
    assert peak.total / GIB == pytest.approx(eager_gib, rel=0.05)
    chunked = estimate_footprint(make_config(*LLAMA_8B, rows), 128256, num_gpus).peak
    assert peak.total - chunked.total == peak.loss - chunked.loss


def test_the_plan_has_the_figures_of_the_docs() -> None:
    """docs/training.md and the note under a plan have the peaks of the plan."""
    totals: list[str] = []
    for chunk in (16384, 4096):
        for num_gpus in (8, 128):
            config = make_config(
                *LLAMA_8B,
                f"data.global_batch_rows={2 * num_gpus}",
                f"precision.loss_chunk_tokens={chunk}",
            )
            peak = estimate_footprint(config, 128256, num_gpus).peak
            totals.append(f"{peak.total / GIB:.1f}")
    page = (REPOSITORY / "docs" / "training.md").read_text(encoding="utf-8")
    for left, right in (totals[:2], totals[2:]):
        assert re.search(rf"\| {left} \| {right} \|", page), totals
    note = (REPOSITORY / "training" / "planning" / "plan_report.py").read_text()
    assert all(total in note for total in totals)


def test_the_nearest_published_shape_gives_the_speed() -> None:
    """By size, row length and number of GPUs; the plan names it."""
    assert find_utilization(8.03e9, 8192, 8).source == "torchtitan"
    assert find_utilization(1.2e9, 2048, 64).share == pytest.approx(0.4085)
    assert find_utilization(1.2e9, 2048, 1024).num_gpus == 512
    config = make_config()
    plan = make_plan(config, num_gpus=16, gpu=GPUS["h100-80gb"], vocab_size=50304)
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
