"""Linear layers in float8 (torchao), chosen by their shape."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from training.config import PrecisionConfig
from training.errors import IncompatibleConfig
from training.model.decoder import Decoder


def convert_to_float8(
    model: Decoder, precision: PrecisionConfig, device: torch.device
) -> None:
    """Replace linear layers of the blocks by torchao's float8 layers.

    On CPU the arithmetic is emulated, for tests.

    Raises:
        IncompatibleConfig: the GPU has no float8 products, torchao is not installed, or no layer
            is large enough.
    """
    recipe = precision.float8
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        raise IncompatibleConfig(
            f"precision.float8 is {recipe}, but {torch.cuda.get_device_name(device)} has no "
            f"float8 products (an H100 or later has); set it to none"
        )
    try:
        from torchao import float8
    except ImportError as error:
        raise IncompatibleConfig(
            f"precision.float8 is {recipe}, which needs torchao: pip install torchao ({error})"
        ) from error
    config = float8.Float8LinearConfig.from_recipe_name(recipe)
    if device.type == "cpu":
        config = dataclasses.replace(config, emulate=True)
    # Products of small matrices gain less than the conversions cost. torchao has measured where.
    is_large: Any = float8._auto_filter_for_recipe(recipe, [])  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    chosen: set[str] = set()
    for name, module in model.named_modules():
        is_linear = name.startswith("layers.") and isinstance(module, nn.Linear)
        if is_linear and (precision.float8_layers == "all" or is_large(module, name)):
            chosen.add(name)
    if not chosen:
        raise IncompatibleConfig(
            f"precision.float8 is {recipe}, but no layer of this model is large enough to gain "
            f"from it; set it to none, or precision.float8_layers to all"
        )
    float8.convert_to_float8_training(
        model, config=config, module_filter_fn=lambda _, name: name in chosen
    )
