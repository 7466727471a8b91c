"""The quality signals of a batch of texts, compiled: no Python string is made, and no hash is trusted.

Promises: the numbers that `stages.quality` defines, exactly, for any UTF-8. What is counted as equal (words, lines,
paragraphs, runs of words) is equal: sequences get small numbers by comparison, and runs of n + 1 words are pairs of
neighbouring runs of n words. Only runs that occur twice are followed to n + 1, so that ten lengths cost little more
than two. Leaves to others: which signal is stored under which name (`SIGNALS` gives the order of the columns).

    the cat and the cat sat      words     0 1 2 0 1 3      ids in order of first occurrence
                                 twice     0 1 . 0 1 .
                                 2-grams   0 . . 0 .        the pair (0, 1), twice; nothing is left for 3-grams

Lists of words, which are the user's, are looked for by a kernel of its own (`count_listed`), so that `measure` costs
nothing more where there are none.

Everything that is compiled stands in this file: numba's cache on disk looks for changes only here.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, Self, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.sha1 import compiled

_Ints: TypeAlias = NDArray[np.int32]
_Kinds: TypeAlias = NDArray[np.uint16]

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""The English words that Rae et al. 2021 (Gopher), appendix A.1.1, look for."""

BULLETS = "-\u2013\u2022\u2023\u25a0\u25a1\u25aa\u25ab\u25b6\u25c0\u25e6"
"""RedPajama-V2's bullet points (core/quality_signals/lines.py) and the hyphen, as in datatrove's Gopher filter."""

TERMINAL_PUNCTUATION = '.!?"\u201d'
"""C4's marks (Raffel et al. 2020, section 2.2: period, exclamation mark, question mark, end quotation mark)."""

_NOT_A_BULLET_THERE, _NOT_TERMINAL_THERE = ord("-"), ord('"')
"""Those of `BULLETS` and of `TERMINAL_PUNCTUATION` that RedPajama-V2 leaves out (core/quality_signals/lines.py)."""

SHORT_LINE_CHARS = 30
"""FineWeb's short line (Penedo et al. 2024, section 3.6)."""

TOP_NGRAMS = (2, 3, 4)
DUPE_NGRAMS = (5, 6, 7, 8, 9, 10)
"""Gopher's lengths (Rae et al. 2021, table A1)."""

SIGNALS = (
    "rps_doc_word_count",
    "rps_doc_mean_word_length",
    "rps_doc_frac_unique_words",
    "rps_doc_unigram_entropy",
    "rps_doc_num_sentences",
    "rps_doc_symbol_to_word_ratio",
    "rps_doc_frac_no_alph_words",
    "rps_doc_frac_all_caps_words",
    "rps_doc_frac_lines_end_with_ellipsis",
    "rps_doc_curly_bracket",
    "rps_doc_lorem_ipsum",
    "rps_lines_ending_with_terminal_punctution_mark_mean",
    "rps_lines_javascript_counts_mean",
    "rps_lines_num_words_mean",
    "rps_lines_numerical_chars_fraction_mean",
    "rps_lines_start_with_bulletpoint_mean",
    "rps_lines_uppercase_letter_fraction_mean",
    "hash_to_word_ratio",
    "ellipsis_to_word_ratio",
    "newline_to_word_ratio",
    "frac_words_without_letter",
    "num_stop_words",
    "frac_lines_start_with_bulletpoint",
    "frac_lines_end_with_terminal_punctuation",
    "frac_short_lines",
    "frac_dupe_lines",
    "frac_chars_dupe_lines",
    "frac_dupe_paragraphs",
    "frac_chars_dupe_paragraphs",
    *(f"rps_doc_frac_chars_top_{n}gram" for n in TOP_NGRAMS),
    *(f"rps_doc_frac_chars_dupe_{n}grams" for n in DUPE_NGRAMS),
)
"""What the columns of `measure` are, in order; `stages.quality` says what each means."""

