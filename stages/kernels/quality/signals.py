"""The two functions that `stages.filters.quality` calls.

The results equal the definitions in `stages.filters.quality.definitions` exactly, for any UTF-8. Words, lines,
paragraphs and n-grams are counted as equal only after comparison, never by their hash alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from stages.kernels.compilation import compiled
from stages.kernels.quality.alphabet import Alphabet, Ints, Phrases, classify, decode_text
from stages.kernels.quality.columns import NUM_SIGNALS, TOKEN_NGRAMS
from stages.kernels.quality.lines import measure_lines
from stages.kernels.quality.ngrams import measure_token_ngrams
from stages.kernels.quality.sequence_ids import number_sequences
from stages.kernels.quality.words import (
    count_listed_phrases,
    count_symbols,
    measure_wordpunct,
    measure_words,
    split_wordpunct,
    split_words,
)


@compiled
def measure(
    utf8: NDArray[np.uint8], offsets: NDArray[np.int64], alphabet: Alphabet
) -> NDArray[np.float64]:
    """Compute all signals of each text, (num_texts, NUM_SIGNALS) in the order of SIGNALS."""
    signals = np.zeros((len(offsets) - 1, NUM_SIGNALS))
    for i in range(len(offsets) - 1):
        points = decode_text(utf8[offsets[i] : offsets[i + 1]])
        kinds = classify(points, alphabet.classes)
        symbols = count_symbols(points)
        measure_wordpunct(kinds, symbols, signals[i])
        num_javascript = measure_words(points, kinds, alphabet, symbols, signals[i])
        measure_token_ngrams(points, kinds, signals[i, TOKEN_NGRAMS:])
        measure_lines(points, kinds, num_javascript, signals[i])
    return signals


@compiled
def count_listed(
    utf8: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    alphabet: Alphabet,
    listed: Phrases,
    use_wordpunct: bool,
) -> Ints:
    """Count the phrases of a user's word list in each text.

    It is separate, so that `measure` costs nothing more for users without lists.

    Args:
        utf8: the bytes of all texts.
        offsets: (num_texts + 1,) where each text starts in `utf8`.
        alphabet: as `build_alphabet` returns it.
        listed: the word list.
        use_wordpunct: compare wordpunct tokens, unchanged, instead of words in normal form.

    Returns:
        (num_texts, 2): the number of listed phrases, and the number of words (or tokens).
    """
    found = np.zeros((len(offsets) - 1, 2), np.int32)
    num_listed = len(listed.word_starts) - 1
    for i in range(len(offsets) - 1):
        points = decode_text(utf8[offsets[i] : offsets[i + 1]])
        kinds = classify(points, alphabet.classes)
        if use_wordpunct:
            letters, starts, ends = split_wordpunct(points, kinds, listed)
        else:
            split = split_words(points, kinds, alphabet.lowers, listed)
            letters, starts, ends = split.letters, split.starts[:-1], split.starts[1:]
        words, _ = number_sequences(letters, starts, ends)
        found[i, 0] = count_listed_phrases(words, listed)
        found[i, 1] = len(words) - num_listed
    return found
