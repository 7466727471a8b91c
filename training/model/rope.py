"""Rotary position embedding (Su et al. 2021, RoFormer), with Llama 3.1's frequency scaling."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from training.config import ModelConfig, RopeScaling


@dataclass(frozen=True)
class RopeTable:
    """Cosines and sines of the rotation angles of each position, (T, C) fp32 each.

    The two halves of a head are rotated against each other, as in transformers. The paper
    rotates neighbouring pairs instead; weights of one convention do not work with the other.
    """

    cos: Tensor
    sin: Tensor

    def rotate(self, heads_BTHC: Tensor) -> Tensor:
        """Rotate query or key heads by their positions; computed in fp32, same dtype returned."""
        # (B, T, H, C / 2) each. (first, second) is rotated to (first cos - second sin, second cos +
        # first sin).
        first, second = heads_BTHC.float().chunk(2, dim=-1)
        rotated = torch.cat([-second, first], dim=-1)
        cos, sin = self.cos[:, None, :], self.sin[:, None, :]  # (T, 1, C)
        return (heads_BTHC * cos + rotated * sin).to(heads_BTHC.dtype)


def make_rope_table(config: ModelConfig, seq_len: int, device: torch.device) -> RopeTable:
    """Return the table for positions 0 .. seq_len - 1."""
    dims = torch.arange(0, config.head_dim, 2, device=device, dtype=torch.float32)
    frequencies = 1.0 / config.rope_theta ** (dims / config.head_dim)  # (C / 2,)
    if config.rope_scaling is not None:
        frequencies = _scale_frequencies(frequencies, config.rope_scaling)
    positions = torch.arange(seq_len, device=device, dtype=torch.float32)
    angles = torch.outer(positions, frequencies)
    angles = torch.cat([angles, angles], dim=-1)  # (T, C)
    return RopeTable(angles.cos(), angles.sin())


def _scale_frequencies(frequencies: Tensor, scaling: RopeScaling) -> Tensor:
    """Divide low frequencies by the factor, keep high ones, interpolate linearly in between.

    Same formula as `rope_type: llama3` of transformers.
    """
    # Number of full turns that a frequency makes within the original context length.
    turns = scaling.original_seq_len * frequencies / (2 * math.pi)
    slope = (turns - scaling.low_freq_factor) / (
        scaling.high_freq_factor - scaling.low_freq_factor
    )
    # 1 above high_freq_factor turns, 0 below low_freq_factor turns
    kept_share = slope.clamp(0, 1)
    return frequencies * kept_share + frequencies / scaling.factor * (1 - kept_share)
