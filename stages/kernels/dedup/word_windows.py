"""Hashes of all windows of words of a batch of texts, and cutting ranges of words out of them.

A word is one of `stages.dedup.minhash.split_ngrams`: in lower case, without accents and punctuation.
Example of windows of 2 words:

    "Der Hund, der"     words       der hund der        bytes 0-3, 4-9 and 10-13 of the text
                        windows     "der hund" "hund der"
                        cut 0, 2    "der"

The hash of a window is two polynomials in the hashes of its words, modulo the prime 2^61 - 1 (Karp and
Rabin 1987). Each is updated from the window before, so the time does not grow with the size of a
window. Modulo 2^64, which would be faster, windows of the same words in another order collide more
often.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.characters import (
    ALONE,
    DELETE,
    FIRST_REPLACEMENT,
    KEEP_SPACE,
    CharacterTable,
    decode_character,
    look_up_action,
)
from stages.kernels.compilation import compiled, inlined
from stages.kernels.splitmix import GOLDEN, mix_bits

_LINE_FEED, _BLANK = 10, 32

# Factors of the two polynomials below the prime, and seeds of the two hashes of a word: digits of
# the golden ratio and of pi.
_PRIME_BITS = np.uint64(61)
_PRIME = np.uint64(2**61 - 1)
_FACTORS = np.array([0x1E3779B97F4A7C15, 0x10D24F3A6A88856F], np.uint64)
_SEEDS = np.array([0x243F6A8885A308D3, 0x13198A2E03707344], np.uint64)

_mix_bits = inlined(mix_bits)


@compiled
def hash_windows(
    utf8: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    table: CharacterTable,
    num_words: int,
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Hash every window of `num_words` consecutive words of every text.

    Args:
        utf8: the bytes of all texts.
        offsets: (n + 1,) where each text starts in `utf8`.
        table: as in `stages.kernels.dedup.ngram_hashes.hash_ngrams`.
        num_words: words per window. A shorter text has no window.

    Returns:
        starts: (n + 1,) where each text's windows start.
        hashes: (2, starts[n]) two independent hashes of each window.
    """
    bounds, words = _allocate_words(offsets)
    # Each text can have one word more than half its bytes.
    max_windows = (offsets[-1] - offsets[0]) // 2 + len(offsets)
    hashes = np.empty((2, max_windows), np.uint64)
    starts, num_windows = np.zeros(len(offsets), np.int64), 0
    for t in range(len(offsets) - 1):
        found = _split_words(utf8, offsets[t], offsets[t + 1], table, bounds, words)
        for lane in range(2):
            _hash_lane(words[lane, :found], num_words, lane, hashes[lane, num_windows:])
        num_windows += max(0, found - num_words + 1)
        starts[t + 1] = num_windows
    return starts, hashes[:, :num_windows].copy()


@compiled
def cut_words(
    utf8: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    table: CharacterTable,
    ranges: NDArray[np.uint32],
    starts: NDArray[np.int64],
) -> tuple[
    NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64], NDArray[np.uint64], int
]:
    """Cut ranges of words out of texts. Line feeds stay, so lines keep their numbers.

    Args:
        utf8: the bytes of all texts.
        offsets: (n + 1,) where each text starts in `utf8`.
        table: as in `hash_windows`.
        ranges: first word, end, first word, end ...; increasing in each text.
        starts: (n + 1,) where each text's values start in `ranges`.

    Returns:
        new_utf8: the bytes of the new texts.
        new_offsets: (n + 1,).
        num_cut: (n,) words that were cut.
        emptied: text << 32 | line of the lines that have only blanks left.
        fault: the first text whose ranges are wrong, or -1.
    """
    bounds, words = _allocate_words(offsets)
    new_utf8 = np.empty(offsets[-1] - offsets[0], np.uint8)
    new_offsets, num_cut = np.zeros_like(offsets), np.zeros(len(offsets) - 1, np.int64)
    num_bytes = 0
    for t in range(len(offsets) - 1):
        text = utf8[offsets[t] : offsets[t + 1]]
        text_ranges = ranges[starts[t] : starts[t + 1]]
        found = 0
        if len(text_ranges):  # most texts have no range
            found = _split_words(text, 0, len(text), table, bounds, words)
        new_text = new_utf8[num_bytes:]
        size, num_cut[t] = _cut_text(text, text_ranges, bounds[:found], new_text)
        if size < 0:
            return new_utf8, new_offsets, num_cut, np.empty(0, np.uint64), t
        num_bytes += size
        new_offsets[t + 1] = num_bytes
    emptied = _list_emptied(utf8, offsets, new_utf8, new_offsets, num_cut)
    return new_utf8[:num_bytes], new_offsets, num_cut, emptied, -1


