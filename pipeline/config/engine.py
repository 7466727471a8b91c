"""The `engine` section: how and with which resources tasks run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from stages.settings.base import Settings, Share


class PhaseResources(Settings):
    """What one task of a phase requests from a machine."""

    num_cpus: float | None = Field(
        default=None, ge=0, description="Number of CPUs; null: 1."
    )
    num_gpus: float | None = Field(
        default=None, ge=0, description="Number of GPUs, or a share of one; null: 0."
    )
    memory_mb: int | None = Field(
        default=None, ge=256, description="Memory; null: engine.memory_mb."
    )
    custom: Mapping[str, Annotated[float, Field(ge=0)]] | None = Field(
        default=None,
        description="Resources that the cluster defines, such as {fast_disk: 1}; null: none.",
    )


class EngineAdvanced(Settings):
    """Limits of a task that hardly any run needs to change."""

    batch_mb: float = Field(
        default=8,
        gt=0,
        le=1024,
        description="Size of the batches of text that stages process.",
    )
    max_error_share: Share = Field(
        default=0.01,
        description="A task fails when a stage raises an error on more than this share of its "
        "documents.",
    )
    max_attempts: int = Field(
        default=3,
        ge=1,
        description="How often a task is started when its process dies; lost machines do not count.",
    )


class EngineConfig(Settings):
    """How and with which resources tasks run.

    No key changes a byte of the output, except that documents which exceed `document_timeout_s` are
    left out.
    """

    kind: Literal["auto", "ray", "inline"] = Field(
        default="auto",
        description="ray: on Ray Data, on the cluster of RAY_ADDRESS or on this machine; "
        "inline: in this process, one task after the other; auto: the cluster if RAY_ADDRESS is "
        "set, else by the size of the input: Ray from 64 MB on (WARC files: 320 MB).",
    )
    workers: int | None = Field(
        default=None,
        ge=1,
        description="Number of tasks at a time on this machine; null: one per CPU.",
    )
    memory_mb: int = Field(
        default=2_000,
        ge=256,
        description="Memory that one task may use; partitions are sized for it.",
    )
    document_timeout_s: int | None = Field(
        default=300,
        ge=1,
        description="CPU time that one document may take in one stage, or its text extraction; "
        "then its process is killed, and the task is run again without it. Generous, because "
        "which documents exceed it depends on the machine (docs/decisions/0013). "
        "null: any time.",
    )
    advanced: EngineAdvanced = Field(
        default=EngineAdvanced(), description="Limits that hardly any run needs to change."
    )
    phases: Mapping[str, PhaseResources] = Field(
        default={},
        description="Phase -> what its tasks request, such as {annotate: {memory_mb: 6000}}.",
    )
    metrics_port: int | None = Field(
        default=None,
        ge=1,
        le=65_535,
        description="Port at which Prometheus reads the metrics of a local Ray "
        "(docs/watching.md); null: it collects none. Clusters have their own port.",
    )

    @model_validator(mode="after")
    def _metrics_port_needs_ray(self) -> Self:
        if self.metrics_port is not None and self.kind == "inline":
            raise ValueError(
                f"engine.metrics_port is {self.metrics_port}, but engine.kind is {self.kind}: "
                "the metrics are Ray's; set kind to ray or auto, or metrics_port to null"
            )
        return self

    def get_memory_mb(self, phase: str) -> int:
        """Return the memory that one task of a phase may use (MiB)."""
        section = self.phases.get(phase)
        return (section and section.memory_mb) or self.memory_mb
