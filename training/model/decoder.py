"""One plain decoder in Llama 3's shape: RMSNorm, rotary embedding, grouped-query attention, SwiGLU.

Promises: parameters are named as transformers' LlamaForCausalLM names them (behind its "model."), so weights move in
and out unchanged; weights depend on their name and the seed alone, not on ranks, and are drawn where and when they are
wanted (`draw`), so a model can be built on the meta device. `forward` gives a loss, never logits of a whole batch.
Leaves to others: how it lies over ranks, what is computed again or compiled (parallel.py sets `Block.compute`).

Shapes: B rows, T tokens, D width, H query heads, K key heads, C width of a head, V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.utils.checkpoint import checkpoint

from training.config import ModelConfig, RopeScaling
from training.model.attention import Mask, attend
from training.model.loss import cross_entropy

VOCAB_MULTIPLE = 128
"""Rows of the output matrix that a tensor core's tile and any sensible number of ranks divide."""


@dataclass(frozen=True)
class Rope:
    """Cosines and sines, (T, C) fp32, of each position's angles; halves are rotated, as transformers does."""

    cos: Tensor
    sin: Tensor

    def rotate(self, heads_BTHC: Tensor) -> Tensor:
        """The same, turned by the positions' angles."""
        first, second = heads_BTHC.float().chunk(2, dim=-1)
        turned = torch.cat([-second, first], dim=-1)
        cos, sin = self.cos[:, None, :], self.sin[:, None, :]
        return (heads_BTHC * cos + turned * sin).to(heads_BTHC.dtype)


def make_rope(config: ModelConfig, seq_len: int, device: torch.device) -> Rope:
    """Angles of positions 0..seq_len-1 (Su et al. 2021)."""
    exponents = (
        torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float32) / config.head_dim
    )
    frequencies = 1.0 / config.rope_theta**exponents
    if config.rope_scaling is not None:
        frequencies = _stretched(frequencies, config.rope_scaling)
    angles = torch.outer(torch.arange(seq_len, device=device, dtype=torch.float32), frequencies)
    angles = torch.cat([angles, angles], dim=-1)  # (T, C)
    return Rope(angles.cos(), angles.sin())