_NUM_SIGNALS = len(SIGNALS)
(
    _WORDS,
    _MEAN_WORD,
    _UNIQUE,
    _ENTROPY,
    _SENTENCES,
    _SYMBOLS,
    _NO_ALPHA,
    _ALL_CAPS,
    _ELLIPSIS_LINES,
    _CURLY,
    _LOREM_IPSUM,
    _LINES_TERMINAL,
    _LINES_JAVASCRIPT,
    _LINES_WORDS,
    _LINES_NUMERIC,
    _LINES_BULLET,
    _LINES_UPPER,
    _HASHES,
    _ELLIPSES,
    _NEWLINES,
    _NO_LETTER,
    _STOP_WORDS,
    _BULLET_LINES,
    _TERMINAL_LINES,
    _SHORT_LINES,
    _DUPE_LINES,
    _DUPE_LINE_CHARS,
    _DUPE_PARAGRAPHS,
    _DUPE_PARAGRAPH_CHARS,
    _NGRAMS,
) = range(30)
_NUM_STOP_WORDS = len(STOP_WORDS)
_JAVASCRIPT = _NUM_STOP_WORDS  # its number among the words that are looked for
_FIRST_TOP, _LAST_TOP, _LAST_DUPE = TOP_NGRAMS[0], TOP_NGRAMS[-1], DUPE_NGRAMS[-1]

_SPACE, _ALPHABETIC, _PUNCTUATION, _BULLET, _TERMINAL = 1, 2, 4, 8, 16
_OF_A_WORD, _UPPER, _LOWER, _NUMERIC, _ASCII_LETTER, _SENTENCE_END = 32, 64, 128, 256, 512, 1024
_NUM_CLASSIFIED = 0x34000  # no character beyond is white space, alphabetic, numeric or has a lower case (Unicode 17)
_ELLIPSIS, _DOT, _HASH, _NEWLINE, _OPENING, _CLOSING = 0x2026, 0x2E, 0x23, 0x0A, 0x7B, 0x7D
_LOREM, _IPSUM = (np.array([ord(c) for c in word], np.int32) for word in ("lorem", "ipsum"))


class Phrases(NamedTuple):
    """Different phrases of one or more words each, laid end to end."""

    letters: _Ints  # the code points of all words
    word_starts: _Ints  # (num_words + 1,)
    phrase_starts: _Ints  # (num_phrases + 1,) the first word of each
    lengths: _Ints  # the numbers of words that a phrase has, each once

    @classmethod
    def of(cls, phrases: Sequence[Sequence[str]]) -> Self:
        """Of lists of words, which must be different."""
        words = [word for phrase in phrases for word in phrase]
        return cls(
            np.array([ord(c) for word in words for c in word], dtype=np.int32),
            np.cumsum([0, *(len(word) for word in words)], dtype=np.int32),
            np.cumsum([0, *(len(phrase) for phrase in phrases)], dtype=np.int32),
            np.array(sorted({len(phrase) for phrase in phrases}), dtype=np.int32),
        )


class Alphabet(NamedTuple):
    """What the kernel knows of characters: Python's own str.isspace, str.isalpha, str.lower, ..., by code point."""

    classes: NDArray[np.uint16]  # (_NUM_CLASSIFIED,) bits
    lowers: _Ints  # (_NUM_CLASSIFIED,) the lower case where it is one character, else the character
    wanted: Phrases  # the words that `measure` looks for, each a phrase of its own


