"""64-bit keys of URLs, of their parent domains and path prefixes, and of the words in them.

Equal parts have equal keys. The hash of a host runs from its last byte to its first, then forward
along the path. One pass over a URL therefore meets the key of every part that a block list
may name:

    a.b.example.com/x/y      com  example.com  b.example.com  a.b.example.com      at each dot
                             a.b.example.com/x  a.b.example.com/x/y                before each slash

The kernels read URLs in the normal form "host/path?query" of stages/filters/url.py.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.compilation import compiled
from stages.kernels.splitmix import GOLDEN

_Bytes: TypeAlias = NDArray[np.uint8]
# For each part found: its key, the index of its text (ascending), its start and end in
# `utf8`.
KeySpans: TypeAlias = tuple[
    NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]
]

# The lowest bits of a key are 0. A block list stores there which of its files has the
# entry.
CATEGORY_BITS = 8

_DOT, _SLASH, _QUESTION = 0x2E, 0x2F, 0x3F
_START = np.uint64(0xCBF29CE484222325)  # FNV-1a's offset basis


@compiled
def hash_urls(utf8: _Bytes, offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the key of each URL as a whole, (n,). It is 0 for a URL without a host."""
    keys = np.zeros(len(offsets) - 1, np.uint64)
    for t in range(len(keys)):
        start, end = offsets[t], offsets[t + 1]
        host_end = _find_host_end(utf8, start, end)
        if host_end == start:
            continue
        state = _START
        for i in range(host_end - 1, start - 1, -1):
            state = _add(state, utf8[i])
        for i in range(host_end, end):
            state = _add(state, utf8[i])
        keys[t] = _finalize(state)
    return keys


@compiled
def drop_duplicate_keys(keys: NDArray[np.uint64]) -> int:
    """Move one key for each distinct value to the front of ascending `keys`; return their number.

    Keys that differ only in the category bits are duplicates. The first of them is kept.
    """
    category_bits = np.uint64(CATEGORY_BITS)
    n = 0
    for key in keys:
        if n == 0 or key >> category_bits != keys[n - 1] >> category_bits:
            keys[n] = key
            n += 1
    return n


@compiled
def list_parent_keys(utf8: _Bytes, offsets: NDArray[np.int64]) -> KeySpans:
    """Return the keys of all domains above each host, of the host, and of all path prefixes.

    Domains come first, the widest before the narrower. Then come path prefixes, the shortest first.
    A host whose last label is a number is an IP address and has no parent domain.
    """
    # At most one key per dot, slash and question mark, one for the host and one for the URL.
    most = 2 * len(offsets)
    for byte in utf8[offsets[0] : offsets[-1]]:
        most += byte in (_DOT, _SLASH, _QUESTION)
    keys, texts = np.empty(most, np.uint64), np.empty(most, np.int64)
    starts, ends = np.empty(most, np.int64), np.empty(most, np.int64)
    n = 0
    for t in range(len(offsets) - 1):
        start, end = offsets[t], offsets[t + 1]
        host_end = _find_host_end(utf8, start, end)
        if host_end == start:
            continue
        is_address = _is_address(utf8, start, host_end)
        # The host, from right to left.
        state = _START
        for i in range(host_end - 1, start - 1, -1):
            state = _add(state, utf8[i])
            if i == start or (utf8[i - 1] == _DOT and not is_address):
                keys[n], texts[n], starts[n], ends[n] = _finalize(state), t, i, host_end
                n += 1
        # The path, from left to right.
        for i in range(host_end, end):
            if i > host_end and utf8[i] in (_SLASH, _QUESTION):
                keys[n], texts[n], starts[n], ends[n] = _finalize(state), t, start, i
                n += 1
            state = _add(state, utf8[i])
        if end > host_end:
            keys[n], texts[n], starts[n], ends[n] = _finalize(state), t, start, end
            n += 1
    return keys[:n], texts[:n], starts[:n], ends[:n]


@compiled
def list_word_keys(utf8: _Bytes, offsets: NDArray[np.int64]) -> KeySpans:
    """Return the key of each word of each URL, in order.

    A word is a longest sequence of ASCII letters, ASCII digits and non-ASCII characters.
    """
    most = (offsets[-1] - offsets[0]) // 2 + len(offsets)
    keys, texts = np.empty(most, np.uint64), np.empty(most, np.int64)
    starts, ends = np.empty(most, np.int64), np.empty(most, np.int64)
    n = 0
    for t in range(len(offsets) - 1):
        state, first = _START, -1  # -1: outside a word
        for i in range(offsets[t], offsets[t + 1] + 1):
            if i < offsets[t + 1] and _is_word_byte(utf8[i]):
                first = i if first < 0 else first
                state = _add(state, utf8[i])
            elif first >= 0:
                keys[n], texts[n], starts[n], ends[n] = _finalize(state), t, first, i
                n += 1
                state, first = _START, -1
    return keys[:n], texts[:n], starts[:n], ends[:n]


@njit(nogil=True)
def _find_host_end(utf8: _Bytes, start: int, end: int) -> int:
    for i in range(start, end):
        if utf8[i] in (_SLASH, _QUESTION):
            return i
    return end


@njit(nogil=True)
def _is_address(utf8: _Bytes, start: int, end: int) -> bool:
    """Return whether the last label of a host is a number."""
    for i in range(end - 1, start - 1, -1):
        if utf8[i] == _DOT:
            return i < end - 1
        if not 0x30 <= utf8[i] <= 0x39:
            return False
    return True


@njit(nogil=True)
def _is_word_byte(byte: int) -> bool:
    return (
        byte >= 0x80 or 0x30 <= byte <= 0x39 or 0x61 <= byte <= 0x7A or 0x41 <= byte <= 0x5A
    )


@njit(nogil=True)
def _add(state: np.uint64, byte: int) -> np.uint64:
    """Add one byte to the state, in the manner of FNV-1a."""
    return (state ^ np.uint64(byte)) * GOLDEN


@njit(nogil=True)
def _finalize(state: np.uint64) -> np.uint64:
    """MurmurHash3's 64-bit finalizer, with the category bits cleared."""
    state = (state ^ (state >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    state = (state ^ (state >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    state = state ^ (state >> np.uint64(33))
    return state >> np.uint64(CATEGORY_BITS) << np.uint64(CATEGORY_BITS)
