"""Shares of characters in frequent and in duplicated n-grams.

Source: Rae et al. 2021 (Gopher), table A1, in two readings. RedPajama-V2 counts every occurrence of
a repeated n-gram of words, and divides by the characters of the words. For Gopher's rules, as in
datatrove, only occurrences after the first one count, the n-grams are of tokens (tokens.py), and the
characters of the text divide. N-grams are built length by length, and only those that occur twice
are followed to the next:

    the cat and the cat sat      words     0 1 2 0 1 3      ids in order of first occurrence
                                 twice     0 1 . 0 1 .
                                 2-grams   0 . . 0 .        the pair (0, 1), twice; then no 3-gram

Ten lengths therefore cost little more than two.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.quality.alphabet import Ints, Kinds
from stages.kernels.quality.columns import DUPE_NGRAMS, TOP_NGRAMS
from stages.kernels.quality.sequence_ids import count_ids, join_ngrams, number_sequences
from stages.kernels.quality.tokens import split_tokens

_FIRST_TOP, _LAST_TOP, _LAST_DUPE = TOP_NGRAMS[0], TOP_NGRAMS[-1], DUPE_NGRAMS[-1]


@njit(nogil=True)
def measure_ngrams(
    words: Ints, num_ids: int, starts: Ints, signals: NDArray[np.float64]
) -> None:
    """Write RedPajama-V2's shares for n = 2 to 10; stop at the first n without a repeated n-gram.

    Args:
        words: (num_words,) id of each word.
        num_ids: ids of words are below this number.
        starts: (num_words + 1,) first character of each word; last: the end of the last word.
        signals: one element per length, filled with zeros.
    """
    num_chars = starts[-1] - starts[0]
    grams, counts = words, count_ids(words, num_ids)
    for n in range(_FIRST_TOP, _LAST_DUPE + 1):
        grams, counts = join_ngrams(grams, counts)
        if len(counts) == 0:
            return
        if n <= _LAST_TOP:
            covered_chars = _count_top_chars(grams, counts, starts, n, 0)
        else:
            covered_chars = _count_dupe_chars(grams, counts, starts, n)
        signals[n - _FIRST_TOP] = covered_chars / num_chars


@njit(nogil=True)
def measure_token_ngrams(points: Ints, kinds: Kinds, signals: NDArray[np.float64]) -> None:
    """Write the shares of Gopher's rules for n = 2 to 10; stop as `measure_ngrams` does.

    Args:
        points: code points of the text.
        kinds: bits of each character.
        signals: one element per length, filled with zeros.
    """
    token_starts, token_ends = split_tokens(points, kinds)
    if len(token_starts) == 0:
        return
    grams, num_ids = number_sequences(points, token_starts, token_ends)
    starts = np.zeros(len(grams) + 1, np.int32)  # as if there were no white space
    starts[1:] = np.cumsum(token_ends - token_starts)
    counts = count_ids(grams, num_ids)
    for n in range(_FIRST_TOP, _LAST_DUPE + 1):
        grams, counts = join_ngrams(grams, counts)
        if len(counts) == 0:
            return
        if n <= _LAST_TOP:
            repeated_chars = _count_top_chars(grams, counts, starts, n, n - 1)
        else:
            repeated_chars = _count_repeated_chars(grams, len(counts), starts, n)
        signals[n - _FIRST_TOP] = repeated_chars / len(points)


@njit(nogil=True)
def _count_top_chars(
    grams: Ints, counts: Ints, starts: Ints, n: int, num_blanks: int
) -> int:
    """Return the characters of the most frequent n-gram times its count, 0 if it occurs once.

    Of several equally frequent n-grams, the one that occurs first counts. `num_blanks` is the number
    of blanks between its words.
    """
    top = np.argmax(counts)
    if counts[top] < 2:
        return 0
    for i in range(len(grams)):
        if grams[i] == top:
            return (starts[i + n] - starts[i] + num_blanks) * counts[top]
    return 0


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
