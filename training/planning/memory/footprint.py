"""Memory of the fullest GPU of a run, computed from the config without building the model.

Parameters, gradients and optimizer state are exact. Activations are what autograd saves of a
block. Buffers are those of DDP and fully_shard. Assumptions are named constants.

ZeRO (Rajbhandari et al. 2020, section 3.1) counts 2 + 2 + 12 bytes per parameter: fp16 weights
and gradients, and an fp32 master with two moments. Ours are 4 + 4 + 8, because the fp32 parameter
is the master and gradients are summed in fp32. Weights that are gathered or cast in bf16 (2) come
on top, and so does a whole fp32 gradient (4) if fully_shard accumulates whole gradients.

Memory can peak at four moments of a step:

    loss    after forward: all activations, and the logits of the head or its gradients
    last    in backward of the last block: all activations, its recomputation and its gradients
    first   in backward of the first block: its activations, and the gradients of later blocks
    end     after backward: all gradients, and that of the embedding before its reduction
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from training.config import TrainConfig
from training.planning.gpus import GIB
from training.planning.memory.activations import (
    FP32_BYTES,
    BlockActivations,
    count_tokens,
    estimate_block_activations,
    estimate_norm_bytes,
    get_compute_bytes,
    get_residual_bytes,
)
from training.planning.memory.strategies import estimate_ddp, estimate_sharded
from training.planning.memory.weight_layout import (
    MeshLayout,
    ModelWeights,
    list_model_weights,
    plan_mesh,
)

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
        optimizer: moments of AdamW.
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
        device_type: "cpu" for ranks without a GPU.

    Raises:
        IncompatibleConfig: the degrees, heads or rows cannot be divided over the GPUs.
    """
    layout = plan_mesh(config, num_gpus)
    weights = list_model_weights(config, vocab_size, layout.tensor)
    trained = weights.count_local(layout.shard, trained_only=True)
    parameters = FP32_BYTES * weights.count_local(layout.shard)
    gradients = FP32_BYTES * trained
    optimizer = _count_optimizer_bytes(config, weights, layout)
    activations = estimate_block_activations(config, device_type=device_type)
    moments = _estimate_moments(config, layout, weights, activations, device_type)
    tokens = count_tokens(config)
    # The last block is not offloaded (training/parallel/activation_offload.py).
    offloaded = max(0, config.model.num_layers - 1) * activations.offloaded * tokens
    host = parameters + optimizer + offloaded  # the copy for checkpoints
    if config.parallel.offload == "optimizer":
        host += 2 * gradients + optimizer  # masters, their gradients, moments
    elif config.parallel.offload == "parameters":
        host += parameters + gradients + optimizer
    return Footprint(
        parameters=parameters,
        gradients=gradients,
        optimizer=optimizer,
        moments=moments,
        offloaded=offloaded,
        host=host,
        micro_batches=layout.micro_batches,
    )


# ---- optimizer state ----


def _count_optimizer_bytes(
    config: TrainConfig, weights: ModelWeights, layout: MeshLayout
) -> int:
    if layout.is_zero1:
        return _count_zero1_bytes(weights, layout.replicate)
    trained = weights.count_local(layout.shard, trained_only=True)
    num_tensors = weights.num_trained
    momentum = 0
    if config.optimizer.algorithm == "muon":
        # One fp32 momentum for each number, and no step count.
        matrices = [weight for weight in weights.block.weights if weight.is_matrix]
        numbers = sum(weight.count_local(layout.shard) for weight in matrices)
        momentum = FP32_BYTES * weights.num_layers * numbers
        trained -= weights.num_layers * numbers
        num_tensors -= weights.num_layers * len(matrices)
    return _count_adam_bytes(trained, num_tensors) + momentum


def _count_adam_bytes(numbers: int, num_tensors: int) -> int:
    """Return the bytes of two moments, and of one step count per tensor."""
    return 2 * FP32_BYTES * numbers + FP32_BYTES * num_tensors


def _count_zero1_bytes(weights: ModelWeights, num_ranks: int) -> int:
    """Return the state of the fullest rank.

    ZeroRedundancyOptimizer assigns parameters greedily, per parameter group: the largest first,
    each to the rank with the least so far.
    """
    numbers, num_tensors = [0] * num_ranks, [0] * num_ranks
    trained = [weight for weight in weights.all if weight.is_trained]
    for is_matrix in (True, False):  # the groups with and without weight decay
        members = [weight for weight in trained if weight.is_matrix is is_matrix]
        for weight in sorted(members, key=lambda weight: -weight.count_local(1)):
            # Ties go to the lowest rank, as in ZeroRedundancyOptimizer.
            rank = numbers.index(min(numbers))
            numbers[rank] += weight.count_local(1)
            num_tensors[rank] += 1
    return max(map(_count_adam_bytes, numbers, num_tensors))


# ---- the moments of a step ----


