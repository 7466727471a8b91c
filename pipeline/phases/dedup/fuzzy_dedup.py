"""The phase fuzzy_dedup: decide which documents of each cluster of near-duplicates are dropped.

With a rule, a document is dropped only if it is similar to a preferred document that is kept, its representative
(stages/kernels/dedup/near_duplicates.py). Without one, all documents of a cluster but the preferred one are dropped. Documents
that previous runs kept are preferred to all others. Thresholds on scores do not influence the decisions
(docs/decisions/0006-near-duplicates-before-thresholds.md).

    fuzzy_clusters: clusters.arrow ──▶ p000of002: dropped documents ──┐
    annotate: SPLIT.ngrams.arrow       p001of002: dropped documents ──┴▶ finish: near_duplicates.arrow, one batch per split
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.phases.annotate import Annotate
from pipeline.phases.artifact import Artifact, MergedArtifact
from pipeline.phases.dedup.fuzzy_clusters import (
    MAX_MEMBERS_PER_TASK,
    FuzzyClusters,
    Rule,
    read_batch,
    read_ngrams_of_groups,
)
from pipeline.phases.phase import PartitionPhase, TaskCost
from pipeline.planning.input_splits import InputSplit
from pipeline.runs.hash_partitions import name_partitions
from stages.contract import Counters
from stages.dedup.minhash import flatten_lists, hash_bands_of_ngrams
from stages.kernels.dedup import near_duplicates as kernel

# By ids in the order of `sources`: a document to drop, and the one that is kept.
DROPPED = pa.schema(
    [pa.field("document", pa.uint64()), pa.field("representative", pa.uint64())]
)

# Of one split, sorted: the record number of a document to drop, and the doc_id of the
# document that is kept.
NEAR_DUPLICATES = pa.schema(
    [pa.field("record", pa.uint32()), pa.field("representative", pa.uint64())]
)


class FuzzyDedup(PartitionPhase):
    """Choose the documents of each cluster that are kept, and their near-duplicates."""

    name = "fuzzy_dedup"
    version = 3
    parents = (Annotate, FuzzyClusters)

    dropped = Artifact("dropped.arrow", DROPPED)
    # a batch per split
    near_duplicates = MergedArtifact("near_duplicates.arrow", NEAR_DUPLICATES)

    reads = (Annotate.ngrams,)  # of clusters of three and more documents: an upper bound
    amounts = {"clustered": "clustered"}
    cost = TaskCost(
        grows_with="clustered",
        held_bytes=100,
        # per document to drop: its id, its representative, and its place when they are sorted
        driver_bytes=24,
    )

    @classmethod
    def estimate_num_tasks(
        cls, config: RunConfig, num_splits: int, amounts: Mapping[str, float]
    ) -> int:
        """Return the number of batches of clusters."""
        del num_splits
        if config.fuzzy_dedup is None:
            return 0
        return max(1, math.ceil(amounts["clustered"] / MAX_MEMBERS_PER_TASK))

    def task_ids(self) -> list[str]:
        """Return a name per batch of clusters; none where the phase is off."""
        if self.config.fuzzy_dedup is None:
            return []
        return name_partitions(self._clusters.count_batches())

    @cached_property
    def _clusters(self) -> FuzzyClusters:
        return FuzzyClusters(self.plan)

    def run(self, task_id: str) -> None:
        """Write the documents to drop of one batch of clusters."""
        index = int(task_id.removeprefix("p").split("of", maxsplit=1)[0])
        clusters = self._clusters.read_clusters(index)
        rule = Rule.from_config(self.config)
        if rule is None:
            is_decided = np.ones(clusters.num_rows, np.bool_)
        else:
            # That one of the two contains the other does not say which one.
            was_compared = clusters["was_compared"].to_numpy(zero_copy_only=False)
            is_decided = was_compared & (not rule.must_contain)
        found = [_keep_first(clusters.filter(pa.array(is_decided)))]
        if rule is not None and not is_decided.all():
            found += self._compare(clusters.filter(pa.array(~is_decided)), rule)
        columns = np.concatenate(found).T
        with self.folder.commit(task_id) as output:
            path = output.path(self.dropped.file_name(task_id))
            with pa.ipc.new_file(path, DROPPED) as file:
                file.write_batch(pa.record_batch([*columns], schema=DROPPED))
            counters = Counters()
            counters.add("clustered", pc.sum(pc.list_value_length(clusters[0])).as_py())
            output.record = {"counters": counters.to_json()}

    def _compare(self, clusters: pa.RecordBatch, rule: Rule) -> list[NDArray[np.uint64]]:
        """Return the documents to drop and their representatives by the rule, shape (n, 2)."""
        minhash = self.config.annotate.minhash
        assert minhash is not None, "the config requires it"
        starts, documents = flatten_lists(clusters["documents"])
        all_fixed = clusters["num_previous"].to_numpy().astype(np.int64)
        found: list[NDArray[np.uint64]] = []
        num_read = 0
        for some, some_starts, ngrams in read_ngrams_of_groups(self, documents, starts):
            num_clusters = len(some_starts) - 1
            bands, _ = hash_bands_of_ngrams(ngrams, minhash)
            places = kernel.choose_representatives(
                some_starts,
                all_fixed[num_read : num_read + num_clusters],
                *flatten_lists(ngrams),
                bands,
                rule.min_jaccard,
                rule.must_contain,
            )
            is_dropped = places != np.arange(len(some))
            found.append(np.stack([some, some[places]], axis=1)[is_dropped])
            num_read += num_clusters
        return found

    # ---- Merging the tasks ----

    def finish(self) -> None:
        """Sort the documents to drop into the splits."""
        if self.config.fuzzy_dedup is None:
            return
        documents, kept = self._read_dropped(0), self._read_dropped(1)
        order = np.argsort(documents)
        sources = np.arange(len(self.plan.splits) + 1) + len(self.plan.previous_splits)
        first_ids = sources.astype(np.uint64) << np.uint64(32)
        bounds = np.searchsorted(documents, first_ids, sorter=order)
        with self.folder.commit(self.near_duplicates.name) as output:
            path = output.path(self.near_duplicates.file_name)
            with pa.ipc.new_file(path, NEAR_DUPLICATES) as file:
                for start, end in itertools.pairwise(bounds.tolist()):
                    rows = order[start:end]
                    columns = [documents[rows].astype(np.uint32), self.doc_ids(kept[rows])]
                    file.write_batch(pa.record_batch(columns, schema=NEAR_DUPLICATES))
            counters = Counters()
            counters.add("near_duplicates", len(documents))
            del documents, order  # before `kept` is sorted
            counters.add("representatives", _count_distinct(kept))
            output.record = {"counters": counters.to_json()}

    def _read_dropped(self, column: int) -> NDArray[np.uint64]:
        """Return the documents to drop of all tasks (column 0), or their representatives (1)."""
        found = [np.empty(0, np.uint64)]
        for task_id in self.task_ids():
            batch = read_batch(self.folder.open(self.dropped.file_name(task_id)), 0)
            # A copy, because the column refers to the whole batch.
            found.append(batch[column].to_numpy().copy())
        return np.concatenate(found)

    def sum_records(self) -> Counters:
        """Return the counters of the tasks and of the merge."""
        if self.config.fuzzy_dedup is None:
            return Counters()
        merged = self.folder.record(self.near_duplicates.name)["counters"]
        return super().sum_records() + Counters.from_json(merged)

    def find_near_duplicates(self, split: InputSplit) -> pa.RecordBatch:
        """Return the documents of a split to drop, as NEAR_DUPLICATES; none where the phase is off."""
        if self.config.fuzzy_dedup is None:
            columns = [pa.nulls(0, f.type) for f in NEAR_DUPLICATES]
            return pa.record_batch(columns, schema=NEAR_DUPLICATES)
        return read_batch(self.folder.open(self.near_duplicates.file_name), split.index)


def _keep_first(clusters: pa.RecordBatch) -> NDArray[np.uint64]:
    """Return all own documents of each cluster except the first, and the first, shape (n, 2)."""
    starts, documents = flatten_lists(clusters["documents"])
    num_kept = np.maximum(clusters["num_previous"].to_numpy(), 1).astype(np.int64)
    ranks = np.arange(len(documents)) - np.repeat(starts[:-1], np.diff(starts))
    is_dropped = ranks >= np.repeat(num_kept, np.diff(starts))
    firsts = np.repeat(documents[starts[:-1]], np.diff(starts))
    return np.stack([documents, firsts], axis=1)[is_dropped]


def _count_distinct(values: NDArray[np.uint64]) -> int:
    """Return the number of different values, and sort them in place."""
    values.sort()
    return int(np.count_nonzero(values[1:] != values[:-1])) + bool(len(values))
