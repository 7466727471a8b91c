"""The vector instructions compute what the plain operations compute, at the borders too."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from numpy.typing import NDArray

from stages.kernels.fasttext.vectors import (
    FIRST_STATE,
    LANES,
    PRIME,
    Divisor,
    hash_lanes,
    make_divisor,
)

LARGEST_DIVISOR = 2**31 - 1
LARGEST_NUMBER = 2**32 - 1


@njit
def call_hash_lanes(
    utf8: NDArray[np.uint8], num_steps: int, divisor: Divisor, buckets: NDArray[np.uint32]
) -> None:
    """Call the intrinsic, which exists in compiled code only."""
    hash_lanes(utf8, 0, num_steps, divisor, buckets)


def hash_bytes(content: bytes) -> int:
    """Return fastText's FNV-1a hash."""
    state = FIRST_STATE
    for byte in content:
        signed = byte if byte < 128 else byte - 256
        state = ((state ^ (signed & LARGEST_NUMBER)) * PRIME) & LARGEST_NUMBER
    return state


def near(value: int) -> st.SearchStrategy[int]:
    """Return divisors that leave a remainder of 0, or almost 0, or almost themselves."""
    quotients = st.integers(1, 9) | st.integers(1, max(1, value))
    return st.builds(lambda q, more: value // q + more, quotients, st.integers(-1, 1))


powers = st.builds(
    lambda power, more: 2**power + more, st.integers(0, 31), st.integers(-1, 1)
)


@given(data=st.data(), number=st.integers(0, LARGEST_NUMBER) | powers)
def test_the_estimated_quotient_is_right_or_too_small_by_one(
    data: st.DataObject, number: int
) -> None:
    """So one subtraction makes the remainder right, for every divisor."""
    drawn = data.draw(st.integers(1, LARGEST_DIVISOR) | powers | near(number))
    value = min(max(drawn, 1), LARGEST_DIVISOR)
    divisor = make_divisor(value)
    quotient = number * int(divisor.reciprocal) >> int(divisor.shift)
    assert int(divisor.value) == value
    assert number // value - 1 <= quotient <= number // value
    assert number * int(divisor.reciprocal) < 2**64


@given(data=st.data(), content=st.binary(min_size=LANES + 8, max_size=LANES + 8))
def test_hashes_of_all_lanes_are_divided_with_the_right_remainder(
    data: st.DataObject, content: bytes
) -> None:
    """Divisors are drawn near to quotients of one of the hashes, where an estimate could fail."""
    num_steps = data.draw(st.integers(1, 9))
    lane, size = data.draw(st.integers(0, LANES - 1)), data.draw(st.integers(1, num_steps))
    state = hash_bytes(content[lane : lane + size])
    value = data.draw(st.integers(1, LARGEST_DIVISOR) | powers | near(state))
    value = min(max(value, 1), LARGEST_DIVISOR)
    buckets = np.zeros(LANES * num_steps, np.uint32)
    call_hash_lanes(
        np.frombuffer(content, np.uint8), num_steps, make_divisor(value), buckets
    )
    wanted = [
        hash_bytes(content[first : first + n]) % value
        for n in range(1, num_steps + 1)
        for first in range(LANES)
    ]
    assert buckets.tolist() == wanted
