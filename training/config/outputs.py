"""The sections `checkpoint`, `observability`, `validation` and `tasks`: what a run writes and measures."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from training.config.base import Positive, Section


class CheckpointConfig(Section):
    """Checkpoints, in run_dir/checkpoints/step-00000100."""

    every_steps: Positive | None = Field(
        default=500,
        description="Steps between checkpoints. One is also saved at the end. null: none at all.",
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
    wandb: str | None = Field(
        default=None,
        description="Log to this project of Weights & Biases too, as a run with the name of "
        "run_dir; needs `pip install wandb`. WANDB_MODE=offline needs no network.",
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

    @field_validator("profile_steps")
    @classmethod
    def _check_profile_steps(cls, value: tuple[int, int] | None) -> tuple[int, int] | None:
        if value is not None and not 1 <= value[0] <= value[1]:
            raise ValueError(
                f"profile_steps is [{value[0]}, {value[1]}], must be a first step from 1 and a last "
                f"step that is not before it, such as [10, 12]"
            )
        return value


class ValidationConfig(Section):
    """Loss on held-out documents, in total, by language and by bucket.

    With data.tokenizer also bits per byte.
    """

    manifest: str = Field(description="Path or address of the held-out dataset.")
    every_steps: Positive = Field(
        default=500, description="Steps between validations. One also runs at the end."
    )
    documents: Positive | None = Field(
        default=1000, description="Number of documents to use, from the first. null: all."
    )


class TasksConfig(Section):
    """Accuracy on multiple-choice tasks, by the likelihood of the endings; needs data.tokenizer."""

    files: dict[str, str | None] = Field(
        min_length=1,
        description="Tasks by name, with a JSON-lines file of {query, choices, gold} for each. "
        "null downloads it: hellaswag, arc_easy, arc_challenge, piqa.",
    )
    every_steps: Positive = Field(
        default=1000, description="Steps between evaluations. One also runs at the end."
    )
    max_questions: Positive | None = Field(
        default=1000, description="Number of questions per task, from the first. null: all."
    )
