"""Seconds of a training step: computation, communication that does not overlap, and the optimizer."""

from __future__ import annotations

from training.config import TrainConfig
from training.model.size import count_flops_per_token
from training.planning.gpus import Gpu
from training.planning.memory.activations import FP32_BYTES, get_compute_bytes
from training.planning.memory.footprint import Footprint
from training.planning.memory.weight_layout import list_model_weights, plan_mesh

# Assumed, from pinned CPU memory to a GPU or back: PCIe 4.0 x16 has 31.5 GB/s per
# direction.
HOST_LINK_BYTES_PER_S = 25e9

# Assumed CPU memory bandwidth per GPU for AdamW on the CPU, with eight ranks on a node.
HOST_ADAM_BYTES_PER_S = 20e9

# fp32 values that AdamW reads and writes: gradient (read), parameter and two moments
# (both).
ADAM_BYTES_PER_PARAMETER = 28

# Assumed, of collectives within a node, per GPU: NVLink 4 has 450 GB/s per direction.
NODE_LINK_BYTES_PER_S = 300e9

# Assumed, of collectives between nodes, per GPU: InfiniBand NDR has 50 GB/s.
NETWORK_BYTES_PER_S = 40e9

# Assumed GPUs of a node.
NODE_GPUS = 8

# Newton-Schulz iterations of training/parallel/muon.py.
_MUON_ITERATIONS = 5


def estimate_step_s(
    config: TrainConfig,
    footprint: Footprint,
    *,
    num_gpus: int,
    gpu: Gpu,
    vocab_size: int,
    utilization: float,
) -> float:
    """Return the seconds of a step.

    Copies of activation offload overlap with computation. Tensor and context parallelism, Muon
    and the optimizer step on the CPU do not.

    Args:
        config: the run.
        footprint: its memory.
        num_gpus: ranks.
        gpu: type of all GPUs.
        vocab_size: rows of the embedding.
        utilization: share of the peak that is assumed for computation, 0..1.
    """
    tokens = config.data.global_batch_rows * config.data.seq_len
    flops = tokens * _count_flops_per_token(config, vocab_size)
    flops_per_s = gpu.peak_flops * utilization
    compute_s = flops / (num_gpus * flops_per_s)
    exchange_s = _estimate_tensor_s(config, tokens, num_gpus)
    exchange_s += _estimate_context_s(config, tokens, num_gpus)
    # Out and back.
    offload_s = 2 * footprint.offloaded * footprint.micro_batches / HOST_LINK_BYTES_PER_S
    optimizer_s = _estimate_host_s(config, footprint)
    if config.optimizer.algorithm == "muon":
        optimizer_s += estimate_muon_s(config, num_gpus, flops_per_s)
    # Offload copies run beside the computation, so the slower of both counts.
    return max(compute_s + exchange_s, offload_s) + optimizer_s


def estimate_muon_s(config: TrainConfig, num_gpus: int, flops_per_s: float) -> float:
    """Return the seconds per step of Muon's orthogonalization and of its collectives.

    An iteration on a matrix of m x n numbers, m the shorter side, has three products: 2 m m n,
    2 m m m and 2 m m n FLOPs. In a round, each rank does one matrix, and all wait for the largest.
    Each matrix is gathered by the ranks that share it, and broadcast to all.

    Args:
        config: the run.
        num_gpus: ranks.
        flops_per_s: of one GPU.
    """
    layout = plan_mesh(config, num_gpus)
    # The vocabulary does not matter: Muon has the matrices of the blocks.
    block = list_model_weights(config, 1, 1).block
    shapes = [
        (min(weight.rows, weight.columns), max(weight.rows, weight.columns))
        for weight in block.weights
        if weight.is_matrix
    ]
    flops = [
        _MUON_ITERATIONS * (4 * short * short * long + 2 * short**3)
        for short, long in shapes
    ]
    # Matrices are ordered by size.
    ordered = sorted(flops * config.model.num_layers)
    rounds = [ordered[at : at + num_gpus] for at in range(0, len(ordered), num_gpus)]
    compute_s = sum(max(flops_of_ranks) for flops_of_ranks in rounds) / flops_per_s
    numbers = config.model.num_layers * sum(short * long for short, long in shapes)
    num_bytes = numbers * get_compute_bytes(config)
    num_sharing = layout.shard * layout.tensor
    gather_s = _estimate_ring_s(num_bytes, num_sharing)
    return compute_s + gather_s + _estimate_ring_s(num_bytes, num_gpus)


