"""The sections `parallel` and `precision`: layout over ranks, number formats and kernels."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from training.config.base import Positive, Section


class ParallelConfig(Section):
    """Distribution of the model. Number of ranks = replicas * shard_degree * tensor."""

    strategy: Literal["ddp", "zero1", "zero2", "zero3"] = Field(
        default="zero2",
        description="What is sharded over ranks (Rajbhandari et al. 2020). ddp: nothing. zero1: "
        "optimizer state (ZeroRedundancyOptimizer). zero2: also gradients. zero3: also parameters "
        "after forward. zero2 and zero3 use fully_shard.",
    )
    shard_degree: Positive | None = Field(
        default=None,
        description="zero2, zero3: ranks that share one copy of the model. Fewer than all ranks "
        "gives several replicas (HSDP). null: all ranks.",
    )
    tensor: Positive = Field(
        default=1,
        description="Ranks that share each matrix (tensor, sequence and loss parallel).",
    )
    context: Positive = Field(
        default=1,
        description="Ranks that share the tokens of each row, for long rows (Ulysses; Jacobs et "
        "al. 2023). They count as ranks of shard_degree, or as replicas.",
    )
    async_tensor: bool = Field(
        default=False,
        description="Overlap the matrix products of tensor parallelism with its communication "
        "(GPUs of one node, with `precision.compile`).",
    )
    accumulate: Literal["sharded", "whole"] = Field(
        default="sharded",
        description="zero2, zero3: gradients that are kept between the micro-batches of a step. "
        "sharded: each rank's share, after a reduction per micro-batch. whole: one reduction per "
        "step, but 4 bytes per parameter on each rank.",
    )
    offload: Literal["none", "optimizer", "parameters"] = Field(
        default="none",
        description="Kept in CPU memory, where the optimizer then steps: optimizer state, or "
        "parameters too.",
    )
    activation_checkpointing: Literal["none", "selective", "full"] = Field(
        default="none",
        description="What backward recomputes: nothing; all but matrix products and attention; "
        "whole blocks.",
    )
    activation_offload: bool = Field(
        default=False,
        description="Keep activations in CPU memory; the copies overlap with computation.",
    )

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        # ddp and zero1 keep whole parameters on each rank, so there is nothing to shard or to
        # gather.
        is_sharded = self.strategy in ("zero2", "zero3")
        faults: list[str] = []
        if self.tensor > 1 and not is_sharded:
            faults.append(
                f"tensor {self.tensor} needs zero2 or zero3 (shard_degree: 1 gives replicas)"
            )
        if self.shard_degree is not None and not is_sharded:
            faults.append("shard_degree needs zero2 or zero3")
        if self.accumulate == "whole" and not is_sharded:
            faults.append("accumulate: whole needs zero2 or zero3")
        if self.offload == "parameters" and not is_sharded:
            faults.append("offload: parameters needs zero2 or zero3")
        if self.async_tensor and self.tensor == 1:
            faults.append("async_tensor needs tensor > 1")
        if self.offload == "optimizer" and self.strategy == "zero1":
            faults.append("zero1 with offload: optimizer is not supported; use zero2")
        if faults:
            messages = [f"{fault}; strategy is {self.strategy}" for fault in faults]
            raise ValueError("; ".join(messages))
        return self


class PrecisionConfig(Section):
    """Number formats and kernels. Parameters, optimizer state and gradient sums are always fp32."""

    compute: Literal["bf16", "fp32"] = Field(
        default="bf16", description="Dtype of forward and backward."
    )
    float8: Literal["none", "tensorwise", "rowwise"] = Field(
        default="none",
        description="Run the linear layers of blocks in float8 (torchao; H100 or later).",
    )
    float8_layers: Literal["large", "all"] = Field(
        default="large",
        description="large: layers that torchao's tables for the H100 call faster in float8. With "
        "tensorwise, that leaves out small key and value matrices. all: also those.",
    )
    compile: bool = Field(default=False, description="Apply torch.compile to each block.")
    loss_chunk_tokens: Positive = Field(
        default=4096,
        description="Tokens whose logits exist at the same time. With a vocabulary of 128k they "
        "take 2 GB in fp32.",
    )
    attention: Literal["auto", "flash", "flash3", "cudnn", "flex"] = Field(
        default="auto",
        description="GPUs: kernel of attention. auto: torch's choice, and FlashAttention 2 with "
        "document masks. flash3: FlashAttention 3 (package flash_attn_interface) for both. cudnn: "
        "without document masks. flex: flex attention, only with document masks.",
    )
    loss_kernel: Literal["auto", "eager", "compiled"] = Field(
        default="auto",
        description="Computation of the loss. compiled: torch.compile fuses the passes over the "
        "logits. auto: compiled on GPUs if `compile` is true.",
    )
