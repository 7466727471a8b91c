"""Keys of URLs and of what is held against them, compiled: 64-bit numbers, no Python string is made.

Promises: equal parts have equal keys. The key of a name is folded from its end, so that one pass over a host meets the
keys of all its parent domains, and goes on along the path, so that the same pass meets every prefix of the path:

    a.b.example.com/x/y      com  example.com  b.example.com  a.b.example.com      each at a dot, from the right
                             a.b.example.com/x  a.b.example.com/x/y                each before a slash, from the left

Leaves to others: bringing URLs into the normal form that is read here, "host/path?query" (stages/filters/url.py).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.sha1 import compiled

_Bytes: TypeAlias = NDArray[np.uint8]
Spans: TypeAlias = tuple[
    NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]
]
"""Of each part found: its key, the text that it lies in, and where it starts and ends in `utf8`; texts ascend."""

CATEGORY_BITS = 8
"""The lowest bits of a key are 0: a list keeps there which of its files an entry comes from."""

_DOT, _SLASH, _QUESTION = 0x2E, 0x2F, 0x3F
_START = np.uint64(0xCBF29CE484222325)  # FNV-1a's offset basis
_GOLDEN = np.uint64(
    0x9E3779B97F4A7C15
)  # 2^64 over the golden ratio: neighbouring bytes end far apart


@compiled
def whole_keys(utf8: _Bytes, offsets: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The key of each text as a whole, (n,); 0 for one without a host."""
    keys = np.zeros(len(offsets) - 1, np.uint64)
    for t in range(len(keys)):
        start, end = offsets[t], offsets[t + 1]
        host_end = _host_end(utf8, start, end)
        if host_end == start:
            continue
        state = _START
        for i in range(host_end - 1, start - 1, -1):
            state = _folded(state, utf8[i])
        for i in range(host_end, end):
            state = _folded(state, utf8[i])
        keys[t] = _key(state)
    return keys


@compiled
def keep_distinct(keys: NDArray[np.uint64]) -> int:
    """Bring the first of those that differ in the category alone to the front of ascending keys; how many they are."""
    n = 0
    for key in keys:
        if n == 0 or key >> np.uint64(CATEGORY_BITS) != keys[n - 1] >> np.uint64(CATEGORY_BITS):
            keys[n] = key
            n += 1
    return n


@compiled
def parents(utf8: _Bytes, offsets: NDArray[np.int64]) -> Spans:
    """Every domain that a host lies in, widest first, the host itself, then every prefix of the path, shortest first.

    A host whose last label is a number is an address: it lies in no domain but itself.
    """
    most = 2 * len(offsets)  # the host as a whole, the URL as a whole
    for byte in utf8[offsets[0] : offsets[-1]]:
        most += byte in (_DOT, _SLASH, _QUESTION)
    keys, texts = np.empty(most, np.uint64), np.empty(most, np.int64)
    starts, ends = np.empty(most, np.int64), np.empty(most, np.int64)
    n = 0
    for t in range(len(offsets) - 1):
        start, end = offsets[t], offsets[t + 1]
        host_end = _host_end(utf8, start, end)
        if host_end == start:
            continue
        is_address = _is_address(utf8, start, host_end)
        state = _START
        for i in range(host_end - 1, start - 1, -1):
            state = _folded(state, utf8[i])
            if i == start or (utf8[i - 1] == _DOT and not is_address):
                keys[n], texts[n], starts[n], ends[n] = _key(state), t, i, host_end
                n += 1
        for i in range(host_end, end):
            if i > host_end and utf8[i] in (_SLASH, _QUESTION):
                keys[n], texts[n], starts[n], ends[n] = _key(state), t, start, i
                n += 1
            state = _folded(state, utf8[i])
        if end > host_end:
            keys[n], texts[n], starts[n], ends[n] = _key(state), t, start, end
            n += 1
    return keys[:n], texts[:n], starts[:n], ends[:n]


@compiled
def words(utf8: _Bytes, offsets: NDArray[np.int64]) -> Spans:
    """Every run of letters and digits of ASCII and of characters beyond it, in order."""
    most = (offsets[-1] - offsets[0]) // 2 + len(offsets)
    keys, texts = np.empty(most, np.uint64), np.empty(most, np.int64)
    starts, ends = np.empty(most, np.int64), np.empty(most, np.int64)
    n = 0
    for t in range(len(offsets) - 1):
        state, first = _START, -1
        for i in range(offsets[t], offsets[t + 1] + 1):
            if i < offsets[t + 1] and _is_of_a_word(utf8[i]):
                first = i if first < 0 else first
                state = _folded(state, utf8[i])
            elif first >= 0:
                keys[n], texts[n], starts[n], ends[n] = _key(state), t, first, i
                n += 1
                state, first = _START, -1
    return keys[:n], texts[:n], starts[:n], ends[:n]


@njit(nogil=True)
def _host_end(utf8: _Bytes, start: int, end: int) -> int:
    for i in range(start, end):
        if utf8[i] in (_SLASH, _QUESTION):
            return i
    return end


@njit(nogil=True)
def _is_address(utf8: _Bytes, start: int, end: int) -> bool:
    for i in range(end - 1, start - 1, -1):
        if utf8[i] == _DOT:
            return i < end - 1
        if not 0x30 <= utf8[i] <= 0x39:
            return False
    return True


@njit(nogil=True)
def _is_of_a_word(byte: int) -> bool:
    return byte >= 0x80 or 0x30 <= byte <= 0x39 or 0x61 <= byte <= 0x7A or 0x41 <= byte <= 0x5A


@njit(nogil=True)
def _folded(state: np.uint64, byte: int) -> np.uint64:
    return (state ^ np.uint64(byte)) * _GOLDEN


@njit(nogil=True)
def _key(state: np.uint64) -> np.uint64:
    """MurmurHash3's finalizer, the lowest bits cleared."""
    state = (state ^ (state >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    state = (state ^ (state >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return (
        (state ^ (state >> np.uint64(33))) >> np.uint64(CATEGORY_BITS) << np.uint64(CATEGORY_BITS)
    )
