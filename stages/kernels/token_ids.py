"""Copies of token ids with the end of each document, and the search for reserved ids."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.compilation import compiled


@compiled
def append_ends(
    ids: NDArray[np.uint32], offsets: NDArray[np.int64], end: int
) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return the ids with `end` after those of each text, and their offsets.

    Args:
        ids: the ids of all texts.
        offsets: (num_texts + 1,) where each text starts in `ids`.
        end: the id after each text.
    """
    num_texts = len(offsets) - 1
    values = np.empty(len(ids) + num_texts, np.uint32)
    new_offsets = np.empty(num_texts + 1, np.int64)
    for text in range(num_texts):
        start, stop = offsets[text], offsets[text + 1]
        new_offsets[text] = start + text  # moved by the ends before it
        values[start + text : stop + text] = ids[start:stop]
        values[stop + text] = end
    new_offsets[num_texts] = len(values)
    return values, new_offsets


@compiled
def find_reserved(
    ids: NDArray[np.uint32], offsets: NDArray[np.int64], reserved: NDArray[np.uint32]
) -> NDArray[np.int64]:
    """Return the first reserved id of each text, or -1.

    Args:
        ids: the ids of all texts.
        offsets: (num_texts + 1,) where each text starts in `ids`.
        reserved: sorted.
    """
    first = np.full(len(offsets) - 1, -1, np.int64)
    if len(reserved) == 0:
        return first
    for text in range(len(offsets) - 1):
        of_text = ids[offsets[text] : offsets[text + 1]]
        # Special ids are close together at one end of the vocabulary: most texts have none between.
        if _count_between(of_text, reserved[0], reserved[-1]):
            first[text] = _find_first(of_text, reserved)
    return first


@njit(nogil=True)
def _count_between(ids: NDArray[np.uint32], lowest: np.uint32, highest: np.uint32) -> int:
    """Count without a branch, so that LLVM makes vector instructions of the loop."""
    count = 0
    for token_id in ids:
        count += (token_id >= lowest) & (token_id <= highest)
    return count


@njit(nogil=True)
def _find_first(ids: NDArray[np.uint32], reserved: NDArray[np.uint32]) -> np.int64:
    for token_id in ids:
        place = np.searchsorted(reserved, token_id)
        if place < len(reserved) and reserved[place] == token_id:
            return np.int64(token_id)
    return np.int64(-1)
