"""Bytes of activations that one block keeps for its backward.

D is the width, Q = D and K are the widths of queries and keys, F is the inner width, t the
number of tensor-parallel ranks. e is the size of the compute dtype (2 or 4 bytes), r that of
the residual stream: autocast keeps it in fp32, fully_shard computes everything in bf16.

    norms         2 x (r D / t + 4)   input and 1 / RMS, twice
    projections   2 x e D             q, k, v share one input, gate and up another; under
                                      autocast each layer saves its own cast
    attention     e (2 Q + 2 K) / t   query, key, value, output
                  + 4 heads / t       logarithm of the sum of exponentials
    feed-forward  4 e F / t           gate, silu(gate), up, their product

`selective` keeps the block's input and the outputs of all matrix products, of attention and
of the sums over ranks. `full` keeps the input alone. Inputs of frozen layers (lora) are not
saved. Compiled blocks save less than this, because the compiler recomputes cheap operations.

For comparison, Korthikanti et al. 2022, equation 1, has s b h (34 + 5 a s / h) bytes per
layer, with GELU, dropout and the attention scores. Our block has none of these.
"""

from __future__ import annotations

from dataclasses import dataclass

from training.config import TrainConfig

FP32_BYTES = 4

# Linear layers that have the same input.
_SHARED_INPUTS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


@dataclass(frozen=True)
class BlockActivations:
    """Bytes of one block, per token of this rank's rows.

    Attributes:
        kept: on the GPU from forward to backward.
        offloaded: in CPU memory from forward to backward.
        backward: on the GPU during the block's backward: recomputed activations, and gradients
            of activations.
    """

    kept: int
    offloaded: int
    backward: int


@dataclass(frozen=True)
class _Parts:
    """Bytes per token of the parts of a block's activations.

    Attributes:
        residual: the residual stream; also the input of the block.
        norms: saved by the two norms.
        inputs: inputs of the linear layers.
        attention: query, key, value, output, and what the kernel saves.
        low_rank: A x of the adapters.
        feed_forward: gate, silu(gate), up and, if down_proj is trained, their product.
    """

    residual: int
    norms: int
    inputs: int
    attention: int
    low_rank: int
    feed_forward: int

    @property
    def total(self) -> int:
        """Bytes without checkpointing."""
        return self.norms + self.inputs + self.attention + self.low_rank + self.feed_forward


