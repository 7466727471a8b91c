r"""Signals of words, wordpunct tokens, sentences and symbols.

Three kinds of word:

    raw word         longest sequence without white space
    word             raw word in lower case, without ASCII punctuation
    wordpunct token  \w+ or [^\w\s]+, as NLTK's WordPunctTokenizer (RedPajama-V2's raw words)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.quality import columns
from stages.kernels.quality.alphabet import (
    ALPHABETIC,
    ASCII_LETTER,
    LOWER,
    NUM_CLASSIFIED,
    PUNCTUATION,
    SENTENCE_END,
    SENTENCE_END_IN_RPV2,
    SPACE,
    UPPER,
    WORD_CHARACTER,
    Alphabet,
    Ints,
    Kinds,
    Phrases,
)
from stages.kernels.quality.ngrams import measure_ngrams
from stages.kernels.quality.sequence_ids import count_ids, number_sequences

_ELLIPSIS, _DOT, _HASH, _NEWLINE, _OPENING, _CLOSING = 0x2026, 0x2E, 0x23, 0x0A, 0x7B, 0x7D
_NUM_STOP_WORDS = len(columns.STOP_WORDS)
_JAVASCRIPT = _NUM_STOP_WORDS  # id of "javascript" among the wanted words
_LOREM = np.array([ord(c) for c in "lorem"], np.int32)
_IPSUM = np.array([ord(c) for c in "ipsum"], np.int32)


class Symbols(NamedTuple):
    """Numbers of symbols. "..." counts as an ellipsis, without overlap, as str.count does."""

    hashes: int
    ellipses: int
    curly_brackets: int
    newlines: int


class SplitWords(NamedTuple):
    """The words of a text in normal form, after the words of a list."""

    letters: Ints  # code points of all words, one after the other
    starts: Ints  # (num_words + 1,) where each word starts in `letters`; last: where the last ends
    num_raw: int  # raw words of the text
    num_alphabetic: int  # raw words with an alphabetic character


@njit(nogil=True)
def count_symbols(points: Ints) -> Symbols:
    """Count the symbols of a text."""
    num_hashes = num_ellipses = num_curly = num_newlines = 0
    for point in points:  # no branch, so LLVM handles several characters per instruction
        num_hashes += point == _HASH
        num_ellipses += point == _ELLIPSIS
        num_curly += (point == _OPENING) + (point == _CLOSING)
        num_newlines += point == _NEWLINE
    i = 2
    while i < len(points):
        # Few third characters are dots, so most steps take three characters.
        if points[i] != _DOT:
            i += 3
        elif points[i - 1] != _DOT:
            i += 2
        elif points[i - 2] != _DOT:
            i += 1
        else:
            num_ellipses += 1
            i += 3
    return Symbols(num_hashes, num_ellipses, num_curly, num_newlines)


@njit(nogil=True)
def measure_wordpunct(kinds: Kinds, symbols: Symbols, signals: NDArray[np.float64]) -> None:
    """Write the signals of wordpunct tokens and sentences, and the share of curly brackets."""
    num_tokens = num_no_alpha = num_all_caps = 0
    bits = 0  # union of the bits of the current token's characters
    last = SPACE
    num_sentences = num_sentences_rpv2 = 0
    in_sentence = in_sentence_rpv2 = False
    for kind in kinds:
        # A token ends where white space or membership of \w changes.
        if (kind ^ last) & (SPACE | WORD_CHARACTER):
            if not last & SPACE:
                num_tokens += 1
                num_no_alpha += bits & ASCII_LETTER == 0
                num_all_caps += bits & (UPPER | LOWER) == UPPER
            bits = 0
        bits |= kind
        last = kind
        # A sentence starts at a word character and ends at a mark.
        is_word = kind & WORD_CHARACTER != 0
        num_sentences += is_word and not in_sentence
        in_sentence = (in_sentence or is_word) and kind & SENTENCE_END == 0
        num_sentences_rpv2 += is_word and not in_sentence_rpv2
        in_sentence_rpv2 = (
            in_sentence_rpv2 or is_word
        ) and kind & SENTENCE_END_IN_RPV2 == 0
    if not last & SPACE:
        num_tokens += 1
        num_no_alpha += bits & ASCII_LETTER == 0
        num_all_caps += bits & (UPPER | LOWER) == UPPER
    signals[columns.NUM_SENTENCES] = num_sentences_rpv2
    signals[columns.ALL_SENTENCES] = num_sentences
    if len(kinds) > 0:
        signals[columns.CURLY_BRACKETS] = symbols.curly_brackets / len(kinds)
    if num_tokens > 0:
        signals[columns.SYMBOLS] = (symbols.hashes + symbols.ellipses) / num_tokens
        signals[columns.NO_ALPHA_WORDS] = num_no_alpha / num_tokens
        signals[columns.ALL_CAPS_WORDS] = num_all_caps / num_tokens
        signals[columns.NEWLINES] = symbols.newlines / num_tokens


@njit(nogil=True)
def split_wordpunct(points: Ints, kinds: Kinds, before: Phrases) -> tuple[Ints, Ints, Ints]:
    """Return the words of `before` and then the wordpunct tokens of a text, unchanged.

    Returns:
        letters: code points.
        starts: (num_words,) where each word starts in `letters`.
        ends: (num_words,) where it ends.
    """
    num_letters, num_words = len(before.letters), len(before.word_starts) - 1
    letters = np.empty(num_letters + len(points), np.int32)
    letters[:num_letters], letters[num_letters:] = before.letters, points
    most = num_words + len(points)
    starts, ends = np.empty(most, np.int32), np.empty(most, np.int32)
    starts[:num_words], ends[:num_words] = before.word_starts[:-1], before.word_starts[1:]
    last = SPACE
    for i in range(len(points) + 1):
        kind = kinds[i] & (SPACE | WORD_CHARACTER) if i < len(points) else SPACE
        if kind != last:
            if last != SPACE:
                ends[num_words] = num_letters + i
                num_words += 1
            if kind != SPACE:
                starts[num_words] = num_letters + i
        last = kind
    return letters, starts[:num_words], ends[:num_words]


@njit(nogil=True)
def measure_words(
    points: Ints,
    kinds: Kinds,
    alphabet: Alphabet,
    symbols: Symbols,
    signals: NDArray[np.float64],
) -> int:
    """Write the signals of words and n-grams.

    Returns:
        How many words are "javascript".
    """
    # The wanted words come first, so their ids are 0, 1, ... and their counts are at known places.
    split = split_words(points, kinds, alphabet.lowers, alphabet.wanted)
    ids, num_ids = number_sequences(split.letters, split.starts[:-1], split.starts[1:])
    num_wanted = len(alphabet.wanted.word_starts) - 1
    words, starts = ids[num_wanted:], split.starts[num_wanted:]
    num_words, num_chars = len(words), starts[-1] - starts[0]
    if split.num_raw > 0:
        signals[columns.HASHES] = symbols.hashes / split.num_raw
        signals[columns.ELLIPSES] = symbols.ellipses / split.num_raw
        num_without_letter = split.num_raw - split.num_alphabetic
        signals[columns.WORDS_WITHOUT_LETTER] = num_without_letter / split.num_raw
    if num_words == 0:
        return 0
    counts = count_ids(words, num_ids)
    signals[columns.WORD_COUNT] = num_words
    signals[columns.MEAN_WORD_LENGTH] = num_chars / num_words
    signals[columns.UNIQUE_WORDS] = np.count_nonzero(counts) / num_words
    signals[columns.ENTROPY] = _compute_entropy(counts, num_words)
    signals[columns.NUM_STOP_WORDS] = np.count_nonzero(counts[:_NUM_STOP_WORDS])
    num_lorem_ipsum = _count_lorem_ipsum(split.letters, starts)
    signals[columns.LOREM_IPSUM] = num_lorem_ipsum / (num_chars + num_words - 1)
    measure_ngrams(words, num_ids, starts, signals[columns.NGRAMS : columns.TOKEN_NGRAMS])
    return counts[_JAVASCRIPT]


@njit(nogil=True)
def split_words(points: Ints, kinds: Kinds, lowers: Ints, before: Phrases) -> SplitWords:
    """Return the words of `before` and then those of a text in normal form."""
    num_letters, num_words = len(before.letters), len(before.word_starts) - 1
    letters = np.empty(num_letters + len(points), np.int32)
    starts = np.empty(num_words + len(points) // 2 + 2, np.int32)
    letters[:num_letters] = before.letters
    starts[: num_words + 1] = before.word_starts
    num_raw = num_alphabetic = 0
    is_inside = is_alphabetic = False
    for i in range(len(points) + 1):
        if i == len(points) or kinds[i] & SPACE:
            num_raw += is_inside
            num_alphabetic += is_alphabetic
            if num_letters > starts[num_words]:  # not only punctuation
                num_words += 1
                starts[num_words] = num_letters
            is_inside = is_alphabetic = False
            continue
        is_inside = True
        if kinds[i] & PUNCTUATION:
            continue
        is_alphabetic |= kinds[i] & ALPHABETIC != 0
        letters[num_letters] = (
            lowers[points[i]] if points[i] < NUM_CLASSIFIED else points[i]
        )
        num_letters += 1
    return SplitWords(letters, starts[: num_words + 1], num_raw, num_alphabetic)


@njit(nogil=True)
def count_listed_phrases(words: Ints, listed: Phrases) -> int:
    """Count the word n-grams of a text that are listed phrases.

    Args:
        words: ids of the list's own words first, then of the text's words.
        listed: the list.
    """
    num_before, num_phrases = len(listed.word_starts) - 1, len(listed.phrase_starts) - 1
    num_words = len(words) - num_before
    num_ngrams = num_phrases
    for length in listed.lengths:
        num_ngrams += max(0, num_words - length + 1)
    # Number the listed phrases first: an n-gram of the text is listed if its id is one of theirs.
    starts, ends = np.empty(num_ngrams, np.int32), np.empty(num_ngrams, np.int32)
    starts[:num_phrases], ends[:num_phrases] = (
        listed.phrase_starts[:-1],
        listed.phrase_starts[1:],
    )
    at = num_phrases
    for length in listed.lengths:
        for first in range(num_before, len(words) - length + 1):
            starts[at], ends[at] = first, first + length
            at += 1
    ids, _ = number_sequences(words, starts, ends)
    return int(np.count_nonzero(ids[num_phrases:] < num_phrases))


@njit(nogil=True)
def _count_lorem_ipsum(letters: Ints, starts: Ints) -> int:
    """Count the words that begin with "ipsum" and follow a word that ends with "lorem"."""
    num_found = 0
    for i in range(1, len(starts) - 1):
        start = starts[i]
        if letters[start] != _IPSUM[0]:
            continue
        if start - starts[i - 1] < len(_LOREM) or starts[i + 1] - start < len(_IPSUM):
            continue
        num_found += _is_at(start - len(_LOREM), _LOREM, letters) and _is_at(
            start, _IPSUM, letters
        )
    return num_found


@njit(nogil=True)
def _is_at(start: int, word: Ints, letters: Ints) -> bool:
    for k in range(len(word)):  # noqa: SIM110 - numba compiles no generator expressions
        if letters[start + k] != word[k]:
            return False
    return True


@njit(nogil=True)
def _compute_entropy(counts: Ints, total: int) -> float:
    """Return the entropy of the words in nats (RedPajama-V2, rps_doc_unigram_entropy)."""
    entropy = 0.0
    for count in counts:
        if count > 0:
            entropy -= count / total * np.log(count / total)
    return entropy
