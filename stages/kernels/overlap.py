"""Words of a batch of texts and the runs of words that lie in given sets, compiled: no Python string is made.

Promises: words are those of `stages.decontamination.words`; equal runs of words have equal keys, and two different ones
the same with probability 2^-64. Leaves to others: what each character becomes (the `CharacterTable` is an argument),
which sets there are and what is to be said of a text.

    the cat sat on the mat     words    w0 w1 w2 w3 w4 w5        a hash each
                               runs     w0-w2, w1-w3, ...        made of those of their words, looked up
                               share    1 1 1 1 0 0              words in a run that lies in the set: w0-w2 and w1-w3

What is compiled stands in this file, but for UTF-8 (stages/kernels/sha1.py).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.sha1 import (
    KEEP,
    KEEP_SPACE,
    PAGE,
    PAGE_BITS,
    CharacterTable,
    compiled,
    decode,
    packed,
)

SEPARATE = KEEP_SPACE
"""The character ends a word and belongs to none; DELETE, KEEP and replacements are those of stages/kernels/sha1.py."""
ALONE = 5
"""One action more: the character is a word by itself."""

MAX_SETS = 64
"""A run of words keeps a bit for each set that it lies in."""

_Keys: TypeAlias = NDArray[np.uint64]

_FIRST_REPLACEMENT = packed(" ")  # actions from here on are bytes that replace the character
_START = np.uint64(0xCBF29CE484222325)  # FNV-1a's offset basis
_GOLDEN = np.uint64(
    0x9E3779B97F4A7C15
)  # 2^64 over the golden ratio: neighbouring bytes end far apart
_ONE = np.uint64(1)


@compiled
def word_hashes(
    utf8: NDArray[np.uint8], offsets: NDArray[np.int64], table: CharacterTable
) -> tuple[_Keys, NDArray[np.int64]]:
    """A hash of every word of every text, laid end to end, and where those of each text start, (n + 1,)."""
    hashes = np.empty(
        offsets[-1] - offsets[0] + 1, np.uint64
    )  # memory that is not written to is never taken
    firsts = np.zeros(len(offsets), np.int64)
    n = 0
    for t in range(len(offsets) - 1):
        i, end = offsets[t], offsets[t + 1]
        state, is_inside = _START, False
        while i < end:
            code_point, width = decode(utf8, i, end)
            action = np.uint32(SEPARATE)
            if width > 0:
                action = table.actions[
                    table.pages[code_point >> PAGE_BITS], code_point & (PAGE - 1)
                ]
            if is_inside and action in (SEPARATE, ALONE):
                hashes[n] = _mixed(state)
                n += 1
                state, is_inside = _START, False
            if action >= _FIRST_REPLACEMENT:
                while action:
                    state = _folded(state, np.uint64(action & 0xFF))
                    action >>= 8
                is_inside = True
            elif action in (KEEP, ALONE):
                for k in range(width):
                    state = _folded(state, np.uint64(utf8[i + k]))
                is_inside = True
            if action == ALONE:
                hashes[n] = _mixed(state)
                n += 1
                state, is_inside = _START, False
            i += max(width, 1)
        if is_inside:
            hashes[n] = _mixed(state)
            n += 1
        firsts[t + 1] = n
    return hashes[:n].copy(), firsts


@compiled
def prefixes(words: _Keys) -> _Keys:
    """The state after so many of all words, (num_words + 1,): any run's key is one step from two of them.

    A polynomial in an odd number, modulo 2^64 (Karp and Rabin 1987): that of a run is its end's less its start's.
    """
    states = np.zeros(len(words) + 1, np.uint64)
    for w in range(len(words)):
        states[w + 1] = states[w] * _GOLDEN + words[w]
    return states


@compiled
def run_keys(states: _Keys, firsts: NDArray[np.int64], num_words: int, is_whole: bool) -> _Keys:
    """The key of every run of `num_words` words; `is_whole`: of the texts that have just so many words only."""
    keys = np.empty(len(states), np.uint64)
    power = _power(num_words)
    n = 0
    for t in range(len(firsts) - 1):
        if is_whole and firsts[t + 1] - firsts[t] != num_words:
            continue
        for first in range(firsts[t], firsts[t + 1] - num_words + 1):
            keys[n] = _mixed(states[first + num_words] - states[first] * power)
            n += 1
    return keys[:n].copy()


@compiled
def sieve(keys: _Keys) -> NDArray[np.uint8]:
    """Bits of which 1 in 8 to 16 is set, one for each key: what finds its bit unset is no key."""
    num_bytes = 64
    while num_bytes < len(keys):
        num_bytes *= 2
    bits = np.zeros(num_bytes, np.uint8)
    mask = np.uint64(8 * num_bytes - 1)
    for key in keys:
        bits[np.int64((key & mask) >> np.uint64(3))] |= np.uint8(1 << np.int64(key & np.uint64(7)))
    return bits


@compiled
def note_shared(
    states: _Keys,
    firsts: NDArray[np.int64],
    num_words: int,
    keys: _Keys,
    members: _Keys,
    bits: NDArray[np.uint8],
    shared: _Keys,
) -> None:
    """Note for every word the sets of which it lies in a run.

    Args:
        states: (w + 1,) as `prefixes` gives them.
        firsts: (n + 1,) where each text's words start.
        num_words: words of a run.
        keys: (k,) ascending, the runs of all sets.
        members: (k,) a bit for each set that a run lies in.
        bits: as `sieve` gives them.
        shared: (w,) a bit for each set, added to.
    """
    power = _power(num_words)
    mask = np.uint64(8 * len(bits) - 1)
    for t in range(len(firsts) - 1):
        for first in range(firsts[t], firsts[t + 1] - num_words + 1):
            key = _mixed(states[first + num_words] - states[first] * power)
            if not bits[np.int64((key & mask) >> np.uint64(3))] >> np.uint8(key & np.uint64(7)) & 1:
                continue
            place = np.searchsorted(keys, key)
            if place < len(keys) and keys[place] == key:
                for w in range(first, first + num_words):
                    shared[w] |= members[place]


@compiled
def sums_by_set(shared: _Keys, firsts: NDArray[np.int64], num_sets: int) -> NDArray[np.int64]:
    """How many words of each text lie in runs of each set, (n, num_sets)."""
    sums = np.zeros((len(firsts) - 1, num_sets), np.int64)
    for t in range(len(firsts) - 1):
        for w in range(firsts[t], firsts[t + 1]):
            if shared[w]:
                for s in range(num_sets):
                    sums[t, s] += np.int64(shared[w] >> np.uint64(s) & _ONE)
    return sums


@njit(nogil=True)
def _power(exponent: int) -> np.uint64:
    power = _ONE
    for _ in range(exponent):
        power *= _GOLDEN
    return power


@njit(nogil=True)
def _folded(state: np.uint64, value: np.uint64) -> np.uint64:
    return (state ^ value) * _GOLDEN


@njit(nogil=True)
def _mixed(state: np.uint64) -> np.uint64:
    """MurmurHash3's finalizer: every bit of the state has its say in every bit of the key."""
    state = (state ^ (state >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    state = (state ^ (state >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return state ^ (state >> np.uint64(33))