def estimate_block_activations(
    config: TrainConfig, *, device_type: str = "cuda"
) -> BlockActivations:
    """Return what autograd saves of one block; the terms are explained at the top of this file."""
    model, tensor = config.model, config.parallel.tensor
    e = get_compute_bytes(config)
    # Per token: sizes in bytes, with e bytes per number and `inner` numbers of the inner width.
    inner = model.ffn_dim // tensor
    parts = _measure_parts(config, device_type)
    # Outputs of gate and up are kept as inputs of other operations already.
    stored_by_both = parts.attention + parts.low_rank + 2 * e * inner
    # Outputs that selective checkpointing stores, although no backward needs them: of adapters,
    # of the last product, and of the sums over ranks.
    unneeded_outputs = e * _count_adapter_outputs(config) + e * model.dim
    if tensor > 1:
        unneeded_outputs += 2 * e * (model.dim // tensor)
    if config.parallel.context > 1:
        # Query, key and value as they are received; from them, whole rows are put together.
        keys = model.num_kv_heads * model.head_dim // tensor
        unneeded_outputs += e * (model.dim // tensor + 2 * keys)
    selective = parts.residual + stored_by_both + unneeded_outputs + e * model.dim
    # The recomputed block does not save its input again, unless a CPU norm converts it to fp32.
    input_is_shared = device_type == "cuda" or get_residual_bytes(config) == FP32_BYTES
    # What one block's backward recomputes, and holds until the block is done
    recomputed = parts.total - (parts.residual if input_is_shared else 0)
    # Backward of the product of gate and up has the gradients of both and of the product, which
    # itself is free by then; and the gradient of the residual stream.
    saves_product = _is_trained(config, "down_proj")
    gradients = e * inner * (2 if saves_product else 3) + parts.residual
    kept, again = {
        "none": (parts.total, 0),
        "selective": (selective, max(0, recomputed - stored_by_both - unneeded_outputs)),
        "full": (parts.residual, recomputed),
    }[config.parallel.activation_checkpointing]
    if not config.parallel.activation_offload:
        return BlockActivations(kept, 0, again + gradients)
    # What selective checkpointing stores does not go through autograd's saved tensors, which are
    # what the offload moves.
    is_selective = config.parallel.activation_checkpointing == "selective"
    offloaded = parts.residual if is_selective else kept
    return BlockActivations(kept - offloaded, offloaded, again + gradients)


def _measure_parts(config: TrainConfig, device_type: str) -> _Parts:
    model, tensor = config.model, config.parallel.tensor
    e = get_compute_bytes(config)
    width, inner = model.dim // tensor, model.ffn_dim // tensor
    keys, heads = model.num_kv_heads * model.head_dim // tensor, model.num_heads // tensor
    residual = get_residual_bytes(config) * model.dim // tensor
    scores = _count_score_bytes(config, device_type)
    low_rank = 0
    if config.lora is not None:
        # One A x of `rank` numbers per adapter
        low_rank = e * config.lora.rank * len(config.lora.targets)
    norm = estimate_norm_bytes(residual, width, device_type, is_trained=config.lora is None)
    # gate, silu(gate) and up; their product is the input of down_proj, saved only if that is
    # trained.
    num_inner = 4 if _is_trained(config, "down_proj") else 3
    # Query and output; with context parallelism also the output after the exchange.
    num_widths = 2 if config.parallel.context == 1 else 3
    norms = 2 * norm
    if model.qk_norm:
        # One norm per head, of queries and keys
        num_heads = heads + model.num_kv_heads // tensor
        norms += num_heads * estimate_norm_bytes(
            e * model.head_dim, model.head_dim, device_type, is_trained=config.lora is None
        )
    return _Parts(
        residual=residual,
        norms=norms,
        inputs=_count_saved_inputs(config) * e * model.dim,
        attention=e * (num_widths * width + 2 * keys) + FP32_BYTES * heads + scores,
        low_rank=low_rank,
        feed_forward=e * inner * num_inner,
    )


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
    is_sharded = config.parallel.strategy in ("zero2", "zero3")
    return get_compute_bytes(config) if is_sharded else FP32_BYTES


def estimate_norm_bytes(
    residual: int, width: int, device_type: str, *, is_trained: bool
) -> int:
    """Return what one RMSNorm saves, per token.

    CUDA has a fused kernel, which saves the input and 1 / RMS. On CPU torch composes the norm and
    saves fp32 intermediates: the input, and another one for the gradient of the weight.
    """
    if device_type == "cuda":
        return residual + FP32_BYTES
    return FP32_BYTES * width * (2 if is_trained else 1) + FP32_BYTES


def _count_adapter_outputs(config: TrainConfig) -> int:
    """Return the numbers that all adapters of a block output, per token.

    Adapters cannot be combined with tensor parallelism, so these are whole widths.
    """
    if config.lora is None:
        return 0
    model = config.model
    keys = model.num_kv_heads * model.head_dim
    widths = {
        "k_proj": keys,
        "v_proj": keys,
        "gate_proj": model.ffn_dim,
        "up_proj": model.ffn_dim,
    }
    return sum(widths.get(target, model.dim) for target in config.lora.targets)


def _count_score_bytes(config: TrainConfig, device_type: str) -> int:
    """Return the bytes of attention scores or masks per token, where no kernel avoids them.

    On CUDA the flash kernel takes bf16 only. fp32 with masks or grouped heads falls back to
    torch's composed attention, which saves the scores and their softmax. On CPU each block
    converts the boolean mask to numbers.
    """
    model, data = config.model, config.data
    if device_type == "cpu":
        # The mask is of whole rows, of which this rank has a part of the tokens.
        row = get_compute_bytes(config) * data.seq_len * config.parallel.context
        return row if data.document_masks else 0
    is_grouped = model.num_heads != model.num_kv_heads
    if get_compute_bytes(config) == FP32_BYTES and (data.document_masks or is_grouped):
        return 2 * FP32_BYTES * data.seq_len * model.num_heads // config.parallel.tensor
    return 0


def _is_trained(config: TrainConfig, linear: str) -> bool:
    return config.lora is None or linear in config.lora.targets


def _count_saved_inputs(config: TrainConfig) -> int:
    """Return how many copies of the inputs of q, k, v and of gate, up are saved."""
    uses_autocast = config.parallel.strategy in ("ddp", "zero1")
    casts_per_layer = uses_autocast and config.precision.compute == "bf16"
    num_copies = 0
    for names in _SHARED_INPUTS:
        num_trained = sum(_is_trained(config, name) for name in names)
        # Autocast casts the input for each layer anew. Without it, the layers share one input.
        num_copies += num_trained if casts_per_layer else min(num_trained, 1)
    return num_copies
