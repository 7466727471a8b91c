"""The YAML file of a training run: every key, its range and its meaning.

Loading checks that the config is consistent in itself. What depends on the number of ranks or on
the dataset is checked when the run starts, before the first step.

    config = load_config("train-tiny.yaml", ["steps=20"])
    config.parallel.strategy             # "zero2"
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from config_files.reader import read

Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    """Base class of all sections: immutable, validated, unknown keys are errors."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class RopeScaling(Section):
    """Llama 3.1's scaling of low RoPE frequencies (`rope_type: llama3` of transformers)."""

    factor: float = Field(
        default=8.0, gt=1, description="Longest context, as a multiple of original_seq_len."
    )
    low_freq_factor: float = Field(
        default=1.0,
        gt=0,
        description="Wavelengths above original_seq_len / this are scaled by the factor.",
    )
    high_freq_factor: float = Field(
        default=4.0,
        gt=0,
        description="Wavelengths below original_seq_len / this are not scaled.",
    )
    original_seq_len: Positive = Field(
        default=8192, description="Context length before the scaling."
    )


class ModelConfig(Section):
    """The decoder, with the architecture of Llama 3 (Dubey et al. 2024, table 3)."""

    dim: Positive = Field(default=2048, description="Width of the residual stream.")
    num_layers: Positive = Field(default=16, description="Number of blocks.")
    num_heads: Positive = Field(
        default=32, description="Query heads. The width of a head is dim / num_heads."
    )
    num_kv_heads: Positive = Field(
        default=8, description="Key and value heads (grouped-query attention)."
    )
    ffn_dim: Positive = Field(default=8192, description="Inner width of SwiGLU.")
    vocab_size: Positive | None = Field(
        default=None,
        description="Rows of the embedding. null: ids of the dataset's tokenizer, rounded up to a "
        "multiple of 128.",
    )
    rope_theta: float = Field(
        default=500_000.0,
        gt=0,
        description="Base of the rotary embedding (Llama 3: 500,000).",
    )
    rope_scaling: RopeScaling | None = Field(
        default=None, description="Set it for weights of Llama 3.1 and later."
    )
    norm_eps: float = Field(default=1e-5, gt=0, description="Epsilon of RMSNorm.")
    init_std: float = Field(
        default=0.02,
        gt=0,
        description="Standard deviation of initial weights. Projections into the residual stream "
        "get this / sqrt(2 * num_layers).",
    )
    initial_weights: str | None = Field(
        default=None,
        description="Folder in Hugging Face's format (config.json, *.safetensors) to start from.",
    )

    @property
    def head_dim(self) -> int:
        """The width of a head."""
        return self.dim // self.num_heads

    @model_validator(mode="after")
    def _check_heads(self) -> Self:
        # RoPE rotates the two halves of a head against each other, so its width must be even.
        if self.dim % self.num_heads or self.head_dim % 2:
            raise ValueError(
                f"dim {self.dim} must be num_heads {self.num_heads} times an even number"
            )
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads {self.num_heads} must be a multiple of num_kv_heads {self.num_kv_heads}"
            )
        return self


class SourceConfig(Section):
    """One dataset of a mixture."""

    manifest: str = Field(description="Path or address of its manifest, or of its folder.")
    weight: float = Field(
        default=1.0, gt=0, description="Share of the rows, relative to the other datasets."
    )


