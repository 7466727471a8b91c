"""Numbers for equal sequences and pairs, by comparison: a hash only finds the candidates.

Both functions use a hash table with open addressing and linear probing. A slot holds an id, and
`firsts[id]` is the index of the first sequence with this id, for the comparison.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from stages.kernels.quality.alphabet import Ints
from stages.kernels.splitmix import GOLDEN

_EMPTY = -1


@njit(nogil=True)
def number_sequences(items: Ints, starts: Ints, ends: Ints) -> tuple[Ints, int]:
    """Number the sequences items[starts[i] : ends[i]] in order of first occurrence.

    Returns:
        ids: (len(starts),) equal for equal sequences.
        num_ids: how many different sequences there are.
    """
    ids = np.empty(len(starts), np.int32)
    firsts = np.empty(len(starts), np.int32)
    mask = _choose_num_slots(len(starts)) - 1
    slots = np.full(mask + 1, _EMPTY, np.int32)
    num_ids = 0
    for i in range(len(starts)):
        key = np.uint64(ends[i] - starts[i])
        for k in range(starts[i], ends[i]):
            key = (key ^ np.uint64(items[k])) * GOLDEN
        slot = _hash(key) & mask
        while slots[slot] >= 0 and not _is_same(
            items, starts, ends, i, firsts[slots[slot]]
        ):
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = num_ids
            firsts[num_ids] = i
            num_ids += 1
        ids[i] = slots[slot]
    return ids, num_ids


@njit(nogil=True)
def join_ngrams(grams: Ints, counts: Ints) -> tuple[Ints, Ints]:
    """Return the ids of the (n + 1)-grams and their counts, given those of the n-grams.

    An (n + 1)-gram is a pair of neighbouring n-grams. Its id is -1 if one of the two occurs once
    only, because then it occurs once only too. So each length costs less than the one before.

    Args:
        grams: (m,) id of the n-gram at each word, or -1.
        counts: (num_ids,) how often each n-gram occurs.

    Returns:
        joined: (m - 1,) id of the (n + 1)-gram at each word, or -1.
        new_counts: (num_new_ids,).
    """
    joined, num_candidates = _mark_candidates(grams, counts)
    mask = _choose_num_slots(num_candidates) - 1
    slots = np.full(mask + 1, _EMPTY, np.int32)
    firsts = np.empty(num_candidates, np.int32)
    new_counts = np.zeros(num_candidates, np.int32)
    num_ids = 0
    for i in range(len(joined)):
        if joined[i] < 0:
            continue
        slot = _hash(np.uint64(grams[i]) << np.uint64(32) | np.uint64(grams[i + 1])) & mask
        while slots[slot] >= 0 and not _is_same_pair(grams, i, firsts[slots[slot]]):
            slot = (slot + 1) & mask
        if slots[slot] < 0:
            slots[slot] = num_ids
            firsts[num_ids] = i
            num_ids += 1
        joined[i] = slots[slot]
        new_counts[slots[slot]] += 1
    return joined, new_counts[:num_ids]


@njit(nogil=True)
def _mark_candidates(grams: Ints, counts: Ints) -> tuple[Ints, int]:
    """Return 0 for each pair of repeated n-grams and -1 for others, and the number of zeros."""
    joined = np.full(max(0, len(grams) - 1), -1, np.int32)
    num_candidates = 0
    for i in range(len(joined)):
        left, right = grams[i], grams[i + 1]
        if left >= 0 and right >= 0 and counts[left] > 1 and counts[right] > 1:
            joined[i] = 0
            num_candidates += 1
    return joined, num_candidates


@njit(nogil=True)
def count_ids(ids: Ints, num_ids: int) -> Ints:
    """Return how often each id occurs, (num_ids,)."""
    counts = np.zeros(num_ids, np.int32)
    for i in ids:
        counts[i] += 1
    return counts


@njit(nogil=True)
def _is_same(items: Ints, starts: Ints, ends: Ints, i: int, j: int) -> bool:
    if ends[i] - starts[i] != ends[j] - starts[j]:
        return False
    for k in range(ends[i] - starts[i]):
        if items[starts[i] + k] != items[starts[j] + k]:
            return False
    return True


@njit(nogil=True)
def _is_same_pair(grams: Ints, i: int, j: int) -> bool:
    return grams[i] == grams[j] and grams[i + 1] == grams[j + 1]


@njit(nogil=True)
def _hash(key: np.uint64) -> np.int64:
    """Return the upper half of the product, whose bits depend on every bit of the key.

    Source: multiplicative hashing (Knuth, TAOCP vol. 3, section 6.4).
    """
    return np.int64(key * GOLDEN >> np.uint64(32))


@njit(nogil=True)
def _choose_num_slots(num_keys: int) -> int:
    """Return a power of two, at least twice the number of keys."""
    num_slots = 2
    while num_slots < 2 * num_keys:
        num_slots *= 2
    return num_slots
