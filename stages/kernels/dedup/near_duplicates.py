"""Similar pairs in groups of candidates, and the documents of a cluster that are kept.

A phase compares the documents of each group that shares a band hash, joins similar pairs to
clusters, and then visits the documents of each cluster in an order of preference. A document is
dropped if, and only if, it is similar to a document that was visited before it and kept. The first
such document is its representative. Two documents are similar if they share a band hash and their
n-gram sets reach the threshold.

    A ~ B, B ~ C, but not A ~ C, in the order A, B, C:   A and C are kept, A represents B

Three properties follow. No document is dropped through a chain: each one is similar to its own
representative, which is kept. No two kept documents are similar, because the later one would have
been dropped. And the result depends only on the documents and their order, not on the way in which
the pairs were found: by induction over the order, each decision depends on decisions before it. It
is the lexicographically first maximal independent set of the graph of similar pairs (Blelloch,
Fineman and Shun 2012, "Greedy sequential maximal independent set and matching are parallel on
average"). Components of that graph do not influence each other, so they are decided apart.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.compilation import compiled


@compiled
def find_similar_pairs(
    documents: NDArray[np.uint64],
    starts: NDArray[np.int64],
    offsets: NDArray[np.int64],
    ngrams: NDArray[np.uint32],
    min_jaccard: float,
    must_contain: bool,
) -> NDArray[np.uint64]:
    """Return a forest of pairs that joins the similar documents of each group, shape (n, 2).

    k similar documents take k comparisons, k dissimilar ones k * k / 2.

    Args:
        documents: (m,) group by group.
        starts: (num_groups + 1,) the start of each group.
        offsets: (m + 1,) the start of each document's set in `ngrams`.
        ngrams: the sets, each sorted.
        min_jaccard: Jaccard similarity from which two documents are similar.
        must_contain: of two similar documents, one must also contain the other.
    """
    pairs = np.empty((len(documents), 2), np.uint64)
    num_pairs = 0
    for g in range(len(starts) - 1):
        # Members of a tree, places[:num_joined], are compared with the others, not with each other.
        places = np.arange(starts[g], starts[g + 1])
        num_joined = 0
        for i in range(len(places)):
            num_joined = max(num_joined, i + 1)
            one = ngrams[offsets[places[i]] : offsets[places[i] + 1]]
            for j in range(num_joined, len(places)):
                other = ngrams[offsets[places[j]] : offsets[places[j] + 1]]
                size_to_contain = min(len(one), len(other)) if must_contain else 0
                if _are_similar(one, other, min_jaccard, size_to_contain):
                    pairs[num_pairs, 0] = documents[places[i]]
                    pairs[num_pairs, 1] = documents[places[j]]
                    num_pairs += 1
                    places[j], places[num_joined] = places[num_joined], places[j]
                    num_joined += 1
    return pairs[:num_pairs].copy()


@njit(nogil=True)
def _are_similar(
    one: NDArray[np.uint32],
    other: NDArray[np.uint32],
    min_jaccard: float,
    min_common: int,
) -> bool:
    """Return whether two sorted sets reach a Jaccard similarity and a number of common elements."""
    shorter, longer = min(len(one), len(other)), max(len(one), len(other))
    # The intersection is at most the shorter set, and the union at least the longer one.
    if shorter < min_jaccard * longer or shorter < min_common:
        return False
    num_common = _count_common(one, other)
    num_in_either = len(one) + len(other) - num_common
    return num_common >= min_jaccard * num_in_either and num_common >= min_common


@njit(nogil=True)
def _count_common(one: NDArray[np.uint32], other: NDArray[np.uint32]) -> int:
    num_common, i, j = 0, 0, 0
    while i < len(one) and j < len(other):
        if one[i] == other[j]:
            num_common, i, j = num_common + 1, i + 1, j + 1
        elif one[i] < other[j]:
            i += 1
        else:
            j += 1
    return num_common


@compiled
def choose_representatives(
    starts: NDArray[np.int64],
    num_fixed: NDArray[np.int64],
    offsets: NDArray[np.int64],
    ngrams: NDArray[np.uint32],
    bands: NDArray[np.uint64],
    min_jaccard: float,
    must_contain: bool,
) -> NDArray[np.int64]:
    """Return the place of each document's representative, shape (m,).

    A kept document is its own representative. k documents of which s are kept take at most k * s
    comparisons.

    Args:
        starts: (num_clusters + 1,) the start of each cluster.
        num_fixed: (num_clusters,) the number of its first documents that are kept in any case.
        offsets: (m + 1,) the start of each document's set in `ngrams`; in order of preference
            within a cluster.
        ngrams: the sets, each sorted.
        bands: (m, num_bands) the band hashes of each document.
        min_jaccard: Jaccard similarity from which two documents are similar.
        must_contain: a document is dropped only if its representative contains all its n-grams.
    """
    representatives = np.arange(len(offsets) - 1)
    kept = np.empty(len(offsets) - 1, np.int64)
    for c in range(len(starts) - 1):
        num_kept = 0
        for place in range(starts[c], starts[c + 1]):
            one = ngrams[offsets[place] : offsets[place + 1]]
            size_to_contain = len(one) if must_contain else 0
            if place >= starts[c] + num_fixed[c]:
                for other_place in kept[:num_kept]:
                    if not _share_a_band(bands[place], bands[other_place]):
                        continue
                    other = ngrams[offsets[other_place] : offsets[other_place + 1]]
                    if _are_similar(one, other, min_jaccard, size_to_contain):
                        representatives[place] = other_place
                        break
            if representatives[place] == place:
                kept[num_kept] = place
                num_kept += 1
    return representatives


@njit(nogil=True)
def _share_a_band(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> bool:
    for k in range(len(one)):  # noqa: SIM110  numba compiles no any() of a generator
        if one[k] == other[k]:
            return True
    return False
