"""A decoder with the architecture of Llama 3: RMSNorm, RoPE, grouped-query attention, SwiGLU.

With `qk_norm` it is that of Qwen3. Parameters have the names of transformers' LlamaForCausalLM
or Qwen3ForCausalLM, without their "model." prefix.

Shapes: B rows, T tokens, D width, H query heads, K key/value heads, C head width, V vocabulary.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.utils.checkpoint import checkpoint

from training.config import ModelConfig
from training.model.attention import AttentionMask, RopeTable, attend, make_rope_table
from training.model.loss import chunked_cross_entropy


class TokenSharing(Protocol):
    """Ranks that share the tokens of each row (training/parallel/context_parallel.py)."""

    def take_tokens(self, values: Tensor, dim: int) -> Tensor:
        """Return this rank's part of the tokens."""
        ...

    def gather_tokens(self, values: Tensor, dim: int) -> Tensor:
        """Return the parts of all ranks, without gradient."""
        ...

    def attend(
        self, query_BTHC: Tensor, key_BTKC: Tensor, value_BTKC: Tensor, mask: AttentionMask
    ) -> Tensor:
        """Return the attention output of this rank's tokens."""
        ...


class Attention(nn.Module):
    """Causal grouped-query attention, within documents if the mask says so.

    Attributes:
        sharing: ranks that share the tokens of each row, with context parallelism.
    """

    sharing: TokenSharing | None = None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(config.dim, config.num_heads * config.head_dim, bias=False)
        self.k_proj = nn.Linear(
            config.dim, config.num_kv_heads * config.head_dim, bias=False
        )
        self.v_proj = nn.Linear(
            config.dim, config.num_kv_heads * config.head_dim, bias=False
        )
        self.o_proj = nn.Linear(config.num_heads * config.head_dim, config.dim, bias=False)
        self.q_norm: nn.RMSNorm | None = None
        self.k_norm: nn.RMSNorm | None = None
        if config.qk_norm:
            self.q_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps)
            self.k_norm = nn.RMSNorm(config.head_dim, eps=config.norm_eps)

    def forward(self, hidden_BTD: Tensor, rope: RopeTable, mask: AttentionMask) -> Tensor:
        """Map (B, T, D) to (B, T, D). With tensor parallelism the heads are this rank's."""
        # -1: a tensor-parallel rank has only a share of the heads.
        query_BTHC = self.q_proj(hidden_BTD).unflatten(-1, (-1, self.head_dim))
        key_BTKC = self.k_proj(hidden_BTD).unflatten(-1, (-1, self.head_dim))
        value_BTKC = self.v_proj(hidden_BTD).unflatten(-1, (-1, self.head_dim))
        if self.q_norm is not None and self.k_norm is not None:
            query_BTHC = _normalize(query_BTHC, self.q_norm)
            key_BTKC = _normalize(key_BTKC, self.k_norm)
        compute = attend if self.sharing is None else self.sharing.attend
        attended = compute(rope.rotate(query_BTHC), rope.rotate(key_BTKC), value_BTKC, mask)
        return self.o_proj(attended.flatten(2))


def _normalize(heads_BTHC: Tensor, norm: nn.RMSNorm) -> Tensor:
    """Return heads of mean square 1, times the norm's weight, in the dtype of the heads."""
    # Under autocast the heads are bf16 and the weight is fp32, and RMSNorm needs one dtype.
    return norm(heads_BTHC.to(norm.weight.dtype)).to(heads_BTHC.dtype)


