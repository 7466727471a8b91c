"""Seconds of a training step, from the published utilization of the nearest shape."""

from __future__ import annotations

import math
from dataclasses import dataclass

from training.config import TrainConfig
from training.model.size import count_flops_per_token
from training.planning.memory import FP32_BYTES, Footprint, get_compute_bytes

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


@dataclass(frozen=True)
class Utilization:
    """A measured share of the peak FLOP/s of H100 GPUs.

    Attributes:
        billions: parameters of the model.
        seq_len: tokens per row.
        share: FLOPs of a step / (seconds * peak), 0..1. Recomputed activations count as FLOPs
            (hardware FLOPs utilization); without recomputation it is the MFU.
        source: whose measurement it is.
    """

    billions: float
    seq_len: int
    share: float
    source: str = "llm-foundry"

    def describe(self) -> str:
        """Return the shape and the source in words."""
        return f"{self.source}, {self.billions:.1f} B, {self.seq_len:,} tokens"


# mosaicml/llm-foundry, scripts/train/benchmarking/README.md at commit 8c8dd48 (July 2025): H100
# 80 GB, bf16, FSDP, 8 GPUs (16 for 0.76 and 2.65 B, 64 for 65 B). With 512 GPUs they are up to 5
# points lower. From 7 B at 4,096 tokens on, the table has only runs that recompute whole blocks.
# pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md, table 1, compiled, 8 GPUs: 6,667
# tokens/s per GPU, with our FLOPs per token and 989 TFLOP/s.
_MEASURED = (
    Utilization(0.76, 2048, 0.3789),
    Utilization(0.77, 8192, 0.3484),
    Utilization(1.32, 2048, 0.4182),
    Utilization(1.33, 8192, 0.3773),
    Utilization(1.38, 32768, 0.3354),
    Utilization(2.65, 2048, 0.4373),
    Utilization(2.67, 8192, 0.4031),
    Utilization(6.66, 2048, 0.4644),
    Utilization(6.78, 32768, 0.4125),
    Utilization(8.03, 8192, 0.390, "torchtitan"),
    Utilization(12.85, 2048, 0.3979),
    Utilization(13.01, 32768, 0.4224),
    Utilization(29.98, 2048, 0.5082),
    Utilization(30.02, 8192, 0.3990),
    Utilization(64.86, 2048, 0.5676),
)


def find_utilization(num_parameters: float, seq_len: int) -> Utilization:
    """Return the measurement whose shape is nearest, by factors of two."""

    def measure_distance(found: Utilization) -> float:
        by_parameters = abs(math.log2(found.billions * 1e9 / num_parameters))
        return by_parameters + abs(math.log2(found.seq_len / seq_len))

    return min(_MEASURED, key=measure_distance)


def estimate_step_s(
    config: TrainConfig,
    footprint: Footprint,
    *,
    num_gpus: int,
    peak_flops: float,
    vocab_size: int,
    utilization: float,
) -> float:
    """Return the seconds of a step.

    Copies of activation offload overlap with computation. Tensor and context parallelism and the
    optimizer step on the CPU do not.

    Args:
        config: the run.
        footprint: its memory.
        num_gpus: ranks.
        peak_flops: FLOP/s of one GPU.
        vocab_size: rows of the embedding.
        utilization: share of the peak that is assumed for computation, 0..1.
    """
    tokens = config.data.global_batch_rows * config.data.seq_len
    flops = tokens * _count_flops_per_token(config, vocab_size)
    compute_s = flops / (num_gpus * peak_flops * utilization)
    exchange_s = _estimate_exchange_s(config, tokens, num_gpus)
    # Out and back.
    offload_s = 2 * footprint.offloaded * footprint.micro_batches / HOST_LINK_BYTES_PER_S
    # Offload copies run beside the computation, so the slower of both counts.
    return max(compute_s + exchange_s, offload_s) + _estimate_host_s(config, footprint)


def _count_flops_per_token(config: TrainConfig, vocab_size: int) -> int:
    """Return the model's FLOPs per token, plus recomputation."""
    flops = count_flops_per_token(config.model, vocab_size, config.data.seq_len)
    if config.parallel.activation_checkpointing == "full":
        # The forward of the blocks, a third of their FLOPs, runs twice. The head's does not.
        head = 6 * vocab_size * config.model.dim
        flops += (flops - head) // 3
    return flops


def _estimate_exchange_s(config: TrainConfig, tokens: int, num_gpus: int) -> float:
    """Return the seconds per step in which ranks of tensor and context parallelism exchange tokens.

    Tensor parallelism (Korthikanti et al. 2022, section 4.2.2): per layer, a gather and a scatter
    around attention and feed-forward, in forward and in backward, of one hidden vector per token.

    Context parallelism (Jacobs et al. 2023, DeepSpeed-Ulysses, section 3.2): of N tokens, an
    all-to-all of query, key and value before attention, 3 N h, and one of the output after it, N h;
    with grouped heads, keys and values are narrower. Backward exchanges the gradients of the same.
    """
    model, tensor, context = config.model, config.parallel.tensor, config.parallel.context
    bytes_per_width = model.num_layers * get_compute_bytes(config)
    # All ranks of a tensor group process the same tokens; those of a context group do not.
    tokens_per_gpu = tokens * tensor / num_gpus
    # A ring sends all but a rank's own part: nothing without tensor parallelism.
    tensor_bytes = 8 * model.dim * bytes_per_width * (tensor - 1) / tensor
    widths = 2 * (model.dim + model.num_kv_heads * model.head_dim) // tensor
    # Selective checkpointing stores what was received; full exchanges it again.
    passes = 3 if config.parallel.activation_checkpointing == "full" else 2
    context_bytes = passes * widths * bytes_per_width * (context - 1) / context
    # The ranks of a context group are `tensor` apart.
    is_in_node = context * tensor <= NODE_GPUS
    link = NODE_LINK_BYTES_PER_S if is_in_node else NETWORK_BYTES_PER_S
    per_token_s = tensor_bytes / NODE_LINK_BYTES_PER_S + context_bytes / link
    return tokens_per_gpu * per_token_s


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
    num_bytes = footprint.gradients + copies * footprint.parameters
    # Trained parameters on this rank: each has one fp32 gradient.
    num_parameters = footprint.gradients / FP32_BYTES
    adam_s = num_parameters * ADAM_BYTES_PER_PARAMETER / HOST_ADAM_BYTES_PER_S
    return num_bytes / HOST_LINK_BYTES_PER_S + adam_s