@cache
def alphabet() -> Alphabet:
    """The tables, made once per process (some 0.2 s)."""
    characters = [chr(point) for point in range(_NUM_CLASSIFIED)]
    marks = [
        (set(string.punctuation), _PUNCTUATION),
        (set(BULLETS), _BULLET),
        (set(TERMINAL_PUNCTUATION), _TERMINAL),
        (set(string.ascii_letters), _ASCII_LETTER),
        (set(".!?"), _SENTENCE_END),
        (set("_"), _OF_A_WORD),
    ]
    classes = [
        _SPACE * c.isspace()
        | _ALPHABETIC * c.isalpha()
        | _OF_A_WORD * c.isalnum()  # and the underscore: \w of Python's re
        | _UPPER * c.isupper()
        | _LOWER * (c.islower() or (c.istitle() and not c.isupper()))
        | _NUMERIC * c.isnumeric()
        for c in characters
    ]
    for members, bit in marks:
        for c in members:
            classes[ord(c)] |= bit
    lowers = [ord(lower) if len(lower := c.lower()) == 1 else ord(c) for c in characters]
    wanted = Phrases.of([[word] for word in (*STOP_WORDS, "javascript")])
    return Alphabet(np.array(classes, dtype=np.uint16), np.array(lowers, dtype=np.int32), wanted)


def words_of(text: str) -> list[str]:
    """The words of a text in their normal form, in plain Python: for what is short."""
    raw = (word.translate(_NO_PUNCTUATION) for word in text.split())
    return ["".join(c.lower() if len(c.lower()) == 1 else c for c in word) for word in raw if word]


_NO_PUNCTUATION = {ord(c): None for c in string.punctuation}


@compiled
def measure(
    utf8: NDArray[np.uint8], offsets: NDArray[np.int64], known: Alphabet
) -> NDArray[np.float64]:
    """(num_texts, len(SIGNALS)): text i is `utf8[offsets[i] : offsets[i + 1]]`."""
    signals = np.zeros((len(offsets) - 1, _NUM_SIGNALS))
    for i in range(len(offsets) - 1):
        points = _decode(utf8[offsets[i] : offsets[i + 1]])
        kinds = _classify(points, known.classes)
        symbols = _count_symbols(points)
        _measure_pieces(kinds, symbols, signals[i])
        num_javascript = _measure_words(points, kinds, known, symbols, signals[i])
        _measure_lines(points, kinds, num_javascript, signals[i])
    return signals


@compiled
def count_listed(
    utf8: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    known: Alphabet,
    listed: Phrases,
    in_pieces: bool,
) -> _Ints:
    """(num_texts, 2): how many runs of a text's words (or pieces, as they stand) are listed; how many words it has."""
    found = np.zeros((len(offsets) - 1, 2), np.int32)
    num_listed = len(listed.word_starts) - 1
    for i in range(len(offsets) - 1):
        points = _decode(utf8[offsets[i] : offsets[i + 1]])
        kinds = _classify(points, known.classes)
        if in_pieces:
            letters, starts, ends = _split_pieces(points, kinds, listed)
        else:
            letters, all_starts, _, _ = _split_words(points, kinds, known.lowers, listed)
            starts, ends = all_starts[:-1], all_starts[1:]
        words, _ = _number(letters, starts, ends)
        found[i, 0] = _count_runs(words, listed)
        found[i, 1] = len(words) - num_listed
    return found


@njit(nogil=True)
def _decode(utf8: NDArray[np.uint8]) -> _Ints:
    """The code points of valid UTF-8 (RFC 3629, section 3)."""
    points = np.empty(len(utf8), np.int32)
    num_points = 0
    i = 0
    while i < len(utf8):
        point = np.int32(utf8[i])
        i += 1
        if point >= 0xC0:
            width = 2 + (point >= 0xE0) + (point >= 0xF0)
            point &= 0x7F >> width
            for _ in range(1, width):
                point = point << 6 | utf8[i] & 0x3F
                i += 1
        points[num_points] = point
        num_points += 1
    return points[:num_points]


@njit(nogil=True)
def _classify(points: _Ints, classes: NDArray[np.uint16]) -> _Kinds:
    """(len(points),) the bits of each character."""
    kinds = np.zeros(len(points), np.uint16)
    for i in range(len(points)):
        if points[i] < _NUM_CLASSIFIED:
            kinds[i] = classes[points[i]]
    return kinds


# --- Pieces ---


