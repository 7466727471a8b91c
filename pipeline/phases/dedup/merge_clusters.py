"""The phases that merge the pairs of all partitions into clusters.

Equal pairs are in the forests of about ten partitions. Where one task cannot hold all pairs, they are first brought
together by document: a forest has pairs of the lowest document of each tree with each other one, by hash of the lowest.

    fuzzy_clusters  p000of128.forest.arrow ...    the forest of each partition
    fuzzy_ranges    p000of008.forest.arrow ...    of a range of lowest documents, from all of these; where there are many
    fuzzy_merge     clusters.arrow                of all forests
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import cached_property, partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.phases.artifact import Artifact
from pipeline.phases.dedup.fuzzy_candidates import Rule
from pipeline.phases.dedup.fuzzy_clusters import FuzzyClusters
from pipeline.phases.dedup.hash_phase import HashPhase, Prepare
from pipeline.phases.dedup.merge_forests import (
    CLUSTERS,
    FOREST,
    LEFT_OUT,
    Components,
    Forest,
    list_stars,
    to_forest,
    write_clusters,
)
from pipeline.phases.phase import PartitionPhase
from pipeline.phases.previous_runs import PreviousSplit
from pipeline.runs.exchange import (
    MAX_READS,
    MAX_SCRATCH_BYTES,
    ExchangedFiles,
    count_partitions,
    join_batches,
    name_partitions,
    read_batch,
)
from pipeline.runs.ngram_sets import count_ngrams
from stages.contract import Counters

# Memory of a task per pair: 48 as read, 16 as positions, and 36 for each of up to two documents.
BYTES_PER_PAIR = 136

# Documents of a batch of clusters, except that one cluster is never divided.
MEMBERS_PER_BATCH = 2**18


class FuzzyRanges(HashPhase):
    """Merge the pairs of a range of lowest documents, from the forests of all partitions."""

    name = "fuzzy_ranges"
    section = "fuzzy_dedup"
    version = 1
    parents = (FuzzyClusters,)
    compared = (FuzzyClusters.forest, "pairs")
    bytes_per_row = BYTES_PER_PAIR

    forest = Artifact("forest.arrow", FOREST, last_use="run")

    @cached_property
    def num_partitions(self) -> int:
        """The number of ranges; 0 where one task can merge all pairs."""
        if self.folder.is_complete():
            return self.folder.summary()["task_ids"]
        parent = FuzzyClusters(self.plan)
        num_pairs = parent.counters().counts["pairs"]
        memory_mb = self.config.engine.get_memory_mb(self.name)
        num_files = len(parent.task_ids())
        number = count_partitions(num_pairs, BYTES_PER_PAIR, memory_mb, num_files)
        return number if number > 1 else 0

    def choose_files(self, task_id: str) -> tuple[ExchangedFiles, Prepare | None]:
        """Return the forests of all partitions."""
        del task_id
        parent = FuzzyClusters(self.plan)
        return ExchangedFiles([(parent.folder, parent.task_ids())], parent.forest), None

    def run(self, task_id: str) -> None:
        """Write the forest that connects the same documents as the pairs of a range."""
        counters = Counters()
        with self.folder.commit(task_id) as output:
            path = output.path(self.forest.file_name(task_id))
            with pa.ipc.new_file(path, FOREST) as file:
                for part in self.read_parts(task_id):
                    components = Components.merge(partial(map, to_forest, part.files))
                    stars = list_stars(components)
                    counters.add("pairs", stars.num_rows)
                    file.write_batch(stars)
            output.record = {"counters": counters.to_json()}


class FuzzyMerge(PartitionPhase):
    """Merge all forests into clusters, in one task."""

    name = "fuzzy_merge"
    section = "fuzzy_dedup"
    version = 1
    parents = (FuzzyClusters, FuzzyRanges)

    # batches of MEMBERS_PER_BATCH documents
    clusters = Artifact("clusters.arrow", CLUSTERS, last_use="run")

    def task_ids(self) -> list[str]:
        """Return the name of one task."""
        return name_partitions(1)

    @classmethod
    def phases_read_in_previous_runs(cls, config: RunConfig) -> tuple[str, ...]:
        """Return fuzzy_dedup, for the documents that it dropped."""
        return ("fuzzy_dedup",) if cls.is_enabled(config) else ()

    def run(self, task_id: str) -> None:
        """Write the clusters in the order of preference."""
        components = Components.merge(self._read_forests)
        self._resolve_previous(components)
        with self.folder.commit(task_id) as output:
            counters = Counters()
            num_clusters, num_batches = write_clusters(
                str(output.path(self.clusters.file_name(task_id))),
                components,
                len(self.plan.previous_splits) << 32,
                MEMBERS_PER_BATCH,
            )
            counters.add("clusters", num_clusters)
            counters.add("batches", num_batches)
            counters.add("ngrams", int(count_ngrams(components.places).sum()))
            output.record = {"counters": counters.to_json()}

    def _read_forests(self) -> Iterator[Forest]:
        """Yield the pairs of each range, or of each partition."""
        ranges = FuzzyRanges(self.plan)
        phase = ranges if ranges.task_ids() else FuzzyClusters(self.plan)
        for task_id in phase.task_ids():
            # By one read.
            with phase.folder.open(phase.forest.file_name(task_id)) as source:
                rows = pa.ipc.open_file(source.read_buffer()).read_all()
            yield to_forest(join_batches(FOREST, rows.to_batches()))

    def _resolve_previous(self, components: Components) -> None:
        """Replace the documents that previous runs dropped as near-duplicates, in place.

        With a rule, they are left out, because they represent no other document. Without a rule,
        the documents that were kept for them replace them. Documents of previous runs are
        preferred, in their order.
        """
        ids, scores = components.ids, components.scores
        starts = np.arange(len(self.plan.previous_splits) + 1, dtype=np.uint64)
        bounds = np.searchsorted(ids, starts << np.uint64(32)).tolist()
        for index, split in enumerate(self.plan.previous_splits):
            here = slice(bounds[index], bounds[index + 1])
            if here.start == here.stop:
                continue
            is_dropped, ids[here] = _find_representatives(split, index, ids[here])
            if Rule.from_config(self.config) is None:
                is_dropped[:] = False
            scores[here] = np.where(is_dropped, LEFT_OUT, np.inf)

    @cached_property
    def batches_of_tasks(self) -> dict[str, range]:
        """The id of each task of fuzzy_dedup, and its batches of clusters."""
        counts = self.counters().counts
        num_batches = counts.get("batches", 0)
        num_sources = len(self.plan.previous_splits) + len(self.plan.splits)
        num_tasks = count_tasks(num_batches, num_sources, 4 * counts.get("ngrams", 0))
        edges = [num_batches * i // max(1, num_tasks) for i in range(num_tasks + 1)]
        ranges = itertools.starmap(range, itertools.pairwise(edges))
        return dict(zip(name_partitions(num_tasks), ranges, strict=True))

    def read_clusters(self, index: int) -> pa.RecordBatch:
        """Return a batch of clusters, as CLUSTERS."""
        return read_batch(self._open_clusters(), index)

    def _open_clusters(self) -> pa.NativeFile:
        (task_id,) = self.task_ids()
        return self.folder.open(self.clusters.file_name(task_id))


def count_tasks(num_batches: int, num_sources: int, ngram_bytes: float) -> int:
    """Return the number of tasks of fuzzy_dedup: one per batch, but with MAX_READS reads from the splits at most.

    Where their n-grams would not fit into MAX_SCRATCH_BYTES, there are more.
    """
    in_scratch = math.ceil(ngram_bytes / MAX_SCRATCH_BYTES)
    return min(num_batches, max(MAX_READS // num_sources, in_scratch, 1))


def _find_representatives(
    split: PreviousSplit, index: int, ids: NDArray[np.uint64]
) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
    """Return whether a previous run dropped documents as near-duplicates, and the ones that it kept instead.

    If the kept document is in a run before that one, the id of the dropped document is returned: `explain` follows it
    from there.

    Args:
        split: the split of a previous run.
        index: its index in the order of `sources`.
        ids: (n,) documents of the split, by ids in the order of `sources`.
    """
    if split.run.config.fuzzy_dedup is None:
        return np.zeros(len(ids), np.bool_), ids
    decided = read_batch(split.open("fuzzy_dedup", "near_duplicates.arrow"), split.index)
    rows = pc.index_in(pa.array(ids.astype(np.uint32)), value_set=decided["record"])
    is_dropped = rows.is_valid().to_numpy(zero_copy_only=False)
    representatives = decided["representative"].take(rows.drop_null()).to_numpy()
    is_in_that_run = representatives >> np.uint64(32) < len(split.run.splits)
    first = np.uint64(index - split.index) << np.uint64(32)
    kept = ids.copy()
    here = np.flatnonzero(is_dropped)[is_in_that_run]
    kept[here] = representatives[is_in_that_run] + first
    return is_dropped, kept
