"""Loops over vectors of 16 numbers that stay in registers.

LLVM translates the vectors to instructions of the processor, of any width.
"""

from __future__ import annotations

from typing import Any

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
    context: Any, utf8: Any, first: Any, num_steps: Any, states: Any
) -> Any:
    """Write the hash of `utf8[first + lane : first + lane + n]` to `states[16 * (n - 1) + lane]`.

    It does so for 16 lanes, and n from 1 to `num_steps`. The lanes must end within `utf8`. `utf8`
    is uint8, `states` is uint32.
    """
    del context
    kinds = utf8, first, num_steps, states

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        del signature
        utf8 = b.gep(find_values(context, b, kinds[0], arguments[0]), [arguments[1]])
        states = b.bitcast(
            find_values(context, b, kinds[3], arguments[3]), _WORDS.as_pointer()
        )
        state = cgutils.alloca_once_value(b, _fill(FIRST_STATE))
        with cgutils.for_range(b, arguments[2]) as loop:
            start = b.bitcast(b.gep(utf8, [loop.index]), _BYTES.as_pointer())
            # Bytes count as signed numbers.
            added = b.sext(b.load(start, align=1), _WORDS)
            b.store(b.mul(b.xor(b.load(state), added), _fill(PRIME)), state)
            b.store(b.load(state), b.gep(states, [loop.index]), align=4)
        return context.get_dummy_value()

    return types.void(*kinds), generate


def _fill(value: int) -> Any:
    return ir.Constant(_WORDS, [value] * LANES)


sum_rows: Any = intrinsic(_declare_sum_rows)
hash_lanes: Any = intrinsic(_declare_hash_lanes)
