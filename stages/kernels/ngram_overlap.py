"""Hash the words of a batch of texts and find the word n-grams that occur in given sets.

Words are those of `stages.filters.decontamination.words`. Equal n-grams have equal keys; two
different ones have the same key with probability 2^-64. Example with 3-grams:

    the cat sat on the mat     words     w0 w1 w2 w3 w4 w5        a hash each
                               n-grams   w0-w2, w1-w3, ...        a key each, looked up in the sets
                               matches   1 1 1 1 0 0              words inside a listed n-gram:
                                                                  here w0-w2 and w1-w3 are listed
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.characters import (
    ALONE,
    FIRST_REPLACEMENT,
    KEEP,
    KEEP_SPACE,
    CharacterTable,
    decode_character,
    look_up_action,
)
from stages.kernels.compilation import compiled
from stages.kernels.splitmix import GOLDEN

# The character ends a word and is not part of one.
SEPARATE = KEEP_SPACE

# Each word has one bit per set in a uint64.
MAX_SETS = 64

_Keys: TypeAlias = NDArray[np.uint64]

_START = np.uint64(0xCBF29CE484222325)  # FNV-1a's offset basis
_ONE = np.uint64(1)


@compiled
def hash_words(
    utf8: NDArray[np.uint8], offsets: NDArray[np.int64], table: CharacterTable
) -> tuple[_Keys, NDArray[np.int64]]:
    """Hash every word of every text.

    Returns:
        hashes: (num_words,) of all texts, one after the other.
        first_words: (n + 1,) where the words of each text start in `hashes`.
    """
    # Far more than there are words, but memory that is never written is never mapped.
    hashes = np.empty(offsets[-1] - offsets[0] + 1, np.uint64)
    first_words = np.zeros(len(offsets), np.int64)
    n = 0
    for t in range(len(offsets) - 1):
        n = _hash_text(utf8, offsets[t], offsets[t + 1], table, hashes, n)
        first_words[t + 1] = n
    return hashes[:n].copy(), first_words


@njit(nogil=True)
def _hash_text(
    utf8: NDArray[np.uint8], i: int, end: int, table: CharacterTable, hashes: _Keys, n: int
) -> int:
    """Write the hashes of the words of utf8[i:end] to `hashes[n:]` and return the new `n`."""
    state, is_inside = _START, False
    while i < end:
        code_point, width = decode_character(utf8, i, end)
        action = np.uint32(SEPARATE)
        if width > 0:
            action = look_up_action(table, code_point)
        # A separator ends a word. So does a character that is a word by itself.
        if is_inside and action in (SEPARATE, ALONE):
            hashes[n] = _finalize(state)
            n += 1
            state, is_inside = _START, False
        if action >= FIRST_REPLACEMENT:
            while action:
                state = _add(state, np.uint64(action & 0xFF))
                action >>= 8
            is_inside = True
        elif action in (KEEP, ALONE):
            for k in range(width):
                state = _add(state, np.uint64(utf8[i + k]))
            is_inside = True
        if action == ALONE:
            hashes[n] = _finalize(state)
            n += 1
            state, is_inside = _START, False
        i += max(width, 1)
    if is_inside:
        hashes[n] = _finalize(state)
        n += 1
    return n


@compiled
def compute_prefix_states(words: _Keys) -> _Keys:
    """Return the state of a rolling hash before each word and after the last, (num_words + 1,).

    The hash is a polynomial in an odd number modulo 2^64 (Karp and Rabin 1987). The hash of any
    n-gram is the state at its end minus the state at its start times a power of that number.
    """
    states = np.zeros(len(words) + 1, np.uint64)
    for w in range(len(words)):
        states[w + 1] = states[w] * GOLDEN + words[w]
    return states


@compiled
def compute_ngram_keys(
    states: _Keys, first_words: NDArray[np.int64], num_words: int, is_whole: bool
) -> _Keys:
    """Return the keys of all n-grams of `num_words` words, text by text.

    Args:
        states: (w + 1,) as `compute_prefix_states` returns them.
        first_words: (n + 1,) where each text's words start.
        num_words: words per n-gram.
        is_whole: use only the texts that have exactly `num_words` words.
    """
    keys = np.empty(len(states), np.uint64)
    power = _raise_base(num_words)
    n = 0
    for t in range(len(first_words) - 1):
        if is_whole and first_words[t + 1] - first_words[t] != num_words:
            continue
        for first in range(first_words[t], first_words[t + 1] - num_words + 1):
            keys[n] = _finalize(states[first + num_words] - states[first] * power)
            n += 1
    return keys[:n].copy()


@compiled
def build_bit_filter(keys: _Keys) -> NDArray[np.uint8]:
    """Return a Bloom filter with one hash: a key whose bit is 0 is not among `keys`.

    One bit in 8 to 16 is set. The filter is read before the binary search in `mark_matches`,
    because nearly all n-grams of a crawl are in no set.
    """
    num_bytes = 64
    while num_bytes < len(keys):
        num_bytes *= 2
    bits = np.zeros(num_bytes, np.uint8)
    mask = np.uint64(8 * num_bytes - 1)
    for key in keys:
        bits[np.int64((key & mask) >> np.uint64(3))] |= np.uint8(
            1 << np.int64(key & np.uint64(7))
        )
    return bits


@compiled
def mark_matches(
    states: _Keys,
    first_words: NDArray[np.int64],
    num_words: int,
    keys: _Keys,
    members: _Keys,
    bits: NDArray[np.uint8],
    matched: _Keys,
) -> None:
    """Mark every word that is inside an n-gram of one of the sets.

    Args:
        states: (w + 1,) as `compute_prefix_states` returns them.
        first_words: (n + 1,) where each text's words start.
        num_words: words per n-gram.
        keys: (k,) ascending, the n-grams of all sets.
        members: (k,) for each key, one bit per set that has it.
        bits: as `build_bit_filter` returns them.
        matched: (w,) one bit per set for each word; bits are added.
    """
    power = _raise_base(num_words)
    mask = np.uint64(8 * len(bits) - 1)
    for t in range(len(first_words) - 1):
        for first in range(first_words[t], first_words[t + 1] - num_words + 1):
            key = _finalize(states[first + num_words] - states[first] * power)
            if (
                not bits[np.int64((key & mask) >> np.uint64(3))]
                >> np.uint8(key & np.uint64(7))
                & 1
            ):
                continue
            at = np.searchsorted(keys, key)
            if at < len(keys) and keys[at] == key:
                for w in range(first, first + num_words):
                    matched[w] |= members[at]


@compiled
def count_matches_by_set(
    matched: _Keys, first_words: NDArray[np.int64], num_sets: int
) -> NDArray[np.int64]:
    """Count the marked words of each text for each set, (n, num_sets)."""
    counts = np.zeros((len(first_words) - 1, num_sets), np.int64)
    for t in range(len(first_words) - 1):
        for w in range(first_words[t], first_words[t + 1]):
            if matched[w]:
                for s in range(num_sets):
                    counts[t, s] += np.int64(matched[w] >> np.uint64(s) & _ONE)
    return counts


@njit(nogil=True)
def _raise_base(exponent: int) -> np.uint64:
    """Return the base of the polynomial to the power of `exponent`, modulo 2^64."""
    power = _ONE
    for _ in range(exponent):
        power *= GOLDEN
    return power


@njit(nogil=True)
def _add(state: np.uint64, value: np.uint64) -> np.uint64:
    """Add one byte to the state, in the manner of FNV-1a."""
    return (state ^ value) * GOLDEN


@njit(nogil=True)
def _finalize(state: np.uint64) -> np.uint64:
    """MurmurHash3's 64-bit finalizer: every bit of the state changes every bit of the key."""
    state = (state ^ (state >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    state = (state ^ (state >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return state ^ (state >> np.uint64(33))
