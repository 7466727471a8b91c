"""Tensor parallelism: every matrix of a block and the vocabulary are sharded over ranks.

The matrices are cut as in Megatron (Shoeybi et al. 2019). Between them, activations are sharded
along the tokens (sequence parallelism; Korthikanti et al. 2022).
"""

from __future__ import annotations

import warnings

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

from training.config import ModelConfig
from training.errors import IncompatibleConfig
from training.model.decoder import Decoder

_TOKENS = Shard(1)  # (B, T, D) cut along T
_WHOLE = Replicate()


def apply_tensor_parallel(model: Decoder, mesh: DeviceMesh) -> None:
    """Shard the model over the ranks of a one-dimensional mesh, in place.

    Raises:
        IncompatibleConfig: the number of ranks does not divide a dimension of the model.
    """
    check_divisible(model.config, model.lm_head.weight.shape[0], mesh.size())
    embedding = RowwiseParallel(
        input_layouts=_WHOLE,
        output_layouts=_TOKENS,
        # Decoder.forward makes the output local: fully_shard warns about modules that return a
        # view, which RowwiseParallel's own to_local would be.
        use_local_output=False,
    )
    parallelize_module(model, mesh, {"embed_tokens": embedding, "norm": SequenceParallel()})
    # Cut along the vocabulary, as the embedding is. Head.forward reduces the loss itself, so no ParallelStyle is needed.
    model.lm_head.weight = nn.Parameter(
        distribute_tensor(model.lm_head.weight, mesh, [Shard(0)])
    )
    model.tie_weights()
    plan = _make_block_plan()
    if model.config.qk_norm:
        # (B, T, H, C) cut along the heads; the weight is whole on each rank.
        norm = SequenceParallel(sequence_dim=2, use_local_output=True)
        plan |= {"self_attn.q_norm": norm, "self_attn.k_norm": norm}
    for block in model.layers:
        parallelize_module(block, mesh, plan)


def enable_async_tensor_parallel(mesh: DeviceMesh) -> None:
    """Let torch.compile split products into parts that overlap with their communication.

    The parts are exchanged through symmetric memory, which GPUs of one node share.
    """
    import torch._inductor.config

    torch._inductor.config._micro_pipeline_tp = True  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    if mesh.device_type == "cuda":
        from torch.distributed import _symmetric_memory  # pyright: ignore[reportPrivateUsage]

        with warnings.catch_warnings():
            # Later versions of torch warn that they do it by themselves.
            warnings.simplefilter("ignore", FutureWarning)
            name = mesh.get_group().group_name
            _symmetric_memory.enable_symm_mem_for_group(name)  # pyright: ignore[reportDeprecated]


def _make_block_plan() -> dict[str, ParallelStyle]:
    """Return the parallel style of each module of a block.

    Tokens are gathered before attention and feed-forward, and scattered again by the last matrix
    of each (o_proj, down_proj) together with the sum over ranks.
    """
    return {
        "input_layernorm": SequenceParallel(),
        "self_attn": PrepareModuleInput(
            input_layouts=(_TOKENS, None, None), desired_input_layouts=(_WHOLE, None, None)
        ),
        # Column-wise: each rank computes whole heads, so attention needs no communication.
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(output_layouts=_TOKENS),
        "post_attention_layernorm": SequenceParallel(),
        "mlp": PrepareModuleInput(
            input_layouts=(_TOKENS,), desired_input_layouts=(_WHOLE,)
        ),
        # gate and up are cut alike, so their product is local too.
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=_TOKENS),
    }


def check_divisible(config: ModelConfig, vocab_size: int, degree: int) -> None:
    """Check that a number of ranks can share the model.

    Raises:
        IncompatibleConfig: it does not divide a dimension of the model.
    """
    for name, number in (
        # Heads are not cut: each rank needs at least one whole key head.
        ("model.num_kv_heads", config.num_kv_heads),
        ("model.num_heads", config.num_heads),
        ("model.ffn_dim", config.ffn_dim),
        ("the vocabulary", vocab_size),
    ):
        if number % degree:
            raise IncompatibleConfig(
                f"parallel.tensor is {degree}, which does not divide {name} {number}"
            )
