"""A model becomes one that is trained on many ranks: cut, sharded or copied, compiled, with activations saved or not.

Promises: weights are the same on any number of ranks and under every strategy; no rank ever holds more of them than its
part and one block besides. `backward` of the last micro-batch sums gradients over ranks, of earlier ones does not.
Leaves to others: the mesh (ranks.py), what the weights are (model.draw), the step (trainer.py).

    strategy   parameters   gradients   optimizer's state        made with
    ddp        whole        whole       whole                    DistributedDataParallel
    zero1      whole        whole       cut                      the same, ZeroRedundancyOptimizer
    zero2      cut, whole from forward to backward   cut   cut   fully_shard(reshard_after_forward=False)
    zero3      cut          cut         cut                      fully_shard(reshard_after_forward=True)
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    PrepareModuleInput,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from training.config import ParallelConfig, PrecisionConfig
from training.model.decoder import Block, Decoder
from training.parallel.activation_offload import ActivationOffload
from training.parallel.distributed import IncompatibleConfig, Ranks

COMPUTE_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}

Fill = Callable[[str, Tensor], None]
"""Fills a whole parameter of that name, in place."""


def parallelise(
    model: Decoder,
    fill: Fill,
    *,
    parallel: ParallelConfig,
    precision: PrecisionConfig,
    ranks: Ranks,
) -> nn.Module:
    """The model, built on the meta device, laid over the ranks with its weights in it; call it as the model.

    Raises:
        IncompatibleConfig: heads that cannot be shared out, or float8 where there is none.
    """
    model.lm_head.chunk_tokens = precision.loss_chunk_tokens
    if precision.float8 != "none":
        _use_float8(model, precision.float8, ranks.device)
    if parallel.tensor > 1:
        _cut_matrices(model, ranks)
    _choose_compute(model, parallel, precision, ranks.device)
    if parallel.strategy in ("zero2", "zero3"):
        return _shard(model, fill, parallel, precision, ranks)
    _materialise("", model, fill, ranks.device)
    if precision.compute != "fp32":
        model.forward = torch.autocast(ranks.device.type, COMPUTE_DTYPES[precision.compute])(
            model.forward
        )
    if ranks.world_size == 1:
        return model
    devices = [ranks.device] if ranks.device.type == "cuda" else None
    group = ranks.mesh.get_group("replicate")
    # init_sync: every rank drew the same weights, nothing is to be broadcast
    return DistributedDataParallel(
        model,
        device_ids=devices,
        process_group=group,
        gradient_as_bucket_view=True,
        init_sync=False,
    )


@contextmanager
def accumulating(model: nn.Module, *, is_last: bool) -> Generator[None]:
    """Forward and backward of one micro-batch; gradients are summed over ranks in that of the last one only."""
    if isinstance(model, DistributedDataParallel) and not is_last:
        with model.no_sync():
            yield
        return
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(is_last)
        model.set_is_last_backward(is_last)
    yield


def decoder_of(model: nn.Module) -> Decoder:
    """The model inside of what wraps it."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    assert isinstance(inner, Decoder)
    return inner


# -------------------------------------------------------------------------------------------------------------- weights


def _materialise(prefix: str, module: nn.Module, fill: Fill, device: torch.device) -> None:
    """Give a module on the meta device its memory and its weights; of a cut matrix, this rank's part."""
    module.to_empty(device=device)
    with torch.no_grad():
        for name, parameter in module.named_parameters(prefix):
            if not isinstance(parameter, DTensor):
                fill(name, parameter)
                continue
            whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            fill(name, whole)
            parameter.copy_(
                distribute_tensor(
                    whole, parameter.device_mesh, parameter.placements, src_data_rank=None
                )
            )


def _shard(
    model: Decoder, fill: Fill, parallel: ParallelConfig, precision: PrecisionConfig, ranks: Ranks
) -> nn.Module:
    """FSDP2 over blocks; over replicas of them, where there are several (HSDP)."""
    mesh = (
        ranks.mesh["shard"]
        if ranks.mesh["replicate"].size() == 1
        else ranks.mesh["replicate", "shard"]
    )
    on_cuda = ranks.device.type == "cuda"
    settings: dict[str, Any] = {
        "mesh": mesh,
        # Inputs are left alone: angles of the rotary embedding stay fp32.
        "mp_policy": MixedPrecisionPolicy(
            param_dtype=COMPUTE_DTYPES[precision.compute],
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        ),
        "offload_policy": CPUOffloadPolicy(pin_memory=on_cuda)
        if parallel.offload == "parameters"
        else OffloadPolicy(),
    }
    reshard = parallel.strategy == "zero3"
    groups: list[Sequence[tuple[str, nn.Module]]] = [[("embed_tokens", model.embed_tokens)]]
    groups += [[(f"layers.{index}", block)] for index, block in enumerate(model.layers)]
    groups += [[("norm", model.norm), ("lm_head", model.lm_head)]]
    for group in groups:  # one at a time, so that no more than one is ever whole
        for name, module in group:
            _materialise(name, module, fill, ranks.device)
        # what is used last in forward comes first in backward
        is_last = group is groups[-1]
        fully_shard(
            [module for _, module in group],
            reshard_after_forward=reshard and not is_last,
            **settings,
        )
    fully_shard(model, reshard_after_forward=False, **settings)
    return model


