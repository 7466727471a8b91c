"""Weights, gradients and buffers of a rank by strategy, at the four moments of a step.

The moments are those of training/planning/memory/footprint.py: loss, last, first, end.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.config import TrainConfig
from training.planning.memory.activations import FP32_BYTES, get_compute_bytes
from training.planning.memory.weight_layout import MeshLayout, ModelWeights


@dataclass(frozen=True)
class StrategyMemory:
    """Bytes on one GPU that depend on the strategy, by moment of the step.

    Attributes:
        gathered: whole weights in the compute dtype.
        gradients: fp32.
        buffers: of collectives and of new gradients. It has one more moment: "done", the end of
            the last block's backward.
    """

    gathered: dict[str, int]
    gradients: dict[str, int]
    buffers: dict[str, int]


def estimate_ddp(
    config: TrainConfig, layout: MeshLayout, weights: ModelWeights
) -> StrategyMemory:
    """Estimate ddp and zero1. With DDP, its buckets hold the gradients during the whole run."""
    # DDP allocates its buckets at the start. Without DDP, gradients of earlier micro-batches
    # remain.
    keeps_gradients = layout.replicate > 1 or layout.micro_batches > 1
    e, num_layers = get_compute_bytes(config), weights.num_layers
    gradients = FP32_BYTES * weights.count_local(1, trained_only=True)
    embedding = FP32_BYTES * weights.embedding.count_local(1, trained_only=True)
    block = FP32_BYTES * weights.block.count_local(1, trained_only=True)
    head = FP32_BYTES * weights.head.count_local(1, trained_only=True)
    # One gradient in the compute dtype and in fp32, before it is added to its bucket.
    new_gradient = (FP32_BYTES + e) * weights.block.largest_trained
    return StrategyMemory(
        gathered=_estimate_casts(config, weights),
        gradients={
            "loss": gradients if keeps_gradients else 0,
            "last": gradients if keeps_gradients else head,
            "first": gradients if keeps_gradients else head + (num_layers - 1) * block,
            "end": gradients,
        },
        buffers={
            "loss": 0,
            "last": new_gradient,
            "done": new_gradient,
            "first": new_gradient,
            "end": embedding,
        },
    )


def _estimate_casts(config: TrainConfig, weights: ModelWeights) -> dict[str, int]:
    """Return the casts of the weights, which autocast caches until they are no longer needed."""
    e = get_compute_bytes(config)
    matrices = sum(w.count_local(1) for w in weights.block.weights if w.is_matrix)
    # fp32 weights are used as they are.
    block_casts = e * matrices if e < FP32_BYTES else 0
    all_casts = weights.num_layers * block_casts
    # Recomputation casts each block anew.
    is_checkpointed = config.parallel.activation_checkpointing != "none"
    return {
        "loss": all_casts,
        "last": block_casts if is_checkpointed else all_casts,
        "first": block_casts,
        "end": 0,
    }


def estimate_sharded(
    config: TrainConfig, layout: MeshLayout, weights: ModelWeights
) -> StrategyMemory:
    """Estimate zero2 and zero3: fully_shard gathers one group ahead, and reduces in fp32."""
    return StrategyMemory(
        gathered=_estimate_gathered(config, layout.shard, weights),
        gradients=_estimate_sharded_gradients(config, layout, weights),
        buffers=_estimate_sharded_buffers(config, layout.shard, weights),
    )


def _estimate_gathered(
    config: TrainConfig, shard: int, weights: ModelWeights
) -> dict[str, int]:
    e, num_layers = get_compute_bytes(config), weights.num_layers
    embedding = e * weights.embedding.count_gathered(shard)
    block = e * weights.block.count_gathered(shard)
    head = e * weights.head.count_gathered(shard)
    if config.parallel.strategy == "zero3":
        # zero3: the block in use, and in backward also the one that is gathered ahead.
        after_forward, in_backward = block, block * min(2, num_layers)
    else:
        # zero2: everything gathered in forward stays until its backward.
        after_forward = in_backward = block * num_layers + embedding
    return {
        "loss": head + after_forward,
        "last": in_backward,
        "first": block + embedding,
        "end": embedding,
    }


def _estimate_sharded_gradients(
    config: TrainConfig, layout: MeshLayout, weights: ModelWeights
) -> dict[str, int]:
    shard = layout.shard
    # Offloaded parameters have their gradients in CPU memory.
    on_gpu = 0 if config.parallel.offload == "parameters" else FP32_BYTES
    local = on_gpu * weights.count_local(shard, trained_only=True)
    local_head = on_gpu * weights.head.count_local(shard, trained_only=True)
    local_block = on_gpu * weights.block.count_local(shard, trained_only=True)
    # Reduced already when the first block is in backward: the head, and all blocks but the first.
    later_groups = local_head + (weights.num_layers - 1) * local_block
    if layout.micro_batches == 1:
        return {"loss": 0, "last": local_head, "first": later_groups, "end": local}
    if config.parallel.accumulate == "sharded":
        # Earlier micro-batches have left this rank's share.
        return dict.fromkeys(("loss", "last", "first", "end"), local)
    # Earlier micro-batches have left whole gradients in fp32. Each group's are freed when it is
    # reduced in the last micro-batch.
    whole = FP32_BYTES * weights.count_local(1, trained_only=True)
    whole_embedding = (
        FP32_BYTES * shard * weights.embedding.count_local(shard, trained_only=True)
    )
    whole_block = FP32_BYTES * shard * weights.block.count_local(shard, trained_only=True)
    whole_head = FP32_BYTES * shard * weights.head.count_local(shard, trained_only=True)
    return {
        "loss": whole,
        "last": whole - whole_head + local_head,
        "first": later_groups + whole_block + whole_embedding,
        "end": local,
    }


def _estimate_sharded_buffers(
    config: TrainConfig, shard: int, weights: ModelWeights
) -> dict[str, int]:
    e, num_layers = get_compute_bytes(config), weights.num_layers
    is_zero3 = config.parallel.strategy == "zero3"
    # Buffers of a reduction, in fp32, and of the same gradients before, in the compute dtype.
    reduced_embedding = (
        FP32_BYTES * shard * weights.embedding.count_local(shard, trained_only=True)
    )
    reduced_block = FP32_BYTES * shard * weights.block.count_local(shard, trained_only=True)
    reduced_head = FP32_BYTES * shard * weights.head.count_local(shard, trained_only=True)
    new_embedding = reduced_embedding * e // FP32_BYTES
    new_block = reduced_block * e // FP32_BYTES
    # A block's first gradient is computed while those of the group before it are reduced.
    new_first = e * weights.block.largest_trained
    reduced_before = reduced_block if num_layers > 1 else reduced_head
    # A gather has its output twice: received, then copied into the parameters.
    received_embedding = received_block = received_head = 0
    if shard > 1:
        received_head = e * weights.head.count_gathered(shard)
        if is_zero3:
            received_embedding = e * weights.embedding.count_gathered(shard)
            received_block = e * weights.block.count_gathered(shard)
    return {
        "loss": received_head,
        "last": reduced_head + new_first + received_block,
        "done": reduced_block + new_block + received_block,
        "first": reduced_before + new_first + received_embedding,
        "end": max(reduced_embedding, reduced_block) + new_embedding,
    }
