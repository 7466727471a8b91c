"""The phases that merge forests: the clusters are those of a plain union-find, in one task and by ranges."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.stages.merge_clusters import (
    NUM_FORESTS,
    hash_clusters,
    make_forests,
    make_merge_plan,
    merge,
    write_forests,
)
from pipeline.phases.dedup import merge_clusters
from pipeline.phases.dedup.merge_clusters import FuzzyMerge, FuzzyRanges
from pipeline.phases.run_plan import RunPlan

# 10^5 pairs in all forests.
PAIRS_PER_FOREST = 1563

NUM_TASKS = 4


def merge_in(folder: Path, forests: list[NDArray[np.uint64]]) -> tuple[RunPlan, Any]:
    """Merge forests in a new run; return its plan and the figures by phase."""
    folder.mkdir()
    plan = make_merge_plan(folder, memory_mb=2000)
    write_forests(plan, iter(forests), len(forests))
    return plan, merge(plan)


def find_clusters(forests: list[NDArray[np.uint64]]) -> set[tuple[int, ...]]:
    """Return the clusters by a union-find in plain Python."""
    parents: dict[int, int] = {}

    def find(one: int) -> int:
        while parents.setdefault(one, one) != one:
            one = parents[one]
        return one

    for one, other in np.concatenate(forests).tolist():
        low, high = sorted((find(one), find(other)))
        parents[high] = low
    clusters: defaultdict[int, list[int]] = defaultdict(list)
    for one in sorted(parents):
        clusters[find(one)].append(one)
    return {tuple(cluster) for cluster in clusters.values()}


def read_clusters(plan: RunPlan) -> set[tuple[int, ...]]:
    """Return the clusters that were written, each in the order of its ids."""
    phase = FuzzyMerge(plan)
    batches = [
        phase.read_clusters(index) for index in range(phase.counters().counts["batches"])
    ]
    rows = [row for batch in batches for row in batch["documents"].to_pylist()]
    return {tuple(sorted(row)) for row in rows}


def test_merging_by_ranges_writes_the_clusters_of_one_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Equal pairs meet in the ranges, so that about one pair per document is left for the last task."""
    forests = list(make_forests(PAIRS_PER_FOREST))
    one, figures = merge_in(tmp_path / "one", forests)
    assert [figures[name]["tasks"] for name in figures] == [0, 1]
    assert read_clusters(one) == find_clusters(forests)
    monkeypatch.setattr(merge_clusters, "count_partitions", lambda *_: NUM_TASKS)
    ranged, figures = merge_in(tmp_path / "ranged", forests)
    assert [figures[name]["tasks"] for name in figures] == [NUM_TASKS, 1]
    assert hash_clusters(ranged) == hash_clusters(one)
    num_pairs = sum(map(len, forests))
    num_documents = sum(map(len, find_clusters(forests)))
    assert num_pairs > 7 * num_documents
    assert figures["fuzzy_ranges"]["pairs"] < 1.1 * num_documents
    per_range = [
        record["counters"]["counts"]["pairs"]
        for record in ranged.folder("fuzzy_ranges").records(FuzzyRanges(ranged).task_ids())
    ]
    assert max(per_range) < 1.3 * sum(per_range) / NUM_TASKS


def test_one_large_cluster_is_merged_by_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pairs have one lowest document, so they are all in one range, and the others are empty."""
    members = np.random.default_rng(0).permutation(2000).astype(np.uint64)
    chain = np.stack([members[:-1], members[1:]], axis=1)
    forests = [chain[number::NUM_FORESTS] for number in range(NUM_FORESTS)]
    one, _ = merge_in(tmp_path / "one", forests)
    monkeypatch.setattr(merge_clusters, "count_partitions", lambda *_: NUM_TASKS)
    ranged, _ = merge_in(tmp_path / "ranged", forests)
    assert read_clusters(one) == {tuple(range(2000))}
    assert hash_clusters(ranged) == hash_clusters(one)


def test_no_pairs_give_no_clusters(tmp_path: Path) -> None:
    """All partitions have empty forests."""
    plan, _ = merge_in(tmp_path / "one", [np.empty((0, 2), np.uint64)] * NUM_FORESTS)
    assert FuzzyMerge(plan).batches_of_tasks == {}
