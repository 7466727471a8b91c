"""Loops over vectors of 16 numbers that stay in registers.

LLVM translates the vectors to instructions of the processor, of any width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from stages.kernels.compilation import find_values

LANES = 16

# FNV-1a, 32 bits
FIRST_STATE = 2166136261
PRIME = 16777619

_INDEX = ir.IntType(64)
_BYTES = ir.VectorType(ir.IntType(8), LANES)
_WORDS = ir.VectorType(ir.IntType(32), LANES)
_FLOATS = ir.VectorType(ir.FloatType(), LANES)
_LONGS = ir.VectorType(ir.IntType(64), LANES)


class Divisor(NamedTuple):
    """A divisor, and the factors that replace a division of a 32-bit number by it.

    The estimate `(number * reciprocal) >> shift` of the quotient is right or too small by 1.
    """

    value: np.uint32
    reciprocal: np.uint32
    shift: np.uint64


def make_divisor(value: int) -> Divisor:
    """Return the divisor of a value from 1 to 2**31 - 1."""
    shift = 31 + value.bit_length()
    reciprocal = min((1 << shift) // value, (1 << 32) - 1)
    return Divisor(np.uint32(value), np.uint32(reciprocal), np.uint64(shift))


def _declare_sum_rows(
    context: Any, matrix: Any, rows: Any, num_rows: Any, total: Any
) -> Any:
    """Add `matrix[rows[:num_rows]]` to `total`, row after row.

    `matrix` is (n, 16) float32, `rows` is (m,) int32, and `total` is (16,) float32.
    """
    del context
    kinds = matrix, rows, num_rows, total

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        del signature
        matrix, rows, total = (
            find_values(context, b, kinds[i], arguments[i]) for i in (0, 1, 3)
        )
        memory = b.bitcast(total, _FLOATS.as_pointer())
        sums = cgutils.alloca_once_value(b, b.load(memory, align=4))
        with cgutils.for_range(b, arguments[2]) as loop:
            row = b.sext(b.load(b.gep(rows, [loop.index])), _INDEX)
            start = b.gep(matrix, [b.mul(row, ir.Constant(_INDEX, LANES))])
            added = b.load(b.bitcast(start, _FLOATS.as_pointer()), align=4)
            b.store(b.fadd(b.load(sums), added), sums)
        b.store(b.load(sums), memory, align=4)
        return context.get_dummy_value()

    return types.void(*kinds), generate


def _declare_hash_lanes(
    context: Any, utf8: Any, first: Any, num_steps: Any, divisor: Any, buckets: Any
) -> Any:
    """Write a remainder of the hash of `utf8[first + lane : first + lane + n]`.

    It is written to `buckets[16 * (n - 1) + lane]`, for 16 lanes, and n from 1 to `num_steps`. The
    lanes must end within `utf8`. `utf8` is uint8, `divisor` is a `Divisor`, `buckets` is uint32.
    """
    del context
    kinds = utf8, first, num_steps, divisor, buckets

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        del signature
        utf8 = b.gep(find_values(context, b, kinds[0], arguments[0]), [arguments[1]])
        buckets = b.bitcast(
            find_values(context, b, kinds[4], arguments[4]), _WORDS.as_pointer()
        )
        divisor = [b.extract_value(arguments[3], i) for i in range(3)]
        lanes = [
            _spread(b, value, kind)
            for value, kind in zip(divisor, (_WORDS, _WORDS, _LONGS), strict=True)
        ]
        state = cgutils.alloca_once_value(b, _fill(FIRST_STATE))
        with cgutils.for_range(b, arguments[2]) as loop:
            start = b.bitcast(b.gep(utf8, [loop.index]), _BYTES.as_pointer())
            # Bytes count as signed numbers.
            added = b.sext(b.load(start, align=1), _WORDS)
            b.store(b.mul(b.xor(b.load(state), added), _fill(PRIME)), state)
            bucket = _find_remainders(b, b.load(state), *lanes)
            b.store(bucket, b.gep(buckets, [loop.index]), align=4)
        return context.get_dummy_value()

    return types.void(*kinds), generate


def _find_remainders(
    b: Any, numbers: Any, divisor: Any, reciprocal: Any, shift: Any
) -> Any:
    """Return the remainders of 16 numbers.

    Processors divide no vectors. With a division per n-gram, documents take 10 % longer.
    """
    products = b.mul(b.zext(numbers, _LONGS), b.zext(reciprocal, _LONGS))
    quotients = b.lshr(products, shift)
    rests = b.sub(numbers, b.mul(b.trunc(quotients, _WORDS), divisor))
    is_right = b.icmp_unsigned("<", rests, divisor)
    return b.select(is_right, rests, b.sub(rests, divisor))


def _declare_prefetch(context: Any, array: Any, index: Any) -> Any:
    """Ask the processor to load the cache line of `array[index]`, and do not wait for it."""
    del context
    kinds = array, index

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        del signature
        address = b.gep(find_values(context, b, array, arguments[0]), [arguments[1]])
        byte, number = ir.IntType(8).as_pointer(), ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [byte, number, number, number])
        function = cgutils.get_or_insert_function(b.module, kind, "llvm.prefetch.p0i8")
        # to read, into the first-level cache, data
        b.call(function, [b.bitcast(address, byte), number(0), number(3), number(1)])
        return context.get_dummy_value()

    return types.void(*kinds), generate


def _fill(value: int) -> Any:
    return ir.Constant(_WORDS, [value] * LANES)


def _spread(b: Any, value: Any, kind: Any) -> Any:
    """Return a vector of 16 equal values."""
    undefined, index = ir.Constant(kind, ir.Undefined), ir.IntType(32)
    vector = b.insert_element(undefined, value, index(0))
    zeros = ir.Constant(ir.VectorType(index, LANES), [0] * LANES)
    return b.shuffle_vector(vector, undefined, zeros)


sum_rows: Any = intrinsic(_declare_sum_rows)
hash_lanes: Any = intrinsic(_declare_hash_lanes)
prefetch: Any = intrinsic(_declare_prefetch)