# ------------------------------------------------------------------------------------------------------ tensor parallel


def _cut_matrices(model: Decoder, ranks: Ranks) -> None:
    """Megatron's cut (Shoeybi et al. 2019), with sequence parallelism between (Korthikanti et al. 2022)."""
    mesh, degree, config = ranks.mesh["tensor"], ranks.mesh["tensor"].size(), model.config
    vocab_size = model.lm_head.weight.shape[0]
    for name, number in (
        ("model.num_kv_heads", config.num_kv_heads),
        ("model.num_heads", config.num_heads),
        ("model.ffn_dim", config.ffn_dim),
        ("the vocabulary", vocab_size),
    ):
        if number % degree:
            raise IncompatibleConfig(
                f"parallel.tensor is {degree}, which does not divide {name} {number}"
            )
    along_tokens, whole = Shard(1), Replicate()
    parallelize_module(
        model,
        mesh,
        {
            # made local in Decoder.forward: fully_shard warns of modules that give out a view
            "embed_tokens": RowwiseParallel(
                input_layouts=whole, output_layouts=along_tokens, use_local_output=False
            ),
            "norm": SequenceParallel(),
        },
    )
    model.lm_head.weight = nn.Parameter(distribute_tensor(model.lm_head.weight, mesh, [Shard(0)]))
    plan: dict[str, ParallelStyle] = {
        "input_layernorm": SequenceParallel(),
        "self_attn": PrepareModuleInput(
            input_layouts=(along_tokens, None, None), desired_input_layouts=(whole, None, None)
        ),
        "self_attn.q_proj": ColwiseParallel(),
        "self_attn.k_proj": ColwiseParallel(),
        "self_attn.v_proj": ColwiseParallel(),
        "self_attn.o_proj": RowwiseParallel(output_layouts=along_tokens),
        "post_attention_layernorm": SequenceParallel(),
        "mlp": PrepareModuleInput(input_layouts=(along_tokens,), desired_input_layouts=(whole,)),
        "mlp.gate_proj": ColwiseParallel(),
        "mlp.up_proj": ColwiseParallel(),
        "mlp.down_proj": RowwiseParallel(output_layouts=along_tokens),
    }
    for block in model.layers:
        parallelize_module(block, mesh, plan)


# --------------------------------------------------------------------------------------------------------- computing


def _choose_compute(
    model: Decoder, parallel: ParallelConfig, precision: PrecisionConfig, device: torch.device
) -> None:
    """Set every block's `compute`: saved or computed again, inside of compiled, inside of offloaded."""
    offload = ActivationOffload(device) if parallel.activation_offload else None
    selection: dict[str, Any] = {}
    if parallel.activation_checkpointing == "selective":
        selection["context_fn"] = functools.partial(
            create_selective_checkpoint_contexts, _expensive_operators()
        )
    for block in model.layers:
        assert isinstance(block, Block)
        if parallel.activation_checkpointing != "none":
            block.checkpointing = {"use_reentrant": False, "preserve_rng_state": False, **selection}
        compute: Callable[..., Any] = torch.compile(block.run) if precision.compile else block.run
        block.compute = (
            offload.around(compute, is_last=block is model.layers[-1]) if offload else compute
        )


def _expensive_operators() -> list[Any]:
    """What selective checkpointing saves: matrix products, attention, and what came over the network."""
    aten, names = torch.ops.aten, [
        "mm", "addmm", "bmm", "_scaled_mm", "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    ]  # fmt: skip
    operators = [getattr(aten, name).default for name in names]
    operators.append(torch.ops._c10d_functional.reduce_scatter_tensor.default)  # noqa: SLF001
    from torch.nn.attention import varlen  # registers the operator

    assert varlen
    return [*operators, torch.ops.torch_attn._varlen_attn.default]  # noqa: SLF001


def _use_float8(model: Decoder, recipe: str, device: torch.device) -> None:
    """Swap the blocks' linear layers for torchao's; on a processor their arithmetic is emulated, to be tested."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        raise IncompatibleConfig(
            f"precision.float8 is {recipe}, but {torch.cuda.get_device_name(device)} has no float8 products "
            f"(an H100 or later has); set it to none"
        )
    try:
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    except ImportError as error:
        raise IncompatibleConfig(
            f"precision.float8 is {recipe}, which needs torchao: pip install torchao ({error})"
        ) from error
    config = Float8LinearConfig.from_recipe_name(recipe)
    if device.type == "cpu":
        config = dataclasses.replace(config, emulate=True)
    convert_to_float8_training(
        model, config=config, module_filter_fn=lambda _, name: ".layers." in f".{name}"
    )