@compiled
def find_words(
    utf8: NDArray[np.uint8], offsets: NDArray[np.int64], table: CharacterTable
) -> NDArray[np.int64]:
    """Return start and end of each word of the first text in `utf8`, (num_words, 2)."""
    bounds, words = _allocate_words(offsets)
    found = _split_words(utf8, offsets[0], offsets[1], table, bounds, words)
    return bounds[:found].copy()


@njit(nogil=True)
def _max_words(start: int, end: int) -> int:
    # A word has at least one byte and a blank, or is a character of at least 3 bytes.
    return (end - start) // 2 + 1


@njit(nogil=True)
def _allocate_words(
    offsets: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return space for the bounds and the hashes of the words of the longest text."""
    longest = 0
    for t in range(len(offsets) - 1):
        longest = max(longest, _max_words(offsets[t], offsets[t + 1]))
    return np.empty((longest, 2), np.int64), np.empty((2, longest), np.uint64)


@njit(nogil=True)
def _split_words(
    utf8: NDArray[np.uint8],
    start: int,
    end: int,
    table: CharacterTable,
    bounds: NDArray[np.int64],
    words: NDArray[np.uint64],
) -> int:
    """Write start and end of each word of utf8[start:end], and its two hashes.

    The words are those of `stages.kernels.dedup.ngram_hashes`. The bounds include punctuation.

    Returns:
        The number of words.
    """
    num_words, begin = 0, -1  # -1: no character since the last word or white space
    one, other = _SEEDS[0], _SEEDS[1]
    i = start
    while i < end:
        action, letter, width = _read_character(utf8, i, end, table)
        if action in (KEEP_SPACE, ALONE):
            # Punctuation alone is no word, so the seed is still there.
            if one != _SEEDS[0]:
                num_words = _end_word(num_words, begin, i, one, other, bounds, words)
            elif action == ALONE and begin >= 0:
                i, width = begin, i + width - begin  # punctuation before it
            begin, one, other = -1, _SEEDS[0], _SEEDS[1]
        elif begin < 0:
            begin = i
        if action == ALONE:
            alone = (
                _mix_bits((_SEEDS[0] ^ letter) + GOLDEN),
                _mix_bits((_SEEDS[1] ^ letter) + GOLDEN),
            )
            num_words = _end_word(
                num_words, i, i + width, alone[0], alone[1], bounds, words
            )
        elif letter:
            one = _mix_bits((one ^ letter) + GOLDEN)
            other = _mix_bits((other ^ letter) + GOLDEN)
        i += width
    if one != _SEEDS[0]:
        num_words = _end_word(num_words, begin, end, one, other, bounds, words)
    return num_words


@njit(nogil=True)
def _read_character(
    utf8: NDArray[np.uint8], i: int, end: int, table: CharacterTable
) -> tuple[np.uint32, np.uint64, int]:
    """Return the action of a character, its normal form as a number or 0, and its bytes."""
    code_point, width = decode_character(utf8, i, end)
    if width == 0:  # not UTF-8, which no Arrow string has
        return np.uint32(DELETE), np.uint64(0), 1
    action = look_up_action(table, code_point)
    if action in (KEEP_SPACE, DELETE):
        return action, np.uint64(0), width
    letter = np.uint64(action)
    if action < FIRST_REPLACEMENT:
        letter = np.uint64(0)
        for k in range(width):
            letter |= np.uint64(utf8[i + k]) << np.uint64(8 * k)
    # Above the bytes, so that NUL is not 0.
    return action, letter | np.uint64(1 << 32), width


@njit(nogil=True)
def _end_word(
    num_words: int,
    begin: int,
    end: int,
    one: np.uint64,
    other: np.uint64,
    bounds: NDArray[np.int64],
    words: NDArray[np.uint64],
) -> int:
    bounds[num_words, 0], bounds[num_words, 1] = begin, end
    words[0, num_words], words[1, num_words] = one, other
    return num_words + 1


@njit(nogil=True)
def _hash_lane(
    words: NDArray[np.uint64], num_words: int, lane: int, hashes: NDArray[np.uint64]
) -> None:
    """Write the polynomial of each window, mixed over all 64 bits."""
    factor, highest = _FACTORS[lane], np.uint64(1)
    for _ in range(num_words):
        highest = _multiply(highest, factor)
    value = np.uint64(0)
    for k in range(len(words)):
        value = _reduce(_multiply(value, factor) + _reduce(words[k]))
        if k >= num_words:
            left = _multiply(_reduce(words[k - num_words]), highest)
            value = _reduce(value + _PRIME - left)
        if k >= num_words - 1:
            hashes[k - num_words + 1] = _mix_bits(value + GOLDEN)


@njit(nogil=True)
def _reduce(x: np.uint64) -> np.uint64:
    """Return x modulo 2^61 - 1."""
    x = (x >> _PRIME_BITS) + (x & _PRIME)
    return x - _PRIME if x >= _PRIME else x


@njit(nogil=True)
def _multiply(a: np.uint64, b: np.uint64) -> np.uint64:
    """Return a * b modulo 2^61 - 1, for a and b below it, without numbers of 128 bits."""
    half, low = np.uint64(31), np.uint64(2**31 - 1)
    a_high, a_low, b_high, b_low = a >> half, a & low, b >> half, b & low
    middle = a_low * b_high + a_high * b_low
    # 2^62 is 2, and 2^61 is 1 modulo the prime; all terms together are below 2^63.
    middle_high = middle >> np.uint64(30)
    middle_low = middle & np.uint64(2**30 - 1)
    total = a_high * b_high * np.uint64(2) + middle_high
    return _reduce(total + (middle_low << half) + a_low * b_low)


@njit(nogil=True)
def _cut_text(
    text: NDArray[np.uint8],
    ranges: NDArray[np.uint32],
    bounds: NDArray[np.int64],
    new_text: NDArray[np.uint8],
) -> tuple[int, np.int64]:
    """Write a text without its ranges of words.

    Args:
        text: UTF-8.
        ranges: first word, end, first word, end ...; increasing.
        bounds: (num_words, 2) start and end of each word in `text`.
        new_text: receives the bytes.

    Returns:
        The number of bytes, or -1 if the ranges are wrong, and the number of words that were cut.
    """
    i, last_end, size, num_cut = 0, 0, 0, np.int64(0)
    for k in range(0, len(ranges) - 1, 2):
        first, end = np.int64(ranges[k]), np.int64(ranges[k + 1])
        if not last_end <= first < end <= len(bounds):
            return -1, num_cut
        size = _copy(text, i, bounds[first, 0], new_text, size)
        i, last_end = bounds[end - 1, 1], end
        size = _copy_line_feeds(text, bounds[first, 0], i, new_text, size)
        i, size = _join(text, i, new_text, size)
        num_cut += end - first
    return _copy(text, i, len(text), new_text, size), num_cut


@njit(nogil=True)
def _copy(
    utf8: NDArray[np.uint8], start: int, end: int, new_utf8: NDArray[np.uint8], at: int
) -> int:
    """Copy utf8[start:end], and return the new end of the written bytes."""
    new_end = at + end - start
    new_utf8[at:new_end] = utf8[start:end]
    return new_end


@njit(nogil=True)
def _copy_line_feeds(
    utf8: NDArray[np.uint8], start: int, end: int, new_utf8: NDArray[np.uint8], at: int
) -> int:
    for i in range(start, end):
        if utf8[i] == _LINE_FEED:
            new_utf8[at] = _LINE_FEED
            at += 1
    return at


@njit(nogil=True)
def _join(
    text: NDArray[np.uint8], i: int, new_text: NDArray[np.uint8], at: int
) -> tuple[int, int]:
    """Leave one blank where a span was cut, and none at the start of a line.

    Returns:
        The next byte to copy, and the new end of the written bytes.
    """
    at_space = at == 0 or new_text[at - 1] in (_BLANK, _LINE_FEED)
    if i == len(text):
        return i, at
    if at_space and text[i] == _BLANK:
        return i + 1, at
    if not at_space and text[i] not in (_BLANK, _LINE_FEED):
        new_text[at] = _BLANK  # the span had at least one byte
        return i, at + 1
    return i, at


@njit(nogil=True)
def _list_emptied(
    utf8: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    new_utf8: NDArray[np.uint8],
    new_offsets: NDArray[np.int64],
    num_cut: NDArray[np.int64],
) -> NDArray[np.uint64]:
    """Return text << 32 | line of the lines that have only blanks left."""
    emptied = np.empty(_max_words(offsets[0], offsets[-1]) + len(offsets), np.uint64)
    num_emptied = 0
    for t in range(len(offsets) - 1):
        i, j, line = offsets[t], new_offsets[t], 0
        while num_cut[t] and i <= offsets[t + 1]:
            end = _find_line_end(utf8, i, offsets[t + 1])
            new_end = _find_line_end(new_utf8, j, new_offsets[t + 1])
            if not _is_blank(utf8, i, end) and _is_blank(new_utf8, j, new_end):
                emptied[num_emptied] = np.uint64(t) << np.uint64(32) | np.uint64(line)
                num_emptied += 1
            i, j, line = end + 1, new_end + 1, line + 1
    return emptied[:num_emptied].copy()


@njit(nogil=True)
def _find_line_end(utf8: NDArray[np.uint8], start: int, end: int) -> int:
    while start < end and utf8[start] != _LINE_FEED:
        start += 1
    return start


@njit(nogil=True)
def _is_blank(utf8: NDArray[np.uint8], start: int, end: int) -> bool:
    while start < end and utf8[start] == _BLANK:
        start += 1
    return start == end
