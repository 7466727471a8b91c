"""The YAML file of a training run: every key, its range and its meaning.

Promises: a loaded config is consistent in itself; what depends on the number of ranks or on the dataset is checked when
these are known (parallel.py, data.py), before anything is trained.
Leaves to others: reading the file and telling all its faults (config_files/reader.py).

    config = load("train-tiny.yaml", ["steps=20"])
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
    """Base of all sections: frozen, validated when built, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class RopeScaling(Section):
    """Llama 3.1's stretching of low RoPE frequencies (Dubey et al. 2024; `rope_type: llama3` of transformers)."""

    factor: float = Field(
        default=8.0, gt=1, description="How much longer than before the context may be."
    )
    low_freq_factor: float = Field(
        default=1.0, gt=0, description="Wavelengths above old context / this are stretched."
    )
    high_freq_factor: float = Field(
        default=4.0, gt=0, description="Wavelengths below old context / this stay."
    )
    original_seq_len: Positive = Field(default=8192, description="The context length before.")


class ModelConfig(Section):
    """The decoder: Llama 3's shape (Dubey et al. 2024, table 3)."""

    dim: Positive = Field(default=2048, description="Width of the residual stream.")
    num_layers: Positive = Field(default=16, description="Blocks.")
    num_heads: Positive = Field(
        default=32, description="Query heads; dim / num_heads is the width of a head."
    )
    num_kv_heads: Positive = Field(
        default=8, description="Key and value heads (grouped-query attention)."
    )
    ffn_dim: Positive = Field(default=8192, description="Inner width of SwiGLU.")
    vocab_size: Positive | None = Field(
        default=None,
        description="null: the dataset's tokenizer's, rounded up to a multiple of 128 (tensor cores).",
    )
    rope_theta: float = Field(
        default=500_000.0, gt=0, description="Base of the rotary embedding (Llama 3: 500,000)."
    )
    rope_scaling: RopeScaling | None = Field(
        default=None, description="For weights of Llama 3.1 and later."
    )
    norm_eps: float = Field(default=1e-5, gt=0, description="Of RMSNorm.")
    init_std: float = Field(
        default=0.02,
        gt=0,
        description="Of the weights; those that write to the residual stream get / sqrt(2 layers).",
    )
    initial_weights: str | None = Field(
        default=None,
        description="A folder in Hugging Face's form (config.json, *.safetensors) to start from.",
    )

    @property
    def head_dim(self) -> int:
        """Width of a head."""
        return self.dim // self.num_heads

    @model_validator(mode="after")
    def _heads_divide(self) -> Self:
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

    manifest: str = Field(
        description="Path or address of its manifest, or of the folder it lies in."
    )
    weight: float = Field(
        default=1.0, gt=0, description="Its share of the rows, relative to the others."
    )


