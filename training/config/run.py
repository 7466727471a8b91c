"""A whole training config, and how its sections must fit together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

from pydantic import Field, model_validator

from config_files.reader import read
from training.config.base import Positive, Section
from training.config.data import DataConfig
from training.config.model import LoraConfig, ModelConfig
from training.config.optimizer import AnomalyGuardConfig, OptimizerConfig
from training.config.outputs import (
    CheckpointConfig,
    ObservabilityConfig,
    TasksConfig,
    ValidationConfig,
)
from training.config.parallel import ParallelConfig, PrecisionConfig


class AdvancedConfig(Section):
    """Keys that few runs need."""

    start_timeout_s: Positive = Field(
        default=900,
        description="Timeout of collectives in the first step, which compiles and opens datasets.",
    )
    step_timeout_s: Positive = Field(
        default=180,
        description="Timeout of collectives in later steps; a lost rank is noticed after it.",
    )
    eager_connections: bool = Field(
        default=False,
        description="GPUs: NCCL connects all ranks at the start, not in the first collective.",
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
    tasks: TasksConfig | None = Field(
        default=None, description="Multiple-choice tasks. null: none."
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
        if self.data.synthetic and self.model.vocab_size is None:
            faults.append("data.synthetic needs model.vocab_size, such as 50304")
        if self.tasks is not None and self.data.tokenizer is None:
            faults.append("tasks need data.tokenizer, the tokenizer of the dataset")
        if self.parallel.async_tensor and not self.precision.compile:
            faults.append("parallel.async_tensor needs precision.compile")
        faults += self._check_attention()
        faults += self._check_context()
        faults += self._check_muon()
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def _check_attention(self) -> list[str]:
        kernel = self.precision.attention
        faults: list[str] = []
        if kernel != "auto" and self.precision.compute != "bf16":
            faults.append(f"precision.attention {kernel} needs precision.compute bf16")
        if kernel == "cudnn" and self.data.document_masks:
            faults.append("precision.attention cudnn needs data.document_masks false")
        if kernel == "flex" and not self.data.document_masks:
            faults.append("precision.attention flex needs data.document_masks true")
        return faults

    def _check_context(self) -> list[str]:
        context, tensor = self.parallel.context, self.parallel.tensor
        faults: list[str] = []
        for name, number in (
            # Attention over whole rows is divided by heads.
            ("model.num_kv_heads", self.model.num_kv_heads),
            ("model.num_heads", self.model.num_heads),
            ("data.seq_len", self.data.seq_len),
        ):
            if context > 1 and number % (context * tensor):
                faults.append(
                    f"parallel.context {context} x parallel.tensor {tensor} does not divide "
                    f"{name} {number}"
                )
        return faults

    def _check_muon(self) -> list[str]:
        if self.optimizer.algorithm != "muon":
            return []
        faults: list[str] = []
        if self.parallel.strategy == "zero1":
            faults.append(
                "optimizer.algorithm muon needs parallel.strategy ddp, zero2 or zero3"
            )
        if self.parallel.offload != "none":
            faults.append(
                f"optimizer.algorithm muon cannot be combined with parallel.offload "
                f"{self.parallel.offload}: products of matrices on the CPU are slow"
            )
        if self.lora is not None:
            faults.append(
                "optimizer.algorithm muon cannot be combined with lora; use adamw"
            )
        return faults


def load_config(path_or_name: str, overrides: Sequence[str] = ()) -> TrainConfig:
    """Read and check a config file.

    Args:
        path_or_name: a file, or the name of one in configs/.
        overrides: `key.of.key=value`, applied in order.

    Raises:
        ConfigError: with all faults of the file.
    """
    return read(TrainConfig, path_or_name, overrides)
