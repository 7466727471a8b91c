"""Tensor parallelism: every matrix of a block and the vocabulary are sharded over ranks.

The matrices are cut as in Megatron (Shoeybi et al. 2019). Between them, activations are sharded
along the tokens (sequence parallelism; Korthikanti et al. 2022).
"""

from __future__ import annotations

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

from training.errors import IncompatibleConfig
from training.model.decoder import Decoder

_TOKENS = Shard(1)  # (B, T, D) cut along T
_WHOLE = Replicate()


def apply_tensor_parallel(model: Decoder, mesh: DeviceMesh) -> None:
    """Shard the model over the ranks of a one-dimensional mesh, in place.

    Raises:
        IncompatibleConfig: the number of ranks does not divide a dimension of the model.
    """
    _check_divisible(model, mesh.size())
    embedding = RowwiseParallel(
        input_layouts=_WHOLE,
        output_layouts=_TOKENS,
        # Decoder.forward makes the output local: fully_shard warns about modules that return a
        # view, which RowwiseParallel's own to_local would be.
        use_local_output=False,
    )
    parallelize_module(model, mesh, {"embed_tokens": embedding, "norm": SequenceParallel()})
    # Cut along the vocabulary. Head.forward reduces the loss itself, so no ParallelStyle is needed.
    model.lm_head.weight = nn.Parameter(
        distribute_tensor(model.lm_head.weight, mesh, [Shard(0)])
    )
    plan = _make_block_plan()
    for block in model.layers:
        parallelize_module(block, mesh, plan)


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


def _check_divisible(model: Decoder, degree: int) -> None:
    config = model.config
    for name, number in (
        # Heads are not cut: each rank needs at least one whole key head.
        ("model.num_kv_heads", config.num_kv_heads),
        ("model.num_heads", config.num_heads),
        ("model.ffn_dim", config.ffn_dim),
        ("the vocabulary", model.lm_head.weight.shape[0]),
    ):
        if number % degree:
            raise IncompatibleConfig(
                f"parallel.tensor is {degree}, which does not divide {name} {number}"
            )
