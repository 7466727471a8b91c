"""The bare limit: Llama's shape in plain torch, trained by the shortest loop that is no worse for it (nanoGPT's).

Causal SDPA over whole rows, the whole model under torch.compile, bf16 autocast over fp32 weights, fused AdamW,
gradients clipped. No FSDP, no loader (a few batches, drawn as the dataset's tokens are, lie on the device), no log, no
checkpoints; losses are never looked at, so nothing waits for the device within a round.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

# Batches in memory, which are repeated.
NUM_BATCHES = 4


def rotate(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = heads.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(
        heads.dtype
    )


class Block(nn.Module):
    """Attention and SwiGLU, each with a norm before it."""

    def __init__(self, shape: Mapping[str, int]) -> None:
        super().__init__()
        dim, ffn_dim = shape["dim"], shape["ffn_dim"]
        self.head_dim = dim // shape["num_heads"]
        kv_dim = self.head_dim * shape["num_kv_heads"]
        self.splits = (dim, kv_dim, kv_dim)
        self.attention_norm, self.ffn_norm = (
            nn.RMSNorm(dim, eps=1e-5),
            nn.RMSNorm(dim, eps=1e-5),
        )
        self.qkv = nn.Linear(dim, sum(self.splits), bias=False)
        self.out = nn.Linear(dim, dim, bias=False)
        self.gate_up = nn.Linear(dim, 2 * ffn_dim, bias=False)
        self.down = nn.Linear(ffn_dim, dim, bias=False)

    def forward(self, hidden: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """(B, T, D) to the same."""
        parts = self.qkv(self.attention_norm(hidden)).split(self.splits, dim=-1)
        query, key, value = (
            part.unflatten(-1, (-1, self.head_dim)).transpose(1, 2) for part in parts
        )
        query, key = rotate(query, cos, sin), rotate(key, cos, sin)
        attended = scaled_dot_product_attention(
            query, key, value, is_causal=True, enable_gqa=True
        )
        hidden = hidden + self.out(attended.transpose(1, 2).flatten(2))
        gate, up = self.gate_up(self.ffn_norm(hidden)).chunk(2, dim=-1)
        return hidden + self.down(silu(gate) * up)


class Model(nn.Module):
    """The decoder and its loss."""

    def __init__(self, shape: Mapping[str, int], vocab_size: int, seq_len: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, shape["dim"])
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape["num_layers"]))
        self.norm = nn.RMSNorm(shape["dim"], eps=1e-5)
        self.head = nn.Linear(shape["dim"], vocab_size, bias=False)
        head_dim = shape["dim"] // shape["num_heads"]
        frequencies = 500_000.0 ** -(torch.arange(0, head_dim, 2).float() / head_dim)
        angles = torch.outer(torch.arange(seq_len).float(), frequencies)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())
        for parameter in self.parameters():
            if parameter.ndim > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """The mean loss."""
        hidden = self.embedding(tokens)
        for block in self.blocks:
            hidden = block(hidden, self.cos, self.sin)
        return cross_entropy(
            self.head(self.norm(hidden)).flatten(0, 1).float(), labels.flatten()
        )


def draw_token_batches(spec: Mapping[str, Any]) -> Tensor:
    """Return (NUM_BATCHES, B, T + 1) int64 ids by Zipf's law; the last column is only a label."""
    shape = (NUM_BATCHES, spec["micro_batch_rows"], spec["seq_len"] + 1)
    drawn = np.random.default_rng(2).zipf(1.2, shape)
    return torch.from_numpy(np.minimum(drawn, spec["vocab_size"] - 1).astype(np.int64))


class Bare:
    """Model, optimizer and batches of the bare loop."""

    def __init__(self, spec: Mapping[str, Any]) -> None:
        cuda = torch.cuda.is_available()
        self.device = torch.device("cuda" if cuda else "cpu")
        rows, seq_len, vocab_size = (
            spec["micro_batch_rows"],
            spec["seq_len"],
            spec["vocab_size"],
        )
        self.micro_batches = spec["global_batch_rows"] // rows
        self.tokens_per_step = spec["global_batch_rows"] * seq_len
        torch.manual_seed(0)
        with self.device:
            self.model = Model(spec["shape"], vocab_size, seq_len)
        self.compiled = torch.compile(self.model) if spec["compile"] else self.model
        matrices = [p for p in self.model.parameters() if p.ndim > 1]
        others = [p for p in self.model.parameters() if p.ndim <= 1]
        groups = [
            {"params": matrices, "weight_decay": 0.1},
            {"params": others, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)
        self.batches = draw_token_batches(spec).to(self.device)
        self.position = 0

    def run(self, steps: int) -> dict[str, Any]:
        """Return speed and step times of a round, without its first step."""
        self._step()
        self._synchronize()
        began = time.perf_counter()
        for _ in range(steps):
            self._step()
        self._synchronize()
        seconds = time.perf_counter() - began
        return {
            "tokens_per_s": steps * self.tokens_per_step / seconds,
            "step_s": [seconds / steps] * steps,
        }

    def close(self) -> None:
        """Do nothing; the process frees the memory."""

    def _step(self) -> None:
        for _ in range(self.micro_batches):
            batch = self.batches[self.position % len(self.batches)]
            self.position += 1
            with torch.autocast(self.device.type, torch.bfloat16):
                loss = self.compiled(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
            (loss / self.micro_batches).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
