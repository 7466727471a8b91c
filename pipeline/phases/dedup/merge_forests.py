"""The merge of forests of similar pairs into clusters, in the memory of one process.

It holds HELD_BYTES per document that has a similar one, and one forest. Documents without a
similar one take nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.runs.exchange import find_bounds, join_batches
from stages.dedup.connected_components import (
    Pairs,
    Positions,
    merge_sorted,
    replace_by_roots,
    sort_by_root,
    unite,
)

# Bytes per document that has a similar one: 8 each for its id, its score and the place of its
# n-grams, and 4 each for its root, the end of its cluster and its position in the order of
# clusters (8 each from 2**32 documents on).
HELD_BYTES = 36

# Documents that are sorted at a time, except that one cluster is never divided. 25 MB.
MAX_SORTED = 2**18

# The score of a document that belongs to no cluster any more.
LEFT_OUT = -np.inf

# A cluster: its documents, by ids in the order of `sources`, from the preferred one on; the
# places of their n-grams; how many of them previous runs have kept; and whether the first two
# were already compared.
CLUSTERS = pa.schema(
    [
        pa.field("documents", pa.large_list(pa.uint64())),
        pa.field("ngrams", pa.large_list(pa.uint64())),
        pa.field("num_previous", pa.uint32()),
        pa.field("was_compared", pa.bool_()),
    ]
)

# Pairs of the lowest document of a tree and each other one, by ids in the order of `sources`, with
# scores: a document with a higher score is preferred. With the places of their n-grams; 0 without a
# rule. The hash is that of the lowest document, so the pairs of a tree come together.
FOREST = pa.schema(
    [
        pa.field("hash", pa.uint64()),
        pa.field("one", pa.uint64()),
        pa.field("other", pa.uint64()),
        pa.field("score_of_one", pa.float64()),
        pa.field("score_of_other", pa.float64()),
        pa.field("ngrams_of_one", pa.uint64()),
        pa.field("ngrams_of_other", pa.uint64()),
    ]
)

# Of one partition: the ids of the pairs, their scores, and the places of their n-grams, (n, 2).
Forest = tuple[Pairs, NDArray[np.float64], NDArray[np.uint64]]


@dataclass(frozen=True)
class Components:
    """The documents that have a similar one, and the clusters that pairs connect.

    Attributes:
        ids: (n,) the documents, in increasing order.
        scores: (n,) a document with a higher score is preferred.
        places: (n,) the places of their n-grams; 0 where nothing is compared.
        roots: (n,) the position of the lowest document of each cluster.
    """

    ids: NDArray[np.uint64]
    scores: NDArray[np.float64]
    places: NDArray[np.uint64]
    roots: Positions

    @classmethod
    def merge(cls, read_forests: Callable[[], Iterable[Forest]]) -> Components:
        """Merge forests. They are read twice, one at a time."""
        ids = find_members(pairs for pairs, _, _ in read_forests())
        dtype = np.uint32 if len(ids) < 2**32 - 1 else np.uint64
        roots, scores = np.zeros(len(ids), dtype), np.zeros(len(ids))
        places = np.zeros(len(ids), np.uint64)
        for pairs, pair_scores, pair_places in read_forests():
            positions = np.searchsorted(ids, pairs)
            unite(roots, positions.astype(np.uint64))
            scores[positions] = pair_scores
            places[positions] = pair_places
        replace_by_roots(roots)
        return cls(ids, scores, places, roots)

    def clusters(self) -> Iterator[Positions]:
        """Yield the positions of whole clusters, about MAX_SORTED at a time, by their roots."""
        ends, order = np.zeros_like(self.roots), np.empty_like(self.roots)
        sort_by_root(self.roots, ends, order)
        start = 0
        while start < len(order):
            last = order[min(start + MAX_SORTED, len(order)) - 1]
            end = int(ends[self.roots[last]])
            yield order[start:end]
            start = end


def list_stars(components: Components) -> pa.RecordBatch:
    """Return the pairs of the lowest document of each component with each other one, as FOREST."""
    others = np.flatnonzero(components.roots != np.arange(len(components.roots)))
    both = components.roots[others], others
    columns = [
        values[rows]
        for values in (components.ids, components.scores, components.places)
        for rows in both
    ]
    # Fibonacci hashing (Knuth, The Art of Computer Programming, vol. 3, section 6.4).
    hashes = columns[0] * np.uint64(0x9E3779B97F4A7C15)
    return pa.record_batch([hashes, *columns], schema=FOREST)


def to_forest(rows: pa.RecordBatch) -> Forest:
    """Return the pairs of FOREST as arrays."""
    columns = [column.to_numpy() for column in rows.columns[1:]]
    pairs, scores, places = (
        np.stack(columns[i : i + 2], axis=1) for i in range(0, len(columns), 2)
    )
    return pairs, scores, places


def find_members(pairs_of_forests: Iterable[Pairs]) -> NDArray[np.uint64]:
    """Return the sorted ids of all pairs.

    Neighbouring arrays are merged when they have about the same size, so each id is copied only
    log2(number of forests) times.
    """
    merged: list[NDArray[np.uint64]] = []
    for pairs in pairs_of_forests:
        ids = np.sort(pairs, axis=None)  # np.unique takes a hundred times as long
        merged.append(ids[find_bounds(ids)[:-1]])
        while len(merged) > 1 and len(merged[-2]) < 2 * len(merged[-1]):
            merged.append(_merge(merged.pop(), merged.pop()))
    while len(merged) > 1:
        merged.append(_merge(merged.pop(), merged.pop()))
    return merged[0] if merged else np.empty(0, np.uint64)


def _merge(one: NDArray[np.uint64], other: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # Pages behind the last value are never written, and take no memory.
    merged = np.empty(len(one) + len(other), np.uint64)
    num_merged = merge_sorted(one, other, merged)
    merged.resize(num_merged, refcheck=False)
    return merged


def write_clusters(
    path: str, components: Components, first_own_id: int, members_per_batch: int
) -> tuple[int, int]:
    """Write the clusters of two or more documents with one of this run, in batches.

    Args:
        path: of the file.
        components: the documents and their clusters.
        first_own_id: ids below it belong to previous runs.
        members_per_batch: documents of a batch, except that no cluster is divided.

    Returns:
        The number of clusters, and of batches.
    """
    num_clusters = num_batches = 0
    found = (
        _make_clusters(components, positions, first_own_id)
        for positions in components.clusters()
    )
    with pa.ipc.new_file(path, CLUSTERS) as file:
        for batch in _divide(found, members_per_batch):
            file.write_batch(batch)
            num_clusters += batch.num_rows
            num_batches += 1
    return num_clusters, num_batches


def _make_clusters(
    components: Components, positions: Positions, first_own_id: int
) -> pa.RecordBatch:
    """Return whole clusters as CLUSTERS, their documents in the order of preference."""
    was_pair = _is_of_pair(components.roots[positions])
    scores = components.scores[positions]
    is_left = scores != LEFT_OUT
    positions, scores, was_pair = positions[is_left], scores[is_left], was_pair[is_left]
    ids, roots = components.ids[positions], components.roots[positions]
    places = components.places[positions]
    # The last key is the first to sort by.
    order = np.lexsort((ids, -scores, roots))
    ids, roots, was_pair = ids[order], roots[order], was_pair[order]
    places = places[order]
    bounds = find_bounds(roots)
    sizes = np.diff(bounds)
    is_previous = np.append(0, np.cumsum(ids < first_own_id))
    num_previous = np.diff(is_previous[bounds])
    is_written = (sizes > 1) & (num_previous < sizes)
    offsets = pa.array(np.append(0, np.cumsum(sizes[is_written])))
    is_member = np.repeat(is_written, sizes)
    columns = [
        pa.LargeListArray.from_arrays(offsets, pa.array(ids[is_member])),
        pa.LargeListArray.from_arrays(offsets, pa.array(places[is_member])),
        pa.array(num_previous[is_written].astype(np.uint32)),
        pa.array((was_pair[bounds[:-1]] & (sizes == 2))[is_written]),
    ]
    return pa.record_batch(columns, schema=CLUSTERS)


def _is_of_pair(roots: Positions) -> NDArray[np.bool_]:
    """Return (n,) bool, true for the documents of clusters of two."""
    sizes = np.diff(find_bounds(roots))
    return np.repeat(sizes == 2, sizes)


def _divide(
    batches: Iterable[pa.RecordBatch], members_per_batch: int
) -> Iterator[pa.RecordBatch]:
    """Yield the same clusters in batches of that size.

    The batch of a cluster follows from the number of documents before it.
    """
    pending: list[pa.RecordBatch] = []
    task = num_before = 0
    for batch in batches:
        ends = num_before + np.cumsum(pc.list_value_length(batch["documents"]).to_numpy())
        tasks = np.append(num_before, ends)[:-1] // members_per_batch
        bounds = find_bounds(tasks)
        for start, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            if pending and tasks[start] != task:
                yield join_batches(CLUSTERS, pending)
                pending = []
            task = tasks[start]
            pending.append(batch.slice(start, end - start))
        num_before = int(ends[-1]) if len(ends) else num_before
    if pending:
        yield join_batches(CLUSTERS, pending)
