r"""Per-character rewriting of UTF-8: a table of actions by code point, and a UTF-8 decoder.

A stage describes its normal form (lower case, digits to 0, punctuation deleted, ...) as a Python
function from a character to an action. `build_character_table` evaluates it once per code point,
and the kernels look the actions up:

    action of "A"  = pack_replacement("a")      write these bytes instead
    action of "\n" = DELETE                     write nothing
    action of "b"  = KEEP                       copy the character
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

# An action is one of these numbers, or else the 1 to 4 bytes of UTF-8 that replace the character,
# first byte lowest. No replacement is a control character below 6, so the two never collide.
DELETE = 0
KEEP = 1
# The result depends on more than this character: the caller must use the Python
# implementation.
EXACT = 2
# White space. `strip` removes it at the ends of a line; elsewhere it is copied.
KEEP_SPACE = 3
# White space that is also deleted inside a line.
DELETE_SPACE = 4
# The character is a word by itself (used by the kernels that split text into words).
ALONE = 5

PAGE_BITS = 7
# Code points per page of a `CharacterTable`. The first page is ASCII.
PAGE = 1 << PAGE_BITS
NUM_CODE_POINTS = 0x110000
NUM_PAGES = NUM_CODE_POINTS // PAGE

# All characters: planes 4 to 13 of Unicode are empty, 15 and 16 are for private use.
PLANES = range(0x40000), range(0xE0000, 0xF0000)

# Of one character, in the Stream-Safe Text Format (Unicode Standard Annex 15, section 13).
_MAX_MARKS = 30
_GRAPHEME_JOINER = "\u034f"

_SURROGATES = range(0xD800, 0xE000)
# Pages that are looked at together: most of Unicode is unchanged by every rule.
_PAGES_PER_BLOCK = 16


_KEPT_PAGE = (KEEP,) * PAGE


class CharacterTable(NamedTuple):
    """The action for each code point: `actions[pages[code_point // PAGE], code_point % PAGE]`.

    Equal pages are stored once, so the table fits into the first-level cache.
    """

    pages: NDArray[np.uint16]  # (NUM_PAGES,) row of `actions` for each page
    actions: NDArray[np.uint32]  # (num_distinct_pages, PAGE)
    # (PAGE,) the byte to write for each ASCII byte, 0 if it is deleted
    ascii: NDArray[np.uint8]


def build_character_table(
    action: Callable[[str], int], is_unchanged: Callable[[str], bool]
) -> CharacterTable:
    """Evaluate `action` for every code point.

    Args:
        action: returns the action for one character.
        is_unchanged: returns whether every character of a string has the action `KEEP`. It saves
            about a million calls of `action`.
    """
    pages = np.empty(NUM_PAGES, np.uint16)
    row_of_page: dict[tuple[int, ...], int] = {}
    for first in range(0, NUM_PAGES, _PAGES_PER_BLOCK):
        block = range(first, first + _PAGES_PER_BLOCK)
        text = join_characters(block.start * PAGE, block.stop * PAGE)
        if len(text) == len(block) * PAGE and is_unchanged(text):
            pages[first : block.stop] = row_of_page.setdefault(_KEPT_PAGE, len(row_of_page))
            continue
        for page in block:
            actions = _list_page_actions(page * PAGE, action, is_unchanged)
            pages[page] = row_of_page.setdefault(actions, len(row_of_page))
    distinct = np.array(list(row_of_page), np.uint32)

    ascii_actions = distinct[pages[0]]
    is_kept = (ascii_actions == KEEP) | (ascii_actions == KEEP_SPACE)
    is_deleted = (ascii_actions == DELETE) | (ascii_actions == DELETE_SPACE)
    replacements = np.where(is_deleted, 0, ascii_actions)
    ascii_bytes = np.where(is_kept, np.arange(PAGE), replacements)
    return CharacterTable(pages, distinct, ascii_bytes.astype(np.uint8))


def _list_page_actions(
    first: int, action: Callable[[str], int], is_unchanged: Callable[[str], bool]
) -> tuple[int, ...]:
    characters = join_characters(first, first + PAGE)
    if not characters:
        return (EXACT,) * PAGE
    if is_unchanged(characters):
        return _KEPT_PAGE
    return tuple(map(action, characters))


def join_characters(first: int, end: int) -> str:
    """Return the characters from one code point to another, without surrogates.

    Surrogates are not characters: valid UTF-8 contains none.
    """
    codes = np.arange(first, end, dtype="<u4")
    is_surrogate = (codes >= _SURROGATES.start) & (codes < _SURROGATES.stop)
    return codes[~is_surrogate].tobytes().decode("utf-32-le")


def list_categories(first: int, end: int) -> tuple[NDArray[np.uint32], NDArray[np.bytes_]]:
    """Return the code points from one to another, without surrogates, and their categories.

    Returns:
        codes: (n,) uint32.
        categories: (n,) S2, such as b"Lu".
    """
    characters = join_characters(first, end)
    categories = "".join(map(unicodedata.category, characters)).encode()
    codes = np.frombuffer(characters.encode("utf-32-le"), "<u4")
    return codes, np.frombuffer(categories, "S2")


@cache
def list_combining() -> str:
    """Return the characters whose order among each other is canonical."""
    joined = "".join(join_characters(plane.start, plane.stop) for plane in PLANES)
    return "".join(filter(unicodedata.combining, joined))


def bound_marks(text: str) -> str:
    """Put a grapheme joiner after each 30 combining marks in a row, before a normalization.

    Its time to sort the marks of a character grows with the square of their number. Source:
    Stream-Safe Text Format (Unicode Standard Annex 15, section 13).
    """
    if text.isascii():
        return text
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    bases = np.flatnonzero(~_find_marks().take(codes, mode="clip"))
    longest = np.diff(bases, prepend=-1, append=len(codes)).max()
    if longest <= _MAX_MARKS:
        return text
    marks = f"[{list_combining()}]{{{_MAX_MARKS}}}"
    return re.sub(marks, rf"\g<0>{_GRAPHEME_JOINER}", text)


@cache
def _find_marks() -> NDArray[np.bool_]:
    """Return (0x110000,) whether a code point takes part in the canonical order of marks."""
    is_mark = np.zeros(NUM_CODE_POINTS, np.bool_)
    is_mark[[*map(ord, list_combining())]] = True
    return is_mark


def pack_replacement(replacement: str) -> int:
    """Return the action that writes `replacement`, or `EXACT` if it has more than 4 bytes.

    Args:
        replacement: at least one character.
    """
    utf8 = replacement.encode()
    return int.from_bytes(utf8, "little") if len(utf8) <= 4 else EXACT


# Actions from this number on are replacements.
FIRST_REPLACEMENT = pack_replacement(" ")


@njit(nogil=True)
def decode_character(utf8: NDArray[np.uint8], i: int, end: int) -> tuple[np.int64, int]:
    """Return the code point and the width in bytes of the character at `i`.

    The width is 0 if utf8[i:end] does not begin with well-formed UTF-8 (Unicode, table 3-7).
    """
    lead = np.int64(utf8[i])
    if lead < 0x80:
        return lead, 1
    # `smallest` is the first code point that needs this width: smaller ones are overlong forms.
    if lead < 0xE0:
        width, smallest, code_point = 2, 0x80, lead & 0x1F
    elif lead < 0xF0:
        width, smallest, code_point = 3, 0x800, lead & 0x0F
    else:
        width, smallest, code_point = 4, 0x10000, lead & 0x0F
    if lead < 0xC2 or lead > 0xF4 or i + width > end:
        return np.int64(0), 0
    for k in range(1, width):
        continuation = np.int64(utf8[i + k])
        if continuation & 0xC0 != 0x80:
            return np.int64(0), 0
        code_point = code_point << 6 | continuation & 0x3F
    if code_point < smallest or code_point > 0x10FFFF:
        return np.int64(0), 0
    return code_point, width


@njit(nogil=True)
def look_up_action(table: CharacterTable, code_point: np.int64) -> np.uint32:
    """Return the action of the table for a code point."""
    return table.actions[table.pages[code_point >> PAGE_BITS], code_point & (PAGE - 1)]