def _estimate_moments(
    config: TrainConfig,
    layout: MeshLayout,
    weights: ModelWeights,
    block: BlockActivations,
    device_type: str,
) -> dict[str, MemoryUse]:
    tokens = count_tokens(config)
    strategy = (estimate_sharded if layout.is_sharded else estimate_ddp)(
        config, layout, weights
    )
    constant = _count_constant_bytes(config, layout, weights, device_type)

    def make_moment(name: str, activations: int, loss: int, buffers: int) -> MemoryUse:
        return MemoryUse(
            gathered=strategy.gathered[name],
            gradients=strategy.gradients[name],
            activations=activations,
            loss=loss,
            buffers=buffers,
            **constant,
        )

    batch = _count_batch_bytes(config, layout, device_type)
    residual = get_residual_bytes(config) * config.model.dim // layout.tensor
    one_block = tokens * (block.kept + block.offloaded)
    all_activations = batch + _count_kept_bytes(config, layout, block, device_type)
    # The last block peaks in the middle of its backward, or at its end, when its activations are
    # free and its gradients exist.
    in_middle = strategy.buffers["last"] + tokens * block.backward
    at_end = strategy.buffers["done"] + tokens * residual - one_block
    in_first = strategy.buffers["first"] + tokens * block.backward
    after = strategy.buffers["end"] + tokens * residual
    if config.optimizer.algorithm == "muon":
        after = max(after, _count_muon_buffers(config, weights, layout))
    loss = _count_head_bytes(config, weights, tokens)
    return {
        "loss": make_moment("loss", all_activations, loss, strategy.buffers["loss"]),
        "last": make_moment("last", all_activations, 0, max(in_middle, at_end)),
        "first": make_moment("first", one_block + batch, 0, in_first),
        "end": make_moment("end", batch, 0, after),
    }


def _count_muon_buffers(
    config: TrainConfig, weights: ModelWeights, layout: MeshLayout
) -> int:
    """Return the bytes of orthogonalizing the largest matrix: three of it, two of its square."""
    largest = 0
    for weight in weights.block.weights:
        if weight.is_matrix:
            numbers = layout.tensor * weight.count_local(1)
            # The other side of every matrix of a block is `dim`, or shorter.
            side = min(config.model.dim, numbers // config.model.dim)
            largest = max(largest, 3 * numbers + 2 * side * side)
    return get_compute_bytes(config) * largest


def _count_constant_bytes(
    config: TrainConfig, layout: MeshLayout, weights: ModelWeights, device_type: str
) -> dict[str, int]:
    """Return the uses of GPU memory that are the same at every moment."""
    offload = config.parallel.offload
    parameters = FP32_BYTES * weights.count_local(layout.shard)
    # Offloaded parameters take the optimizer state with them to CPU memory.
    optimizer = _count_optimizer_bytes(config, weights, layout)
    context = 0
    if device_type == "cuda":
        context = CONTEXT_BYTES + COMMUNICATOR_BYTES * layout.num_communicators
    return {
        "parameters": 0 if offload == "parameters" else parameters,
        "optimizer": optimizer if offload == "none" else 0,
        "context": context,
    }


def _count_kept_bytes(
    config: TrainConfig, layout: MeshLayout, block: BlockActivations, device_type: str
) -> int:
    """Return the activations of all blocks and of the final norm that are on the GPU."""
    tokens = count_tokens(config)
    num_layers, width = config.model.num_layers, config.model.dim // layout.tensor
    residual = get_residual_bytes(config) * config.model.dim // layout.tensor
    is_trained = config.lora is None
    final_norm = tokens * estimate_norm_bytes(
        residual, width, device_type, is_trained=is_trained
    )
    # Of offloaded activations, those of two blocks are on the GPU: one is being sent, or fetched
    # ahead.
    blocks = tokens * (num_layers * block.kept + min(2, num_layers) * block.offloaded)
    return blocks + final_norm


def _count_batch_bytes(config: TrainConfig, layout: MeshLayout, device_type: str) -> int:
    """Return the bytes of input_ids and labels (int64) of a step, and of boolean masks."""
    tokens = config.data.seq_len * config.data.micro_batch_rows
    # read_step moves all micro-batches of a step to the device at once.
    batch = 2 * 8 * tokens * layout.micro_batches
    if config.data.document_masks and device_type == "cpu":
        batch += tokens * config.data.seq_len * layout.micro_batches
    return batch


def _count_head_bytes(config: TrainConfig, weights: ModelWeights, tokens: int) -> int:
    """Return the peak of the loss (training/model/loss.py), without the weights of the head."""
    e = get_compute_bytes(config)
    # The head group is the final norm and the output matrix.
    matrix = next(weight for weight in weights.head.weights if weight.is_matrix)
    numbers, is_trained = matrix.count_local(1), matrix.is_trained
    hidden = tokens * config.model.dim * e  # whole rows, also with tensor parallelism
    chunk = min(config.precision.loss_chunk_tokens, tokens) * matrix.rows
    # First the logits in the compute dtype and in fp32. Later their gradient in the compute
    # dtype, and the chunk's gradient of the weights.
    logits = chunk * (FP32_BYTES + e if e < FP32_BYTES else FP32_BYTES)
    logit_gradients = chunk * e + numbers * e * is_trained
    uses_autocast = config.parallel.strategy in ("ddp", "zero1")
    cast = numbers * e if e < FP32_BYTES and uses_autocast else 0
    in_forward = 2 * hidden + max(logits, logit_gradients)
    in_forward += FP32_BYTES * numbers * is_trained + cast
    # The fp32 gradient, the same scaled by the loss's gradient, and that in the weight's dtype.
    in_backward = 2 * hidden
    in_backward += (2 * FP32_BYTES + (e if e < FP32_BYTES else 0)) * numbers * is_trained
    return max(in_forward, in_backward)
