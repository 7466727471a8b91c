"""Spanning forests and connected components of pairs, compared with brute force."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from stages.dedup.connected_components import (
    group_equal_hashes,
    merge_sorted,
    pair_with_first,
    replace_by_roots,
    select_groups,
    sort_by_root,
    unite,
)

NUM_NODES = 14
PAIRS = st.lists(
    st.tuples(st.integers(0, NUM_NODES - 1), st.integers(0, NUM_NODES - 1)), max_size=25
)


def label_components(pairs: list[tuple[int, int]]) -> list[int]:
    """Return the lowest member of each node's component, by brute force."""
    labels = list(range(NUM_NODES))
    changed = True
    while changed:
        changed = False
        for a, b in pairs:
            lowest = min(labels[a], labels[b])
            changed |= labels[a] != lowest or labels[b] != lowest
            labels[a] = labels[b] = lowest
    return labels


def array(pairs: list[tuple[int, int]]) -> np.ndarray:
    return np.array(pairs, np.uint64).reshape(-1, 2)


@given(
    PAIRS,
    st.integers(1, 4),
    st.randoms(use_true_random=False),
    st.sampled_from([np.uint32, np.uint64]),
)
def test_forests_merge_to_the_components_of_all_pairs(
    pairs: list[tuple[int, int]],
    num_parts: int,
    random: np.random.Generator,
    dtype: type[np.unsignedinteger[Any]],
) -> None:
    """For any distribution of the pairs over forests, and any order of merging."""
    parts = [
        part[unite(np.zeros(NUM_NODES, np.uint64), part)]
        for part in (array(pairs[i::num_parts]) for i in range(num_parts))
    ]
    random.shuffle(parts)
    parents = np.zeros(NUM_NODES, dtype)
    for part in parts:
        unite(parents, part)
    replace_by_roots(parents)
    labels = label_components(pairs)
    assert parents.tolist() == labels
    ends, order = np.zeros(NUM_NODES, dtype), np.empty(NUM_NODES, dtype)
    sort_by_root(parents, ends, order)
    assert order.tolist() == sorted(range(NUM_NODES), key=labels.__getitem__)
    for label in set(labels):
        assert ends[label] == sum(other <= label for other in labels)


@given(st.sets(st.integers(0, 2**64 - 1)), st.sets(st.integers(0, 20)))
def test_sorted_arrays_merge_without_repetition(one: set[int], other: set[int]) -> None:
    """The result is the sorted union, also of large ids."""
    arrays = [np.array(sorted(part), np.uint64) for part in (one, other)]
    merged = np.empty(len(one) + len(other), np.uint64)
    num_merged = merge_sorted(arrays[0], arrays[1], merged)
    assert merged[:num_merged].tolist() == sorted(one | other)


@given(PAIRS)
def test_a_forest_has_one_pair_less_than_each_component_has_documents(
    pairs: list[tuple[int, int]],
) -> None:
    """It connects the same documents as all pairs, without a cycle."""
    forest = array(pairs)[unite(np.zeros(NUM_NODES, np.uint64), array(pairs))]
    labels = label_components(pairs)
    assert len(forest) == NUM_NODES - len(set(labels))
    assert label_components([(int(a), int(b)) for a, b in forest]) == labels


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=30))
def test_stars_join_all_that_share_a_hash(rows: list[tuple[int, int]]) -> None:
    """Only documents with an equal hash are in one component."""
    rows = sorted(rows, key=lambda row: row[1])
    hashes, documents = (
        np.array([r[0] for r in rows], np.uint64),
        np.array([r[1] for r in rows], np.uint64),
    )
    pairs = pair_with_first(*group_equal_hashes(hashes, documents))
    expected = [(a[1], b[1]) for a, b in itertools.combinations(rows, 2) if a[0] == b[0]]
    assert label_components([(int(a), int(b)) for a, b in pairs]) == label_components(
        expected
    )


@given(
    st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9)), max_size=30),
    st.integers(0, 10),
)
def test_groups_before_a_document_are_left_out(
    rows: list[tuple[int, int]], first: int
) -> None:
    """The groups with a document from there on are complete and in order."""
    rows = sorted(rows, key=lambda row: row[1])
    hashes, documents = (
        np.array([r[0] for r in rows], np.uint64),
        np.array([r[1] for r in rows], np.uint64),
    )
    groups = group_equal_hashes(hashes, documents)
    some, starts = select_groups(*groups, groups[0][groups[1][1:] - 1] >= first)
    every = (
        [part.tolist() for part in np.split(groups[0], groups[1][1:-1])]
        if len(groups[0])
        else []
    )
    expected = [group for group in every if group[-1] >= first]
    assert [some[a:b].tolist() for a, b in itertools.pairwise(starts)] == expected
