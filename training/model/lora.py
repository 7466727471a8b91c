"""Low-rank adapters on the linear layers of the blocks (LoRA; Hu et al. 2021).

A layer computes W x + alpha / rank * B (A x). W is frozen; only A and B get gradients and
optimizer state.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from training.config import LoraConfig
from training.errors import IncompatibleConfig
from training.model.decoder import Decoder, init_normal

# Names of the two matrices in a layer.
A, B = "lora_a", "lora_b"


class LoraLinear(nn.Linear):
    """A linear layer with an adapter. The frozen matrix keeps its parameter name."""

    def __init__(self, linear: nn.Linear, config: LoraConfig) -> None:
        # On the meta device, because the next line replaces the matrix.
        super().__init__(linear.in_features, linear.out_features, bias=False, device="meta")
        self.weight = linear.weight.requires_grad_(False)
        device = linear.weight.device
        self.lora_a = nn.Parameter(
            torch.empty(config.rank, linear.in_features, device=device)
        )
        self.lora_b = nn.Parameter(
            torch.empty(linear.out_features, config.rank, device=device)
        )
        self.scale = config.alpha / config.rank

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - torch's name
        """Map (..., in_features) to (..., out_features)."""
        # (..., rank). B (A x) costs far less than (B A) x, which would build a whole matrix.
        low_rank = nn.functional.linear(input, self.lora_a)
        return super().forward(input) + self.scale * nn.functional.linear(
            low_rank, self.lora_b
        )


def add_adapters(model: Decoder, config: LoraConfig) -> None:
    """Add uninitialized adapters to the target layers of every block, and freeze the rest.

    Raises:
        IncompatibleConfig: no targets, or a target that no block has.
    """
    if not config.targets:
        raise IncompatibleConfig(
            "lora.targets is empty, so nothing would be trained; name some layers, or remove the "
            "key to adapt all of them"
        )
    # Freeze first: the adapters that are added below require gradients.
    model.requires_grad_(False)
    for block in model.layers:
        modules = block.named_modules()
        linears = {
            name: module for name, module in modules if isinstance(module, nn.Linear)
        }
        known = {name.rpartition(".")[2] for name in linears}
        if unknown := sorted(set(config.targets) - known):
            raise IncompatibleConfig(
                f"lora.targets has {unknown}, which no block has; use some of {sorted(known)}"
            )
        for name, linear in linears.items():
            if name.rpartition(".")[2] in config.targets:
                block.set_submodule(name, LoraLinear(linear, config))


def is_adapter(name: str) -> bool:
    """Return whether a parameter of that name belongs to an adapter."""
    return name.endswith((f".{A}", f".{B}"))


def init_adapter(name: str, parameter: Tensor, seed: int) -> None:
    """Fill a matrix of an adapter, in place.

    B is 0, so that an untrained adapter changes nothing. A is normal with the standard deviation
    of nn.Linear's default: uniform in +-1 / sqrt(in_features) has 1 / sqrt(3 * in_features).
    """
    if name.endswith(B):
        parameter.zero_()
    else:
        init_normal(name, parameter, 1 / math.sqrt(3 * parameter.shape[1]), seed)


def merge_adapters(weights: Mapping[str, Tensor], config: LoraConfig) -> dict[str, Tensor]:
    """Return the weights with the adapters added into the matrices, computed in fp32.

    Args:
        weights: parameters by name, adapters included. Those without an adapter are returned
            unchanged.
        config: settings with which the adapters were trained.
    """
    merged = {name: weight for name, weight in weights.items() if not is_adapter(name)}
    scale = config.alpha / config.rank
    for name in weights:
        if not name.endswith(f".{A}"):
            continue
        layer = name.removesuffix(f".{A}")
        # (out_features, in_features), of rank config.rank
        update = weights[f"{layer}.{B}"].float() @ weights[name].float()
        merged[f"{layer}.weight"] = merged[f"{layer}.weight"].float() + scale * update
    return merged
