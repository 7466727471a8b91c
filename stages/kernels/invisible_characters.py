r"""Remove the characters that no reader sees, and that change tokens, scores and duplicates.

"Un\u00adbe\u00adkannt \u200bhier"     "Unbekannt hier"
"می\u200cخواهم"                        the same: the non-joiner changes the shape of a letter
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.characters import decode_character
from stages.kernels.compilation import compiled

# Default_Ignorable_Code_Point of Unicode, without what changes how other characters look: variation
# selectors, joiners, tags of flags, and the fillers of Hangul and Mongolian.
INVISIBLE = (
    "\u00ad"  # soft hyphen
    "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"  # direction
    "\u200b\u2060\ufeff"  # zero-width space, word joiner, byte order mark
    "\u2061\u2062\u2063\u2064\u206a\u206b\u206c\u206d\u206e\u206f"  # operators, deprecated formats
)
# Zero-width non-joiner and joiner. They are kept between two characters of these ranges, whose
# shapes they change (Unicode 16.0, sections 9.2, 12.1 and 23.2; UTS #51, section 2.3).
JOINERS = "\u200c\u200d"
JOINED = (
    (
        0x0600,
        0x1000,
    ),  # Arabic, Syriac, Thaana, N'Ko, the scripts of India, Thai, Lao, Tibetan
    (0x1000, 0x10A0),  # Myanmar
    (0x1780, 0x18B0),  # Khmer, Mongolian
    (0x1900, 0x1C80),  # Limbu to Ol Chiki
    (0xA800, 0xAC00),  # Syloti Nagri to Meetei Mayek
    (0xFB50, 0xFE00),  # presentation forms of Arabic
    (0xFE70, 0xFEFF),
    (0x10A00, 0x12000),  # Kharoshthi to Makasar
    (0x1E900, 0x1E960),  # Adlam
    (0x2190, 0x2C00),  # symbols, some of which are emoji
    (0xFE0F, 0xFE10),  # the selector of emoji style
    (0x1F000, 0x1FB00),  # emoji
)

# Kinds of characters; leads of UTF-8 with 4 bytes are never looked up.
_PLAIN, _INVISIBLE, _JOINER = 0, 1, 2


def _make_kinds() -> NDArray[np.uint8]:
    kinds = np.zeros(0x10000, np.uint8)
    kinds[[*map(ord, INVISIBLE)]] = _INVISIBLE
    kinds[[*map(ord, JOINERS)]] = _JOINER
    return kinds


def _make_leads() -> NDArray[np.bool_]:
    """Return (256,) whether a character that is not plain can begin with a byte."""
    leads = np.zeros(256, np.bool_)
    leads[[character.encode()[0] for character in INVISIBLE + JOINERS]] = True
    return leads


_KINDS = _make_kinds()
_IS_LEAD = _make_leads()
_JOINED = np.array(JOINED, np.int64)


def remove_invisible(text: str) -> str:
    """Return the text without invisible characters."""
    if text.isascii():
        return text
    data = np.frombuffer(text.encode(), np.uint8)
    return remove_invisible_bytes(data, np.array([0, len(data)]))[0].tobytes().decode()


def remove_invisible_bytes(
    data: NDArray[np.uint8], starts: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64], int]:
    """Remove the invisible characters of several texts.

    Args:
        data: (num_bytes,) texts in UTF-8, one after the other.
        starts: (n + 1,) where each text starts.

    Returns:
        kept: the texts without them.
        kept_starts: (n + 1,) where each text starts in `kept`.
        num_removed: how many characters were removed.
    """
    if not _has_candidates(data):
        return data, starts, 0
    kept, kept_starts = np.empty(len(data), np.uint8), np.empty(len(starts), np.int64)
    num_removed = _remove(data, starts, kept, kept_starts)
    return kept[: kept_starts[-1]], kept_starts, num_removed


@compiled
def _has_candidates(data: NDArray[np.uint8]) -> bool:
    for i in range(len(data)):
        if _IS_LEAD[data[i]] and _KINDS[decode_character(data, i, len(data))[0]]:
            return True
    return False


@compiled
def _remove(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    kept: NDArray[np.uint8],
    kept_starts: NDArray[np.int64],
) -> int:
    """Write the texts into `kept` and their starts into `kept_starts`; count what is removed."""
    num_kept = num_removed = 0
    for text in range(len(starts) - 1):
        first = kept_starts[text] = num_kept
        i, stop = starts[text], starts[text + 1]
        while i < stop:
            width = 1
            is_removed = False
            if _IS_LEAD[data[i]]:
                point, width = decode_character(data, i, stop)
                kind = _KINDS[point]
                width = max(width, 1)
                is_removed = kind == _INVISIBLE or (
                    kind == _JOINER
                    and not (
                        _is_joined_before(kept, first, num_kept)
                        and _is_joined_after(data, i + width, stop)
                    )
                )
            if is_removed:
                num_removed += 1
            else:
                for k in range(width):
                    kept[num_kept] = data[i + k]
                    num_kept += 1
            i += width
    kept_starts[-1] = num_kept
    return num_removed


@njit(nogil=True)
def _is_joined(point: np.int64) -> bool:
    return bool(((_JOINED[:, 0] <= point) & (point < _JOINED[:, 1])).any())


@njit(nogil=True)
def _is_joined_before(kept: NDArray[np.uint8], first: int, end: int) -> bool:
    """Return whether a joiner after kept[first:end] has a character to join on its left."""
    start = end
    while start > first:
        start -= 1
        if kept[start] & 0xC0 != 0x80:
            return _is_joined(decode_character(kept, start, end)[0])
    return False


@njit(nogil=True)
def _is_joined_after(data: NDArray[np.uint8], i: int, stop: int) -> bool:
    """Return whether the first visible character of data[i:stop] is one to join."""
    while i < stop:
        point, width = decode_character(data, i, stop)
        if width == 0 or point >= len(_KINDS) or _KINDS[point] == _PLAIN:
            return _is_joined(point)
        i += width
    return False
