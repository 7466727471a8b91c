"""Initial weights, which depend only on the seed and the name of each parameter.

They do not depend on the number of ranks or on the order of creation, because every parameter
has its own random generator. A model can therefore be built on the meta device and filled
parameter by parameter.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from training.config import ModelConfig


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
