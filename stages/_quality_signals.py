"""The quality signals of a batch of texts, compiled: no Python string is made, and no hash is trusted.

Promises: the numbers that `stages.quality` defines, exactly, for any UTF-8. What is counted as equal (words, lines,
paragraphs, runs of words) is equal: sequences get small numbers by comparison, and runs of n + 1 words are pairs of
neighbouring runs of n words. Only runs that occur twice are followed to n + 1, so that ten lengths cost little more
than two. Leaves to others: which signal is stored under which name (`SIGNALS` gives the order of the columns).

    the cat and the cat sat      words     0 1 2 0 1 3      ids in order of first occurrence
                                 twice     0 1 . 0 1 .
                                 2-grams   0 . . 0 .        the pair (0, 1), twice; nothing is left for 3-grams

Everything that is compiled into `measure` stands in this file: numba's cache on disk looks for changes only here.
"""

from __future__ import annotations

import string
from functools import cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages._sha1 import compiled

_Ints: TypeAlias = NDArray[np.int32]

STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")
"""The English words that Rae et al. 2021 (Gopher), appendix A.1.1, look for."""

BULLETS = "-\u2013\u2022\u2023\u25a0\u25a1\u25aa\u25ab\u25b6\u25c0\u25e6"
"""RedPajama-V2's bullet points (core/quality_signals/lines.py) and the hyphen, as in datatrove's Gopher filter."""

TERMINAL_PUNCTUATION = '.!?"\u201d'
"""C4's marks (Raffel et al. 2020, section 2.2: period, exclamation mark, question mark, end quotation mark)."""

SHORT_LINE_CHARS = 30
"""FineWeb's short line (Penedo et al. 2024, section 3.6)."""

TOP_NGRAMS = (2, 3, 4)
DUPE_NGRAMS = (5, 6, 7, 8, 9, 10)
"""Gopher's lengths (Rae et al. 2021, table A1)."""

SIGNALS = (
    "rps_doc_word_count",
    "rps_doc_mean_word_length",
    "rps_doc_symbol_to_word_ratio",
    "hash_to_word_ratio",
    "ellipsis_to_word_ratio",
    "rps_doc_frac_no_alph_words",
    "rps_doc_frac_unique_words",
    "rps_doc_unigram_entropy",
    "num_stop_words",
    "rps_doc_frac_lines_end_with_ellipsis",
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
    _SYMBOLS,
    _HASHES,
    _ELLIPSES,
    _NO_ALPHA,
    _UNIQUE,
    _ENTROPY,
    _STOP_WORDS,
    _ELLIPSIS_LINES,
    _BULLET_LINES,
    _TERMINAL_LINES,
    _SHORT_LINES,
    _DUPE_LINES,
    _DUPE_LINE_CHARS,
    _DUPE_PARAGRAPHS,
    _DUPE_PARAGRAPH_CHARS,
    _NGRAMS,
) = range(18)
_NUM_STOP_WORDS = len(STOP_WORDS)
_FIRST_TOP, _LAST_TOP, _LAST_DUPE = TOP_NGRAMS[0], TOP_NGRAMS[-1], DUPE_NGRAMS[-1]

_SPACE, _ALPHABETIC, _PUNCTUATION, _BULLET, _TERMINAL = 1, 2, 4, 8, 16
_NUM_CLASSIFIED = 0x32000  # no character beyond is white space, alphabetic or has a lower case
_ELLIPSIS, _DOT, _HASH, _NEWLINE = 0x2026, 0x2E, 0x23, 0x0A


class Alphabet(NamedTuple):
    """What the kernel knows of characters: Python's own str.isspace, str.isalpha and str.lower, by code point."""

    classes: NDArray[np.uint8]  # (_NUM_CLASSIFIED,) bits
    lowers: _Ints  # (_NUM_CLASSIFIED,) the lower case where it is one character, else the character
    stop_words: _Ints  # the code points of all stop words, laid end to end
    stop_word_starts: _Ints  # (_NUM_STOP_WORDS + 1,)


