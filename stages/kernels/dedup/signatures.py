"""MinHash signatures from the hashes of n-grams, and hashes of their LSH bands.

The signatures equal those of `datasketch.MinHash` (2.0, scheme affine32): each hash is mixed, and a
signature has for each permutation the smallest factor * hash + summand modulo 2^32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from stages.kernels.compilation import compiled, find_values, inlined
from stages.kernels.splitmix import GOLDEN, mix_bits

_NO_MINIMUM = 2**32 - 1

_mix_bits = inlined(mix_bits)

# Permutations whose minima are found in one pass over the hashes of a text. Their factors, summands
# and minima stay in registers: six of AVX-512, twelve of AVX2.
_BLOCK = 32
_LANES = 16
_WORD, _INDEX = ir.IntType(32), ir.IntType(64)
_WORDS = ir.VectorType(_WORD, _LANES)


@compiled
def sign_ngrams(
    starts: NDArray[np.int64], hashes: NDArray[np.uint32], permutations: NDArray[np.uint32]
) -> NDArray[np.uint32]:
    """Return the signature of each text.

    Args:
        starts: (n + 1,) where each text's hashes start.
        hashes: the hashes of all texts.
        permutations: (2, num_permutations) the factors and the summands.

    Returns:
        (n, num_permutations), all ones for a text without n-grams.
    """
    num_texts, num_permutations = len(starts) - 1, permutations.shape[1]
    width = -(-num_permutations // _BLOCK) * _BLOCK
    padded = np.zeros((2, width), np.uint32)
    padded[:, :num_permutations] = permutations
    mixed = _mix(hashes)
    minima = np.empty((num_texts, width), np.uint32)
    for t in range(num_texts):
        for first in range(0, width, _BLOCK):
            begin, end = starts[t], starts[t + 1]
            _find_minima(mixed, begin, end, padded, first, width, minima, t * width + first)
    return minima if width == num_permutations else minima[:, :num_permutations].copy()


@njit(nogil=True)
def _mix(hashes: NDArray[np.uint32]) -> NDArray[np.uint32]:
    """Mix hashes as datasketch 2.0: by MurmurHash3's finalizer (MurmurHash3.cpp:fmix32)."""
    mixed = np.empty_like(hashes)
    for k in range(len(hashes)):
        h = np.uint32(hashes[k])
        h = np.uint32(h ^ (h >> np.uint32(16)))
        h = np.uint32(h * np.uint32(0x85EBCA6B))
        h = np.uint32(h ^ (h >> np.uint32(13)))
        h = np.uint32(h * np.uint32(0xC2B2AE35))
        mixed[k] = np.uint32(h ^ (h >> np.uint32(16)))
    return mixed


@compiled
def hash_bands(
    minima: NDArray[np.uint32], num_bands: int, rows_per_band: int
) -> NDArray[np.uint64]:
    """Hash each band of each signature, (n, num_bands).

    The hash covers the band's number and its values. It is spread over all 64 bits, so that ranges
    of hashes make partitions of equal size.
    """
    hashes = np.empty((len(minima), num_bands), np.uint64)
    for t in range(len(minima)):
        for band in range(num_bands):
            h = np.uint64(band)
            for k in range(band * rows_per_band, (band + 1) * rows_per_band):
                h = _mix_bits((h ^ np.uint64(minima[t, k])) + GOLDEN)
            hashes[t, band] = h
    return hashes


# --- Vector code: functions that emit LLVM instructions with the builder `b` ---


def _declare_find_minima(
    context: Any,
    hashes: Any,
    begin: Any,
    end: Any,
    permutations: Any,
    first: Any,
    width: Any,
    minima: Any,
    place: Any,
) -> Any:
    """Write the minima of hashes[begin:end] under `_BLOCK` permutations to minima.flat[place].

    `permutations` is (2, width) uint32, the factors and the summands, and `first` the first one.
    """
    del context
    kinds = hashes, begin, end, permutations, first, width, minima, place

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        del signature
        values = [
            find_values(context, b, kind, value) if isinstance(kind, types.Array) else value
            for kind, value in zip(kinds, arguments, strict=True)
        ]
        hashes, begin, end, permutations, first, width, minima, place = values
        factors = _locate_block(b, permutations, first)
        summands = _locate_block(b, permutations, b.add(first, width))
        found = _emit_minima(
            b, hashes, begin, end, _load_all(b, factors), _load_all(b, summands)
        )
        for address, value in zip(_locate_block(b, minima, place), found, strict=True):
            b.store(value, address, align=4)
        return context.get_dummy_value()

    return types.void(*kinds), generate


_find_minima: Any = intrinsic(_declare_find_minima)


def _emit_minima(
    b: Any, hashes: Any, begin: Any, end: Any, factors: list[Any], summands: list[Any]
) -> list[Any]:
    """Loop over the hashes, and return the minima."""
    unset = ir.Constant(_WORDS, [_NO_MINIMUM] * _LANES)
    minima = [cgutils.alloca_once_value(b, unset) for _ in factors]
    step = ir.Constant(_INDEX, 1)
    with cgutils.for_range_slice(b, begin, end, step, _INDEX) as (i, _):
        value = _emit_splat(b, b.load(b.gep(hashes, [i])))
        for factor, summand, minimum in zip(factors, summands, minima, strict=True):
            permuted, before = b.add(b.mul(factor, value), summand), b.load(minimum)
            is_less = b.icmp_unsigned("<", permuted, before)
            b.store(b.select(is_less, permuted, before), minimum)
    return _load_all(b, minima)


def _emit_splat(b: Any, value: Any) -> Any:
    """Return a vector of 16 equal words."""
    undefined, zero = ir.Constant(_WORDS, ir.Undefined), ir.Constant(_WORD, 0)
    row = b.insert_element(undefined, value, zero)
    return b.shuffle_vector(row, row, ir.Constant(_WORDS, [0] * _LANES))


def _locate_block(b: Any, array: Any, start: Any) -> list[Any]:
    """Return the addresses of the vectors of a block."""
    addresses: list[Any] = []
    for offset in range(0, _BLOCK, _LANES):
        address = b.gep(array, [b.add(start, ir.Constant(_INDEX, offset))])
        addresses.append(b.bitcast(address, _WORDS.as_pointer()))
    return addresses


def _load_all(b: Any, addresses: list[Any]) -> list[Any]:
    return [b.load(address, align=4) for address in addresses]
