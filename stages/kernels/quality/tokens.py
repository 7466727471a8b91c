"""Tokens of a text, as spaCy's rules for English split them: datatrove's words.

    (see well-known.) U.S. e.g. 1,000 $5.    ( see well - known . ) U.S. e.g . 1,000 $ 5 .
    https://example.org/a-b: don't 10-20     https://example.org/a-b : don't 10 - 20

Source: spacy/lang/punctuation.py and spacy/lang/en/punctuation.py of spaCy 3.8. Left out are its lists
of abbreviations, emoticons and contractions, measures after digits ("3GB"), and dots between sentences without
a blank. 98.5 % of spaCy's tokens of 1,432 real pages are among these.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from stages.kernels.quality.alphabet import (
    AFFIX,
    ALPHABETIC,
    CURRENCY,
    LOWER,
    MARK,
    NUMERIC,
    SPACE,
    UPPER,
    Ints,
    Kinds,
)

_DOT, _COMMA, _SLASH, _COLON, _PERCENT, _SECTION = map(ord, ".,/:%§")
_APOSTROPHE, _QUOTE, _SMALL_S, _LARGE_S = map(ord, "'\u2019sS")
_HYPHEN, _EN_DASH, _EM_DASH, _TILDE = map(ord, "-–—~")
_PLUS, _STAR, _CIRCUMFLEX, _LESS, _EQUALS, _GREATER = map(ord, "+*^<=>")
_AT, _QUESTION, _HASH, _UNDERSCORE = map(ord, "@?#_")
_ZERO, _NINE = map(ord, "09")

_LETTER_OR_DIGIT = ALPHABETIC | NUMERIC
_SPLITTING = AFFIX | CURRENCY | MARK  # a raw word without them is one token
_MAX_HYPHENS = 3  # of one token


@njit(nogil=True)
def split_tokens(points: Ints, kinds: Kinds) -> tuple[Ints, Ints]:
    """Return where each token starts and ends.

    Args:
        points: code points of the text.
        kinds: bits of each character.
    """
    starts, ends = np.empty(len(kinds), np.int32), np.empty(len(kinds), np.int32)
    num_tokens = start = 0
    while start < len(kinds):
        if kinds[start] & SPACE:
            start += 1
            continue
        end, found = start, 0
        while end < len(kinds) and not kinds[end] & SPACE:
            found |= kinds[end]
            end += 1
        if found & _SPLITTING:
            num_tokens = _split_raw_word(
                points, kinds, start, end, starts, ends, num_tokens
            )
        else:
            starts[num_tokens], ends[num_tokens] = start, end
            num_tokens += 1
        start = end
    return starts[:num_tokens], ends[:num_tokens]


@njit(nogil=True)
def _split_raw_word(
    points: Ints,
    kinds: Kinds,
    start: int,
    end: int,
    starts: Ints,
    ends: Ints,
    num_tokens: int,
) -> int:
    """Append the tokens of the raw word [start, end), and return the number of all tokens."""
    first, last = start, end
    while first < end:
        width = _measure_prefix(points, kinds, first, end)
        if width == 0:
            break
        starts[num_tokens], ends[num_tokens] = first, first + width
        num_tokens += 1
        first += width
    while first < last:
        width = _measure_suffix(points, kinds, first, last)
        if width == 0:
            break
        last -= width
    if first < last:
        num_tokens = _split_inside(points, kinds, first, last, starts, ends, num_tokens)
    while last < end:
        width = 2 if _is_possessive(points, last, end) else _measure_dots(points, last, end)
        starts[num_tokens], ends[num_tokens] = last, last + width
        num_tokens += 1
        last += width
    return num_tokens


@njit(nogil=True)
def _split_inside(
    points: Ints,
    kinds: Kinds,
    first: int,
    last: int,
    starts: Ints,
    ends: Ints,
    num_tokens: int,
) -> int:
    """Append the tokens of [first, last), a raw word without prefixes and suffixes."""
    is_searched = False  # few words have an infix: only they can be split URLs
    token = i = first
    while i < last:
        width = 0
        if kinds[i] & _SPLITTING:
            width = _measure_infix(points, kinds, i, first, last)
        if width > 0 and not is_searched:
            is_searched = True
            if _is_url(points, kinds, first, last):
                break
        if width > 0:
            starts[num_tokens], ends[num_tokens] = token, i
            starts[num_tokens + 1], ends[num_tokens + 1] = i, i + width
            num_tokens += 2
            token = i + width
        i += max(1, width)
    starts[num_tokens], ends[num_tokens] = token, last
    return num_tokens + 1


@njit(nogil=True)
def _measure_prefix(points: Ints, kinds: Kinds, i: int, end: int) -> int:
    """Return the characters of the token at `i`, 0 if the word has no more prefix."""
    point = points[i]
    is_sign = point in (_EQUALS, _PERCENT, _SECTION)
    if is_sign or kinds[i] & (AFFIX | CURRENCY):
        return 1
    num_dots = _measure_dots(points, i, end)
    return num_dots if num_dots > 1 else 0


@njit(nogil=True)
def _measure_dots(points: Ints, i: int, end: int) -> int:
    """Return the number of dots from `i` on, 1 if there is another character."""
    last = i + 1
    while points[i] == _DOT and last < end and points[last] == _DOT:
        last += 1
    return last - i


@njit(nogil=True)
def _is_possessive(points: Ints, i: int, end: int) -> bool:
    """Return whether an apostrophe and an s begin at `i`."""
    is_apostrophe = points[i] == _APOSTROPHE or points[i] == _QUOTE
    return (
        is_apostrophe
        and i + 1 < end
        and (points[i + 1] == _SMALL_S or points[i + 1] == _LARGE_S)
    )


@njit(nogil=True)
def _measure_suffix(points: Ints, kinds: Kinds, first: int, last: int) -> int:
    """Return the characters of the token before `last`, 0 if the word has no more suffix."""
    i = last - 1
    if kinds[i] & AFFIX:
        return 1
    if i == first:
        return 0
    point, before = points[i], points[i - 1]
    if point == _DOT and before == _DOT:
        while i > first and points[i - 1] == _DOT:
            i -= 1
        return last - i
    if point == _DOT:
        is_after_mark = before in (_PERCENT, _HYPHEN, _PLUS)
        # The dot after a lone capital belongs to it: "J.", "U.S.".
        is_initial = kinds[i - 1] & UPPER and not (i - 2 >= first and kinds[i - 2] & UPPER)
        is_after_word = kinds[i - 1] & (_LETTER_OR_DIGIT | AFFIX) and not is_initial
        return 1 if is_after_word or is_after_mark else 0
    if _is_possessive(points, i - 1, last):
        return 2
    is_measure = point in (_PERCENT, _PLUS) or kinds[i] & CURRENCY != 0
    return 1 if is_measure and _is_digit(before) else 0


@njit(nogil=True)
def _measure_infix(points: Ints, kinds: Kinds, i: int, first: int, last: int) -> int:
    """Return the characters of the token at `i` between two others, 0 if there is none."""
    if i == first or i + 1 >= last:
        return 0
    point, before, after = points[i], points[i - 1], points[i + 1]
    if point == _DOT:
        num_dots = _measure_dots(points, i, last)
        return num_dots if num_dots > 1 else 0
    is_after_letter = kinds[i - 1] & _LETTER_OR_DIGIT != 0
    is_before_letter = kinds[i + 1] & ALPHABETIC != 0
    if point == _COMMA:
        return 1 if kinds[i - 1] & ALPHABETIC and is_before_letter else 0
    if point in (_COLON, _SLASH) or _LESS <= point <= _GREATER:
        return 1 if is_after_letter and is_before_letter else 0
    is_hyphen = point in (_HYPHEN, _TILDE) or _EN_DASH <= point <= _EM_DASH
    if is_hyphen and is_after_letter:
        end = i + 1
        while end < last and points[end] == point and end - i < _MAX_HYPHENS:
            end += 1
        if end < last and kinds[end] & ALPHABETIC:
            return end - i
    is_sign = point in (_PLUS, _HYPHEN, _STAR, _CIRCUMFLEX)
    is_operator = is_sign and _is_digit(before) and (_is_digit(after) or after == _HYPHEN)
    return 1 if is_operator else 0


@njit(nogil=True)
def _is_digit(point: int) -> bool:
    return _ZERO <= point <= _NINE


@njit(nogil=True)
def _is_url(points: Ints, kinds: Kinds, first: int, last: int) -> bool:
    """Return whether a word is an address: a host name, with or without scheme, user and path.

    The last label of the host name has two letters or more, all in lower case.
    """
    host = end = first
    while end < last and points[end] != _QUESTION and points[end] != _HASH:
        if points[end] == _AT:
            host = end + 1
        elif points[end] == _SLASH:
            is_scheme = host == first < end and points[end - 1] == _COLON
            if not is_scheme or end + 1 >= last or points[end + 1] != _SLASH:
                break
            end += 1
            host = end + 1
        end += 1
    i, dot = host, host
    while i < end and points[i] != _COLON:
        is_label = kinds[i] & _LETTER_OR_DIGIT or points[i] == _HYPHEN
        if points[i] == _DOT:
            if i == dot + (dot > host):
                return False  # no label before it
            dot = i
        elif not is_label and points[i] != _UNDERSCORE:
            return False
        i += 1
    for k in range(dot + 1, i):
        if not kinds[k] & LOWER:
            return False
    return dot > host and i - dot > 2