@cache
def alphabet() -> Alphabet:
    """The tables, made once per process (some 0.1 s)."""
    characters = [chr(point) for point in range(_NUM_CLASSIFIED)]
    marks = [(set(string.punctuation), _PUNCTUATION), (set(BULLETS), _BULLET), (set(TERMINAL_PUNCTUATION), _TERMINAL)]
    classes = [
        _SPACE * c.isspace() + _ALPHABETIC * c.isalpha() + sum(bit for members, bit in marks if c in members)
        for c in characters
    ]
    lowers = [ord(lower) if len(lower := c.lower()) == 1 else ord(c) for c in characters]
    return Alphabet(
        np.array(classes, dtype=np.uint8),
        np.array(lowers, dtype=np.int32),
        np.array([ord(c) for word in STOP_WORDS for c in word], dtype=np.int32),
        np.cumsum([0, *(len(word) for word in STOP_WORDS)], dtype=np.int32),
    )


@compiled
def measure(utf8: NDArray[np.uint8], offsets: NDArray[np.int64], known: Alphabet) -> NDArray[np.float64]:
    """(num_texts, len(SIGNALS)): text i is `utf8[offsets[i] : offsets[i + 1]]`."""
    signals = np.zeros((len(offsets) - 1, _NUM_SIGNALS))
    for i in range(len(offsets) - 1):
        points = _decode(utf8[offsets[i] : offsets[i + 1]])
        _measure_words(points, known, signals[i])
        _measure_lines(points, known, signals[i])
    return signals


@njit(nogil=True)
def _decode(utf8: NDArray[np.uint8]) -> _Ints:
    """The code points of valid UTF-8 (RFC 3629, section 3)."""
    points = np.empty(len(utf8), np.int32)
    num_points = 0
    i = 0
    while i < len(utf8):
        lead = np.int32(utf8[i])
        width = 1 + (lead >= 0xC0) + (lead >= 0xE0) + (lead >= 0xF0)
        if width > 1:
            lead &= 0x7F >> width
            for k in range(1, width):
                lead = lead << 6 | utf8[i + k] & 0x3F
        points[num_points] = lead
        num_points += 1
        i += width
    return points[:num_points]


@njit(nogil=True)
def _is(point: Any, bit: int, classes: NDArray[np.uint8]) -> bool:
    return bool(point < _NUM_CLASSIFIED and classes[point] & bit)


# --- Words ---


@njit(nogil=True)
def _measure_words(points: _Ints, known: Alphabet, signals: NDArray[np.float64]) -> None:
    letters, starts, num_raw, num_alphabetic = _split_words(points, known)
    ids, num_ids = _number(letters, starts[:-1], starts[1:])
    words, starts = ids[_NUM_STOP_WORDS:], starts[_NUM_STOP_WORDS:]
    num_words, num_chars = len(words), starts[-1] - starts[0]
    if num_raw > 0:
        num_hashes, num_ellipses = _count_symbols(points)
        signals[_SYMBOLS] = (num_hashes + num_ellipses) / num_raw
        signals[_HASHES] = num_hashes / num_raw
        signals[_ELLIPSES] = num_ellipses / num_raw
        signals[_NO_ALPHA] = (num_raw - num_alphabetic) / num_raw
    if num_words > 0:
        counts = _count(words, num_ids)
        signals[_WORDS] = num_words
        signals[_MEAN_WORD] = num_chars / num_words
        signals[_UNIQUE] = np.count_nonzero(counts) / num_words
        signals[_ENTROPY] = _entropy(counts, num_words)
        signals[_STOP_WORDS] = np.count_nonzero(counts[:_NUM_STOP_WORDS])
        _measure_ngrams(words, num_ids, starts, signals[_NGRAMS:])


