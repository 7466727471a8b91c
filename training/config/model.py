"""The section `model`: the shape of the decoder, and adapters instead of all weights."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from training.config.base import Positive, Section


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
    qk_norm: bool = Field(
        default=False,
        description="RMSNorm of each query and key head before RoPE, as in Qwen3. It keeps the "
        "logits of attention small at high learning rates.",
    )
    tie_embeddings: bool = Field(
        default=False,
        description="Embedding and output share one matrix, as in Llama 3.2 1B.",
    )
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
