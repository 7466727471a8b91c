"""The bare limit: Llama's shape in plain torch, trained by the shortest loop that is no worse for it (nanoGPT's).

Causal SDPA over whole rows, the whole model under torch.compile, bf16 autocast over fp32 weights, fused AdamW,
gradients clipped. No FSDP, no loader (a few batches, drawn as the dataset's tokens are, lie on the device), no log, no
checkpoints; losses are never looked at, so nothing waits for the device within a round.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention, silu

from benchmarks.training.cases import Case
from benchmarks.training.entrants import measure_rounds, time_steps

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


def draw_token_batches(case: Case) -> Tensor:
    """Return (NUM_BATCHES, B, T + 1) int64 ids by Zipf's law; the last column is only a label."""
    shape = (NUM_BATCHES, case.micro_batch_rows, case.seq_len + 1)
    drawn = np.random.default_rng(2).zipf(1.2, shape)
    return torch.from_numpy(np.minimum(drawn, case.size.vocab_size - 1).astype(np.int64))


def measure_bare(case: Case) -> dict[str, Any]:
    """Measure the bare loop."""
    began = time.perf_counter()
    size = case.size
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    with device:
        model = Model(size.shape, size.vocab_size, case.seq_len)
    compiled = torch.compile(model) if size.compile else model
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in model.parameters() if p.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), fused=True)
    batches = itertools.cycle(draw_token_batches(case).to(device))

    def step() -> None:
        for batch in itertools.islice(batches, size.micro_batches):
            with torch.autocast(device.type, torch.bfloat16):
                loss = compiled(batch[:, :-1].contiguous(), batch[:, 1:].contiguous())
            (loss / size.micro_batches).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return measure_rounds(case, functools.partial(time_steps, case, step), began)
