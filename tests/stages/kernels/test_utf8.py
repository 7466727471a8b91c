"""The check of UTF-8 agrees with `bytes.decode`."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.kernels.utf8 import are_utf8

# Both sides of every limit in RFC 3629, section 4.
EDGES = bytes.fromhex(
    "00 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff"
)
# Surrogates cannot be encoded: they give bytes that are not UTF-8.
TEXTS = st.text(max_size=40).map(str.encode)


def check(*texts: bytes) -> bool:
    """Check texts that are stored one after the other."""
    starts = np.cumsum([0, *map(len, texts)])
    return are_utf8(np.frombuffer(b"".join(texts), np.uint8), starts)


def is_decodable(text: bytes) -> bool:
    """Decode with Python."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


@pytest.mark.parametrize("other", [b"", b"abcd", "\U0001f600".encode()])
def test_short_sequences_of_edges_are_judged_as_by_python(other: bytes) -> None:
    """Alone, and in the middle of ASCII characters and of characters of four bytes."""
    num_valid = 0
    for length in range(4 if other else 3):
        for sequence in product(EDGES, repeat=length):
            text = other + bytes(sequence) + other
            is_valid = is_decodable(text)
            num_valid += is_valid
            assert check(text) == is_valid, text
    assert num_valid > 10


@given(st.lists(TEXTS | st.binary(max_size=5), max_size=6))
def test_each_text_is_judged_by_itself(texts: list[bytes]) -> None:
    """A character that two texts share belongs to neither."""
    assert check(*texts) == all(map(is_decodable, texts))


@given(TEXTS, st.integers(0, 40), st.integers(0, 40))
def test_a_text_that_is_cut_is_judged_as_by_python(
    text: bytes, start: int, stop: int
) -> None:
    """Cuts fall inside characters too, at both ends."""
    assert check(text[start:stop]) == is_decodable(text[start:stop])
    assert check(text[:start], text[start:]) == is_decodable(text[:start])


@given(st.binary(min_size=200, max_size=400), st.integers(0, 190))
def test_long_texts_are_judged_as_by_python(noise: bytes, start: int) -> None:
    """Vectors and the rest after them see one wrong byte."""
    text = bytearray(b"\xe4\xba\xba" * 100)
    assert check(bytes(text))
    text[start] = noise[start]
    assert check(bytes(text)) == is_decodable(bytes(text))