@njit(nogil=True)
def _split_words(points: _Ints, known: Alphabet) -> tuple[_Ints, _Ints, int, int]:
    """The stop words and then the words in normal form, laid end to end; where each begins (and the last ends).

    Then the numbers of raw words (runs without white space) and of those with an alphabetic character.
    """
    num_letters, num_words = len(known.stop_words), _NUM_STOP_WORDS
    letters = np.empty(num_letters + len(points), np.int32)
    starts = np.empty(num_words + len(points) // 2 + 2, np.int32)
    letters[:num_letters] = known.stop_words
    starts[: num_words + 1] = known.stop_word_starts
    num_raw = num_alphabetic = 0
    inside = alphabetic = False
    for i in range(len(points) + 1):
        if i == len(points) or _is(points[i], _SPACE, known.classes):
            num_raw += inside
            num_alphabetic += alphabetic
            if num_letters > starts[num_words]:
                num_words += 1
                starts[num_words] = num_letters
            inside = alphabetic = False
            continue
        inside = True
        point = points[i]
        if point < _NUM_CLASSIFIED:
            alphabetic |= known.classes[point] & _ALPHABETIC != 0
            if known.classes[point] & _PUNCTUATION:
                continue
            point = known.lowers[point]
        letters[num_letters] = point
        num_letters += 1
    return letters, starts[: num_words + 1], num_raw, num_alphabetic


@njit(nogil=True)
def _count_symbols(points: _Ints) -> tuple[int, int]:
    """The numbers of "#" and of ellipses: "…", and "..." as str.count counts it, without overlap."""
    num_hashes = num_ellipses = num_dots = 0
    for point in points:
        num_hashes += point == _HASH
        num_ellipses += point == _ELLIPSIS
        num_dots = num_dots + 1 if point == _DOT else 0
        if num_dots == 3:
            num_ellipses += 1
            num_dots = 0
    return num_hashes, num_ellipses


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
def _measure_ngrams(words: _Ints, num_ids: int, starts: _Ints, signals: NDArray[np.float64]) -> None:
    """Write the shares of the top n-grams (n from 2), then of duplicated ones (n up to 10), until none occurs twice."""
    num_chars = starts[-1] - starts[0]
    grams, counts = words, _count(words, num_ids)
    for n in range(_FIRST_TOP, _LAST_DUPE + 1):
        grams, counts = _join(grams, counts)
        if len(counts) == 0:
            return
        chars = _chars_in_top(grams, counts, starts, n) if n <= _LAST_TOP else _chars_in_dupes(grams, counts, starts, n)
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
        if grams[i] >= 0 and grams[i + 1] >= 0 and counts[grams[i]] > 1 and counts[grams[i + 1]] > 1:
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
def _measure_lines(points: _Ints, known: Alphabet, signals: NDArray[np.float64]) -> None:
    starts, ends, paragraph_starts = _split_lines(points, known.classes)
    num_lines = len(starts)
    if num_lines == 0:
        return
    num_ellipses = num_bullets = num_terminals = num_short = 0
    for i in range(num_lines):
        last = points[ends[i] - 1]
        num_ellipses += last == _ELLIPSIS or _ends_with_dots(points, starts[i], ends[i])
        num_bullets += _is(points[starts[i]], _BULLET, known.classes)
        num_terminals += _is(last, _TERMINAL, known.classes)
        num_short += ends[i] - starts[i] <= SHORT_LINE_CHARS
    signals[_ELLIPSIS_LINES] = num_ellipses / num_lines
    signals[_BULLET_LINES] = num_bullets / num_lines
    signals[_TERMINAL_LINES] = num_terminals / num_lines
    signals[_SHORT_LINES] = num_short / num_lines
    lines, num_ids = _number(points, starts, ends)
    chars_before = np.zeros(num_lines + 1, np.int32)
    chars_before[1:] = np.cumsum(ends - starts)
    signals[_DUPE_LINES], signals[_DUPE_LINE_CHARS] = _shares_repeated(lines, num_ids, chars_before)
    paragraphs, num_ids = _number(lines, paragraph_starts[:-1], paragraph_starts[1:])
    signals[_DUPE_PARAGRAPHS], signals[_DUPE_PARAGRAPH_CHARS] = _shares_repeated(
        paragraphs, num_ids, chars_before[paragraph_starts]
    )


@njit(nogil=True)
def _split_lines(points: _Ints, classes: NDArray[np.uint8]) -> tuple[_Ints, _Ints, _Ints]:
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
            if not _is(points[i], _SPACE, classes):
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
    return end - start >= 3 and points[end - 1] == _DOT and points[end - 2] == _DOT and points[end - 3] == _DOT


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


_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio (Knuth, TAOCP vol. 3, section 6.4)


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
