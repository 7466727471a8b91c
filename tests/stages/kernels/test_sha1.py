"""SHA-1 of many messages, compared with hashlib."""

from __future__ import annotations

import hashlib

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stages.kernels.compilation import compiled
from stages.kernels.sha1 import SLACK_BYTES, sha1_prefixes


@compiled
def hash_messages(
    utf8: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.uint64]:
    hashes = np.zeros(len(starts), np.uint64)
    sha1_prefixes(utf8, starts, ends, hashes)
    return hashes


def check(lengths: list[int], seed: int = 0) -> None:
    ends = np.cumsum(np.array(lengths, np.int64))
    starts = ends - np.array(lengths, np.int64)
    content = np.random.default_rng(seed).bytes(sum(lengths) + SLACK_BYTES)
    found = hash_messages(np.frombuffer(content, np.uint8).copy(), starts, ends)
    messages = [content[i:j] for i, j in zip(starts, ends, strict=True)]
    digests = [hashlib.sha1(one, usedforsecurity=False).digest() for one in messages]
    assert found.tolist() == [int.from_bytes(one[:8], "little") for one in digests]


@given(
    st.lists(st.integers(0, 200) | st.integers(0, 5_000), max_size=50), st.integers(0, 9)
)
def test_hashes_equal_those_of_hashlib(lengths: list[int], seed: int) -> None:
    """For any number of messages of any lengths."""
    check(lengths, seed)


def test_messages_of_every_length_up_to_three_blocks() -> None:
    """All forms of padding, with full and with partly empty registers."""
    check([*range(193), *range(193)])
    for length in range(193):
        check([length])


def test_long_messages_together_with_short_ones() -> None:
    """Messages of more than 16 blocks form groups of different numbers of blocks."""
    check([64 * n + n for n in range(60)])
