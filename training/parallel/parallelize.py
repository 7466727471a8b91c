"""Distributes a decoder over ranks, with its weights, compilation and activation memory.

The weights are the same for every strategy and number of ranks. No rank ever holds more of the
sharded model than its own share and one whole block.

    strategy  parameters  gradients  optimizer state  made with
    ddp       whole       whole      whole            DDP
    zero1     whole       whole      sharded          DDP, ZeroRedundancyOptimizer
    zero2     sharded *   sharded    sharded          fully_shard(reshard_after_forward=False)
    zero3     sharded     sharded    sharded          fully_shard(reshard_after_forward=True)

    * whole from forward to backward
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Generator
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
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

from training.config import ParallelConfig, PrecisionConfig
from training.errors import IncompatibleConfig
from training.model.attention import select_kernel
from training.model.decoder import Block, Decoder
from training.parallel.activation_offload import ActivationOffload
from training.parallel.context_parallel import ContextParallel
from training.parallel.distributed import RankContext
from training.parallel.tensor_parallel import (
    apply_tensor_parallel,
    enable_async_tensor_parallel,
)

COMPUTE_DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}

# Fills a whole parameter, given its name, in place.
InitParameter = Callable[[str, Tensor], None]


def parallelize(
    model: Decoder,
    init_parameter: InitParameter,
    *,
    parallel: ParallelConfig,
    precision: PrecisionConfig,
    context: RankContext,
) -> nn.Module:
    """Distribute a model built on the meta device, and fill it with its initial weights.

    Args:
        model: changed in place; its parameters keep their names.
        init_parameter: fills one parameter.
        parallel: strategy, degrees and activation memory.
        precision: compute dtype, float8 and compilation.
        context: this rank and the mesh.

    Returns:
        The module to call for training: the model itself, or its DDP wrapper.

    Raises:
        IncompatibleConfig: the mesh does not divide the model, or float8 is not available.
    """
    select_kernel(precision.attention, context.device)
    model.lm_head.chunk_tokens = precision.loss_chunk_tokens
    model.lm_head.is_loss_compiled = precision.loss_kernel == "compiled" or (
        precision.loss_kernel == "auto"
        and precision.compile
        and context.device.type == "cuda"
    )
    if precision.float8 != "none":
        convert_to_float8(model, precision, context.device)
    # Tensor parallelism before fully_shard: FSDP then shards what each tensor rank holds.
    if parallel.tensor > 1:
        apply_tensor_parallel(model, context.mesh["tensor"])
    if parallel.async_tensor:
        enable_async_tensor_parallel(context.mesh["tensor"])
    if context.row_mesh is not None:
        # The ranks of a group compute different tokens of the same rows.
        model.sharing = sharing = ContextParallel(context.row_mesh["context"])
        for block in model.layers:
            assert isinstance(block, Block)
            block.self_attn.sharing = sharing
    _configure_blocks(model, parallel, precision, context.device)
    if parallel.strategy in ("zero2", "zero3"):
        return _apply_fully_shard(model, init_parameter, parallel, precision, context)
    return _apply_ddp(model, init_parameter, precision, context)


@contextmanager
def accumulate_gradients(
    model: nn.Module, parallel: ParallelConfig, *, is_last: bool
) -> Generator[None]:
    """Wrap forward and backward of one micro-batch of a step.

    fully_shard reduces the gradients of each micro-batch over the ranks of a shard group, and adds
    up the rank's share. Replicas (HSDP, DDP) are reduced in the last micro-batch only.
    """
    if isinstance(model, DistributedDataParallel) and not is_last:
        with model.no_sync():
            yield
        return
    if isinstance(model, FSDPModule):
        if parallel.accumulate == "whole":
            model.set_requires_gradient_sync(is_last)
        else:
            # Between replicas only the rank's share is summed, which can wait at no cost.
            model.set_requires_all_reduce(is_last)
        # Otherwise FSDP would wait for reductions after every micro-batch.
        model.set_is_last_backward(is_last)
    yield


# ---- weights ----


def _materialize(
    prefix: str, module: nn.Module, init_parameter: InitParameter, device: torch.device
) -> None:
    """Allocate a module of the meta device and fill it.

    Every rank fills the whole parameter and keeps its shard, so the values do not depend on the
    sharding.
    """
    # to_empty replaces the meta parameters; their content is undefined until it is filled below.
    module.to_empty(device=device)
    if isinstance(module, Decoder):
        # to_empty has given the head a separate matrix.
        module.tie_weights()
    with torch.no_grad():
        for name, parameter in module.named_parameters(prefix):
            if not isinstance(parameter, DTensor):
                init_parameter(name, parameter)
                continue
            whole = torch.empty(parameter.shape, dtype=parameter.dtype, device=device)
            init_parameter(name, whole)
            # src_data_rank=None: every rank has the whole tensor, so nothing is sent.
            shard = distribute_tensor(
                whole, parameter.device_mesh, parameter.placements, src_data_rank=None
            )
            parameter.copy_(shard)


def _apply_ddp(
    model: Decoder,
    init_parameter: InitParameter,
    precision: PrecisionConfig,
    context: RankContext,
) -> nn.Module:
    """Wrap the model with DDP (ddp, zero1), and compute under autocast."""
    device = context.device
    _materialize("", model, init_parameter, device)
    if precision.compute != "fp32":
        autocast = torch.autocast(device.type, COMPUTE_DTYPES[precision.compute])
        # Before wrapping: DDP calls this method.
        model.forward = autocast(model.forward)
    if context.world_size == 1:
        return model
    return DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        process_group=context.mesh.get_group("replicate"),
        # Gradients share memory with DDP's buckets: 4 bytes per parameter less.
        gradient_as_bucket_view=True,
        # Every rank has initialized the same weights, so no broadcast is needed.
        init_sync=False,
    )


def _apply_fully_shard(
    model: Decoder,
    init_parameter: InitParameter,
    parallel: ParallelConfig,
    precision: PrecisionConfig,
    context: RankContext,
) -> nn.Module:
    """Apply FSDP2 to the blocks (zero2, zero3); with several replicas this is HSDP."""
    settings = _make_fsdp_settings(parallel, precision, context)
    embedding: list[tuple[str, nn.Module]] = [("embed_tokens", model.embed_tokens)]
    last: list[tuple[str, nn.Module]] = [("norm", model.norm), ("lm_head", model.lm_head)]
    if model.config.tie_embeddings:
        # A shared matrix belongs to one group, which stays gathered from first to last.
        embedding, last = [], embedding + last
    groups: list[list[tuple[str, nn.Module]]] = [embedding] if embedding else []
    for index, block in enumerate(model.layers):
        groups.append([(f"layers.{index}", block)])
    groups.append(last)
    # Allocate and shard one group at a time: no more than one is ever whole on a rank.
    for group in groups:
        for name, module in group:
            if not (model.config.tie_embeddings and module is model.lm_head):
                _materialize(name, module, init_parameter, context.device)
        model.tie_weights()
        # The last group of forward is the first of backward, so it stays gathered.
        is_last = group is groups[-1]
        fully_shard(
            [module for _, module in group],
            reshard_after_forward=parallel.strategy == "zero3" and not is_last,
            **settings,
        )
    # The root: it holds no parameters itself, but schedules the groups' collectives.
    fully_shard(model, reshard_after_forward=False, **settings)
    return model


def _make_fsdp_settings(
    parallel: ParallelConfig, precision: PrecisionConfig, context: RankContext
) -> dict[str, Any]:
    mesh = context.mesh["shard"]
    if context.mesh["replicate"].size() > 1:
        mesh = context.mesh["replicate", "shard"]
    offload = OffloadPolicy()
    if parallel.offload == "parameters":
        offload = CPUOffloadPolicy(pin_memory=context.device.type == "cuda")
    precision_policy = MixedPrecisionPolicy(
        param_dtype=COMPUTE_DTYPES[precision.compute],
        # Gradients are summed in fp32: bf16 has 8 significant bits, and many ranks add up.
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,  # the angles of the rotary embedding stay fp32
    )
    return {"mesh": mesh, "mp_policy": precision_policy, "offload_policy": offload}


# ---- computation of blocks ----


def _configure_blocks(
    model: Decoder,
    parallel: ParallelConfig,
    precision: PrecisionConfig,
    device: torch.device,
) -> None:
    """Set activation checkpointing, compilation and activation offload of every block.

    They nest in this order: offload wraps the compiled function, which contains checkpointing.
    """
    offload = ActivationOffload(device) if parallel.activation_offload else None
    checkpoint_args: dict[str, Any] | None = None
    if parallel.activation_checkpointing != "none":
        # The blocks draw no random numbers, so the random state need not be restored.
        checkpoint_args = {"use_reentrant": False, "preserve_rng_state": False}
    if parallel.activation_checkpointing == "selective":
        assert checkpoint_args is not None
        checkpoint_args["context_fn"] = functools.partial(
            create_selective_checkpoint_contexts, _list_stored_operators()
        )
    checkpoints_all = parallel.activation_checkpointing == "full"
    for block in model.layers:
        assert isinstance(block, Block)
        block.checkpoint_args = checkpoint_args
        forward: Callable[..., Any] = block.forward_with_checkpointing
        if precision.compile and parallel.tensor > 1 and checkpoints_all:
            # torch 2.13 cannot compile the recomputation of sharded matrices: it would save their
            # mesh for backward.
            assert checkpoint_args is not None
            compiled: Any = torch.compile(block.forward_plain)
            forward = functools.partial(checkpoint, compiled, **checkpoint_args)
        elif precision.compile:
            # Per block, not the whole model: blocks share one compilation, and FSDP's hooks stay
            # outside of the graph.
            forward = torch.compile(forward)
        if offload is not None:
            forward = offload.wrap(forward, is_last=block is model.layers[-1])
        block.forward_fn = forward


def _list_stored_operators() -> list[Any]:
    """Return the operators whose outputs selective checkpointing stores.

    These are the expensive ones: matrix products, attention, and sums over ranks.
    """
    from torch.nn.attention import varlen

    assert varlen  # importing it registers _varlen_attn
    names = [
        "mm",
        "addmm",
        "bmm",
        "_scaled_mm",
        "_scaled_dot_product_flash_attention",
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_efficient_attention",
        "_scaled_dot_product_cudnn_attention",
    ]
    operators = [getattr(torch.ops.aten, name).default for name in names]
    operators.append(torch.ops._c10d_functional.reduce_scatter_tensor.default)  # noqa: SLF001
    operators.append(torch.ops._c10d_functional.all_to_all_single.default)  # noqa: SLF001
    operators.append(torch.ops.torch_attn._varlen_attn.default)  # noqa: SLF001
    operators.append(torch.ops.higher_order.flex_attention)
    return operators


# ---- float8 ----


def convert_to_float8(
    model: Decoder, precision: PrecisionConfig, device: torch.device
) -> None:
    """Replace linear layers of the blocks by torchao's float8 layers.

    On CPU the arithmetic is emulated, for tests.

    Raises:
        IncompatibleConfig: the GPU has no float8 products, torchao is not installed, or no layer
            is large enough.
    """
    recipe = precision.float8
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        raise IncompatibleConfig(
            f"precision.float8 is {recipe}, but {torch.cuda.get_device_name(device)} has no "
            f"float8 products (an H100 or later has); set it to none"
        )
    try:
        from torchao import float8
    except ImportError as error:
        raise IncompatibleConfig(
            f"precision.float8 is {recipe}, which needs torchao: pip install torchao ({error})"
        ) from error
    config = float8.Float8LinearConfig.from_recipe_name(recipe)
    if device.type == "cpu":
        config = dataclasses.replace(config, emulate=True)
    # Products of small matrices gain less than the conversions cost. torchao has measured where.
    is_large: Any = float8._auto_filter_for_recipe(recipe, [])  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    chosen: set[str] = set()
    for name, module in model.named_modules():
        is_linear = name.startswith("layers.") and isinstance(module, nn.Linear)
        if is_linear and (precision.float8_layers == "all" or is_large(module, name)):
            chosen.add(name)
    if not chosen:
        raise IncompatibleConfig(
            f"precision.float8 is {recipe}, but no layer of this model is large enough to gain "
            f"from it; set it to none, or precision.float8_layers to all"
        )
    float8.convert_to_float8_training(
        model, config=config, module_filter_fn=lambda _, name: name in chosen
    )
