"""Groups of near-duplicates: from equal band hashes to pairs, from pairs to forests, from forests to components.

Promises: a forest joins exactly the documents that its pairs join, with the fewest pairs; components do not depend on
the order in which forests are merged, nor on how the pairs were cut into forests; the root of a component is its lowest
member.
Leaves to others: reading, writing and where `parents` lies (a file mapped into memory will do).

    documents, starts = groups_of_equal(hashes, documents)      # [10, 30, 10, 20], [0, 2, 4]
    pairs = stars(documents, starts)                            # [[10, 30], [10, 20]]
    parents = np.zeros(40, np.uint64)
    unite(parents, spanning_forest(pairs))
    roots(parents, np.array([20, 30]))                          # [10, 10]
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.compilation import compiled

Pairs = NDArray[np.uint64]
"""(n, 2): the ids, or the positions, of two documents that are near-duplicates."""

Values = NDArray[np.uint32] | NDArray[np.uint64]
"""What documents are compared by: the minima of a signature, or the hashes of n-grams."""


def groups_of_equal(
    hashes: NDArray[np.uint64], documents: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The documents that share a hash with another.

    Args:
        hashes: (n,).
        documents: (n,) the document of each hash, never decreasing.

    Returns:
        documents: (m,) group by group, rising within each.
        starts: (number of groups + 1,) where each group starts.
    """
    order = np.argsort(hashes, kind="stable")
    ordered = hashes[order]
    firsts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)])
    sizes = np.diff(np.append(firsts, len(ordered)))
    is_shared = sizes > 1
    starts = np.append(0, np.cumsum(sizes[is_shared]))
    return documents[order[np.repeat(is_shared, sizes)]], starts


def stars(documents: NDArray[np.uint64], starts: NDArray[np.int64]) -> Pairs:
    """The first of each group with each of the others: as few pairs as join them all."""
    sizes = np.diff(starts)
    firsts = np.repeat(documents[starts[:-1]], sizes)
    is_other = np.ones(len(documents), np.bool_)
    is_other[starts[:-1]] = False
    return np.stack([firsts[is_other], documents[is_other]], axis=1)


def groups_reaching(
    documents: NDArray[np.uint64], starts: NDArray[np.int64], first: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Of groups as `groups_of_equal` gives them those whose last document is `first` or comes after it."""
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
    """Pairs that join, within each group, whom a chain of similar documents joins: a forest.

    A group of k alike takes k comparisons, one of k strangers k * k / 2.

    Args:
        documents: (m,) group by group.
        starts: (number of groups + 1,).
        offsets: (m + 1,) where what is compared of each document starts in `values`.
        values: signatures of equal length, whose similarity is the share of places where they are equal; or sets,
            sorted, whose similarity is Jaccard's.
        are_sets: which of the two.
        min_similarity: from which on two documents are similar.
    """
    pairs = np.empty((len(documents), 2), np.uint64)
    num_pairs = 0
    for g in range(len(starts) - 1):
        places = np.arange(
            starts[g], starts[g + 1]
        )  # those already joined to a tree first, then the strangers
        num_joined = 0
        for i in range(len(places)):
            num_joined = max(num_joined, i + 1)
            one = values[offsets[places[i]] : offsets[places[i] + 1]]
            for j in range(num_joined, len(places)):
                other = values[offsets[places[j]] : offsets[places[j] + 1]]
                num_equal, out_of = (
                    _num_common(one, other) if are_sets else (_num_equal(one, other), len(one))
                )
                if num_equal >= min_similarity * out_of:
                    pairs[num_pairs, 0], pairs[num_pairs, 1] = (
                        documents[places[i]],
                        documents[places[j]],
                    )
                    num_pairs += 1
                    places[j], places[num_joined] = places[num_joined], places[j]
                    num_joined += 1
    return pairs[:num_pairs].copy()


@njit(nogil=True)
def _num_equal(one: Values, other: Values) -> int:
    num_equal = 0
    for k in range(len(one)):
        num_equal += one[k] == other[k]
    return num_equal


@njit(nogil=True)
def _num_common(one: Values, other: Values) -> tuple[int, int]:
    """Size of the intersection and of the union of two sets, each sorted."""
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
    """The pairs, in their order, without those that close a circle: fewer than there are documents in them."""
    documents = np.unique(pairs)
    positions = np.searchsorted(documents, pairs).astype(np.uint64)
    return pairs[unite(np.zeros(len(documents), np.uint64), positions)]


@compiled
def unite(parents: NDArray[np.uint64], pairs: Pairs) -> NDArray[np.bool_]:
    """Join the two documents of each pair of positions; which pairs joined what was apart, (n,).

    `parents` holds for each position that of its parent *plus one*, and 0 for a root, so that it starts as zeros: a
    sparse file of any size costs what is written to it. The lower of two roots becomes the root of both (Galler and
    Fischer 1964, with the path halving of Tarjan and van Leeuwen 1984).
    """
    has_joined = np.zeros(len(pairs), np.bool_)
    for i in range(len(pairs)):
        one, other = _root(parents, np.int64(pairs[i, 0])), _root(parents, np.int64(pairs[i, 1]))
        if one != other:
            parents[max(one, other)] = min(one, other) + 1
            has_joined[i] = True
    return has_joined


@njit(nogil=True)
def _root(parents: NDArray[np.uint64], position: np.int64) -> np.int64:
    while parents[position] != 0:
        parent = np.int64(parents[position] - np.uint64(1))
        if parents[parent] != 0:
            parents[position] = parents[parent]
        position = parent
    return position


@compiled
def roots(parents: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """(n,) the roots of positions; shortens the paths on its way."""
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
    """Choose of each component the member with the highest score, of several equally good the first.

    Members may be given in any order, over any number of calls, each once or more often.

    Args:
        parents: as `unite` leaves it, when all pairs are joined.
        chosen: zeros at first; at each root, the position plus one of the member chosen so far.
        best: zeros at first; at each root, the score of that member.
        positions: (n,) of members of components of two or more.
        scores: (n,) of them, not negative; where all are 0 the first member is chosen.
    """
    for i in range(len(positions)):
        root = _root(parents, positions[i])
        if chosen[root] == 0:
            chosen[root] = root + 1  # no member comes before it
        is_as_good = scores[i] == best[root] and scores[i] > 0
        if scores[i] > best[root] or (is_as_good and np.uint64(positions[i]) < chosen[root]):
            best[root] = scores[i]
            chosen[root] = positions[i] + 1