class _Symbols(NamedTuple):
    """How often each occurs; "..." counts as an ellipsis, as str.count counts it, without overlap."""

    hashes: int
    ellipses: int
    curly_brackets: int
    newlines: int


@njit(nogil=True)
def _count_symbols(points: _Ints) -> _Symbols:
    num_hashes = num_ellipses = num_curly = num_newlines = 0
    for point in points:  # without a branch: several characters a step
        num_hashes += point == _HASH
        num_ellipses += point == _ELLIPSIS
        num_curly += (point == _OPENING) + (point == _CLOSING)
        num_newlines += point == _NEWLINE
    num_dots = 0
    for point in points:
        num_dots = num_dots + 1 if point == _DOT else 0
        if num_dots == 3:
            num_ellipses += 1
            num_dots = 0
    return _Symbols(num_hashes, num_ellipses, num_curly, num_newlines)


@njit(nogil=True)
def _measure_pieces(kinds: _Kinds, symbols: _Symbols, signals: NDArray[np.float64]) -> None:
    """What is counted in pieces and sentences, and the share of curly brackets."""
    num_pieces = num_no_alpha = num_all_caps = num_sentences = 0
    bits, last, in_sentence = 0, _SPACE, False
    for mine in kinds:
        if (mine ^ last) & (_SPACE | _OF_A_WORD):
            if not last & _SPACE:
                num_pieces += 1
                num_no_alpha += bits & _ASCII_LETTER == 0
                num_all_caps += bits & (_UPPER | _LOWER) == _UPPER
            bits = 0
        bits |= mine
        last = mine
        num_sentences += mine & _OF_A_WORD != 0 and not in_sentence
        in_sentence = (in_sentence or mine & _OF_A_WORD != 0) and mine & _SENTENCE_END == 0
    if not last & _SPACE:
        num_pieces += 1
        num_no_alpha += bits & _ASCII_LETTER == 0
        num_all_caps += bits & (_UPPER | _LOWER) == _UPPER
    signals[_SENTENCES] = num_sentences
    if len(kinds) > 0:
        signals[_CURLY] = symbols.curly_brackets / len(kinds)
    if num_pieces > 0:
        signals[_SYMBOLS] = (symbols.hashes + symbols.ellipses) / num_pieces
        signals[_NO_ALPHA] = num_no_alpha / num_pieces
        signals[_ALL_CAPS] = num_all_caps / num_pieces
        signals[_NEWLINES] = symbols.newlines / num_pieces


@njit(nogil=True)
def _split_pieces(points: _Ints, kinds: _Kinds, before: Phrases) -> tuple[_Ints, _Ints, _Ints]:
    """The words of `before` and then the pieces, as they stand: letters, and start and end of each."""
    num_letters, num_words = len(before.letters), len(before.word_starts) - 1
    letters = np.empty(num_letters + len(points), np.int32)
    letters[:num_letters], letters[num_letters:] = before.letters, points
    starts, ends = (
        np.empty(num_words + len(points), np.int32),
        np.empty(num_words + len(points), np.int32),
    )
    starts[:num_words], ends[:num_words] = before.word_starts[:-1], before.word_starts[1:]
    last = _SPACE
    for i in range(len(points) + 1):
        mine = kinds[i] & (_SPACE | _OF_A_WORD) if i < len(points) else _SPACE
        if mine != last:
            if last != _SPACE:
                ends[num_words] = num_letters + i
                num_words += 1
            if mine != _SPACE:
                starts[num_words] = num_letters + i
        last = mine
    return letters, starts[:num_words], ends[:num_words]


# --- Words ---