class DataConfig(Section):
    """What is trained on: exactly one of `manifest`, `mixture` and `instructions`."""

    manifest: str | None = Field(
        default=None, description="A dataset: path or address of its manifest or folder."
    )
    mixture: dict[str, SourceConfig] | None = Field(
        default=None, description="Several datasets by name, with weights."
    )
    instructions: str | None = Field(
        default=None,
        description="A JSON-lines file of instructions or chats for fine-tuning (docs/training.md).",
    )
    tokenizer: str | None = Field(
        default=None,
        description="tokenizer.json; needed for instructions, else only copied into exports.",
    )
    seq_len: Positive = Field(default=2048, description="Tokens of a row.")
    global_batch_rows: Positive = Field(default=512, description="Rows of a step, over all ranks.")
    micro_batch_rows: Positive = Field(
        default=4, description="Rows of one forward pass on one rank."
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Of the order of rows.")
    document_masks: bool = Field(
        default=True,
        description="Tokens attend within their own document only (Llama 3), not to the row's others.",
    )
    on_corrupt: Literal["stop", "skip_and_count"] = Field(
        default="stop",
        description="What a damaged sample does: stop the run, or leave its rows out of the loss.",
    )

    @model_validator(mode="after")
    def _exactly_one_source(self) -> Self:
        given = [name for name in ("manifest", "mixture", "instructions") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of manifest, mixture, instructions; found {', '.join(given) or 'none'}"
            )
        if self.instructions and not self.tokenizer:
            raise ValueError("instructions are text: give tokenizer, a tokenizer.json, too")
        return self


class LoraConfig(Section):
    """Low-rank adapters (Hu et al. 2021): W + alpha / rank * B A, where only A and B are trained."""

    rank: Positive = Field(default=16, description="Of the update of each matrix.")
    alpha: float = Field(default=32.0, gt=0, description="Its scale, times 1 / rank.")
    targets: tuple[str, ...] = Field(
        default=("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        description="Which linear layers of each block get an adapter.",
    )


class ParallelConfig(Section):
    """How the model lies over the ranks. ranks = replicas x shard_degree x tensor."""

    strategy: Literal["ddp", "zero1", "zero2", "zero3"] = Field(
        default="zero2",
        description="What is cut up over the ranks (Rajbhandari et al. 2020): ddp nothing, zero1 the optimizer's state "
        "(ZeroRedundancyOptimizer), zero2 also gradients, zero3 also parameters after forward (both fully_shard).",
    )
    shard_degree: Positive | None = Field(
        default=None,
        description="zero2, zero3: ranks that share one copy; fewer than all gives several copies (HSDP). null: all.",
    )
    tensor: Positive = Field(
        default=1,
        description="Ranks that share each matrix (tensor and sequence parallel, loss parallel).",
    )
    offload: Literal["none", "optimizer", "parameters"] = Field(
        default="none",
        description="Kept in CPU memory: the optimizer's state with its step, or parameters as well.",
    )
    activation_checkpointing: Literal["none", "selective", "full"] = Field(
        default="none",
        description="What backward computes again: nothing, all but matrix products and attention, or whole blocks.",
    )
    activation_offload: bool = Field(
        default=False,
        description="Keep what backward needs in CPU memory, copied beside the computation.",
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        is_sharded = self.strategy in ("zero2", "zero3")
        faults = [
            (
                self.tensor > 1 and not is_sharded,
                f"tensor {self.tensor} needs zero2 or zero3 (shard_degree 1 copies)",
            ),
            (
                self.shard_degree is not None and not is_sharded,
                "shard_degree is for zero2 and zero3",
            ),
            (
                self.offload == "parameters" and not is_sharded,
                "offload: parameters needs zero2 or zero3",
            ),
            (
                self.offload == "optimizer" and self.strategy == "zero1",
                "zero1 with offload: optimizer; use zero2",
            ),
        ]
        if found := [
            f"{message}; strategy is {self.strategy}" for is_fault, message in faults if is_fault
        ]:
            raise ValueError("; ".join(found))
        return self


class PrecisionConfig(Section):
    """Numbers and kernels. Parameters and the optimizer's state are kept, and gradients summed over ranks, in fp32."""

    compute: Literal["bf16", "fp32"] = Field(
        default="bf16", description="What forward and backward compute in."
    )
    float8: Literal["none", "tensorwise", "rowwise"] = Field(
        default="none",
        description="Linear layers of the blocks in float8 by torchao; needs an H100 or later.",
    )
    compile: bool = Field(default=False, description="torch.compile each block.")
    loss_chunk_tokens: Positive = Field(
        default=4096,
        description="Tokens whose logits exist at a time: at a vocabulary of 128k, 2 GB of fp32.",
    )


class OptimizerConfig(Section):
    """AdamW (Loshchilov and Hutter 2019) and its learning rate."""

    learning_rate: float = Field(default=3e-4, gt=0, description="At its height.")
    betas: tuple[Share, Share] = Field(
        default=(0.9, 0.95), description="Decay of the two moments (Llama)."
    )
    eps: float = Field(default=1e-8, gt=0, description="Added to the root of the second moment.")
    weight_decay: float = Field(
        default=0.1, ge=0, description="Of matrices; norms have none (Llama)."
    )
    max_grad_norm: float = Field(
        default=1.0, gt=0, description="Gradients are scaled down to this norm (Llama)."
    )
    schedule: Literal["cosine", "wsd", "linear", "constant"] = Field(
        default="cosine",
        description="After the warm-up: cosine or line down to the end; wsd (Hu et al. 2024): level, then a line down.",
    )
    warmup_steps: int = Field(default=100, ge=0, description="Line up from 0.")
    decay_share: Share = Field(default=0.1, description="wsd: share of the steps on the way down.")
    min_lr_share: Share = Field(
        default=0.1, description="What is left at the end, of learning_rate."
    )


class GuardConfig(Section):
    """What happens when a step's loss or gradient is not a number, or leaps."""

    on_bad_step: Literal["skip", "stop"] = Field(
        default="skip", description="Leave parameters as they are and count it, or end the run."
    )
    spike_factor: float | None = Field(
        default=None,
        gt=1,
        description="A gradient norm this many times the running mean is bad too. null: never.",
    )
    max_skipped_in_a_row: Positive = Field(default=10, description="Then the run ends.")


class CheckpointConfig(Section):
    """Where and how often the run is saved: run_dir/checkpoints/step-00000100."""

    every_steps: Positive = Field(
        default=500, description="Saved after so many steps, and at the end."
    )
    keep_last: Positive = Field(default=3, description="Older ones are removed.")
    keep_every_steps: Positive | None = Field(
        default=None, description="Those at multiples of this stay for ever."
    )
    upload: str | None = Field(
        default=None,
        description="Address (s3://bucket/prefix) to which each finished checkpoint is copied.",
    )


class ValidationConfig(Section):
    """Loss on documents that are not trained on, by language and bucket."""

    manifest: str = Field(description="Path or address of the held-out dataset.")
    every_steps: Positive = Field(default=500, description="After so many steps, and at the end.")
    documents: Positive | None = Field(default=1000, description="The first so many; null: all.")


class WandbConfig(Section):
    """Weights & Biases; `pip install wandb`, and WANDB_MODE=offline where there is no network."""

    project: str = Field(description="Name of the project.")
    name: str | None = Field(default=None, description="Name of the run; null: run_dir.")


class MetricsConfig(Section):
    """An endpoint for Prometheus on every rank (docs/watching.md)."""

    port: int = Field(
        default=9465,
        ge=1,
        le=65_000,
        description="Of a machine's first rank; the others have the next ones.",
    )
    host: str = Field(
        default="127.0.0.1",
        description="Address it answers on: this machine alone; 0.0.0.0 lets others ask, who need no password.",
    )


class WatchConfig(Section):
    """What is looked at while the run goes on."""

    every_steps: Positive = Field(
        default=10, description="A line in log.jsonl, TensorBoard and on the terminal."
    )
    tensorboard: bool = Field(default=True, description="Write run_dir/tensorboard.")
    wandb: WandbConfig | None = Field(default=None, description="Also log to Weights & Biases.")
    metrics: MetricsConfig | None = Field(
        default=None, description="Also answer Prometheus; {} on the usual port."
    )
    peak_tflops: float | None = Field(
        default=None,
        gt=0,
        description="Dense TFLOP/s of a device in the precision of compute, which MFU is a share of; null: by the "
        "device's name where NVIDIA's data sheet is known, else no MFU is told.",
    )
    gc_every_steps: Positive | None = Field(
        default=50,
        description="Python's garbage is collected then, on all ranks at once; null: whenever Python likes.",
    )
    profile_steps: tuple[int, int] | None = Field(
        default=None,
        description="First and last step of a trace of every rank, in run_dir/profile.",
    )
    memory_snapshot: bool = Field(
        default=False,
        description="CUDA: write run_dir/memory-rank*.pickle when memory runs out, and at the end.",
    )


class ProcessConfig(Section):
    """Ranks and their waiting for one another."""

    start_timeout_s: Positive = Field(
        default=900, description="For the first step: compiling, opening datasets."
    )
    step_timeout_s: Positive = Field(
        default=180, description="Afterwards: a rank that is gone is noticed by then."
    )


class TrainConfig(Section):
    """A training run."""

    run_dir: str = Field(
        default="runs/{config}",
        description="Folder of the run; {config} is this file's name without .yaml.",
    )
    steps: Positive = Field(description="Steps of the optimizer.")
    seed: int = Field(default=0, ge=0, lt=2**63, description="Of the weights.")
    model: ModelConfig = Field(default=ModelConfig(), description="The decoder.")
    lora: LoraConfig | None = Field(
        default=None, description="Train adapters, not the weights themselves."
    )
    data: DataConfig = Field(description="What is trained on.")
    parallel: ParallelConfig = Field(
        default=ParallelConfig(), description="How the model lies over the ranks."
    )
    precision: PrecisionConfig = Field(
        default=PrecisionConfig(), description="Numbers and kernels."
    )
    optimizer: OptimizerConfig = Field(
        default=OptimizerConfig(), description="AdamW and its learning rate."
    )
    guard: GuardConfig = Field(default=GuardConfig(), description="Against bad steps.")
    checkpoint: CheckpointConfig = Field(default=CheckpointConfig(), description="Saving.")
    validation: ValidationConfig | None = Field(
        default=None, description="Loss on held-out documents; null: none."
    )
    watch: WatchConfig = Field(default=WatchConfig(), description="Logs, traces, garbage.")
    process: ProcessConfig = Field(default=ProcessConfig(), description="Ranks and time-outs.")

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        float8, tensor = self.precision.float8, self.parallel.tensor
        faults = [
            (
                self.lora is not None and tensor > 1,
                f"lora does not go with parallel.tensor {tensor}; use zero3",
            ),
            (
                self.lora is not None and float8 != "none",
                f"lora does not go with precision.float8 {float8}; use none",
            ),
            (
                float8 != "none" and tensor > 1,
                f"precision.float8 {float8} does not go with parallel.tensor {tensor}",
            ),
        ]
        if found := [message for is_fault, message in faults if is_fault]:
            raise ValueError("; ".join(found))
        return self


def load(path_or_name: str, overrides: Sequence[str] = ()) -> TrainConfig:
    """The config of that file or name, checked; overrides are `key.of.key=value`.

    Raises:
        ConfigError: with every fault there is.
    """
    return read(TrainConfig, path_or_name, overrides)
