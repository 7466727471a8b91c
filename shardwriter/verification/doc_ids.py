"""Find document ids that occur more than once in a dataset."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwriter.format import REWRITE, ShardIndex
from shardwriter.verification.findings import File, Finding

# Number of ids that are sorted at a time; this takes about 2 GiB. More ids take several
# passes.
DOC_IDS_IN_MEMORY = 2**26


class _Repeated(NamedTuple):
    """The ids that two indexes share: how many, and the lowest of them."""

    num_ids: int
    lowest: int


def find_repeated_doc_ids(index_files: list[tuple[File, int]]) -> list[Finding]:
    """Return one finding for each pair of indexes that share ids.

    Pass p of n compares the ids with `id % n == p`, so equal ids are in the same pass.

    Args:
        index_files: each index with its number of documents, in the order of the shards.
    """
    total = sum(num_docs for _, num_docs in index_files)
    # Round up. More passes read all indexes again, but never exceed the memory.
    num_passes = -(-total // DOC_IDS_IN_MEMORY)
    repeated: dict[tuple[str, str], _Repeated] = {}
    for remainder in range(num_passes):
        ids, owners = _gather_ids(index_files, num_passes, remainder)
        # stable: equal ids stay in the order of the shards
        by_id = np.argsort(ids, kind="stable")
        ids, owners = ids[by_id], owners[by_id]
        # Sorted: equal ids are neighbours. An id in three shards gives two pairs.
        for i in np.flatnonzero(ids[1:] == ids[:-1]).tolist():
            pair = index_files[owners[i]][0].name, index_files[owners[i + 1]][0].name
            doc_id = int(ids[i])
            before = repeated.get(pair, _Repeated(0, doc_id))
            repeated[pair] = _Repeated(before.num_ids + 1, min(before.lowest, doc_id))
    findings: list[Finding] = []
    for (first, later), (num_ids, lowest) in sorted(repeated.items()):
        found = f"{num_ids} doc_ids that {first} has already, {lowest} among them"
        findings.append(Finding(later, found, "each doc_id once in the dataset", REWRITE))
    return findings


def _gather_ids(
    index_files: list[tuple[File, int]], num_passes: int, remainder: int
) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Return the (n,) ids of one pass, and the (n,) positions of their files in `index_files`."""
    # np.concatenate refuses an empty list.
    ids, owners = [np.zeros(0, np.uint64)], [np.zeros(0, np.int32)]
    for owner, (path, _) in enumerate(index_files):
        doc_ids = ShardIndex.from_bytes(path.read_bytes(), path.name).doc_ids
        chosen = doc_ids[doc_ids % np.uint64(num_passes) == remainder]
        ids.append(chosen)
        owners.append(np.full(len(chosen), owner, np.int32))
    return np.concatenate(ids), np.concatenate(owners)