@njit(nogil=True)
def _measure_words(
    points: _Ints, kinds: _Kinds, known: Alphabet, symbols: _Symbols, signals: NDArray[np.float64]
) -> int:
    """What is counted in words; the number of those that are "javascript"."""
    letters, starts, num_raw, num_alphabetic = _split_words(
        points, kinds, known.lowers, known.wanted
    )
    ids, num_ids = _number(letters, starts[:-1], starts[1:])
    num_wanted = len(known.wanted.word_starts) - 1
    words, starts = ids[num_wanted:], starts[num_wanted:]
    num_words, num_chars = len(words), starts[-1] - starts[0]
    if num_raw > 0:
        signals[_HASHES] = symbols.hashes / num_raw
        signals[_ELLIPSES] = symbols.ellipses / num_raw
        signals[_NO_LETTER] = (num_raw - num_alphabetic) / num_raw
    if num_words == 0:
        return 0
    counts = _count(words, num_ids)
    signals[_WORDS] = num_words
    signals[_MEAN_WORD] = num_chars / num_words
    signals[_UNIQUE] = np.count_nonzero(counts) / num_words
    signals[_ENTROPY] = _entropy(counts, num_words)
    signals[_STOP_WORDS] = np.count_nonzero(counts[:_NUM_STOP_WORDS])
    signals[_LOREM_IPSUM] = _count_lorem_ipsum(letters, starts) / (num_chars + num_words - 1)
    _measure_ngrams(words, num_ids, starts, signals[_NGRAMS:])
    return counts[_JAVASCRIPT]


