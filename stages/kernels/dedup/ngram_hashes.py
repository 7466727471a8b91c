"""Hashes of the word n-grams of texts: those of `stages.dedup.minhash.split_ngrams`.

Example of 2-grams:

    "Der Hund, der"     words       der hund der        stored in one buffer, a blank after each
                        2-grams     "der hund" "hund der"
                        hash        the first 4 bytes of the SHA-1, little-endian
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.characters import CharacterTable
from stages.kernels.compilation import compiled
from stages.kernels.dedup import word_splitting
from stages.kernels.dedup.word_splitting import split_words
from stages.kernels.sha1 import SLACK_BYTES, sha1_prefixes
from stages.kernels.utf8 import find_longest

_SLACK_BYTES = max(SLACK_BYTES, word_splitting.SLACK_BYTES)
# From about this number on, the radix sort is faster.
_MIN_RADIX_SORT = 128


@compiled
def hash_ngrams(
    utf8: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    table: CharacterTable,
    ngram_words: int,
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Return the distinct hashes of every text's n-grams, sorted within each text.

    Args:
        utf8: the bytes of all texts.
        offsets: (n + 1,) where each text starts in `utf8`.
        table: the actions of characters other than ASCII, without `DELETE_SPACE`.
        ngram_words: words per n-gram. A shorter text is one n-gram.

    Returns:
        starts: (n + 1,) where each text's hashes start.
        hashes: (starts[n],).
    """
    num_texts = len(offsets) - 1
    longest = find_longest(offsets)
    # A character becomes at most 1.5 times as long: a lower-case letter of 3 bytes for a capital
    # of 2. With the blank after each word, `letters` needs 2 bytes for each byte of the text.
    letters = np.empty(2 * longest + _SLACK_BYTES, np.uint8)
    bounds = np.empty(longest + 2, np.int64)
    # a text has no more n-grams than bytes
    hashes = np.empty(offsets[-1] - offsets[0], np.uint32)
    scratch = np.empty(longest, np.uint32)
    starts, num_hashes = np.zeros(num_texts + 1, np.int64), 0
    for t in range(num_texts):
        num_words = split_words(utf8, offsets[t], offsets[t + 1], table, letters, bounds)
        span = min(ngram_words, num_words)
        num_ngrams = num_words - span + 1 if num_words else 0
        of_text = hashes[num_hashes : num_hashes + num_ngrams]
        # without the blank after the last word
        ends = bounds[span : span + num_ngrams] - 1
        sha1_prefixes(letters, bounds[:num_ngrams], ends, of_text)
        num_hashes += _sort_distinct(of_text, scratch)
        starts[t + 1] = num_hashes
    # Pages of memory that were never written take no space.
    return starts, hashes[:num_hashes]


@njit(nogil=True)
def _sort_distinct(hashes: NDArray[np.uint32], scratch: NDArray[np.uint32]) -> int:
    """Sort in place, move the distinct values to the front and return their number."""
    if len(hashes) == 0:
        return 0
    if len(hashes) < _MIN_RADIX_SORT:
        hashes.sort()
    else:
        _radix_sort(hashes, scratch)
    last = 0
    for k in range(1, len(hashes)):
        last += hashes[k] != hashes[last]
        hashes[last] = hashes[k]
    return last + 1


@njit(nogil=True)
def _radix_sort(values: NDArray[np.uint32], scratch: NDArray[np.uint32]) -> None:
    """Sort by one byte after the other, the lowest first. `scratch` is at least as long."""
    ends = np.zeros((4, 256), np.int64)  # for each byte and each value of it
    for value in values:
        for byte in range(4):
            ends[byte, value >> np.uint32(8 * byte) & np.uint32(0xFF)] += 1
    source, target = values, scratch
    for byte in range(4):
        total = 0
        for digit in range(256):
            ends[byte, digit], total = total, total + ends[byte, digit]
        for k in range(len(values)):
            digit = source[k] >> np.uint32(8 * byte) & np.uint32(0xFF)
            target[ends[byte, digit]] = source[k]
            ends[byte, digit] += 1
        source, target = target, source
