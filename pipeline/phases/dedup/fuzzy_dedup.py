"""The phase fuzzy_dedup: decide which documents of each cluster of near-duplicates are dropped.

With a rule, a document is dropped only if it is similar to a preferred document that is kept, its representative
(stages/kernels/dedup/near_duplicates.py). Without one, all documents of a cluster but the preferred one are dropped. Documents
that previous runs kept are preferred to all others. Thresholds on scores do not influence the decisions
(docs/decisions/0006-near-duplicates-before-thresholds.md).

    fuzzy_merge: clusters.arrow       ──▶ p000of002: dropped documents ──┐
    fuzzy_member_ngrams: sets.arrow       p001of002: dropped documents ──┴▶ finish: near_duplicates.arrow, one batch per split
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.inputs.input_splits import InputSplit
from pipeline.phases.annotate import Annotate
from pipeline.phases.artifact import Artifact, MergedArtifact
from pipeline.phases.dedup.fuzzy_candidates import Rule
from pipeline.phases.dedup.fuzzy_members import FuzzyMemberNgrams, are_decided
from pipeline.phases.dedup.merge_clusters import FuzzyMerge
from pipeline.phases.phase import PartitionPhase
from pipeline.runs.exchange import read_batch
from pipeline.runs.ngram_sets import LocalSets, count_ngrams
from stages.contract import Counters
from stages.dedup.candidate_groups import are_large, count_compared, divide_groups
from stages.dedup.minhash import flatten_lists, hash_bands_of_ngrams
from stages.kernels.dedup import near_duplicates as kernel

# By ids in the order of `sources`: a document to drop, and the one that is kept.
DROPPED = pa.schema(
    [pa.field("document", pa.uint64()), pa.field("representative", pa.uint64())]
)

# Documents to drop that the driver sorts at a time, 40 bytes each. It reads the others again the next time.
MAX_SORTED = 2**25

# Of one split, sorted: the record number of a document to drop, and the doc_id of the
# document that is kept.
NEAR_DUPLICATES = pa.schema(
    [pa.field("record", pa.uint32()), pa.field("representative", pa.uint64())]
)


class FuzzyDedup(PartitionPhase):
    """Choose the documents of each cluster that are kept, and their near-duplicates."""

    name = "fuzzy_dedup"
    version = 3
    parents = (Annotate, FuzzyMerge, FuzzyMemberNgrams)

    dropped = Artifact("dropped.arrow", DROPPED, last_use="run")
    # a batch per split
    near_duplicates = MergedArtifact("near_duplicates.arrow", NEAR_DUPLICATES)

    def task_ids(self) -> list[str]:
        """Return a name per group of batches of clusters."""
        return list(FuzzyMerge(self.plan).batches_of_tasks)

    def run(self, task_id: str) -> None:
        """Write the documents to drop of some batches of clusters."""
        merge, counters = FuzzyMerge(self.plan), Counters()
        found = [np.empty((0, 2), np.uint64)]
        with FuzzyMemberNgrams(self.plan).receive(self, task_id) as sets:
            for index in merge.batches_of_tasks[task_id]:
                clusters = merge.read_clusters(index)
                num_members = pc.sum(pc.list_value_length(clusters["documents"])).as_py()
                counters.add("clustered", num_members)
                found += self._decide(clusters, sets)
        dropped, kept = np.concatenate(found).T
        with self.folder.commit(task_id) as output:
            path = output.path(self.dropped.file_name(task_id))
            with pa.ipc.new_file(path, DROPPED) as file:
                file.write_batch(pa.record_batch([dropped, kept], schema=DROPPED))
            counters.add("near_duplicates", len(dropped))
            counters.add("representatives", pc.count_distinct(pa.array(kept)).as_py())
            output.record = {"counters": counters.to_json()}

    def _decide(
        self, clusters: pa.RecordBatch, sets: LocalSets | None
    ) -> Iterator[NDArray[np.uint64]]:
        """Yield the documents to drop and their representatives, shape (n, 2)."""
        rule = Rule.from_config(self.config)
        is_decided = are_decided(clusters, rule)
        yield _keep_first(clusters.filter(pa.array(is_decided)))
        if rule is None or sets is None:
            return
        compare = _Comparison(self.config, rule, sets)
        undecided = clusters.filter(pa.array(~is_decided))
        starts, _, places, _ = _flatten(undecided)
        is_large = are_large(starts, count_ngrams(places))
        for index in np.flatnonzero(is_large).tolist():
            yield from compare.decide_large(undecided.slice(index, 1))
        yield from compare.decide(undecided.filter(pa.array(~is_large)))

    # ---- Merging the tasks ----

    def finish(self) -> None:
        """Sort the documents to drop into the splits, some splits at a time."""
        with self.folder.commit(self.near_duplicates.name) as output:
            path = output.path(self.near_duplicates.file_name)
            with pa.ipc.new_file(path, NEAR_DUPLICATES) as file:
                for splits in self._divide_splits():
                    for batch in self._sort_dropped(splits):
                        file.write_batch(batch)

    def _divide_splits(self) -> Iterator[range]:
        """Yield consecutive splits, by their numbers in `sources`, with MAX_SORTED documents to drop at most."""
        num_previous = len(self.plan.previous_splits)
        num_sources = num_previous + len(self.plan.splits)

        def count(task_id: str) -> NDArray[np.int64]:
            documents, _ = self._read_dropped(task_id)
            splits = (documents >> np.uint64(32)).astype(np.int64)
            return np.bincount(splits, minlength=num_sources)

        counts = np.zeros(num_sources, np.int64)
        for found in self.folder.root.read_each(self.task_ids(), count):
            counts += found
        start, num_held = num_previous, 0
        for split in range(num_previous, num_sources):
            if num_held + counts[split] > MAX_SORTED and split > start:
                yield range(start, split)
                start, num_held = split, 0
            num_held += counts[split]
        yield range(start, num_sources)

    def _sort_dropped(self, splits: range) -> Iterator[pa.RecordBatch]:
        """Yield NEAR_DUPLICATES of each of these splits."""
        first_ids = np.arange(splits.start, splits.stop + 1).astype(np.uint64) << np.uint64(
            32
        )

        def select(task_id: str) -> NDArray[np.uint64]:
            dropped = self._read_dropped(task_id)
            is_here = (dropped[0] >= first_ids[0]) & (dropped[0] < first_ids[-1])
            return dropped[:, is_here]

        found = self.folder.root.read_each(self.task_ids(), select)
        documents, kept = np.concatenate([np.empty((2, 0), np.uint64), *found], axis=1)
        order = np.argsort(documents)
        bounds = np.searchsorted(documents, first_ids, sorter=order)
        for start, end in itertools.pairwise(bounds.tolist()):
            rows = order[start:end]
            columns = [documents[rows].astype(np.uint32), self.doc_ids(kept[rows])]
            yield pa.record_batch(columns, schema=NEAR_DUPLICATES)

    def _read_dropped(self, task_id: str) -> NDArray[np.uint64]:
        """Return the documents to drop of a task, and their representatives, shape (2, n)."""
        batch = read_batch(self.folder.open(self.dropped.file_name(task_id)), 0)
        return np.stack([column.to_numpy() for column in batch.columns])

    def find_near_duplicates(self, split: InputSplit) -> pa.RecordBatch:
        """Return the documents of a split to drop, as NEAR_DUPLICATES; none where the phase is off."""
        if self.config.fuzzy_dedup is None:
            columns = [pa.nulls(0, f.type) for f in NEAR_DUPLICATES]
            return pa.record_batch(columns, schema=NEAR_DUPLICATES)
        return read_batch(self.folder.open(self.near_duplicates.file_name), split.index)


@dataclass(frozen=True)
class _Comparison:
    """Decides by the rule which documents of clusters are dropped."""

    config: RunConfig
    rule: Rule
    sets: LocalSets

    def decide(self, clusters: pa.RecordBatch) -> Iterator[NDArray[np.uint64]]:
        """Yield the documents to drop and their representatives, shape (n, 2)."""
        starts, documents, places, num_fixed = _flatten(clusters)
        memory_mb = self.config.engine.memory_mb
        for some in divide_groups(starts, count_ngrams(places), memory_mb):
            bounds = starts[some.start : some.stop + 1]
            rows = np.arange(bounds[0], bounds[-1])
            kept = self._choose(
                documents[rows], places[rows], bounds - bounds[0], num_fixed[some]
            )
            yield _pair_dropped(documents, rows, rows[kept])

    def decide_large(self, cluster: pa.RecordBatch) -> Iterator[NDArray[np.uint64]]:
        """Yield the same for one cluster, of which MAX_COMPARED documents are compared with the kept ones at a time."""
        _, documents, places, num_fixed = _flatten(cluster)
        sizes = count_ngrams(places)
        kept = np.empty(0, np.int64)
        begin = 0
        while begin < len(documents):
            end = begin + count_compared(sizes[begin:])
            rows = np.append(kept, np.arange(begin, end))
            fixed = len(kept) + np.clip(num_fixed - begin, 0, end - begin)
            bounds = np.array([0, len(rows)])
            chosen = rows[self._choose(documents[rows], places[rows], bounds, fixed)]
            yield _pair_dropped(documents, rows, chosen)
            kept = rows[chosen == rows]
            kept = kept[: count_compared(sizes[kept])]
            begin = end

    def _choose(
        self,
        documents: NDArray[np.uint64],
        places: NDArray[np.uint64],
        starts: NDArray[np.int64],
        num_fixed: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return the index of each document's representative, shape (m,)."""
        minhash = self.config.annotate.minhash
        assert minhash is not None, "the config requires it"
        ngrams = self.sets.read(documents, places)
        bands, _ = hash_bands_of_ngrams(*ngrams, minhash)
        return kernel.choose_representatives(
            starts,
            num_fixed,
            *ngrams,
            bands,
            self.rule.min_jaccard,
            self.rule.must_contain,
        )


