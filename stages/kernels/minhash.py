"""Signatures of a batch of texts and hashes of their bands, compiled: no Python string is made.

Promises: the numbers that `datasketch.MinHash` (2.0, scheme affine32, sha1_hash32) gives for the n-grams of
`stages.minhash.ngrams`.
Leaves to others: what each character becomes (the `CharacterTable` is an argument), the permutations, the bands.

    "Der Hund, der"     words       der hund der        laid end to end, one blank after each
                        2-grams     "der hund" "hund der"
                        hash        the first 4 bytes of the SHA-1, little-endian, mixed
                        signature   for each permutation the least a * hash + b mod 2**32

Everything that is compiled into `signatures` stands in this file, but for UTF-8 and SHA-1 (stages/kernels/sha1.py).
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.sha1 import (
    DELETE,
    KEEP_SPACE,
    PAGE,
    PAGE_BITS,
    CharacterTable,
    compiled,
    decode,
    packed,
    sha1_prefix,
)

ALONE = 5
"""One action more than those of stages/kernels/sha1.py: the character is a word by itself."""

_NO_MINIMUM = np.uint32(2**32 - 1)
_BLANK = 32
_FIRST_REPLACEMENT = packed(" ")  # actions from here on are bytes that replace the character
_PADDING = 128  # bytes that SHA-1 appends at most, and a block to spare
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@compiled
def signatures(
    utf8: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    table: CharacterTable,
    ngram_words: int,
    permutations: NDArray[np.uint32],
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """The signature of every text.

    Args:
        utf8: (bytes,) of all texts.
        offsets: (n + 1,) where each text starts in `utf8`.
        table: what becomes of each character: an action of stages/kernels/sha1.py (but for `DELETE_SPACE`) or `ALONE`.
        ngram_words: words of an n-gram.
        permutations: (2, num_permutations) the factors and the summands.

    Returns:
        signatures: (n, num_permutations), all ones for a text without words.
        num_words: (n,).
    """
    num_texts = len(offsets) - 1
    minima = np.full((num_texts, permutations.shape[1]), _NO_MINIMUM, np.uint32)
    num_words = np.zeros(num_texts, np.int64)
    longest = 0
    for t in range(num_texts):
        longest = max(longest, offsets[t + 1] - offsets[t])
    # A lower-case letter takes at most 3 bytes where its capital took 2; a word that stands alone, 4 for 3.
    letters, starts = np.empty(2 * longest + 1, np.uint8), np.empty(longest + 2, np.int64)
    message, schedule = np.empty(2 * longest + _PADDING, np.uint8), np.empty(80, np.uint32)
    for t in range(num_texts):
        num_words[t] = _split_words(utf8, offsets[t], offsets[t + 1], table, letters, starts)
        span = min(ngram_words, num_words[t])
        if span == 0:
            continue
        for first in range(num_words[t] - span + 1):
            num_bytes = starts[first + span] - 1 - starts[first]
            for i in range(num_bytes):
                message[i] = letters[starts[first] + i]
            mixed = _fmix32(
                np.uint32(sha1_prefix(message, num_bytes, schedule) & np.uint64(0xFFFFFFFF))
            )
            _lower(minima[t], mixed, permutations[0], permutations[1])
    return minima, num_words


@compiled
def ngram_hashes(
    utf8: NDArray[np.uint8], offsets: NDArray[np.int64], table: CharacterTable, ngram_words: int
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """The hashes of every text's n-grams, each once, sorted: the first 8 bytes of the SHA-1, little-endian.

    Args:
        utf8: (bytes,) of all texts.
        offsets: (n + 1,) where each text starts in `utf8`.
        table: as `signatures` takes it.
        ngram_words: words of an n-gram.

    Returns:
        starts: (n + 1,) where each text's hashes start.
        hashes: (starts[n],).
    """
    num_texts = len(offsets) - 1
    longest = 0
    for t in range(num_texts):
        longest = max(longest, offsets[t + 1] - offsets[t])
    letters, starts = np.empty(2 * longest + 1, np.uint8), np.empty(longest + 2, np.int64)
    message, schedule = np.empty(2 * longest + _PADDING, np.uint8), np.empty(80, np.uint32)
    hashes = np.empty(offsets[-1] - offsets[0], np.uint64)  # no more n-grams than bytes
    ends, num_hashes = np.zeros(num_texts + 1, np.int64), 0
    for t in range(num_texts):
        num_words = _split_words(utf8, offsets[t], offsets[t + 1], table, letters, starts)
        span, begin = min(ngram_words, num_words), num_hashes
        for first in range(num_words - span + 1 if num_words else 0):
            num_bytes = starts[first + span] - 1 - starts[first]
            for i in range(num_bytes):
                message[i] = letters[starts[first] + i]
            hashes[num_hashes] = sha1_prefix(message, num_bytes, schedule)
            num_hashes += 1
        hashes[begin:num_hashes].sort()
        last = begin
        for k in range(begin + 1, num_hashes):
            if hashes[k] != hashes[last]:
                last += 1
                hashes[last] = hashes[k]
        num_hashes = min(num_hashes, last + 1)
        ends[t + 1] = num_hashes
    return ends, hashes[:num_hashes].copy()


@njit(nogil=True)
def _split_words(
    utf8: NDArray[np.uint8],
    start: int,
    end: int,
    table: CharacterTable,
    letters: NDArray[np.uint8],
    starts: NDArray[np.int64],
) -> int:
    """Write the words into `letters`, a blank after each, and where each begins into `starts`; how many there are.

    Then `starts[number of words]` is where the next would begin.
    """
    num_words, j = 0, 0
    starts[0] = 0
    i = start
    while i < end:
        code_point, width = decode(utf8, i, end)
        action = np.uint32(0)
        if width > 0:
            action = table.actions[table.pages[code_point >> PAGE_BITS], code_point & (PAGE - 1)]
        if action in (KEEP_SPACE, ALONE) and j > starts[num_words]:
            num_words, j = _end_word(num_words, j, letters, starts)
        if action >= _FIRST_REPLACEMENT:
            while action:
                letters[j] = action & 0xFF
                action >>= 8
                j += 1
        elif width > 0 and action not in (KEEP_SPACE, DELETE):
            for k in range(width):
                letters[j + k] = utf8[i + k]
            j += width
            if action == ALONE:
                num_words, j = _end_word(num_words, j, letters, starts)
        i += max(width, 1)  # bytes that are not UTF-8, which no Arrow string holds, are passed by
    if j > starts[num_words]:
        num_words, j = _end_word(num_words, j, letters, starts)
    return num_words


@njit(nogil=True)
def _end_word(
    num_words: int, j: int, letters: NDArray[np.uint8], starts: NDArray[np.int64]
) -> tuple[int, int]:
    letters[j] = _BLANK
    starts[num_words + 1] = j + 1
    return num_words + 1, j + 1


@njit(nogil=True)
def _fmix32(h: np.uint32) -> np.uint32:
    """MurmurHash3's finaliser (Appleby, MurmurHash3.cpp:fmix32), which datasketch 2.0 applies before it permutes."""
    h = np.uint32(h ^ (h >> np.uint32(16)))
    h = np.uint32(h * np.uint32(0x85EBCA6B))
    h = np.uint32(h ^ (h >> np.uint32(13)))
    h = np.uint32(h * np.uint32(0xC2B2AE35))
    return np.uint32(h ^ (h >> np.uint32(16)))


@njit(nogil=True)
def _lower(
    minima: NDArray[np.uint32],
    h: np.uint32,
    factors: NDArray[np.uint32],
    summands: NDArray[np.uint32],
) -> None:
    for k in range(len(minima)):
        minima[k] = min(minima[k], np.uint32(factors[k] * h + summands[k]))


@compiled
def band_hashes(
    minima: NDArray[np.uint32], num_bands: int, rows_per_band: int
) -> NDArray[np.uint64]:
    """(n, num_bands): a hash of each band's number and values, equal for equal ones and spread over all 64 bits."""
    hashes = np.empty((len(minima), num_bands), np.uint64)
    for t in range(len(minima)):
        for band in range(num_bands):
            h = np.uint64(band)
            for k in range(band * rows_per_band, (band + 1) * rows_per_band):
                h = _splitmix64(h ^ np.uint64(minima[t, k]))
            hashes[t, band] = h
    return hashes


@njit(nogil=True)
def _splitmix64(x: np.uint64) -> np.uint64:
    """Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators", figure 17."""
    x = x + _GOLDEN
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
