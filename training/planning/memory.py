"""Memory of the fullest GPU of a run, computed from the config without building the model.

Parameters and gradients are exact, and the optimizer state within 1 %, or 5 % with zero1. ZeRO
(Rajbhandari et al. 2020, section 3.1) counts 2 + 2 + 12 bytes per parameter: fp16 weights and
gradients, and an fp32 master with two moments. Ours are 4 + 4 + 8, because the fp32 parameter is
the master and gradients are summed in fp32. Weights that are gathered or cast in bf16 come on top.

The rest is an estimate of the end of forward and the beginning of backward, when all activations
are in memory. The peak of real steps differs from it by at most a quarter
(tests/training/planning/test_memory.py).
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
    """Bytes on one GPU at the peak.

    Attributes:
        parameters: fp32, this rank's shard.
        gathered: whole weights in the compute dtype: gathered (zero2, zero3) or cast by autocast.
        gradients: fp32; this rank's share, or whole ones (ddp, zero1, `accumulate: whole`). In a
            step with one micro-batch they replace activations, so only what is larger counts.
        optimizer: moments of AdamW, or momentum of Muon.
        activations: saved for the backward of blocks and the final norm; the batch itself.
        work: of the loss, or of the last block's backward with its new gradients: the larger.
        context: of CUDA and NCCL.
    """

    parameters: int
    gathered: int
    gradients: int
    optimizer: int
    activations: int
    work: int
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
        peak: bytes on the GPU.
        offloaded: activation bytes per micro-batch that go to CPU memory and back.
        host: bytes of CPU memory per GPU: offloaded state, and the copy of the state from which
            a checkpoint is written.
        micro_batches: per step and rank.
    """

    parameters: int
    gradients: int
    optimizer: int
    peak: MemoryUse
    offloaded: int
    host: int
    micro_batches: int


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
    optimizer = _estimate_optimizer_bytes(config, weights, layout)
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
    peak = _estimate_peak(config, layout, weights, block, constant)
    return Footprint(
        parameters, gradients, optimizer, peak, offloaded, host, layout.micro_batches
    )


def _estimate_optimizer_bytes(
    config: TrainConfig, weights: ModelWeights, layout: MeshLayout
) -> int:
    """Return the moments of AdamW, or the momentum of Muon, without the counts of steps."""
    trained = select_trained(weights.all)
    numbers = 2 * count(trained, layout.shard)
    if config.optimizer.algorithm == "muon":
        # Muon keeps one state per parameter of the blocks' matrices, Adam two.
        matrices = [weight for weight in select_trained(weights.block) if weight.is_matrix]
        numbers -= weights.num_layers * count(matrices, layout.shard)
    if config.parallel.strategy == "zero1":
        # ZeroRedundancyOptimizer gives whole matrices to ranks, the largest first.
        largest = max(weight.count() for weight in trained)
        numbers = max(numbers // layout.replicate, 2 * largest)
    return FP32_BYTES * numbers


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


# ---- the peak ----


def _estimate_peak(
    config: TrainConfig,
    layout: MeshLayout,
    weights: ModelWeights,
    block: BlockActivations,
    constant: dict[str, int],
) -> MemoryUse:
    e, tokens, num_layers = (
        get_compute_bytes(config),
        count_tokens(config),
        weights.num_layers,
    )
    # input_ids and labels (int64): read_step moves all micro-batches of a step at once.
    batch = 16 * config.data.seq_len * config.data.micro_batch_rows * layout.micro_batches
    # Of offloaded activations, those of two blocks are on the GPU: one is being sent, or fetched
    # ahead.
    blocks = num_layers * block.kept + min(2, num_layers) * block.offloaded
    final_norm = get_residual_bytes(config) * config.model.dim // layout.tensor + FP32_BYTES
    activations = batch + tokens * (blocks + final_norm)
    largest = max(weight.count() for weight in weights.block)
    whole = FP32_BYTES * count(select_trained(weights.all))
    if _is_sharded(config):
        gathered, new_gradients = _count_gathered(config, layout.shard, weights)
        all_gradients = FP32_BYTES * count(select_trained(weights.all), layout.shard)
        if config.parallel.offload == "parameters":
            all_gradients = 0  # they are in CPU memory
        kept = whole if config.parallel.accumulate == "whole" else all_gradients
        is_kept = layout.micro_batches > 1
    else:
        # Autocast caches its casts of the matrices, and uses fp32 weights as they are.
        matrices = count([weight for weight in weights.block if weight.is_matrix])
        gathered = num_layers * e * matrices if e < FP32_BYTES else 0
        # One gradient in fp32, before it is added to its bucket.
        new_gradients = FP32_BYTES * largest
        kept = all_gradients = whole
        # DDP allocates its buckets at the start.
        is_kept = layout.replicate > 1 or layout.micro_batches > 1
    backward = tokens * block.backward + new_gradients + e * largest
    return MemoryUse(
        gathered=gathered,
        gradients=kept if is_kept else max(0, all_gradients - activations),
        activations=activations,
        work=max(_estimate_loss(config, weights, tokens), backward),
        **constant,
    )


def _count_gathered(
    config: TrainConfig, shard: int, weights: ModelWeights
) -> tuple[int, int]:
    """Return the bytes of gathered weights of zero2 and zero3, and of gradients to be reduced."""
    groups = weights.embedding, weights.block, weights.head
    embedding, block, head = (shard * count(group, shard) for group in groups)
    if config.parallel.strategy == "zero3":
        # The head, or the block that is gathered ahead, and the block in use
        numbers = max(head, block) + block
    else:
        # Everything that is gathered in forward stays until its backward.
        numbers = embedding + weights.num_layers * block + head
    if shard > 1:
        numbers += head  # a gather has its output twice: received, then copied
    # Gradients are reduced in fp32, those of one group while the next group's are computed.
    trained = (shard * count(select_trained(group), shard) for group in groups[1:])
    return get_compute_bytes(config) * numbers, FP32_BYTES * max(trained)


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
