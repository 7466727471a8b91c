"""Memory of the fullest GPU of a run, computed from the config without building the model.

Parameters, gradients and optimizer state are exact. ZeRO (Rajbhandari et al. 2020, section 3.1)
counts 2 + 2 + 12 bytes per parameter: fp16 weights and gradients, and an fp32 master with two
moments. Ours are 4 + 4 + 8, because the fp32 parameter is the master and gradients are summed in
fp32. Weights that are gathered or cast in bf16 come on top.

The rest is an estimate, at three moments of a step:

    loss    after forward: all activations, and the logits of the head or its gradients
    last    in backward of the last block: all activations, and what the block needs besides
    end     after backward: all gradients, and that of the embedding before its reduction
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from training.config import TrainConfig
from training.planning.gpus import GIB
from training.planning.weights import (
    MeshLayout,
    ModelWeights,
    count,
    list_weights,
    plan_mesh,
    select_trained,
)

FP32_BYTES = 4

# Assumed, not measured: CUDA context with loaded kernels, and cuBLAS workspaces.
CONTEXT_BYTES = 1 * GIB

# Assumed: NCCL buffers of one group of ranks. A channel takes 4 MiB (NCCL_BUFFSIZE) per
# direction and peer.
COMMUNICATOR_BYTES = GIB // 2


@dataclass(frozen=True)
class MemoryUse:
    """Bytes on one GPU at one moment.

    Attributes:
        parameters: fp32, this rank's shard.
        gathered: whole weights in the compute dtype: gathered (zero2, zero3) or cast by autocast.
        gradients: fp32; this rank's share, or whole ones (ddp, zero1, `accumulate: whole`).
        optimizer: moments of AdamW, or momentum of Muon.
        activations: saved for the backward of blocks and the final norm; the batch itself.
        loss: logits of a chunk, and gradients of the head.
        buffers: of collectives, and of the block in backward.
        context: of CUDA and NCCL.
    """

    parameters: int
    gathered: int
    gradients: int
    optimizer: int
    activations: int
    loss: int
    buffers: int
    context: int

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(getattr(self, field.name) for field in fields(self))


@dataclass(frozen=True)
class Footprint:
    """Memory of the fullest GPU of a run.

    Attributes:
        parameters: bytes of this rank's shards, on the GPU or in CPU memory.
        gradients: likewise; as the optimizer sees them.
        optimizer: likewise.
        moments: bytes on the GPU, by moment of the step.
        offloaded: activation bytes per micro-batch that go to CPU memory and back.
        host: bytes of CPU memory per GPU: offloaded state, and the copy of the state from which
            a checkpoint is written.
        micro_batches: per step and rank.
    """

    parameters: int
    gradients: int
    optimizer: int
    moments: dict[str, MemoryUse]
    offloaded: int
    host: int
    micro_batches: int

    @property
    def peak_moment(self) -> str:
        """The moment that takes the most memory."""
        return max(self.moments, key=lambda name: self.moments[name].total)

    @property
    def peak(self) -> MemoryUse:
        """The memory at that moment."""
        return self.moments[self.peak_moment]


def estimate_footprint(
    config: TrainConfig, vocab_size: int, num_gpus: int, *, device_type: str = "cuda"
) -> Footprint:
    """Return the memory of a run.

    Args:
        config: the run.
        vocab_size: rows of the embedding.
        num_gpus: number of ranks.
        device_type: "cpu" leaves out the CUDA context.

    Raises:
        IncompatibleConfig: the degrees, heads or rows cannot be divided over the GPUs.
    """
    layout = plan_mesh(config, num_gpus)
    weights = list_weights(config, vocab_size, layout.tensor)
    parameters = FP32_BYTES * count(weights.all, layout.shard)
    gradients = FP32_BYTES * count(select_trained(weights.all), layout.shard)
    optimizer = _count_optimizer_bytes(config, weights, layout)
    block = estimate_block_activations(config)
    # The last block is not offloaded (training/parallel/activation_offload.py).
    offloaded = (config.model.num_layers - 1) * block.offloaded * count_tokens(config)
    offload = config.parallel.offload
    host = parameters + optimizer + offloaded  # the copy for checkpoints
    host += {
        "none": 0,
        "optimizer": 2 * gradients + optimizer,  # masters, their gradients, moments
        "parameters": parameters + gradients + optimizer,
    }[offload]
    context = COMMUNICATOR_BYTES * layout.num_communicators + CONTEXT_BYTES
    constant = {
        "parameters": 0 if offload == "parameters" else parameters,
        "optimizer": optimizer if offload == "none" else 0,
        "context": context if device_type == "cuda" else 0,
    }
    moments = _estimate_moments(config, layout, weights, block, constant)
    return Footprint(
        parameters, gradients, optimizer, moments, offloaded, host, layout.micro_batches
    )


# ---- optimizer state ----


def _count_optimizer_bytes(
    config: TrainConfig, weights: ModelWeights, layout: MeshLayout
) -> int:
    if config.parallel.strategy == "zero1" and layout.replicate > 1:
        return _count_zero1_bytes(weights, layout.replicate)
    trained = select_trained(weights.all)
    if config.optimizer.algorithm != "muon":
        return _count_adam_bytes(count(trained, layout.shard), len(trained))
    # Muon has one fp32 momentum for each number of the blocks' matrices, and no step count.
    matrices = [weight for weight in weights.block if weight.is_matrix] * weights.num_layers
    momenta = count(matrices, layout.shard)
    others = count(trained, layout.shard) - momenta
    return _count_adam_bytes(others, len(trained) - len(matrices)) + FP32_BYTES * momenta


def _count_adam_bytes(numbers: int, num_tensors: int) -> int:
    """Return the bytes of two moments, and of one step count per tensor."""
    return 2 * FP32_BYTES * numbers + FP32_BYTES * num_tensors


def _count_zero1_bytes(weights: ModelWeights, num_ranks: int) -> int:
    """Return the state of the fullest rank.

    ZeroRedundancyOptimizer assigns parameters greedily, per parameter group: the largest first,
    each to the rank with the least so far.
    """
    numbers, num_tensors = [0] * num_ranks, [0] * num_ranks
    for is_matrix in (True, False):  # the groups with and without weight decay
        members = [w for w in select_trained(weights.all) if w.is_matrix is is_matrix]
        for weight in sorted(members, key=lambda weight: -weight.count()):
            # Ties go to the lowest rank, as in ZeroRedundancyOptimizer.
            rank = numbers.index(min(numbers))
            numbers[rank] += weight.count()
            num_tensors[rank] += 1
    return max(map(_count_adam_bytes, numbers, num_tensors))


# ---- activations ----


@dataclass(frozen=True)
class BlockActivations:
    """Bytes that autograd saves of one block, per token of this rank's rows.

    e is the size of the compute dtype and r that of the residual stream, D the width, K that of
    the keys, F the inner width, and t the number of tensor-parallel ranks.

        norms         2 (r D / t + 4)       input and 1 / RMS, twice
        projections   2 e D                 q, k, v share one input, gate and up another;
                      5 e D                 under autocast each layer saves its own cast
        attention     e (2 D + 2 K) / t     query, key, value, output; with qk_norm also the
                                            queries and keys before it
        feed-forward  4 e F / t             gate, silu(gate), up, their product

    `selective` keeps the block's input and the outputs of all matrix products and of attention.
    `full` keeps the input alone. Compiled blocks save less, because the compiler recomputes cheap
    operations; so do frozen layers (lora), whose inputs are not saved.

    Attributes:
        kept: on the GPU from forward to backward.
        offloaded: in CPU memory from forward to backward.
        backward: on the GPU during the block's backward: recomputed activations, and gradients
            of activations.
    """

    kept: int
    offloaded: int
    backward: int


def estimate_block_activations(config: TrainConfig) -> BlockActivations:
    """Return the activations of a block, by the terms of `BlockActivations`."""
    model, parallel = config.model, config.parallel
    e, t = get_compute_bytes(config), parallel.tensor
    keys = model.num_kv_heads * model.head_dim
    residual = get_residual_bytes(config) * model.dim // t
    num_inputs = 5 if get_residual_bytes(config) > e else 2
    attention = e * (2 * model.dim + 2 * keys) // t + _count_score_bytes(config)
    if model.qk_norm:
        attention += e * (model.dim + keys) // t
    inner = e * model.ffn_dim // t
    total = 2 * (residual + FP32_BYTES) + num_inputs * e * model.dim + attention + 4 * inner
    # Outputs of gate, up, down and o; the last two over all ranks.
    stored = attention + 2 * inner + 2 * e * model.dim
    kept, recomputed = {
        "none": (total, 0),
        "selective": (residual + stored, max(0, total - residual - stored)),
        "full": (residual, total - residual),
    }[parallel.activation_checkpointing]
    # The gradients of gate and up, and of the residual stream.
    backward = recomputed + 2 * inner + residual
    if not parallel.activation_offload:
        return BlockActivations(kept, 0, backward)
    # What selective checkpointing stores does not go through autograd's saved tensors, which are
    # what the offload moves.
    offloaded = residual if parallel.activation_checkpointing == "selective" else kept
    return BlockActivations(kept - offloaded, offloaded, backward)


def _count_score_bytes(config: TrainConfig) -> int:
    """Return the bytes of attention scores per token: the flash kernels, for bf16 only, have none."""
    model = config.model
    is_composed = config.data.document_masks or model.num_heads != model.num_kv_heads
    if get_compute_bytes(config) < FP32_BYTES or not is_composed:
        return 0
    # Scores and their softmax.
    return 2 * FP32_BYTES * config.data.seq_len * model.num_heads // config.parallel.tensor


def count_tokens(config: TrainConfig) -> int:
    """Return the tokens of a micro-batch that this rank computes."""
    tokens = config.data.seq_len * config.data.micro_batch_rows
    return tokens // config.parallel.context


def get_compute_bytes(config: TrainConfig) -> int:
    """Return the size of a number in forward and backward."""
    return 2 if config.precision.compute == "bf16" else FP32_BYTES


def get_residual_bytes(config: TrainConfig) -> int:
    """Return the size of a number of the residual stream.

    ddp and zero1 use autocast, in which the stream starts from fp32 embeddings and stays fp32.
    """
    return get_compute_bytes(config) if _is_sharded(config) else FP32_BYTES


def _is_sharded(config: TrainConfig) -> bool:
    """Return whether fully_shard distributes the parameters."""
    return config.parallel.strategy in ("zero2", "zero3")


# ---- the moments of a step ----


def _estimate_moments(
    config: TrainConfig,
    layout: MeshLayout,
    weights: ModelWeights,
    block: BlockActivations,
    constant: dict[str, int],
) -> dict[str, MemoryUse]:
    tokens, num_layers = count_tokens(config), config.model.num_layers
    # input_ids and labels (int64): read_step moves all micro-batches of a step at once.
    batch = 16 * config.data.seq_len * config.data.micro_batch_rows * layout.micro_batches
    residual = get_residual_bytes(config) * config.model.dim // layout.tensor
    # Of offloaded activations, those of two blocks are on the GPU: one is being sent, or fetched
    # ahead.
    blocks = num_layers * block.kept + min(2, num_layers) * block.offloaded
    final_norm = residual + FP32_BYTES
    activations = {"loss": batch + tokens * (blocks + final_norm), "end": batch}
    activations["last"] = activations["loss"]
    gathered = _estimate_gathered(config, layout.shard, weights)
    gradients = _estimate_gradients(config, layout, weights)
    buffers = _estimate_buffers(config, layout, weights)
    buffers["last"] += tokens * block.backward
    buffers["end"] += tokens * residual
    moments: dict[str, MemoryUse] = {}
    for name in ("loss", "last", "end"):
        moments[name] = MemoryUse(
            gathered=gathered[name],
            gradients=gradients[name],
            activations=activations[name],
            loss=_estimate_loss(config, weights, tokens) if name == "loss" else 0,
            buffers=buffers[name],
            **constant,
        )
    return moments


def _estimate_gathered(
    config: TrainConfig, shard: int, weights: ModelWeights
) -> dict[str, int]:
    """Return the bytes of whole weights in the compute dtype."""
    e, num_layers = get_compute_bytes(config), weights.num_layers
    if not _is_sharded(config):
        # Autocast caches its casts of the matrices, and uses fp32 weights as they are.
        matrices = count([weight for weight in weights.block if weight.is_matrix])
        casts = num_layers * e * matrices if e < FP32_BYTES else 0
        return {"loss": casts, "last": casts, "end": 0}
    embedding, block, head = (
        e * shard * count(group, shard)
        for group in (weights.embedding, weights.block, weights.head)
    )
    if config.parallel.strategy == "zero3":
        # The block in use, and in backward also the one that is gathered ahead.
        in_backward = block * min(2, num_layers)
        return {"loss": head + block, "last": in_backward, "end": embedding}
    # zero2: everything gathered in forward stays until its backward.
    after_forward = embedding + num_layers * block
    return {"loss": head + after_forward, "last": after_forward, "end": embedding}


def _estimate_gradients(
    config: TrainConfig, layout: MeshLayout, weights: ModelWeights
) -> dict[str, int]:
    """Return the bytes of fp32 gradients: those of earlier micro-batches, and at the end all."""
    trained = select_trained(weights.all)
    whole = FP32_BYTES * count(trained)
    if not _is_sharded(config):
        # DDP allocates its buckets at the start.
        is_kept = layout.replicate > 1 or layout.micro_batches > 1
        return {**dict.fromkeys(("loss", "last"), whole if is_kept else 0), "end": whole}
    local = FP32_BYTES * count(trained, layout.shard)
    if config.parallel.offload == "parameters":
        local = 0  # they are in CPU memory
    earlier = whole if config.parallel.accumulate == "whole" else local
    if layout.micro_batches == 1:
        earlier = 0
    return {"loss": earlier, "last": earlier, "end": local}


def _estimate_buffers(
    config: TrainConfig, layout: MeshLayout, weights: ModelWeights
) -> dict[str, int]:
    """Return the bytes of collectives and of new gradients."""
    e, shard = get_compute_bytes(config), layout.shard
    # Orthogonalizing a matrix takes three of it and two of its square, which is no larger.
    largest = max(weight.count() for weight in weights.block)
    muon = 5 * e * layout.tensor * largest * (config.optimizer.algorithm == "muon")
    if not _is_sharded(config):
        # One gradient in the compute dtype and in fp32, before it is added to its bucket.
        embedding = FP32_BYTES * count(select_trained(weights.embedding))
        return {"loss": 0, "last": (FP32_BYTES + e) * largest, "end": max(embedding, muon)}
    embedding, block, head = (
        shard * count(select_trained(group), shard)
        for group in (weights.embedding, weights.block, weights.head)
    )
    # A gather has its output twice: received, then copied into the parameters.
    received_head = received_block = 0
    if shard > 1:
        received_head = e * shard * count(weights.head, shard)
        if config.parallel.strategy == "zero3":
            received_block = e * shard * count(weights.block, shard)
    # Gradients are reduced in fp32, those of one group while the next group's are computed.
    last = FP32_BYTES * max(head, block) + e * largest + received_block
    end = FP32_BYTES * max(embedding, block) + e * embedding
    return {"loss": received_head, "last": last, "end": max(end, muon)}


def _estimate_loss(config: TrainConfig, weights: ModelWeights, tokens: int) -> int:
    """Return the peak of the loss (training/model/loss.py), without the weights of the head."""
    e = get_compute_bytes(config)
    matrix = next(weight for weight in weights.head if weight.is_matrix)
    numbers, is_trained = matrix.count(), matrix.is_trained
    hidden = tokens * config.model.dim * e  # whole rows, also with tensor parallelism
    chunk = min(config.precision.loss_chunk_tokens, tokens) * matrix.rows
    # First the logits in the compute dtype and in fp32. Later their gradient in the compute
    # dtype, and the chunk's gradient of the weights.
    logits = chunk * (FP32_BYTES + e if e < FP32_BYTES else FP32_BYTES)
    logit_gradients = chunk * e + numbers * e * is_trained
    cast = 0 if _is_sharded(config) or e == FP32_BYTES else numbers * e
    in_forward = max(logits, logit_gradients) + FP32_BYTES * numbers * is_trained + cast
    # The fp32 gradient, the same scaled by the loss's gradient, and that in the weight's dtype.
    in_backward = (2 * FP32_BYTES + (e if e < FP32_BYTES else 0)) * numbers * is_trained
    return 2 * hidden + max(in_forward, in_backward)