class FeedForward(nn.Module):
    """SwiGLU (Shazeer 2020)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.up_proj = nn.Linear(config.dim, config.ffn_dim, bias=False)
        self.down_proj = nn.Linear(config.ffn_dim, config.dim, bias=False)

    def forward(self, hidden_BTD: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        # (B, T, F); with tensor parallelism, F is this rank's share
        gate = nn.functional.silu(self.gate_proj(hidden_BTD))
        return self.down_proj(gate * self.up_proj(hidden_BTD))


class Block(nn.Module):
    """One layer: attention and feed-forward, each with a norm before it and a residual around it.

    Attributes:
        forward_fn: called by `forward`. `parallelize` may replace it by a compiled or offloading
            version of `forward_with_checkpointing`.
        checkpoint_args: arguments of torch.utils.checkpoint; None stores all activations.
    """

    forward_fn: Callable[[Tensor, RopeTable, AttentionMask], Tensor]
    checkpoint_args: dict[str, Any] | None = None

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.mlp = FeedForward(config)
        self.forward_fn = self.forward_with_checkpointing

    def forward(self, hidden_BTD: Tensor, rope: RopeTable, mask: AttentionMask) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        return self.forward_fn(hidden_BTD, rope, mask)

    def forward_with_checkpointing(
        self, hidden_BTD: Tensor, rope: RopeTable, mask: AttentionMask
    ) -> Tensor:
        """Run the layer, with activation checkpointing if it is on. This function is compiled.

        It is a method, not a closure per block: torch.compile caches by code object, and all
        blocks then share one compilation.
        """
        if self.checkpoint_args is None:
            return self.forward_plain(hidden_BTD, rope, mask)
        return checkpoint(
            self.forward_plain, hidden_BTD, rope, mask, **self.checkpoint_args
        )

    def forward_plain(
        self, hidden_BTD: Tensor, rope: RopeTable, mask: AttentionMask
    ) -> Tensor:
        """Run the layer."""
        hidden_BTD = hidden_BTD + self.self_attn(
            self.input_layernorm(hidden_BTD), rope, mask
        )
        # The norms are inside the residual branches (pre-norm), so the stream itself is never
        # normalized.
        return hidden_BTD + self.mlp(self.post_attention_layernorm(hidden_BTD))


class Head(nn.Linear):
    """The output matrix and the loss, which is computed in chunks of tokens."""

    chunk_tokens = 4096
    z_loss = 0.0
    is_loss_compiled = False

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, hidden_BTD: Tensor, labels_BT: Tensor | None = None
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return (loss sum, loss per token (B * T,)); without labels, logits (B, T, V)."""
        # The local shard and its process group, if the vocabulary is sharded over ranks.
        weight, group = self.weight, None
        if isinstance(weight, DTensor):
            # Loss parallel: every rank needs all tokens, but only its rows of the vocabulary. The
            # gradient of the hidden states is this rank's share, hence Partial.
            group = weight.device_mesh.get_group()
            sharded_BTD: Any = hidden_BTD
            whole_BTD = sharded_BTD.redistribute(placements=[Replicate()])
            hidden_BTD = whole_BTD.to_local(grad_placements=[Partial()])
            weight = weight.to_local()
        if torch.is_autocast_enabled(hidden_BTD.device.type):
            # Autocast does not reach into a custom autograd function.
            dtype = torch.get_autocast_dtype(hidden_BTD.device.type)
            hidden_BTD, weight = hidden_BTD.to(dtype), weight.to(dtype)
        if labels_BT is None:
            return nn.functional.linear(hidden_BTD, weight)
        return chunked_cross_entropy(
            hidden_BTD.flatten(0, 1),
            weight,
            labels_BT.flatten(),
            chunk_tokens=self.chunk_tokens,
            z_loss=self.z_loss,
            group=group,
            is_compiled=self.is_loss_compiled,
        )