def _flatten(
    clusters: pa.RecordBatch,
) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
    """Return the start of each cluster, its documents and their places, and how many are kept in any case."""
    starts, documents = flatten_lists(clusters["documents"])
    _, places = flatten_lists(clusters["ngrams"])
    return starts, documents, places, clusters["num_previous"].to_numpy().astype(np.int64)


def _pair_dropped(
    documents: NDArray[np.uint64], rows: NDArray[np.int64], kept: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return the documents of the rows that are not kept, and those of the kept rows, shape (n, 2)."""
    is_dropped = rows != kept
    return np.stack([documents[rows], documents[kept]], axis=1)[is_dropped]


def _keep_first(clusters: pa.RecordBatch) -> NDArray[np.uint64]:
    """Return all own documents of each cluster except the first, and the first, shape (n, 2)."""
    starts, documents = flatten_lists(clusters["documents"])
    num_kept = np.maximum(clusters["num_previous"].to_numpy(), 1).astype(np.int64)
    ranks = np.arange(len(documents)) - np.repeat(starts[:-1], np.diff(starts))
    is_dropped = ranks >= np.repeat(num_kept, np.diff(starts))
    firsts = np.repeat(documents[starts[:-1]], np.diff(starts))
    return np.stack([documents, firsts], axis=1)[is_dropped]