class DataConfig(Section):
    """The training data: exactly one of `manifest`, `mixture` and `instructions`."""

    manifest: str | None = Field(
        default=None, description="One dataset: path or address of its manifest or folder."
    )
    mixture: dict[str, SourceConfig] | None = Field(
        default=None, description="Several datasets by name, with weights."
    )
    instructions: str | None = Field(
        default=None,
        description="JSON-lines file of instructions or chats for fine-tuning (docs/training.md).",
    )
    tokenizer: str | None = Field(
        default=None,
        description="A tokenizer.json. Required for instructions; otherwise only copied into "
        "exports.",
    )
    seq_len: Positive = Field(default=2048, description="Tokens per row.")
    global_batch_rows: Positive = Field(
        default=512, description="Rows per step, over all ranks."
    )
    micro_batch_rows: Positive = Field(
        default=4, description="Rows per forward pass on one rank."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of the order of rows.")
    document_masks: bool = Field(
        default=True,
        description="Tokens attend only within their own document, as in Llama 3.",
    )
    on_corrupt: Literal["stop", "skip_and_count"] = Field(
        default="stop",
        description="Reaction to a damaged sample: stop the run, or leave its rows out of the "
        "loss.",
    )

    @model_validator(mode="after")
    def _check_source(self) -> Self:
        given = [
            name for name in ("manifest", "mixture", "instructions") if getattr(self, name)
        ]
        if len(given) != 1:
            raise ValueError(
                f"set exactly one of manifest, mixture, instructions; found "
                f"{', '.join(given) or 'none'}"
            )
        if self.instructions and not self.tokenizer:
            raise ValueError(
                "instructions need a tokenizer; set tokenizer to a tokenizer.json"
            )
        return self


class LoraConfig(Section):
    """Low-rank adapters (Hu et al. 2021): W + alpha / rank * B A; only A and B are trained."""

    rank: Positive = Field(default=16, description="Rank of the update of each matrix.")
    alpha: float = Field(
        default=32.0, gt=0, description="The update is scaled by alpha / rank."
    )
    targets: tuple[str, ...] = Field(
        default=(
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
            "gate_proj",
            "up_proj",
            "down_proj",
        ),
        description="Linear layers of each block that get an adapter.",
    )


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
    compile: bool = Field(default=False, description="Apply torch.compile to each block.")
    loss_chunk_tokens: Positive = Field(
        default=4096,
        description="Tokens whose logits exist at the same time. With a vocabulary of 128k they "
        "take 2 GB in fp32.",
    )


class OptimizerConfig(Section):
    """AdamW (Loshchilov and Hutter 2019) and its learning rate."""

    learning_rate: float = Field(default=3e-4, gt=0, description="Peak learning rate.")
    betas: tuple[Share, Share] = Field(
        default=(0.9, 0.95), description="Decay of the two moments (Llama: 0.9, 0.95)."
    )
    eps: float = Field(
        default=1e-8, gt=0, description="Added to the square root of the second moment."
    )
    weight_decay: float = Field(
        default=0.1,
        ge=0,
        description="Weight decay of matrices; norms have none (Llama: 0.1).",
    )
    max_grad_norm: float = Field(
        default=1.0, gt=0, description="Gradients are clipped to this norm (Llama: 1.0)."
    )
    schedule: Literal["cosine", "wsd", "linear", "constant"] = Field(
        default="cosine",
        description="Learning rate after the warm-up. wsd (Hu et al. 2024): constant, then a "
        "linear decay.",
    )
    warmup_steps: int = Field(
        default=100, ge=0, description="Steps of the linear warm-up from 0."
    )
    decay_share: Share = Field(
        default=0.1, description="wsd: share of all steps that decay, 0..1."
    )
    min_lr_share: Share = Field(
        default=0.1, description="Learning rate at the end, as a share of learning_rate."
    )


class AnomalyGuardConfig(Section):
    """Reaction to a non-finite loss or gradient, or to a spike of the gradient norm."""

    on_bad_step: Literal["skip", "stop"] = Field(
        default="skip",
        description="skip: leave the parameters unchanged and count it. stop: end.",
    )
    spike_factor: float | None = Field(
        default=None,
        gt=1,
        description="A gradient norm above this multiple of its running mean is bad too. null: "
        "off.",
    )
    max_consecutive_skips: Positive = Field(
        default=10, description="The run ends after this many bad steps in a row."
    )


class CheckpointConfig(Section):
    """Checkpoints, in run_dir/checkpoints/step-00000100."""

    every_steps: Positive = Field(
        default=500, description="Steps between checkpoints. One is also saved at the end."
    )
    keep_last: Positive = Field(
        default=3, description="Number of newest checkpoints to keep."
    )
    keep_every_steps: Positive | None = Field(
        default=None, description="Checkpoints at multiples of this are kept forever."
    )
    upload: str | None = Field(
        default=None,
        description="Address (s3://bucket/prefix) to which each checkpoint is copied.",
    )
    on_damaged: Literal["stop", "previous"] = Field(
        default="stop",
        description="If the newest checkpoint is damaged: stop, or set it aside and resume from "
        "the newest one without damage.",
    )


class ValidationConfig(Section):
    """Loss on held-out documents, in total, by language and by bucket."""

    manifest: str = Field(description="Path or address of the held-out dataset.")
    every_steps: Positive = Field(
        default=500, description="Steps between validations. One also runs at the end."
    )
    documents: Positive | None = Field(
        default=1000, description="Number of documents to use, from the first. null: all."
    )


class WandbConfig(Section):
    """Weights & Biases; needs `pip install wandb`. WANDB_MODE=offline needs no network."""

    project: str = Field(description="Name of the project.")
    name: str | None = Field(
        default=None, description="Name of the run. null: that of run_dir."
    )


class PrometheusConfig(Section):
    """A Prometheus endpoint on every rank (docs/watching.md)."""

    port: int = Field(
        default=9465,
        ge=1,
        le=65_000,
        description="Port of the first rank of a machine; the others use the following ports.",
    )
    host: str = Field(
        default="127.0.0.1",
        description="Address to listen on. 0.0.0.0 lets other machines read the metrics, without "
        "a password.",
    )


class ObservabilityConfig(Section):
    """Logs, metrics and traces."""

    every_steps: Positive = Field(
        default=10,
        description="Steps between reports to log.jsonl, TensorBoard and the terminal.",
    )
    tensorboard: bool = Field(default=True, description="Write run_dir/tensorboard.")
    wandb: WandbConfig | None = Field(
        default=None, description="Log to Weights & Biases too."
    )
    prometheus: PrometheusConfig | None = Field(
        default=None, description="Serve Prometheus metrics; {} uses the default port."
    )
    peak_tflops: float | None = Field(
        default=None,
        gt=0,
        description="Dense peak of a device in TFLOP/s, for the MFU. null: that of the device's "
        "name, if it is known; otherwise no MFU is reported.",
    )
    profile_steps: tuple[int, int] | None = Field(
        default=None,
        description="First and last step to trace on every rank, into run_dir/profile.",
    )
    memory_snapshot: bool = Field(
        default=False,
        description="On CUDA: write run_dir/memory-rank*.pickle at the end, or when memory runs "
        "out.",
    )


class AdvancedConfig(Section):
    """Keys that few runs need."""

    gc_every_steps: Positive | None = Field(
        default=50,
        description="Steps between Python garbage collections, on all ranks together. null: "
        "automatic.",
    )
    start_timeout_s: Positive = Field(
        default=900,
        description="Timeout of collectives in the first step, which compiles and opens datasets.",
    )
    step_timeout_s: Positive = Field(
        default=180,
        description="Timeout of collectives in later steps; a lost rank is noticed after it.",
    )


class TrainConfig(Section):
    """A training run."""

    run_dir: str = Field(
        default="runs/{config}",
        description="Folder of the run. {config} is the name of this file without .yaml.",
    )
    steps: Positive = Field(description="Number of optimizer steps.")
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of the initial weights.")
    model: ModelConfig = Field(default=ModelConfig(), description="The decoder.")
    lora: LoraConfig | None = Field(
        default=None, description="Train low-rank adapters instead of all weights."
    )
    data: DataConfig = Field(description="The training data.")
    parallel: ParallelConfig = Field(
        default=ParallelConfig(), description="Distribution over ranks."
    )
    precision: PrecisionConfig = Field(
        default=PrecisionConfig(), description="Number formats and kernels."
    )
    optimizer: OptimizerConfig = Field(
        default=OptimizerConfig(), description="AdamW and its learning rate."
    )
    anomaly_guard: AnomalyGuardConfig = Field(
        default=AnomalyGuardConfig(), description="Reaction to bad steps."
    )
    checkpoint: CheckpointConfig = Field(
        default=CheckpointConfig(), description="Checkpoints."
    )
    validation: ValidationConfig | None = Field(
        default=None, description="Loss on held-out documents. null: off."
    )
    observability: ObservabilityConfig = Field(
        default=ObservabilityConfig(), description="Logs, metrics and traces."
    )
    advanced: AdvancedConfig = Field(
        default=AdvancedConfig(), description="Keys that few runs need."
    )

    @model_validator(mode="after")
    def _check_combination(self) -> Self:
        float8, tensor = self.precision.float8, self.parallel.tensor
        faults: list[str] = []
        if self.lora is not None and tensor > 1:
            faults.append(
                f"lora cannot be combined with parallel.tensor {tensor}; use zero3"
            )
        if self.lora is not None and float8 != "none":
            faults.append(
                f"lora cannot be combined with precision.float8 {float8}; use none"
            )
        if float8 != "none" and tensor > 1:
            faults.append(
                f"precision.float8 {float8} cannot be combined with parallel.tensor {tensor}"
            )
        if faults:
            raise ValueError("; ".join(faults))
        return self


def load_config(path_or_name: str, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read and check a config file.

    Args:
        path_or_name: a file, or the name of one in configs/.
        overrides: `key.of.key=value`, applied in order.

    Raises:
        ConfigError: with all faults of the file.
    """
    return read(TrainConfig, path_or_name, overrides)
