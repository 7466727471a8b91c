"""Which candidates are compared, with what, and how many at a time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.dedup import candidate_groups
from stages.dedup.candidate_groups import divide_groups, find_comparable

# Groups of the number of n-grams of each document.
GROUPS = st.lists(st.lists(st.integers(1, 20), min_size=2, max_size=12), max_size=6)


def compare(groups: list[list[int]], min_jaccard: float) -> list[list[int]]:
    """Return the rows that are compared with each other, group by group."""
    bounds = [0, *itertools.accumulate(map(len, groups))]
    sizes = np.array(list(itertools.chain(*groups)), np.int64)
    documents = np.arange(len(sizes), dtype=np.uint64)
    rows, starts = find_comparable(documents, np.array(bounds), sizes, min_jaccard)
    return [part.tolist() for part in np.split(rows, starts[1:-1]) if len(part)]


def list_pairs(groups: list[list[int]]) -> set[tuple[int, int]]:
    """Return all pairs of rows in one group."""
    pairs = (itertools.combinations(sorted(group), 2) for group in groups)
    return set(itertools.chain(*pairs))


@given(GROUPS, st.sampled_from([0.0, 0.5, 0.8, 1.0]))
def test_each_pair_is_compared_whose_sizes_allow_it(
    groups: list[list[int]], min_jaccard: float
) -> None:
    """Pairs of other groups are not compared, and no document is left that is like no other."""
    rows = iter(range(sum(map(len, groups))))
    numbered = [[next(rows) for _ in group] for group in groups]
    sizes = list(itertools.chain(*groups))
    possible = {
        (one, other)
        for one, other in list_pairs(numbered)
        if min(sizes[one], sizes[other]) >= min_jaccard * max(sizes[one], sizes[other])
    }
    found = compare(groups, min_jaccard)
    assert possible <= list_pairs(found) <= list_pairs(numbered)
    assert set(itertools.chain(*found)) == set(itertools.chain(*possible))


@given(GROUPS, st.integers(2, 6), st.integers(1, 60))
def test_large_groups_are_cut_into_parts_that_hang_together(
    groups: list[list[int]], max_compared: int, max_ngrams: int
) -> None:
    """A part has few documents, and few n-grams unless two documents have more. Similar documents stay connected."""
    sizes = list(itertools.chain(*groups))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidate_groups, "MAX_COMPARED", max_compared)
        patch.setattr(candidate_groups, "MAX_NGRAMS_COMPARED", max_ngrams)
        found = compare(groups, 0.0)
    for part in found:
        assert 2 <= len(part) <= max_compared
        assert sum(sizes[row] for row in part) <= max_ngrams or len(part) == 2
    rows = iter(range(len(sizes)))
    for group in groups:
        members = {next(rows) for _ in group}
        reached = {min(members)}
        for _ in found:
            reached |= {row for part in found if reached & set(part) for row in part}
        assert reached == members


@given(GROUPS, st.integers(1, 60))
def test_groups_are_divided_by_their_ngrams(groups: list[list[int]], held: int) -> None:
    """All groups come in order, and several at a time only where their n-grams fit."""
    starts = np.array([0, *itertools.accumulate(map(len, groups))])
    sizes = np.array(list(itertools.chain(*groups)), np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidate_groups, "count_ngrams_held", lambda _: held)
        ranges = list(divide_groups(starts, sizes, 1000))
    numbers = [number for some in ranges for number in range(some.start, some.stop)]
    assert numbers == list(range(len(groups)))
    for some in ranges:
        num_ngrams = sum(map(sum, groups[some]))
        assert num_ngrams <= held or some.stop - some.start == 1