class Decoder(nn.Module):
    """The whole model: embedding, blocks, final norm and head.

    Attributes:
        sharing: ranks that share the tokens of each row. Each is given whole rows, and computes
            its part of the tokens.
    """

    sharing: TokenSharing | None = None

    def __init__(self, config: ModelConfig, vocab_size: int) -> None:
        super().__init__()
        self.config = config
        self.embed_tokens = nn.Embedding(vocab_size, config.dim)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.num_layers))
        self.norm = nn.RMSNorm(config.dim, eps=config.norm_eps)
        self.lm_head = Head(config.dim, vocab_size, bias=False)
        self.tie_weights()
        # Not a buffer: the table is cheap to compute, and must not be in checkpoints.
        self._rope: RopeTable | None = None

    def tie_weights(self) -> None:
        """Let the head use the matrix of the embedding, if configured. It keeps that name."""
        if self.config.tie_embeddings:
            self.lm_head.weight = self.embed_tokens.weight

    def forward(
        self, input_ids_BT: Tensor, labels_BT: Tensor | None, mask: AttentionMask
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return (loss sum, loss per token (B * T,)); without labels, logits (B, T, V).

        With shared rows, the sum and its gradients are of this rank's tokens, and so are losses
        and logits in training. Without gradients, they are of whole rows.
        """
        if self.sharing is not None:
            return self._forward_part(input_ids_BT, labels_BT, mask, self.sharing)
        return self._forward_tokens(
            input_ids_BT, labels_BT, mask, self._get_rope(input_ids_BT)
        )

    def _forward_part(
        self,
        input_ids_BT: Tensor,
        labels_BT: Tensor | None,
        mask: AttentionMask,
        sharing: TokenSharing,
    ) -> Tensor | tuple[Tensor, Tensor]:
        rope = self._get_rope(input_ids_BT)
        own_rope = RopeTable(
            sharing.take_tokens(rope.cos, 0), sharing.take_tokens(rope.sin, 0)
        )
        own_ids = sharing.take_tokens(input_ids_BT, 1)
        own_labels = None if labels_BT is None else sharing.take_tokens(labels_BT, 1)
        output = self._forward_tokens(own_ids, own_labels, mask, own_rope)
        if torch.is_grad_enabled():
            return output
        if isinstance(output, Tensor):
            return sharing.gather_tokens(output, 1)
        total, losses = output
        whole_BT = sharing.gather_tokens(losses.unflatten(0, own_ids.shape), 1)
        return total, whole_BT.flatten()

    def _forward_tokens(
        self,
        input_ids_BT: Tensor,
        labels_BT: Tensor | None,
        mask: AttentionMask,
        rope: RopeTable,
    ) -> Tensor | tuple[Tensor, Tensor]:
        hidden_BTD = self.embed_tokens(input_ids_BT)
        if isinstance(hidden_BTD, DTensor):
            # Sequence parallel: from here on, T is this rank's share of the tokens.
            # The copy waits for the reduction. A tensor that is still awaited gets no gradient from
            # a compiled block with torch 2.13, and the embedding would not be trained.
            hidden_BTD = hidden_BTD.to_local().clone()
        for block in self.layers:
            hidden_BTD = block(hidden_BTD, rope, mask)
        return self.lm_head(self.norm(hidden_BTD), labels_BT)

    def _get_rope(self, input_ids_BT: Tensor) -> RopeTable:
        """Return the cached table, or make one for a new row length or device."""
        seq_len, device = input_ids_BT.shape[1], input_ids_BT.device
        rope = self._rope
        if rope is None or len(rope.cos) != seq_len or rope.cos.device != device:
            rope = self._rope = make_rope_table(self.config, seq_len, device)
        return rope


# ---- initial weights ----

# They depend only on the seed and the name of each parameter, which has a separate random generator:
# not on the number of ranks or on the order of creation. A model can therefore be built on the meta
# device and filled parameter by parameter.


def init_parameter(name: str, parameter: Tensor, config: ModelConfig, seed: int) -> None:
    """Fill a whole (unsharded) parameter, in place: ones for norms, else normal numbers.

    Projections into the residual stream get a standard deviation that is smaller by
    sqrt(2 * num_layers) (Radford et al. 2019, section 2.3).
    """
    # The weights of RMSNorm are the only vectors; linear layers have no bias.
    if parameter.ndim == 1:
        parameter.fill_(1.0)
        return
    std = config.init_std
    if name.endswith(("o_proj.weight", "down_proj.weight")):
        std = config.init_std / math.sqrt(2 * config.num_layers)
    init_normal(name, parameter, std, seed)


def init_normal(name: str, parameter: Tensor, std: float, seed: int) -> None:
    """Fill a parameter with normal numbers from a generator seeded by (seed, name).

    CPU and CUDA generators give different numbers for the same seed.
    """
    # A hash of the name, not a counter: adding a layer or an adapter leaves other weights
    # unchanged. Python's hash() differs between processes.
    digest = hashlib.blake2b(f"{seed} {name}".encode(), digest_size=8).digest()
    # manual_seed takes 63 bits.
    generator = torch.Generator(parameter.device).manual_seed(int.from_bytes(digest) >> 1)
    parameter.normal_(std=std, generator=generator)
