"""Clusters of near-duplicates: connected components of pairs of documents.

Documents with an equal band hash form a group, groups give pairs, pairs give spanning forests, and
merged forests give components. The result does not depend on how the pairs were split into forests,
nor on the order in which these are merged. The root of a component is its lowest member.

    documents, starts = group_equal_hashes(hashes, documents)      # [10, 30, 10, 20], [0, 2, 4]
    pairs = pair_with_first(documents, starts)                     # [[10, 30], [10, 20]]
    parents = np.zeros(40, np.uint64)                              # or a memory-mapped file
    unite(parents, spanning_forest(pairs))
    find_roots(parents, np.array([20, 30]))                        # [10, 10]
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.compilation import compiled

# (n, 2): ids, or positions, of pairs of near-duplicates.
Pairs = NDArray[np.uint64]

# The values that are compared: the minima of signatures, or hashes of n-grams.
Values = NDArray[np.uint32] | NDArray[np.uint64]


def group_equal_hashes(
    hashes: NDArray[np.uint64], documents: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Group the documents that share a hash with another document.

    Args:
        hashes: (n,) hashes.
        documents: (n,) the document of each hash, in non-decreasing order.

    Returns:
        documents: (m,) group by group, in increasing order within each group.
        starts: (num_groups + 1,) the start of each group.
    """
    # A stable sort keeps the documents of each group in increasing order.
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    firsts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    sizes = np.diff(np.append(firsts, len(ordered)))
    is_shared = sizes > 1  # a hash of one document forms no group
    starts = np.append(0, np.cumsum(sizes[is_shared]))
    return documents[order[np.repeat(is_shared, sizes)]], starts


def pair_with_first(documents: NDArray[np.uint64], starts: NDArray[np.int64]) -> Pairs:
    """Pair the first document of each group with each other one: the fewest pairs that join it."""
    sizes = np.diff(starts)
    firsts = np.repeat(documents[starts[:-1]], sizes)
    is_other = np.ones(len(documents), np.bool_)
    is_other[starts[:-1]] = False
    return np.stack([firsts[is_other], documents[is_other]], axis=1)


