r"""Remove white space at the ends of lines and blank lines at the ends of texts, and find titles.

White space is defined as in `str.strip`. That at the beginning of a line stays: it is the indentation
of code and lists. Lines that need no change are copied together, so a clean text is copied at once:

    " Title \n    first \nsecond\n\n"     title   "Title"
                                         text    "    first\nsecond"
"""

from __future__ import annotations

import re

import numpy as np
from numba import njit, types
from numpy.typing import NDArray

from stages.kernels.characters import join_characters
from stages.kernels.compilation import compiled

_LINE_FEED = 0x0A

# Of the C library. They take a third of the time of loops over bytes in numba.
_memchr = types.ExternalFunction("memchr", types.intp(types.intp, types.int32, types.intp))
_memcpy = types.ExternalFunction("memcpy", types.intp(types.intp, types.intp, types.intp))


def _find_end_bytes() -> NDArray[np.bool_]:
    """Return which bytes white space can end with in UTF-8, (256,)."""
    is_end = np.zeros(256, np.bool_)
    for character in re.findall(r"\s", join_characters(0, 0x10000)):
        is_end[character.encode()[-1]] = True
    return is_end


_IS_END = _find_end_bytes()


@compiled
def clean_lines(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    takes_title: NDArray[np.bool_],
    text: NDArray[np.uint8],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    r"""Write the cleaned texts into `text`, with lines joined by \n.

    Args:
        data: (num_bytes,) contents in UTF-8, one after the other.
        starts: (n + 1,) where each content starts in `data`.
        takes_title: (n,) whether the first line is the title and not part of the text.
        text: (num_bytes,) output; texts are never longer than the contents.

    Returns:
        text_starts: (n + 1,) where each text starts in `text`.
        titles: (n, 2) where each title starts and ends in `data`.
    """
    num_docs = len(starts) - 1
    text_starts = np.zeros(num_docs + 1, np.int64)
    titles = np.zeros((num_docs, 2), np.int64)
    for doc in range(num_docs):
        start = starts[doc]
        if takes_title[doc]:
            title = start
            end, start = _next_line(data, start, starts[doc + 1])
            while title < end and _measure_space(data, title, end):
                title += _measure_space(data, title, end)
            titles[doc, 0], titles[doc, 1] = title, end
        # The next text overwrites the blank lines at the end of this one.
        written = text_starts[doc]
        text_starts[doc + 1] = _clean_text(data, start, starts[doc + 1], text, written)
    return text_starts, titles


@njit(nogil=True)
def _clean_text(
    data: NDArray[np.uint8], line: int, stop: int, text: NDArray[np.uint8], written: int
) -> int:
    """Append the lines of data[line:stop] to `text`.

    Returns:
        Where the text ends without blank lines at its end. Bytes after it may be written.
    """
    copy_from, copy_to = -1, -1  # data[copy_from:copy_to] is not copied yet
    kept = written
    while line < stop:
        end, next_line = _next_line(data, line, stop)
        if copy_from < 0:
            copy_from = line
        elif copy_to != line - 1:
            # White space was removed at the end of the line before.
            written = _copy(data, copy_from, copy_to, text, written)
            text[written] = _LINE_FEED
            written += 1
            copy_from = line
        copy_to = end
        if end > line:
            kept = written + copy_to - copy_from
        line = next_line
    if copy_from >= 0:
        _copy(data, copy_from, copy_to, text, written)
    return kept


@njit(nogil=True)
def _next_line(data: NDArray[np.uint8], line: int, stop: int) -> tuple[int, int]:
    """Return where the line at `line` ends without white space, and where the next line starts."""
    end = find_line_end(data, line, stop)
    next_line = end + 1
    # Most lines end with a byte that no white space has.
    if line < end and _IS_END[data[end - 1]]:
        end = _find_end(data, line, end)
    return end, next_line


@njit(nogil=True)
def find_line_end(utf8: NDArray[np.uint8], start: int, end: int) -> int:
    """Return the position of the first line feed in utf8[start:end]; `end` if there is none."""
    address = utf8.ctypes.data
    found = _memchr(address + start, _LINE_FEED, end - start)
    return end if found == 0 else found - address


@njit(nogil=True)
def _copy(
    data: NDArray[np.uint8], low: int, high: int, text: NDArray[np.uint8], written: int
) -> int:
    """Append data[low:high] to `text` and return the new number of bytes written."""
    _memcpy(text.ctypes.data + written, data.ctypes.data + low, high - low)
    return written + high - low


@njit(nogil=True)
def _find_end(data: NDArray[np.uint8], low: int, high: int) -> int:
    """Return where data[low:high] ends without white space."""
    while low < high:
        # White space has 1, 2 or 3 bytes in UTF-8.
        width = 1
        if data[high - 1] >= 0x80:
            width = 2 if high - low >= 2 and data[high - 2] >= 0xC0 else 3
        if high - low < width or _measure_space(data, high - width, high) != width:
            break
        high -= width
    return high


@njit(nogil=True)
def _measure_space(data: NDArray[np.uint8], at: int, stop: int) -> int:
    """Return the bytes of the character at `at` if it is white space to `str.isspace`, else 0."""
    first = data[at]
    if first < 0x80:
        return 1 if first == 32 or 9 <= first <= 13 or 28 <= first <= 31 else 0
    if first == 0xC2 and at + 1 < stop:  # U+0085, U+00A0
        return 2 if data[at + 1] == 0x85 or data[at + 1] == 0xA0 else 0
    if at + 2 >= stop:
        return 0
    second, third = data[at + 1], data[at + 2]
    if first == 0xE2 and second == 0x80:  # U+2000 to U+200A, U+2028, U+2029, U+202F
        return 3 if third <= 0x8A or third == 0xA8 or third == 0xA9 or third == 0xAF else 0
    is_other = (
        (first == 0xE1 and second == 0x9A and third == 0x80)  # U+1680
        or (first == 0xE2 and second == 0x81 and third == 0x9F)  # U+205F
        or (first == 0xE3 and second == 0x80 and third == 0x80)  # U+3000
    )
    return 3 if is_other else 0
