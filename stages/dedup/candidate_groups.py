"""Groups of candidates for near-duplicates: which of their n-gram sets are compared, and how many at a time.

rows, starts = find_comparable(documents, starts, sizes, min_jaccard=0.8)
for some in divide_groups(starts, sizes[rows], memory_mb=2000):
    compare(rows[starts[some.start] : starts[some.stop]])
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

# Documents, and their n-grams, that are compared with each other at a time. A larger group is
# compared in parts, and a larger cluster with its preferred documents only. So k documents take
# at most k * MAX_COMPARED comparisons, and 32 MB hold their n-grams.
MAX_COMPARED, MAX_NGRAMS_COMPARED = 2**12, 2**23


def find_comparable(
    documents: NDArray[np.uint64],
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    min_jaccard: float,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of documents to compare, group by group and by size, and the start of each group.

    Documents are left out whose size is so different that none of their group is similar. Groups with the
    same first document follow each other, because they often have the others in common, too. Large groups
    are cut.

    Args:
        documents: (m,) group by group.
        starts: (num_groups + 1,) the start of each group.
        sizes: (m,) the number of n-grams of each document.
        min_jaccard: of similar documents.
    """
    group_sizes = np.diff(starts)
    firsts = np.repeat(documents[starts[:-1]], group_sizes)
    groups = np.repeat(np.arange(len(group_sizes)), group_sizes)
    rows = np.lexsort((sizes, groups, firsts))
    del firsts
    groups, sizes = groups[rows], sizes[rows]
    is_near = np.zeros(len(rows) + 1, np.bool_)  # of a row and the one before
    is_near[1:-1] = (groups[1:] == groups[:-1]) & (sizes[:-1] >= min_jaccard * sizes[1:])
    is_comparable = is_near[1:] | is_near[:-1]
    rows, sizes, groups = (each[is_comparable] for each in (rows, sizes, groups))
    is_start = np.append(True, groups[1:] != groups[:-1])[: len(groups)]
    return _cut_large(rows, np.append(np.flatnonzero(is_start), len(rows)), sizes)


def _cut_large(
    rows: NDArray[np.int64], starts: NDArray[np.int64], sizes: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows and starts of groups of which none is large.

    Neighbouring parts of a large group have one document in common, so documents that are all similar
    stay connected.

    Args:
        rows: (m,) documents, by size in each group.
        starts: (num_groups + 1,) the start of each group.
        sizes: (m,) the number of n-grams of each row.
    """
    groups = np.stack([starts[:-1], starts[1:]], axis=1)
    is_large = are_large(starts, sizes)
    cut = [groups[~is_large]]
    for start, end in groups[is_large].tolist():
        stop = start + 1
        while stop < end:
            begin = stop - 1
            stop = max(begin + 2, begin + count_compared(sizes[begin:end]))
            cut.append(np.array([[begin, stop]]))
    begins, ends = np.concatenate(cut).T
    starts = np.append(0, np.cumsum(ends - begins))
    offsets = np.repeat(begins - starts[:-1], ends - begins)
    return rows[np.arange(starts[-1]) + offsets], starts


def count_ngrams_held(memory_mb: int) -> int:
    """Return the n-grams that a task may hold: a 16th of its memory, and as much again while they are read."""
    return max(MAX_NGRAMS_COMPARED, memory_mb * 2**20 // 16 // 4)


def are_large(starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return whether groups are too large to be compared at once, shape (num_groups,)."""
    num_ngrams = np.diff(np.append(0, np.cumsum(sizes))[starts])
    return (np.diff(starts) > MAX_COMPARED) | (num_ngrams > MAX_NGRAMS_COMPARED)


def count_compared(sizes: NDArray[np.int64]) -> int:
    """Return how many of a large group's next documents are compared at once, from their sizes; at least one."""
    num_ngrams = np.cumsum(sizes[:MAX_COMPARED])
    return max(1, int(np.searchsorted(num_ngrams, MAX_NGRAMS_COMPARED, side="right")))


def divide_groups(
    starts: NDArray[np.int64], sizes: NDArray[np.int64], memory_mb: int
) -> Iterator[slice]:
    """Yield ranges of consecutive groups whose n-grams a task can hold, or of one group.

    Args:
        starts: (num_groups + 1,) the start of each group.
        sizes: (starts[-1],) the number of n-grams of each member.
        memory_mb: of the task.
    """
    max_ngrams = count_ngrams_held(memory_mb)
    num_before = np.append(0, np.cumsum(sizes))[starts]  # n-grams before each group
    begin = 0
    while begin < len(starts) - 1:
        limit = num_before[begin] + max_ngrams
        end = max(begin + 1, int(np.searchsorted(num_before, limit, side="right")) - 1)
        yield slice(begin, end)
        begin = end