def _estimate_ring_s(num_bytes: int, num_ranks: int) -> float:
    """Return the seconds in which each of the ranks receives the parts of all others."""
    link = NODE_LINK_BYTES_PER_S if num_ranks <= NODE_GPUS else NETWORK_BYTES_PER_S
    return num_bytes * (num_ranks - 1) / num_ranks / link


def _count_flops_per_token(config: TrainConfig, vocab_size: int) -> int:
    """Return the model's FLOPs per token, plus recomputation."""
    flops = count_flops_per_token(config.model, vocab_size, config.data.seq_len)
    if config.parallel.activation_checkpointing == "full":
        # The forward of the blocks, a third of their FLOPs, runs twice. The head's does not.
        head = 6 * vocab_size * config.model.dim
        flops += (flops - head) // 3
    return flops


def _estimate_tensor_s(config: TrainConfig, tokens: int, num_gpus: int) -> float:
    """Return the seconds per step of tensor parallelism's collectives.

    Korthikanti et al. 2022, section 4.2.2: a gather and a scatter around attention and
    feed-forward, in forward and backward.
    """
    tensor = config.parallel.tensor
    # 4 collectives in forward and 4 in backward per layer, of one hidden vector per token
    bytes_per_token = (
        8 * config.model.num_layers * config.model.dim * get_compute_bytes(config)
    )
    # A ring sends all but a rank's own part. 0 without tensor parallelism.
    sent_share = (tensor - 1) / tensor
    # All ranks of a tensor group process the same tokens.
    tokens_per_gpu = tokens * tensor / num_gpus
    return tokens_per_gpu * bytes_per_token * sent_share / NODE_LINK_BYTES_PER_S


def count_exchanged_bytes(config: TrainConfig) -> int:
    """Return the bytes per token that context parallelism exchanges in a step.

    Jacobs et al. 2023 (DeepSpeed-Ulysses), section 3.2: of N tokens, an all-to-all of query, key
    and value before attention, 3 N h, and one of the output after it, N h. With grouped heads,
    keys and values are narrower. Backward exchanges the gradients of the same.

    A ring (Liu et al. 2023, section 3.2) is not implemented. It would send keys and values c - 1
    times, and not all tensors once.

    Returns:
        Bytes per token of this rank, of which it keeps one part of `parallel.context`.
    """
    model = config.model
    keys = model.num_kv_heads * model.head_dim
    widths = (2 * model.dim + 2 * keys) // config.parallel.tensor
    # Selective checkpointing stores what was received; full exchanges it again.
    passes = 3 if config.parallel.activation_checkpointing == "full" else 2
    return passes * model.num_layers * widths * get_compute_bytes(config)


def _estimate_context_s(config: TrainConfig, tokens: int, num_gpus: int) -> float:
    """Return the seconds per step of context parallelism's exchanges."""
    parallel = config.parallel
    if parallel.context == 1:
        return 0.0
    # The ranks of a tensor group process the same tokens; those of a context group do not.
    tokens_per_gpu = tokens * parallel.tensor / num_gpus
    # The ranks of a context group are `tensor` apart.
    group = parallel.context * parallel.tensor
    link = NODE_LINK_BYTES_PER_S if group <= NODE_GPUS else NETWORK_BYTES_PER_S
    sent_share = (parallel.context - 1) / parallel.context
    return tokens_per_gpu * count_exchanged_bytes(config) * sent_share / link


def _estimate_host_s(config: TrainConfig, footprint: Footprint) -> float:
    """Return the seconds per step of the optimizer on the CPU, with its transfers."""
    parallel = config.parallel
    if parallel.offload == "none":
        return 0.0
    # Gradients go to the CPU. Masters come back once; offloaded parameters each time they are
    # gathered, which zero3 does in forward and in backward.
    copies = 1
    if parallel.offload == "parameters":
        copies = footprint.micro_batches * (2 if parallel.strategy == "zero3" else 1)
    transfer_s = (
        footprint.gradients + copies * footprint.parameters
    ) / HOST_LINK_BYTES_PER_S
    # Trained parameters on this rank: each has one fp32 gradient.
    num_parameters = footprint.gradients / FP32_BYTES
    return transfer_s + num_parameters * ADAM_BYTES_PER_PARAMETER / HOST_ADAM_BYTES_PER_S
