"""Low-rank adapters on the blocks' linear layers (Hu et al. 2021): W x + alpha / rank * B (A x); W stays as it is.

Promises: an untrained adapter changes nothing (B is 0); only A and B get gradients and optimizer state; `merge` gives
weights as if the whole matrix had been trained.
Leaves to others: sharding (parallel.py treats them as any parameter), files (hugging_face.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from training.config import LoraConfig
from training.model.decoder import Decoder, draw_normal
from training.parallel.distributed import IncompatibleConfig

A, B = "lora_a", "lora_b"


class LoraLinear(nn.Linear):
    """A linear layer with an adapter; its own matrix keeps its name."""

    def __init__(self, linear: nn.Linear, config: LoraConfig) -> None:
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight = linear.weight.requires_grad_(False)
        device = linear.weight.device
        self.lora_a = nn.Parameter(torch.empty(config.rank, linear.in_features, device=device))
        self.lora_b = nn.Parameter(torch.empty(linear.out_features, config.rank, device=device))
        self.scale = config.alpha / config.rank

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """(..., in) to (..., out)."""
        low = nn.functional.linear(input, self.lora_a)
        return super().forward(input) + self.scale * nn.functional.linear(low, self.lora_b)


def add_adapters(model: Decoder, config: LoraConfig) -> None:
    """Give the targets of every block an adapter, its matrices still to be drawn, and freeze all else.

    Raises:
        IncompatibleConfig: no target, or one that no block has.
    """
    if not config.targets:
        raise IncompatibleConfig(
            "lora.targets is empty: nothing would be trained; name some, or leave the key out for all"
        )
    model.requires_grad_(False)
    for block in model.layers:
        linears = {
            name: module for name, module in block.named_modules() if isinstance(module, nn.Linear)
        }
        known = {name.rpartition(".")[2] for name in linears}
        if unknown := sorted(set(config.targets) - known):
            raise IncompatibleConfig(
                f"lora.targets has {unknown}, which no block has; there are {sorted(known)}"
            )
        for name, linear in linears.items():
            if name.rpartition(".")[2] in config.targets:
                block.set_submodule(name, LoraLinear(linear, config))


def is_adapter(name: str) -> bool:
    """Whether a parameter of that name belongs to an adapter."""
    return name.endswith((f".{A}", f".{B}"))


def draw(name: str, parameter: Tensor, seed: int) -> None:
    """Fill an adapter's matrix, in place: A normal, as wide as nn.Linear draws its own, B with 0."""
    if name.endswith(B):
        parameter.zero_()
    else:
        draw_normal(name, parameter, 1 / math.sqrt(3 * parameter.shape[1]), seed)


def merge(weights: Mapping[str, Tensor], config: LoraConfig) -> dict[str, Tensor]:
    """Whole weights without adapters, by their names; fp32, of a checkpoint with adapters."""
    merged = {name: weight for name, weight in weights.items() if not is_adapter(name)}
    for name in weights:
        if name.endswith(f".{A}"):
            layer = name.removesuffix(f".{A}")
            update = weights[f"{layer}.{B}"].float() @ weights[name].float()
            merged[f"{layer}.weight"] = (
                merged[f"{layer}.weight"].float() + config.alpha / config.rank * update
            )
    return merged