def select_groups_reaching(
    documents: NDArray[np.uint64], starts: NDArray[np.int64], first: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Select the groups of `group_equal_hashes` whose last document is `first` or a later one."""
    reaches = documents[starts[1:] - 1] >= first
    sizes = np.diff(starts)
    return documents[np.repeat(reaches, sizes)], np.append(0, np.cumsum(sizes[reaches]))


@compiled
def similar_pairs(
    documents: NDArray[np.uint64],
    starts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    values: Values,
    are_sets: bool,
    min_similarity: float,
) -> Pairs:
    """Return a forest of pairs that joins, in each group, documents connected by similar pairs.

    k similar documents take k comparisons, k dissimilar ones k * k / 2.

    Args:
        documents: (m,) group by group.
        starts: (num_groups + 1,) the start of each group.
        offsets: (m + 1,) the start of each document in `values`.
        values: sorted sets, or signatures of equal length.
        are_sets: compare by Jaccard similarity; else by the share of equal minima.
        min_similarity: similarity from which two documents are joined.
    """
    pairs = np.empty((len(documents), 2), np.uint64)
    num_pairs = 0
    for g in range(len(starts) - 1):
        # Members of a tree, places[:num_joined], are compared with the others, not with each other.
        places = np.arange(starts[g], starts[g + 1])
        num_joined = 0
        for i in range(len(places)):
            num_joined = max(num_joined, i + 1)
            one = values[offsets[places[i]] : offsets[places[i] + 1]]
            for j in range(num_joined, len(places)):
                other = values[offsets[places[j]] : offsets[places[j] + 1]]
                if _are_similar(one, other, are_sets, min_similarity):
                    pairs[num_pairs, 0] = documents[places[i]]
                    pairs[num_pairs, 1] = documents[places[j]]
                    num_pairs += 1
                    places[j], places[num_joined] = places[num_joined], places[j]
                    num_joined += 1
    return pairs[:num_pairs].copy()


@njit(nogil=True)
def _are_similar(one: Values, other: Values, are_sets: bool, min_similarity: float) -> bool:
    if are_sets:
        num_common, num_in_either = _num_common(one, other)
        return num_common >= min_similarity * num_in_either
    return _num_equal(one, other) >= min_similarity * len(one)


@njit(nogil=True)
def _num_equal(one: Values, other: Values) -> int:
    num_equal = 0
    for k in range(len(one)):
        num_equal += one[k] == other[k]
    return num_equal


@njit(nogil=True)
def _num_common(one: Values, other: Values) -> tuple[int, int]:
    """Return the size of the intersection and of the union of two sorted sets."""
    num_common, i, j = 0, 0, 0
    while i < len(one) and j < len(other):
        if one[i] == other[j]:
            num_common, i, j = num_common + 1, i + 1, j + 1
        elif one[i] < other[j]:
            i += 1
        else:
            j += 1
    return num_common, len(one) + len(other) - num_common


def spanning_forest(pairs: Pairs) -> Pairs:
    """Return the pairs, in order, without those that close a cycle. There are fewer than documents."""
    documents = np.unique(pairs)
    positions = np.searchsorted(documents, pairs).astype(np.uint64)
    return pairs[unite(np.zeros(len(documents), np.uint64), positions)]


@compiled
def unite(parents: NDArray[np.uint64], pairs: Pairs) -> NDArray[np.bool_]:
    """Join the components of each pair of positions; return (n,) bool whether they were apart.

    The lower of two roots becomes the root of both (union-find: Galler and Fischer 1964, with the
    path halving of Tarjan and van Leeuwen 1984).

    Args:
        parents: (num_positions,) the position of each parent *plus one*, 0 for a root. It starts
            as zeros, so a sparse file of any size takes only the space that is written.
        pairs: (n, 2) positions.
    """
    has_joined = np.zeros(len(pairs), np.bool_)
    for i in range(len(pairs)):
        one = _root(parents, np.int64(pairs[i, 0]))
        other = _root(parents, np.int64(pairs[i, 1]))
        if one != other:
            # The lower root stays, so the root of a component does not depend on the order of pairs.
            parents[max(one, other)] = min(one, other) + 1
            has_joined[i] = True
    return has_joined


@njit(nogil=True)
def _root(parents: NDArray[np.uint64], position: np.int64) -> np.int64:
    while parents[position] != 0:
        parent = np.int64(parents[position] - np.uint64(1))
        if parents[parent] != 0:
            parents[position] = parents[parent]  # path halving
        position = parent
    return position


@compiled
def find_roots(
    parents: NDArray[np.uint64], positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return (n,) the root of each position. Shortens the paths in `parents`."""
    found = np.empty(len(positions), np.int64)
    for i in range(len(positions)):
        found[i] = _root(parents, positions[i])
    return found


@compiled
def choose_best(
    parents: NDArray[np.uint64],
    chosen: NDArray[np.uint64],
    best: NDArray[np.float64],
    positions: NDArray[np.int64],
    scores: NDArray[np.float64],
) -> None:
    """Choose the member with the highest score of each component; the first of equal ones.

    Members can be passed in any order, in any number of calls, and more than once.

    Args:
        parents: the array of `unite`, after all pairs.
        chosen: zeros before the first call; then, at each root, the best member's position plus 1.
        best: zeros before the first call; then, at each root, the score of that member.
        positions: (n,) members of components of two or more.
        scores: (n,) their scores, not negative. If all are 0, the first member is chosen.
    """
    for i in range(len(positions)):
        root = _root(parents, positions[i])
        if chosen[root] == 0:
            chosen[root] = root + 1  # the root is the first member
        is_as_good = scores[i] == best[root] and scores[i] > 0
        if scores[i] > best[root] or (
            is_as_good and np.uint64(positions[i]) < chosen[root]
        ):
            best[root] = scores[i]
            chosen[root] = positions[i] + 1
