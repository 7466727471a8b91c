"""Similar pairs and representatives, compared with brute force."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from stages.dedup.connected_components import replace_by_roots, unite
from stages.kernels.dedup.near_duplicates import choose_representatives, find_similar_pairs

SETS = st.lists(st.sets(st.integers(0, 6)), min_size=2, max_size=12)
RULES = st.tuples(st.sampled_from([0.0, 0.3, 0.5, 0.8]), st.booleans())


def flatten(sets: Sequence[set[int]]) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Return the sets as the kernels take them."""
    values = [value for one in sets for value in sorted(one)]
    offsets = np.append(0, np.cumsum([len(one) for one in sets])).astype(np.int64)
    return offsets, np.array(values, np.uint32)


def jaccard_reaches(one: set[int], other: set[int], least: float) -> bool:
    return len(one & other) >= least * len(one | other)


def label_components(pairs: Sequence[tuple[int, int]], num_nodes: int) -> list[int]:
    """Return the lowest member of each node's component."""
    parents = np.zeros(num_nodes, np.uint64)
    unite(parents, np.array(pairs, np.uint64).reshape(-1, 2))
    replace_by_roots(parents)
    return parents.tolist()


@given(SETS, RULES, st.integers(1, 11))
def test_similar_pairs_connect_the_documents_that_all_pairs_connect(
    sets: list[set[int]], rule: tuple[float, bool], cut: int
) -> None:
    """Two groups are compared, each inside itself; no pair closes a cycle."""
    min_jaccard, must_contain = rule
    cut = min(cut, len(sets))
    documents = np.arange(len(sets), dtype=np.uint64)
    starts = np.array([0, cut, len(sets)])
    found = find_similar_pairs(documents, starts, *flatten(sets), min_jaccard, must_contain)
    expected: list[tuple[int, int]] = []
    for a, b in itertools.combinations(range(len(sets)), 2):
        is_contained = sets[a] <= sets[b] or sets[b] <= sets[a]
        if (
            (a < cut) == (b < cut)
            and jaccard_reaches(sets[a], sets[b], min_jaccard)
            and (is_contained or not must_contain)
        ):
            expected.append((a, b))
    pairs = [(int(a), int(b)) for a, b in found]
    assert label_components(pairs, len(sets)) == label_components(expected, len(sets))
    assert unite(np.zeros(len(sets), np.uint64), found).all()


def choose_by_brute_force(
    sets: Sequence[set[int]],
    bands: Sequence[Sequence[int]],
    num_fixed: int,
    rule: tuple[float, bool],
) -> list[int]:
    """Return each document's representative by the definition, for one cluster."""
    min_jaccard, must_contain = rule
    kept: list[int] = []
    chosen: list[int] = []
    for i, one in enumerate(sets):
        similar = [
            k
            for k in kept
            if any(a == b for a, b in zip(bands[i], bands[k], strict=True))
            and jaccard_reaches(one, sets[k], min_jaccard)
            and (one <= sets[k] or not must_contain)
        ]
        if i < num_fixed or not similar:
            kept.append(i)
            chosen.append(i)
        else:
            chosen.append(similar[0])
    return chosen


@given(SETS, RULES, st.integers(0, 3), st.data())
def test_representatives_are_those_of_the_definition(
    sets: list[set[int]], rule: tuple[float, bool], num_fixed: int, data: st.DataObject
) -> None:
    """A document is dropped if and only if it is similar to a kept one that is preferred."""
    row = st.lists(st.integers(0, 2), min_size=3, max_size=3)
    bands = data.draw(st.lists(row, min_size=len(sets), max_size=len(sets)))
    # Two equal clusters, so that the second one starts behind the first.
    starts = np.array([0, len(sets), 2 * len(sets)])
    found = choose_representatives(
        starts,
        np.array([num_fixed, 0]),
        *flatten(sets + sets),
        np.array(bands + bands, np.uint64),
        *rule,
    )
    first = choose_by_brute_force(sets, bands, num_fixed, rule)
    second = [len(sets) + i for i in choose_by_brute_force(sets, bands, 0, rule)]
    assert found.tolist() == first + second