def _stretched(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Low frequencies divided by the factor, high ones kept, a slope between (transformers' `llama3`)."""
    turns = scaling.original_seq_len * frequencies / (2 * math.pi)
    slope = (turns - scaling.low_freq_factor) / (scaling.high_freq_factor - scaling.low_freq_factor)
    kept = slope.clamp(0, 1)
    return frequencies * kept + frequencies / scaling.factor * (1 - kept)


class Attention(nn.Module):
    """Grouped-query attention, causal, within documents where the mask says so."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(config.dim, config.num_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(config.dim, config.num_kv_heads * config.head_dim, bias=False)
        self.v_proj = nn.Linear(config.dim, config.num_kv_heads * config.head_dim, bias=False)
        self.o_proj = nn.Linear(config.num_heads * config.head_dim, config.dim, bias=False)

    def forward(self, hidden_BTD: Tensor, rope: Rope, mask: Mask) -> Tensor:
        """(B, T, D) to the same; with tensor parallelism these are this rank's heads."""
        parts = (self.q_proj(hidden_BTD), self.k_proj(hidden_BTD), self.v_proj(hidden_BTD))
        query, key, value = (
            part.unflatten(-1, (-1, self.head_dim)) for part in parts
        )  # (B, T, heads, C)
        attended = attend(rope.rotate(query), rope.rotate(key), value, mask)
        return self.o_proj(attended.flatten(2))


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.up_proj = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.down_proj = nn.Linear(config.ffn_dim, config.dim, bias=False)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """(B, T, D) to the same."""
        return self.down_proj(
            nn.functional.silu(self.gate_proj(hidden_BTD)) * self.up_proj(hidden_BTD)
        )


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and beside the residual stream."""

    compute: Callable[[Tensor, Rope, Mask], Tensor]
    checkpointing: dict[str, Any] | None = None
    """Arguments of torch.utils.checkpoint, where backward computes the block again."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.mlp = FeedForward(config)
        self.compute = self.run

    def forward(self, hidden_BTD: Tensor, rope: Rope, mask: Mask) -> Tensor:
        """(B, T, D) to the same, by `compute`: `run`, or that compiled or with activations offloaded."""
        return self.compute(hidden_BTD, rope, mask)

    def run(self, hidden_BTD: Tensor, rope: Rope, mask: Mask) -> Tensor:
        """What is compiled. A method, as torch.compile knows all blocks by its code and so compiles but the first."""
        if self.checkpointing is None:
            return self.plain(hidden_BTD, rope, mask)
        return checkpoint(self.plain, hidden_BTD, rope, mask, **self.checkpointing)

    def plain(self, hidden_BTD: Tensor, rope: Rope, mask: Mask) -> Tensor:
        """What a block computes."""
        hidden_BTD = hidden_BTD + self.self_attn(self.input_layernorm(hidden_BTD), rope, mask)
        return hidden_BTD + self.mlp(self.post_attention_layernorm(hidden_BTD))


class Head(nn.Linear):
    """The output matrix, and the loss made with it in chunks."""

    chunk_tokens = 4096

    def forward(
        self, hidden_BTD: Tensor, labels_BT: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """(sum of the loss, loss per token (B * T,)); without labels, logits (B, T, V)."""
        weight, group = self.weight, None
        if isinstance(
            weight, DTensor
        ):  # cut over the vocabulary: every rank sees all tokens and its own columns
            group = weight.device_mesh.get_group()
            hidden_BTD = hidden_BTD.redistribute(placements=[Replicate()])  # pyright: ignore[reportAttributeAccessIssue]
            hidden_BTD = hidden_BTD.to_local(grad_placements=[Partial()])  # pyright: ignore[reportAttributeAccessIssue]
            weight = weight.to_local()
        if torch.is_autocast_enabled(hidden_BTD.device.type):
            dtype = torch.get_autocast_dtype(hidden_BTD.device.type)
            hidden_BTD, weight = hidden_BTD.to(dtype), weight.to(dtype)
        if labels_BT is None:
            return nn.functional.linear(hidden_BTD, weight)
        return cross_entropy(
            hidden_BTD.flatten(0, 1),
            weight,
            labels_BT.flatten(),
            chunk_tokens=self.chunk_tokens,
            group=group,
        )


class Decoder(nn.Module):
    """The whole model."""

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(vocab_size, config.dim)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.lm_head = Head(config.dim, vocab_size, bias=False)
        self._rope: Rope | None = None

    def forward(
        self, input_ids_BT: Tensor, labels_BT: Tensor | None, mask: Mask
    ) -> Tensor | tuple[Tensor, Tensor]:
        """What `Head.forward` gives: a loss where there are labels, else logits."""
        rope = self._rope_of(input_ids_BT)
        hidden_BTD = self.embed_tokens(input_ids_BT)
        if isinstance(hidden_BTD, DTensor):  # tensor parallel: this rank's tokens
            hidden_BTD = hidden_BTD.to_local()
        for block in self.layers:
            hidden_BTD = block(hidden_BTD, rope, mask)
        return self.lm_head(self.norm(hidden_BTD), labels_BT)

    def _rope_of(self, input_ids_BT: Tensor) -> Rope:
        seq_len = input_ids_BT.shape[1]
        if (
            self._rope is None
            or len(self._rope.cos) != seq_len
            or self._rope.cos.device != input_ids_BT.device
        ):
            self._rope = make_rope(self.config, seq_len, input_ids_BT.device)
        return self._rope


def vocab_size_of(config: ModelConfig, tokenizer_vocab_size: int) -> int:
    """Rows of the embedding: as configured, or the tokenizer's, rounded up.

    Raises:
        ValueError: the configured one is too small for the dataset.
    """
    if config.vocab_size is None:
        return math.ceil(tokenizer_vocab_size / VOCAB_MULTIPLE) * VOCAB_MULTIPLE
    if config.vocab_size < tokenizer_vocab_size:
        raise ValueError(
            f"model.vocab_size is {config.vocab_size}, but the dataset's tokenizer has {tokenizer_vocab_size} ids; "
            f"raise it, or give null"
        )
    return config.vocab_size


def draw(name: str, parameter: Tensor, config: ModelConfig, seed: int) -> None:
    """Fill a whole parameter, in place, with what (seed, name) say: normal, or ones for norms.

    Projections into the residual stream are drawn narrower by sqrt(2 layers) (Radford et al. 2019, section 2.3).
    """
    if parameter.ndim == 1:
        parameter.fill_(1.0)
        return
    is_residual = name.endswith(("o_proj.weight", "down_proj.weight"))
    std = config.init_std / math.sqrt(2 * config.num_layers) if is_residual else config.init_std
    draw_normal(name, parameter, std, seed)


def draw_normal(name: str, parameter: Tensor, std: float, seed: int) -> None:
    """Normal numbers that only the name, the seed and the kind of device decide."""
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    generator = torch.Generator(parameter.device).manual_seed(int.from_bytes(digest) >> 1)
    parameter.normal_(std=std, generator=generator)


def num_parameters(config: ModelConfig, vocab_size: int) -> int:
    """Parameters of a model, without building it."""
    attention = config.dim * config.head_dim * 2 * (config.num_heads + config.num_kv_heads)
    block = attention + 3 * config.dim * config.ffn_dim + 2 * config.dim
    return config.num_layers * block + config.dim + 2 * vocab_size * config.dim


def flops_per_token(config: ModelConfig, vocab_size: int, seq_len: int) -> int:
    """Floating-point operations of forward and backward, per token: 6 per matrix weight + 12 L H C T of attention.

    Chowdhery et al. 2022 (PaLM), appendix B: the embedding's look-up does not count, nothing is taken off for the
    causal half of attention, and nothing is added for what is computed again.
    """
    matrices = (
        num_parameters(config, vocab_size)
        - vocab_size * config.dim
        - (2 * config.num_layers + 1) * config.dim
    )
    return 6 * matrices + 12 * config.num_layers * config.dim * seq_len
