"""The merge of forests into clusters, compared with plain Python."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.phases.dedup import merge_forests
from pipeline.phases.dedup.merge_forests import (
    LEFT_OUT,
    Components,
    Forest,
    write_clusters,
)

# Ids of three splits. The first split belongs to a previous run.
FIRST_OWN_ID = 1 << 32
IDS = [split << 32 | record for split in range(3) for record in range(5)]
PAIRS = st.lists(st.lists(st.sampled_from(IDS), min_size=2, max_size=2), max_size=25)


def join_clusters(pairs: list[list[int]]) -> list[list[int]]:
    """Return the connected documents, cluster after cluster, by their lowest document."""
    clusters: list[set[int]] = []
    for one, other in pairs:
        joined = {one, other}
        for cluster in [cluster for cluster in clusters if joined & cluster]:
            clusters.remove(cluster)
            joined |= cluster
        clusters.append(joined)
    return sorted(sorted(cluster) for cluster in clusters)


def expect_clusters(
    pairs: list[list[int]], scores: dict[int, float]
) -> list[tuple[list[int], int, bool]]:
    """Return the clusters that are written, in order."""
    found: list[tuple[list[int], int, bool]] = []
    for cluster in join_clusters(pairs):
        left = [one for one in cluster if scores[one] != LEFT_OUT]
        left.sort(key=lambda one: (-scores[one], one))
        num_previous = sum(one < FIRST_OWN_ID for one in left)
        if len(left) > 1 and num_previous < len(left):
            found.append((left, num_previous, len(cluster) == 2))
    return found


def divide(clusters: list[tuple[list[int], int, bool]], max_members: int) -> list[int]:
    """Return the number of clusters of each task."""
    tasks: dict[int, int] = {}
    num_before = 0
    for documents, _, _ in clusters:
        task = num_before // max_members
        tasks[task] = tasks.get(task, 0) + 1
        num_before += len(documents)
    return list(tasks.values())


@settings(deadline=None)
@given(
    pairs=PAIRS,
    num_forests=st.integers(1, 4),
    values=st.lists(st.sampled_from([0.0, 0.5, 2.0]), min_size=15, max_size=15),
    fixed=st.lists(st.sampled_from([np.inf, LEFT_OUT]), min_size=5, max_size=5),
    max_sorted=st.integers(1, 12),
    max_members=st.integers(1, 12),
)
def test_clusters_are_those_of_plain_python(
    tmp_path_factory: pytest.TempPathFactory,
    pairs: list[list[int]],
    num_forests: int,
    values: list[float],
    fixed: list[float],
    max_sorted: int,
    max_members: int,
) -> None:
    """For any distribution over forests, any memory and any size of tasks, with previous runs."""
    scores = dict(zip(IDS, [*fixed, *values[5:]], strict=True))

    def read_forests() -> list[Forest]:
        parts = [pairs[i::num_forests] for i in range(num_forests)]
        arrays = [np.array(part, np.uint64).reshape(-1, 2) for part in parts]
        return [
            (part, np.vectorize(scores.get, [float])(part), part * 2) for part in arrays
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merge_forests, "MAX_SORTED", max_sorted)
        path = tmp_path_factory.mktemp("clusters") / "clusters.arrow"
        components = Components.merge(read_forests)
        num_written, num_batches = write_clusters(
            str(path), components, FIRST_OWN_ID, max_members
        )
    expected = expect_clusters(pairs, scores)
    with pa.ipc.open_file(path) as file:
        batches = [file.get_batch(i) for i in range(file.num_record_batches)]
    assert num_batches == len(batches)
    written = [tuple(row.values()) for batch in batches for row in batch.to_pylist()]
    expected = [(docs, num, pair and len(docs) == 2) for docs, num, pair in expected]
    places = [[2 * one for one in docs] for docs, _, _ in expected]
    assert [places for _, places, _, _ in written] == places
    assert [(docs, num, pair) for docs, _, num, pair in written] == expected
    assert num_written == len(expected)
    assert [batch.num_rows for batch in batches] == divide(expected, max_members)
