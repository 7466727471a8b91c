"""Shares of characters in frequent and in duplicated word n-grams.

Source: Rae et al. 2021 (Gopher), table A1, in two readings. RedPajama-V2 counts every occurrence of a
repeated n-gram, and divides by the characters of the words. For Gopher's rules, as in datatrove,
only occurrences after the first one count, and the characters of the text divide. N-grams are built length by length, and only
those that occur twice are followed to the next:

    the cat and the cat sat      words     0 1 2 0 1 3      ids in order of first occurrence
                                 twice     0 1 . 0 1 .
                                 2-grams   0 . . 0 .        the pair (0, 1), twice; then no 3-gram

Ten lengths therefore cost little more than two.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.quality.alphabet import Ints
from stages.kernels.quality.columns import DUPE_NGRAMS, NUM_NGRAM_LENGTHS, TOP_NGRAMS
from stages.kernels.quality.sequence_ids import count_ids, join_ngrams

_FIRST_TOP, _LAST_TOP, _LAST_DUPE = TOP_NGRAMS[0], TOP_NGRAMS[-1], DUPE_NGRAMS[-1]


@njit(nogil=True)
def measure_ngrams(
    words: Ints,
    num_ids: int,
    starts: Ints,
    num_text_chars: int,
    signals: NDArray[np.float64],
) -> None:
    """Write the shares for n = 2 to 10, and stop at the first n without a repeated n-gram.

    Args:
        words: (num_words,) id of each word.
        num_ids: ids of words are below this number.
        starts: (num_words + 1,) first character of each word; last: the end of the last word.
        num_text_chars: characters of the text, with white space and punctuation.
        signals: one element per length for RedPajama-V2, then one for Gopher; filled with zeros.
    """
    num_chars = starts[-1] - starts[0]
    grams, counts = words, count_ids(words, num_ids)
    for n in range(_FIRST_TOP, _LAST_DUPE + 1):
        grams, counts = join_ngrams(grams, counts)
        if len(counts) == 0:
            return
        if n <= _LAST_TOP:
            covered_chars, repeated_chars = _count_top_chars(grams, counts, starts, n)
        else:
            covered_chars = _count_dupe_chars(grams, counts, starts, n)
            repeated_chars = _count_repeated_chars(grams, len(counts), starts, n)
        index = n - _FIRST_TOP
        signals[index] = covered_chars / num_chars
        signals[NUM_NGRAM_LENGTHS + index] = repeated_chars / num_text_chars


@njit(nogil=True)
def _count_top_chars(grams: Ints, counts: Ints, starts: Ints, n: int) -> tuple[int, int]:
    """Return the characters of the most frequent n-gram times its count, 0 if it occurs once.

    Of several equally frequent n-grams, the one that occurs first counts.

    Returns:
        The characters of its words, and the same with a blank between words.
    """
    top = np.argmax(counts)
    if counts[top] < 2:
        return 0, 0
    for i in range(len(grams)):
        if grams[i] == top:
            num_chars = starts[i + n] - starts[i]
            return num_chars * counts[top], (num_chars + n - 1) * counts[top]
    return 0, 0


@njit(nogil=True)
def _count_repeated_chars(grams: Ints, num_ids: int, starts: Ints, n: int) -> int:
    """Return the characters of n-grams that occurred before, read from the left without overlap.

    Source: `find_all_duplicate` in datatrove's gopher_repetition_filter.py.
    """
    is_known = np.zeros(num_ids, np.bool_)
    num_chars = i = 0
    while i < len(grams):
        if grams[i] >= 0 and is_known[grams[i]]:
            num_chars += starts[i + n] - starts[i]
            i += n
            continue
        if grams[i] >= 0:
            is_known[grams[i]] = True
        i += 1
    return num_chars


@njit(nogil=True)
def _count_dupe_chars(grams: Ints, counts: Ints, starts: Ints, n: int) -> int:
    """Return the characters of all words inside a duplicated n-gram, each word once."""
    num_chars = 0
    covered = 0  # words before this one are counted already
    for i in range(len(grams)):
        if grams[i] >= 0 and counts[grams[i]] > 1:
            num_chars += starts[i + n] - starts[max(i, covered)]
            covered = i + n
    return num_chars
