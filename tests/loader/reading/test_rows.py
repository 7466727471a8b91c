"""StoredRows: any part of the rows, copied from several arrays."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from loader.reading.rows import Source, StoredRows
from loader.retraction.tombstones import TokenRanges

ROW_TOKENS = 6
BLANK = 9


def make_rows(
    num_rows: int, dtype: Any, retracted: TokenRanges | None = None
) -> tuple[StoredRows, np.ndarray]:
    """Return rows of one to three spans each, from two arrays, and what they must be."""
    rng = np.random.default_rng(num_rows)
    # The second starts at an odd address, as the tokens of a fetched block may.
    data = bytes(1) + rng.integers(10, 200, 500).astype(dtype).tobytes()
    arrays: list[Any] = [
        rng.integers(10, 200, 300).astype(dtype),
        np.frombuffer(data, dtype, 500, 1),
    ]
    wanted = np.full((num_rows, ROW_TOKENS), BLANK, dtype)
    spans: list[list[tuple[int, ...]]] = [[], []]
    for row in range(num_rows):
        cuts = [0, *sorted(rng.choice(np.arange(1, ROW_TOKENS), rng.integers(0, 3), False))]
        # Some rows end with padding, and some are empty.
        cuts.append(int(rng.choice([ROW_TOKENS, ROW_TOKENS, max(cuts)])))
        for first, stop in pairwise(cuts):
            number, start = int(rng.integers(2)), int(rng.integers(290))
            spans[number].append((start, stop - first, row, first))
            wanted[row, first:stop] = arrays[number][start : start + stop - first]
    sources = [
        Source(array, *np.array(found, np.int64).reshape(-1, 4).T)
        for array, found in zip(arrays, spans, strict=True)
    ]
    settings: dict[str, Any] = {
        "row_tokens": ROW_TOKENS,
        "dtype": np.dtype(dtype),
        "blank": BLANK,
    }
    return StoredRows(sources, num_rows, retracted=retracted, **settings), wanted


@pytest.mark.parametrize("dtype", [np.uint16, np.uint32])
def test_any_part_of_the_rows_can_be_joined(dtype: Any) -> None:
    """One row, some, none and all of them; all have more slices than are joined at a time."""
    stored, wanted = make_rows(700, dtype)
    for rows in (slice(0, 700), slice(0, 1), slice(3, 3), slice(5, 40), slice(699, 700)):
        joined = stored.join(rows)
        assert joined.dtype == dtype
        assert np.array_equal(joined, wanted[rows])


def test_joined_rows_belong_to_the_caller() -> None:
    """Rows that are changed in place do not change what is joined later."""
    stored, wanted = make_rows(8, np.uint16)
    stored.join(slice(2, 5))[:] = 0
    assert np.array_equal(stored.join(slice(0, 8)), wanted)


def test_retracted_tokens_are_blank_in_each_part() -> None:
    """The ranges are counted from the first of all rows, not from the first that is joined."""
    retracted = TokenRanges(np.array([1, 6]), np.array([0, 2]), np.array([6, 4]))
    stored, wanted = make_rows(8, np.uint16, retracted)
    wanted[1], wanted[6, 2:4] = BLANK, BLANK
    for rows in (slice(0, 8), slice(1, 2), slice(2, 6), slice(5, 8)):
        assert np.array_equal(stored.join(rows), wanted[rows])


def test_no_rows_can_be_joined() -> None:
    """A request without rows has no sources."""
    stored, _ = make_rows(0, np.uint16)
    assert stored.join(slice(0, 0)).shape == (0, ROW_TOKENS)
