"""SplitMix64: Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", figure 17."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", np.uint64, NDArray[np.uint64])

GOLDEN = np.uint64(
    0x9E3779B97F4A7C15
)  # 2^64 divided by the golden ratio; as a factor it separates neighbours widely


def mix_bits(x: T) -> T:
    """Apply the finaliser, a bijection with 0 -> 0. Kernels compile it for single numbers."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
