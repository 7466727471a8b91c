"""The sections `optimizer` and `anomaly_guard`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from training.config.base import Section, Share


class OptimizerConfig(Section):
    """AdamW (Loshchilov and Hutter 2019) or Muon (Jordan et al. 2024), and the learning rate."""

    algorithm: Literal["adamw", "muon"] = Field(
        default="adamw",
        description="muon: Muon for the matrices of the blocks, AdamW for the rest. Its updates "
        "are scaled to the size of AdamW's, so the other keys keep their values (Liu et al. 2025).",
    )
    learning_rate: float = Field(default=3e-4, gt=0, description="Peak learning rate.")
    betas: tuple[Share, Share] = Field(
        default=(0.9, 0.95), description="Decay of the two moments (Llama: 0.9, 0.95)."
    )
    weight_decay: float = Field(
        default=0.1,
        ge=0,
        description="Weight decay of matrices; norms have none (Llama: 0.1).",
    )
    max_grad_norm: float = Field(
        default=1.0, gt=0, description="Gradients are clipped to this norm (Llama: 1.0)."
    )
    z_loss: float = Field(
        default=0.0,
        ge=0,
        description="Weight of a loss that keeps the sum of exp(logits) near 1 (PaLM: 1e-4). The "
        "losses that are logged do not contain it.",
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

    on_bad_step: Literal["skip", "rewind", "stop"] = Field(
        default="skip",
        description="skip: leave the parameters unchanged and count it. rewind: return to the "
        "newest checkpoint and leave out the rows since then (Chowdhery et al. 2022, section 5.1). "
        "stop: end. A run ends after 10 bad steps in a row, or at a bad step after 3 rewinds to the "
        "same checkpoint.",
    )
    spike_factor: float | None = Field(
        default=None,
        gt=1,
        description="A gradient norm above this multiple of its running mean is bad too. null: "
        "off.",
    )