@njit(nogil=True)
def _split_words(
    points: _Ints, kinds: _Kinds, lowers: _Ints, before: Phrases
) -> tuple[_Ints, _Ints, int, int]:
    """The words of `before` and then those of the text in normal form, laid end to end; where each begins.

    The last of these is where the last word ends. Then the numbers of raw words (runs without white space) and of those
    with an alphabetic character.
    """
    num_letters, num_words = len(before.letters), len(before.word_starts) - 1
    letters = np.empty(num_letters + len(points), np.int32)
    starts = np.empty(num_words + len(points) // 2 + 2, np.int32)
    letters[:num_letters] = before.letters
    starts[: num_words + 1] = before.word_starts
    num_raw = num_alphabetic = 0
    inside = alphabetic = False
    for i in range(len(points) + 1):
        if i == len(points) or kinds[i] & _SPACE:
            num_raw += inside
            num_alphabetic += alphabetic
            if num_letters > starts[num_words]:
                num_words += 1
                starts[num_words] = num_letters
            inside = alphabetic = False
            continue
        inside = True
        if kinds[i] & _PUNCTUATION:
            continue
        alphabetic |= kinds[i] & _ALPHABETIC != 0
        letters[num_letters] = lowers[points[i]] if points[i] < _NUM_CLASSIFIED else points[i]
        num_letters += 1
    return letters, starts[: num_words + 1], num_raw, num_alphabetic


@njit(nogil=True)
def _count_lorem_ipsum(letters: _Ints, starts: _Ints) -> int:
    """How often a word that begins with "ipsum" follows one that ends in "lorem"."""
    num_found, before, after = 0, len(_LOREM), len(_IPSUM)
    for i in range(1, len(starts) - 1):
        start = starts[i]
        if (
            letters[start] != _IPSUM[0]
            or start - starts[i - 1] < before
            or starts[i + 1] - start < after
        ):
            continue
        num_found += _stands_at(start - before, _LOREM, letters) and _stands_at(
            start, _IPSUM, letters
        )
    return num_found


@njit(nogil=True)
def _stands_at(start: int, word: _Ints, letters: _Ints) -> bool:
    for k in range(len(word)):  # noqa: SIM110 - numba compiles no generator expressions
        if letters[start + k] != word[k]:
            return False
    return True


@njit(nogil=True)
def _count_runs(words: _Ints, listed: Phrases) -> int:
    """How many runs of words are listed: `words` has the numbers of the list's own words first, then the text's."""
    num_before, num_phrases = len(listed.word_starts) - 1, len(listed.phrase_starts) - 1
    num_words = len(words) - num_before
    num_runs = num_phrases
    for length in listed.lengths:
        num_runs += max(0, num_words - length + 1)
    starts, ends = np.empty(num_runs, np.int32), np.empty(num_runs, np.int32)
    starts[:num_phrases], ends[:num_phrases] = listed.phrase_starts[:-1], listed.phrase_starts[1:]
    at = num_phrases
    for length in listed.lengths:
        for first in range(num_before, len(words) - length + 1):
            starts[at], ends[at] = first, first + length
            at += 1
    ids, _ = _number(words, starts, ends)
    return int(np.count_nonzero(ids[num_phrases:] < num_phrases))


@njit(nogil=True)
def _entropy(counts: _Ints, total: int) -> float:
    """Of the distribution of words, in nats (RedPajama-V2, rps_doc_unigram_entropy)."""
    entropy = 0.0
    for count in counts:
        if count > 0:
            entropy -= count / total * np.log(count / total)
    return entropy


# --- Runs of words ---


@njit(nogil=True)
def _measure_ngrams(
    words: _Ints, num_ids: int, starts: _Ints, signals: NDArray[np.float64]
) -> None:
    """Write the shares of the top n-grams (n from 2), then of duplicated ones (n up to 10), until none occurs twice."""
    num_chars = starts[-1] - starts[0]
    grams, counts = words, _count(words, num_ids)
    for n in range(_FIRST_TOP, _LAST_DUPE + 1):
        grams, counts = _join(grams, counts)
        if len(counts) == 0:
            return
        chars = (
            _chars_in_top(grams, counts, starts, n)
            if n <= _LAST_TOP
            else _chars_in_dupes(grams, counts, starts, n)
        )
        signals[n - _FIRST_TOP] = chars / num_chars


@njit(nogil=True)
def _join(grams: _Ints, counts: _Ints) -> tuple[_Ints, _Ints]:
    """The n+1-grams, as ids in order of first occurrence, and their counts, out of the n-grams and theirs.

    A gram is -1 where one of its halves occurs once only, for then so does it.
    """
    num_joined = max(0, len(grams) - 1)
    joined = np.full(num_joined, -1, np.int32)
    num_candidates = 0
    for i in range(num_joined):
        if (
            grams[i] >= 0
            and grams[i + 1] >= 0
            and counts[grams[i]] > 1
            and counts[grams[i + 1]] > 1
        ):
            joined[i] = 0
            num_candidates += 1
    mask = _num_slots(num_candidates) - 1
    slots = np.full(mask + 1, -1, np.int32)
    firsts = np.empty(num_candidates, np.int32)
    new_counts = np.zeros(num_candidates, np.int32)
    num_ids = 0
    for i in range(num_joined):
        if joined[i] < 0:
            continue
        slot = _mixed(np.uint64(grams[i]) << np.uint64(32) | np.uint64(grams[i + 1])) & mask
        while slots[slot] >= 0 and not _same_pair(grams, i, firsts[slots[slot]]):
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = num_ids
            firsts[num_ids] = i
            num_ids += 1
        joined[i] = slots[slot]
        new_counts[slots[slot]] += 1
    return joined, new_counts[:num_ids]


@njit(nogil=True)
def _same_pair(grams: _Ints, i: int, j: int) -> bool:
    return grams[i] == grams[j] and grams[i + 1] == grams[j + 1]


@njit(nogil=True)
def _chars_in_top(grams: _Ints, counts: _Ints, starts: _Ints, n: int) -> int:
    """Characters of the most frequent gram (of several, the first to occur) times its count; 0 if it occurs once."""
    top = np.argmax(counts)
    if counts[top] < 2:
        return 0
    for i in range(len(grams)):
        if grams[i] == top:
            return (starts[i + n] - starts[i]) * counts[top]
    return 0


@njit(nogil=True)
def _chars_in_dupes(grams: _Ints, counts: _Ints, starts: _Ints, n: int) -> int:
    """Characters of all words inside a gram that occurs twice or more, each word once."""
    num_chars = 0
    covered = 0  # words before this one are counted
    for i in range(len(grams)):
        if grams[i] >= 0 and counts[grams[i]] > 1:
            num_chars += starts[i + n] - starts[max(i, covered)]
            covered = i + n
    return num_chars


# --- Lines and paragraphs ---


@njit(nogil=True)
def _measure_lines(
    points: _Ints, kinds: _Kinds, num_javascript: int, signals: NDArray[np.float64]
) -> None:
    starts, ends, paragraph_starts = _split_lines(points, kinds)
    num_lines = len(starts)
    if num_lines == 0:
        return
    num_ellipses = num_bullets = num_bullets_there = num_terminals = num_terminals_there = (
        num_short
    ) = 0
    sum_upper = sum_numeric = 0.0
    for i in range(num_lines):
        first, last, of_line = points[starts[i]], points[ends[i] - 1], kinds[starts[i] : ends[i]]
        is_bullet, is_terminal = of_line[0] & _BULLET != 0, of_line[-1] & _TERMINAL != 0
        num_ellipses += last == _ELLIPSIS or _ends_with_dots(points, starts[i], ends[i])
        num_bullets += is_bullet
        num_bullets_there += is_bullet and first != _NOT_A_BULLET_THERE
        num_terminals += is_terminal
        num_terminals_there += is_terminal and last != _NOT_TERMINAL_THERE
        num_short += ends[i] - starts[i] <= SHORT_LINE_CHARS
        num_upper, num_numeric = _count_characters(of_line)
        sum_upper += num_upper / len(of_line)
        if num_numeric > 0:
            sum_numeric += num_numeric / _normal_length(of_line)
    signals[_ELLIPSIS_LINES] = num_ellipses / num_lines
    signals[_BULLET_LINES] = num_bullets / num_lines
    signals[_TERMINAL_LINES] = num_terminals / num_lines
    signals[_SHORT_LINES] = num_short / num_lines
    signals[_LINES_BULLET] = num_bullets_there / num_lines
    signals[_LINES_TERMINAL] = num_terminals_there / num_lines
    signals[_LINES_UPPER] = sum_upper / num_lines
    signals[_LINES_NUMERIC] = sum_numeric / num_lines
    signals[_LINES_JAVASCRIPT] = num_javascript / num_lines
    signals[_LINES_WORDS] = (
        signals[_WORDS] / num_lines
    )  # a line feed ends a word, so each lies in one line
    lines, num_ids = _number(points, starts, ends)
    chars_before = np.zeros(num_lines + 1, np.int32)
    chars_before[1:] = np.cumsum(ends - starts)
    signals[_DUPE_LINES], signals[_DUPE_LINE_CHARS] = _shares_repeated(lines, num_ids, chars_before)
    paragraphs, num_ids = _number(lines, paragraph_starts[:-1], paragraph_starts[1:])
    signals[_DUPE_PARAGRAPHS], signals[_DUPE_PARAGRAPH_CHARS] = _shares_repeated(
        paragraphs, num_ids, chars_before[paragraph_starts]
    )


@njit(nogil=True)
def _count_characters(kinds: _Kinds) -> tuple[int, int]:
    """How many are in upper case, and how many numeric."""
    num_upper = num_numeric = 0
    for kind in kinds:
        num_upper += kind & _UPPER != 0
        num_numeric += kind & _NUMERIC != 0
    return num_upper, num_numeric


@njit(nogil=True)
def _normal_length(kinds: _Kinds) -> int:
    """Of how many characters the normal form consists: words, and single blanks between them."""
    num_chars, num_words, inside = 0, 0, False
    for kind in kinds:
        if kind & _SPACE:
            inside = False
        elif not kind & _PUNCTUATION:
            num_chars += 1
            num_words += not inside
            inside = True
    return num_chars + num_words - 1


@njit(nogil=True)
def _split_lines(points: _Ints, kinds: _Kinds) -> tuple[_Ints, _Ints, _Ints]:
    """Start and end of each line that is not blank, white space around it left out; the first line of each paragraph.

    The last element of the third is the number of lines.
    """
    num_newlines = np.count_nonzero(points == _NEWLINE)
    starts, ends = np.empty(num_newlines + 1, np.int32), np.empty(num_newlines + 1, np.int32)
    paragraphs = np.empty(num_newlines + 2, np.int32)
    num_lines = num_paragraphs = 0
    start, end, after_blank = -1, -1, True
    for i in range(len(points) + 1):
        if i < len(points) and points[i] != _NEWLINE:
            if not kinds[i] & _SPACE:
                start = i if start < 0 else start
                end = i + 1
            continue
        if start >= 0:
            if after_blank:
                paragraphs[num_paragraphs] = num_lines
                num_paragraphs += 1
            starts[num_lines], ends[num_lines] = start, end
            num_lines += 1
        after_blank = start < 0
        start = -1
    paragraphs[num_paragraphs] = num_lines
    return starts[:num_lines], ends[:num_lines], paragraphs[: num_paragraphs + 1]


@njit(nogil=True)
def _ends_with_dots(points: _Ints, start: int, end: int) -> bool:
    return (
        end - start >= 3
        and points[end - 1] == _DOT
        and points[end - 2] == _DOT
        and points[end - 3] == _DOT
    )


@njit(nogil=True)
def _shares_repeated(ids: _Ints, num_ids: int, chars_before: _Ints) -> tuple[float, float]:
    """The shares of items that occurred before, and of the characters in them; `chars_before` is (num_items + 1,)."""
    seen = np.zeros(num_ids, np.bool_)
    num_repeated = num_chars = 0
    for i in range(len(ids)):
        if seen[ids[i]]:
            num_repeated += 1
            num_chars += chars_before[i + 1] - chars_before[i]
        seen[ids[i]] = True
    return num_repeated / len(ids), num_chars / chars_before[-1]


# --- Equal things get equal numbers ---


@njit(nogil=True)
def _number(items: _Ints, starts: _Ints, ends: _Ints) -> tuple[_Ints, int]:
    """An id for each sequence items[start:end], in order of first occurrence, equal for equal ones; how many ids."""
    ids = np.empty(len(starts), np.int32)
    firsts = np.empty(len(starts), np.int32)
    mask = _num_slots(len(starts)) - 1
    slots = np.full(mask + 1, -1, np.int32)
    num_ids = 0
    for i in range(len(starts)):
        key = np.uint64(ends[i] - starts[i])
        for k in range(starts[i], ends[i]):
            key = (key ^ np.uint64(items[k])) * _MULTIPLIER
        slot = _mixed(key) & mask
        while slots[slot] >= 0 and not _same(items, starts, ends, i, firsts[slots[slot]]):
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = num_ids
            firsts[num_ids] = i
            num_ids += 1
        ids[i] = slots[slot]
    return ids, num_ids


@njit(nogil=True)
def _same(items: _Ints, starts: _Ints, ends: _Ints, i: int, j: int) -> bool:
    if ends[i] - starts[i] != ends[j] - starts[j]:
        return False
    for k in range(ends[i] - starts[i]):  # noqa: SIM110 - numba compiles no generator expressions
        if items[starts[i] + k] != items[starts[j] + k]:
            return False
    return True


@njit(nogil=True)
def _count(ids: _Ints, num_ids: int) -> _Ints:
    counts = np.zeros(num_ids, np.int32)
    for one in ids:
        counts[one] += 1
    return counts


_MULTIPLIER = np.uint64(
    0x9E3779B97F4A7C15
)  # 2^64 over the golden ratio (Knuth, TAOCP vol. 3, section 6.4)


@njit(nogil=True)
def _mixed(key: np.uint64) -> np.int64:
    """The upper half of the product, where every bit of the key has had its say."""
    return np.int64(key * _MULTIPLIER >> np.uint64(32))


@njit(nogil=True)
def _num_slots(num_keys: int) -> int:
    """A power of two of which `num_keys` fill at most half."""
    num_slots = 2
    while num_slots < 2 * num_keys:
        num_slots *= 2
    return num_slots
