"""Clusters of near-duplicates: connected components of pairs of documents.

Documents with an equal band hash form a group, groups give pairs, pairs give spanning forests, and
merged forests give components. The result does not depend on how the pairs were split into forests,
nor on the order in which these are merged. The root of a component is its lowest member.

    documents, starts = group_equal_hashes(hashes, documents)      # [10, 30, 10, 20], [0, 2, 4]
    pairs = pair_with_first(documents, starts)                     # [[10, 30], [10, 20]]
    parents = np.zeros(40, np.uint64)
    unite(parents, pairs)
    replace_by_roots(parents)                                      # parents[20] = parents[30] = 10
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.compilation import compiled

# (n, 2): ids, or positions, of pairs of near-duplicates.
Pairs = NDArray[np.uint64]

# Positions of documents: 32 bits as long as they suffice.
Positions = NDArray[np.unsignedinteger[Any]]


def group_equal_hashes(
    hashes: NDArray[np.uint64], documents: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Group the documents that share a hash with another document.

    Args:
        hashes: (n,) hashes.
        documents: (n,) the document of each hash. Those of equal hashes never decrease.

    Returns:
        documents: (m,) group by group, in their order within each group.
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


def select_groups(
    members: NDArray[Any], starts: NDArray[np.int64], is_selected: NDArray[np.bool_]
) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Return the members and starts of some of the groups of `group_equal_hashes`."""
    sizes = np.diff(starts)
    is_member = np.repeat(is_selected, sizes)
    return members[is_member], np.append(0, np.cumsum(sizes[is_selected]))


@compiled
def unite(parents: Positions, pairs: Pairs) -> NDArray[np.bool_]:
    """Join the components of each pair of positions; return (n,) bool whether they were apart.

    The lower of two roots becomes the root of both (union-find: Galler and Fischer 1964, with the
    path halving of Tarjan and van Leeuwen 1984).

    Args:
        parents: (num_positions,) the position of each parent *plus one*, 0 for a root. It starts
            as zeros.
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
def _root(parents: Positions, position: np.int64) -> np.int64:
    while parents[position] != 0:
        parent = np.int64(parents[position]) - 1
        if parents[parent] != 0:
            parents[position] = parents[parent]  # path halving
        position = parent
    return position


@compiled
def replace_by_roots(parents: Positions) -> None:
    """Replace the parent of each position by its root. `unite` cannot be called afterwards."""
    for i in range(len(parents)):
        # A parent is lower than its child, so it already has its root.
        if parents[i] == 0:
            parents[i] = i
        else:
            parents[i] = parents[np.int64(parents[i]) - 1]


@compiled
def sort_by_root(roots: Positions, ends: Positions, order: Positions) -> None:
    """Sort positions by their root, and the positions of each root in increasing order.

    Args:
        roots: (n,) the root of each position.
        ends: (n,) zeros; then the end in `order` of each root's positions.
        order: (n,) anything; then the sorted positions.
    """
    for root in roots:
        ends[root] += np.uint64(1)
    num_before = np.int64(0)
    for i in range(len(ends)):
        size = np.int64(ends[i])
        ends[i] = num_before
        num_before += size
    for i in range(len(roots)):
        order[ends[roots[i]]] = i
        ends[roots[i]] += np.uint64(1)


@compiled
def merge_sorted(
    one: NDArray[np.uint64], other: NDArray[np.uint64], merged: NDArray[np.uint64]
) -> int:
    """Merge two increasing arrays without repetition, and return the number of values.

    Args:
        one: (n,) increasing.
        other: (m,) increasing.
        merged: (n + m,) anything; then it starts with the values.
    """
    i, j, num_merged = 0, 0, 0
    while i < len(one) or j < len(other):
        is_first = j == len(other) or (i < len(one) and one[i] <= other[j])
        value = one[i] if is_first else other[j]
        i += i < len(one) and one[i] == value
        j += j < len(other) and other[j] == value
        merged[num_merged] = value
        num_merged += 1
    return num_merged
