"""Find tags, attributes and comments in the bytes of a page (HTML Standard, section 13.2.5).

All functions take a page in an encoding that contains ASCII, (num_bytes,) uint8, and an index into
it. They return an index up to `len(page)` and read each byte at most twice.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.compilation import compiled

Page: TypeAlias = NDArray[np.uint8]

LESS, GREATER, SLASH, EXCLAMATION, QUESTION = 0x3C, 0x3E, 0x2F, 0x21, 0x3F
_EQUALS, _DASH, _DOUBLE_QUOTE, _SINGLE_QUOTE = 0x3D, 0x2D, 0x22, 0x27

_FNV_OFFSET, _FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3

# Slots of the hash set of attribute names, a power of two. Beyond half of them it counts no more.
_NAME_SLOTS = 1 << 17


def hash_name(name: str) -> int:
    """Return the same as `hash_span` for a name in lower-case ASCII."""
    state = _FNV_OFFSET
    for byte in name.encode():
        state = (state ^ byte) * _FNV_PRIME % (1 << 64)
    return state >> 1


@njit(nogil=True)
def is_letter(byte: int) -> bool:
    """Return whether a tag can begin with this byte."""
    return 0x61 <= byte | 0x20 <= 0x7A


@njit(nogil=True)
def _is_space(byte: int) -> bool:
    return byte == 0x20 or 0x09 <= byte <= 0x0D


@njit(nogil=True)
def hash_span(page: Page, start: int, end: int) -> int:
    """Return the upper 63 bits of FNV-1a of page[start:end], with ASCII letters in lower case."""
    state = np.uint64(_FNV_OFFSET)
    for i in range(start, end):
        byte = page[i]
        if 0x41 <= byte <= 0x5A:
            byte |= 0x20
        state = (state ^ np.uint64(byte)) * np.uint64(_FNV_PRIME)
    return np.int64(state >> np.uint64(1))  # pyright: ignore[reportReturnType]


@njit(nogil=True)
def find_name_end(page: Page, start: int) -> int:
    """Return the end of the tag name that begins at `start`."""
    i = start
    while i < len(page) and not (
        _is_space(page[i]) or page[i] == SLASH or page[i] == GREATER
    ):
        i += 1
    return i


@njit(nogil=True)
def read_attribute(page: Page, start: int) -> tuple[int, int, int]:
    """Read the next attribute of a tag.

    Args:
        page: the page.
        start: after the name of the tag, or after an attribute.

    Returns:
        Start and end of the attribute's name, and the index after its value. If there is no
        attribute left, start and end are equal, and the third is the index of the tag's ">".
    """
    num_bytes, i = len(page), start
    while i < num_bytes and (_is_space(page[i]) or page[i] == SLASH):
        i += 1
    name = i
    if i < num_bytes and page[i] != GREATER:
        i += 1  # a name may begin with "="
        while i < num_bytes and not (
            _is_space(page[i])
            or page[i] == SLASH
            or page[i] == GREATER
            or page[i] == _EQUALS
        ):
            i += 1
    name_end = i
    while i < num_bytes and _is_space(page[i]):
        i += 1
    if name == name_end or i >= num_bytes or page[i] != _EQUALS:
        return name, name_end, i if name < name_end else name
    return name, name_end, _skip_value(page, i + 1)


@njit(nogil=True)
def _skip_value(page: Page, start: int) -> int:
    """Return the index after an attribute's value; `start` is after the "="."""
    num_bytes, i = len(page), start
    while i < num_bytes and _is_space(page[i]):
        i += 1
    if i < num_bytes and (page[i] == _DOUBLE_QUOTE or page[i] == _SINGLE_QUOTE):
        quote = page[i]
        i += 1
        while i < num_bytes and page[i] != quote:
            i += 1
        return min(i + 1, num_bytes)
    while i < num_bytes and not (_is_space(page[i]) or page[i] == GREATER):
        i += 1
    return i


@njit(nogil=True)
def read_attributes(page: Page, start: int) -> tuple[int, int]:
    """Return the number of attributes of a tag, and the index after its ">".

    Args:
        page: the page.
        start: after the name of the tag.
    """
    num_attributes = 0
    name, name_end, i = read_attribute(page, start)
    while name < name_end:
        num_attributes += 1
        name, name_end, i = read_attribute(page, i)
    return num_attributes, min(i + 1, len(page))


@njit(nogil=True)
def skip_declaration(page: Page, start: int) -> int:
    """Return the index after a comment, doctype or processing instruction that begins at `start`."""
    num_bytes = len(page)
    if start + 3 < num_bytes and page[start + 2] == _DASH and page[start + 3] == _DASH:
        i = start + 4
        if i < num_bytes and page[i] == GREATER:
            return i + 1
        while i < num_bytes and not (
            page[i] == GREATER and page[i - 1] == _DASH and page[i - 2] == _DASH
        ):
            i += 1
    else:
        i = start + 2
        while i < num_bytes and page[i] != GREATER:
            i += 1
    return min(i + 1, num_bytes)


@njit(nogil=True)
def find_end_tag(page: Page, start: int, name: int) -> int:
    """Return the index of the next end tag with this name, or the size of the page."""
    i = start
    while i + 2 < len(page):
        if page[i] == LESS and page[i + 1] == SLASH and is_letter(page[i + 2]):
            end = find_name_end(page, i + 2)
            if hash_span(page, i + 2, end) == name:
                return i
            i = end
        else:
            i += 1
    return len(page)


@compiled
def count_attribute_names(page: Page) -> int:
    """Return the number of different names of attributes, at most _NAME_SLOTS / 2."""
    slots = np.zeros(_NAME_SLOTS, np.int64)
    num_names, i = 0, 0
    while i + 1 < len(page) and num_names < _NAME_SLOTS // 2:
        if page[i] != LESS or not is_letter(page[i + 1]):
            i += 1
            continue
        name, name_end, i = read_attribute(page, find_name_end(page, i + 1))
        while name < name_end and num_names < _NAME_SLOTS // 2:
            num_names += _insert(slots, hash_span(page, name, name_end))
            name, name_end, i = read_attribute(page, i)
    return num_names


@njit(nogil=True)
def _insert(slots: NDArray[np.int64], key: int) -> int:
    """Insert a key into a hash set with linear probing; return 1 if it was not there, else 0."""
    mask = len(slots) - 1
    key |= 1  # 0 is an empty slot
    slot = (key >> 32) & mask
    while slots[slot] != 0:
        if slots[slot] == key:
            return 0
        slot = (slot + 1) & mask
    slots[slot] = key
    return 1
