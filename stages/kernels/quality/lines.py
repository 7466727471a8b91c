"""Signals of lines and paragraphs.

A line ends at a line feed. White space around it is not part of it, and blank lines are not
counted. A paragraph is a sequence of lines without a blank line between them.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.quality import columns
from stages.kernels.quality.alphabet import (
    BULLET,
    NUMERIC,
    PUNCTUATION,
    SPACE,
    TERMINAL,
    TERMINAL_IN_RPV2,
    UPPER,
    Ints,
    Kinds,
)
from stages.kernels.quality.sequence_ids import number_sequences

_ELLIPSIS, _DOT, _NEWLINE = 0x2026, 0x2E, 0x0A


class Lines(NamedTuple):
    """Where the lines of a text are."""

    starts: Ints  # (num_lines,) first character of each line that is not blank
    ends: Ints  # (num_lines,) one after its last character
    paragraphs: Ints  # (num_paragraphs + 1,) first line of each paragraph; last: num_lines


@njit(nogil=True)
def measure_lines(
    points: Ints, kinds: Kinds, num_javascript: int, signals: NDArray[np.float64]
) -> None:
    """Write the signals of lines and paragraphs.

    Args:
        points: code points of the text.
        kinds: bits of each character.
        num_javascript: words of the text that are "javascript".
        signals: (NUM_SIGNALS,) with the number of words already written.
    """
    lines = split_lines(points, kinds)
    num_lines = len(lines.starts)
    if num_lines == 0:
        return
    _measure_edges(points, kinds, lines, signals)
    _measure_characters(kinds, lines, signals)
    signals[columns.JAVASCRIPT_PER_LINE] = num_javascript / num_lines
    # A line feed ends a word, so each word is in one line.
    signals[columns.WORDS_PER_LINE] = signals[columns.WORD_COUNT] / num_lines

    ids, num_ids = number_sequences(points, lines.starts, lines.ends)
    chars_before = np.zeros(num_lines + 1, np.int32)
    chars_before[1:] = np.cumsum(lines.ends - lines.starts)
    signals[columns.DUPE_LINES], signals[columns.DUPE_LINE_CHARS] = _measure_repeated(
        ids, num_ids, chars_before
    )
    # A paragraph is the sequence of the ids of its lines.
    paragraphs, num_ids = number_sequences(ids, lines.paragraphs[:-1], lines.paragraphs[1:])
    signals[columns.DUPE_PARAGRAPHS], signals[columns.DUPE_PARAGRAPH_CHARS] = (
        _measure_repeated(paragraphs, num_ids, chars_before[lines.paragraphs])
    )


@njit(nogil=True)
def split_lines(points: Ints, kinds: Kinds) -> Lines:
    """Find the lines that are not blank, and the paragraphs."""
    num_newlines = np.count_nonzero(points == _NEWLINE)
    starts, ends = (
        np.empty(num_newlines + 1, np.int32),
        np.empty(num_newlines + 1, np.int32),
    )
    paragraphs = np.empty(num_newlines + 2, np.int32)
    num_lines = num_paragraphs = 0
    start, end = -1, -1  # -1: no character but white space so far
    is_after_blank = True
    for i in range(len(points) + 1):
        if i < len(points) and points[i] != _NEWLINE:
            if not kinds[i] & SPACE:
                start = i if start < 0 else start
                end = i + 1
            continue
        if start >= 0:
            if is_after_blank:
                paragraphs[num_paragraphs] = num_lines
                num_paragraphs += 1
            starts[num_lines], ends[num_lines] = start, end
            num_lines += 1
        is_after_blank = start < 0
        start = -1
    paragraphs[num_paragraphs] = num_lines
    return Lines(starts[:num_lines], ends[:num_lines], paragraphs[: num_paragraphs + 1])


@njit(nogil=True)
def _measure_edges(
    points: Ints, kinds: Kinds, lines: Lines, signals: NDArray[np.float64]
) -> None:
    """Write the shares of lines by their first and last characters and by their length."""
    num_ellipses = num_short = 0
    num_bullets = num_bullets_rpv2 = num_terminals = num_terminals_rpv2 = 0
    num_lines = len(lines.starts)
    for i in range(num_lines):
        start, end = lines.starts[i], lines.ends[i]
        first, last = points[start], points[end - 1]
        is_bullet = kinds[start] & BULLET != 0
        num_ellipses += last == _ELLIPSIS or _ends_with_dots(points, start, end)
        num_bullets += is_bullet
        num_bullets_rpv2 += is_bullet and first != columns.NOT_A_BULLET_IN_RPV2
        num_terminals += kinds[end - 1] & TERMINAL != 0
        num_terminals_rpv2 += kinds[end - 1] & TERMINAL_IN_RPV2 != 0
        num_short += end - start <= columns.SHORT_LINE_CHARS
    signals[columns.ELLIPSIS_LINES] = num_ellipses / num_lines
    signals[columns.BULLET_LINES] = num_bullets / num_lines
    signals[columns.RPV2_BULLET_LINES] = num_bullets_rpv2 / num_lines
    signals[columns.TERMINAL_LINES] = num_terminals / num_lines
    signals[columns.RPV2_TERMINAL_LINES] = num_terminals_rpv2 / num_lines
    signals[columns.SHORT_LINES] = num_short / num_lines


@njit(nogil=True)
def _measure_characters(kinds: Kinds, lines: Lines, signals: NDArray[np.float64]) -> None:
    """Write the means over lines of the shares of upper-case and of numeric characters."""
    sum_upper = sum_numeric = 0.0
    num_lines = len(lines.starts)
    for i in range(num_lines):
        line = kinds[lines.starts[i] : lines.ends[i]]
        num_upper = num_numeric = 0
        for kind in line:
            num_upper += kind & UPPER != 0
            num_numeric += kind & NUMERIC != 0
        sum_upper += num_upper / len(line)
        if num_numeric > 0:
            sum_numeric += num_numeric / _count_normal_chars(line)
    signals[columns.UPPERCASE_CHARS] = sum_upper / num_lines
    signals[columns.NUMERIC_CHARS] = sum_numeric / num_lines


@njit(nogil=True)
def _count_normal_chars(kinds: Kinds) -> int:
    """Return the length of a line's normal form: its words with single blanks between them."""
    num_chars, num_words, is_inside = 0, 0, False
    for kind in kinds:
        if kind & SPACE:
            is_inside = False
        elif not kind & PUNCTUATION:
            num_chars += 1
            num_words += not is_inside
            is_inside = True
    return num_chars + num_words - 1


@njit(nogil=True)
def _ends_with_dots(points: Ints, start: int, end: int) -> bool:
    if end - start < 3:
        return False
    return points[end - 1] == _DOT and points[end - 2] == _DOT and points[end - 3] == _DOT


@njit(nogil=True)
def _measure_repeated(ids: Ints, num_ids: int, chars_before: Ints) -> tuple[float, float]:
    """Return the shares of items, and of their characters, that occurred before in the text.

    Args:
        ids: (num_items,) lines or paragraphs.
        num_ids: ids are below this number.
        chars_before: (num_items + 1,) characters in all items before each.
    """
    seen = np.zeros(num_ids, np.bool_)
    num_repeated = num_chars = 0
    for i in range(len(ids)):
        if seen[ids[i]]:
            num_repeated += 1
            num_chars += chars_before[i + 1] - chars_before[i]
        seen[ids[i]] = True
    return num_repeated / len(ids), num_chars / chars_before[-1]
