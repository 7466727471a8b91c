"""The phase fuzzy_clusters: find similar documents over the whole crawl, and join them to clusters.

The n-gram sets of candidates are compared. Similar pairs, also of other partitions, connect the documents of a cluster.
Which of them are dropped is decided in fuzzy_dedup.

    fuzzy_candidates: candidates.arrow ──▶ p000of002: pairs, scores ──┐
    fuzzy_ngrams: sets.arrow               p001of002: pairs, scores ──┴▶ finish: clusters.arrow, one batch per task

The place of a set is stored beside the band hashes, and goes with the document to fuzzy_dedup
(pipeline/runs/ngram_sets.py). The merge opens no files of splits (merge_forests.py).
"""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.phases.annotate import Annotate
from pipeline.phases.artifact import Artifact, MergedArtifact
from pipeline.phases.dedup.fuzzy_candidates import FuzzyCandidates, FuzzyNgrams, Rule
from pipeline.phases.dedup.merge_forests import (
    CLUSTERS,
    LEFT_OUT,
    Components,
    Forest,
    write_clusters,
)
from pipeline.phases.phase import PartitionPhase
from pipeline.phases.previous_runs import PreviousSplit
from pipeline.runs.exchange import ExchangedFiles, join_batches
from pipeline.runs.ngram_sets import LocalSets, NgramReader, make_keys
from stages.contract import Counters
from stages.dedup import connected_components as components
from stages.kernels.dedup import near_duplicates as kernel

# Documents of clusters that one task of fuzzy_dedup decides on, except that one cluster is
# never divided.
MAX_MEMBERS_PER_TASK = 2**18

# Pairs of documents, by ids in the order of `sources`, with scores: a document with a higher
# score is preferred. With the places of their n-grams; 0 without a rule.
FOREST = pa.schema(
    [
        pa.field("one", pa.uint64()),
        pa.field("other", pa.uint64()),
        pa.field("score_of_one", pa.float64()),
        pa.field("score_of_other", pa.float64()),
        pa.field("ngrams_of_one", pa.uint64()),
        pa.field("ngrams_of_other", pa.uint64()),
    ]
)


class FuzzyClusters(PartitionPhase):
    """Find pairs of similar documents by ranges of band hashes, and join them to clusters."""

    name = "fuzzy_clusters"
    section = "fuzzy_dedup"
    version = 3
    parents = (Annotate, FuzzyCandidates, FuzzyNgrams)

    forest = Artifact("forest.arrow", FOREST)
    # a batch per task of fuzzy_dedup
    clusters = MergedArtifact("clusters.arrow", CLUSTERS)

    @classmethod
    def phases_read_in_previous_runs(cls, config: RunConfig) -> tuple[str, ...]:
        """Return fuzzy_dedup, for the documents it dropped."""
        return ("fuzzy_dedup",) if cls.is_enabled(config) else ()

    def task_ids(self) -> list[str]:
        """Return the names of the partitions; none where the phase is off."""
        return FuzzyCandidates(self.plan).task_ids()

    def run(self, task_id: str) -> None:
        """Compare the candidates of a partition, and write a spanning forest of its pairs, with scores."""
        candidates = FuzzyCandidates(self.plan)
        name = candidates.candidates.file_name(task_id)
        with self._receive_sets(task_id) as sets, candidates.folder.open(name) as source:
            file = pa.ipc.open_file(source)
            batches = map(file.get_batch, range(file.num_record_batches))
            found = [self._find_pairs(batch, sets) for batch in batches]
        pairs = join_batches(FOREST, found)
        one, other = (pairs[name].to_numpy() for name in ("one", "other"))
        is_needed = components.find_forest(np.stack([one, other], axis=1))
        with self.folder.commit(task_id) as output:
            path = output.path(self.forest.file_name(task_id))
            with pa.ipc.new_file(path, FOREST) as file:
                file.write_batch(pairs.filter(pa.array(is_needed)))

    @contextlib.contextmanager
    def _receive_sets(self, task_id: str) -> Generator[LocalSets | None]:
        """Keep the n-gram sets of a partition in a local file; None without a rule."""
        if Rule.from_config(self.config) is None:
            yield None
            return
        index = self.task_ids().index(task_id)
        sender = FuzzyNgrams(self.plan)
        files = ExchangedFiles([(sender.folder, sender.task_ids())], sender.sets)
        with self.folder.scratch(task_id) as folder:
            sent = files.read_rows(files.find(index, index + 1))
            yield LocalSets(folder / "sets.bin", sent)

    def _find_pairs(
        self, candidates: pa.RecordBatch, sets: LocalSets | None
    ) -> pa.RecordBatch:
        """Return pairs that connect the similar documents of each group, or all of them without a rule."""
        documents, scores, places, is_first = (
            column.to_numpy(zero_copy_only=False) for column in candidates.columns
        )
        starts = np.append(np.flatnonzero(is_first), len(documents))
        rule = Rule.from_config(self.config)
        if rule is None or sets is None:
            pairs = components.pair_with_first(documents, starts)
        else:
            pairs = kernel.find_similar_pairs(
                documents,
                starts,
                *sets.read(make_keys(documents, places)),
                rule.min_jaccard,
                rule.must_contain,
            )
        ids, firsts = np.unique(documents, return_index=True)
        rows = firsts[np.searchsorted(ids, pairs)]
        return pa.record_batch([*pairs.T, *scores[rows].T, *places[rows].T], schema=FOREST)

    # ---- Merging the partitions ----

    def finish(self) -> None:
        """Merge the forests into clusters, and write them in the order of preference."""
        if self.config.fuzzy_dedup is None:
            return
        components = Components.merge(self._read_forests)
        self._resolve_previous(components)
        with self.folder.commit(self.clusters.name) as output:
            counters = Counters()
            num_clusters = write_clusters(
                str(output.path(self.clusters.file_name)),
                components,
                len(self.plan.previous_splits) << 32,
                MAX_MEMBERS_PER_TASK,
            )
            counters.add("clusters", num_clusters)
            output.record = {"counters": counters.to_json()}

    def _read_forests(self) -> Iterator[Forest]:
        """Yield the pairs of each partition."""
        for task_id in self.task_ids():
            with self.folder.open(self.forest.file_name(task_id)) as source:
                forest = pa.ipc.open_file(source).read_all().combine_chunks()
            columns = [column.to_numpy() for column in forest.columns]
            pairs, scores, places = (
                np.stack(columns[i : i + 2], axis=1) for i in range(0, len(columns), 2)
            )
            yield pairs, scores, places

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

    def count_batches(self) -> int:
        """Return the number of batches of `clusters`: one for each task of fuzzy_dedup."""
        with self.folder.open(self.clusters.file_name) as source:
            return pa.ipc.open_file(source).num_record_batches

    def read_clusters(self, index: int) -> pa.RecordBatch:
        """Return the clusters of one task of fuzzy_dedup, as CLUSTERS."""
        return read_batch(self.folder.open(self.clusters.file_name), index)


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


def open_ngrams(phase: PartitionPhase) -> NgramReader:
    """Return the reader of the n-grams of all sources."""
    sources = phase.sources(Annotate.name)
    return NgramReader(
        [(folder, Annotate.ngrams.file_name(key)) for folder, key in sources]
    )


def read_batch(source: pa.NativeFile, index: int) -> pa.RecordBatch:
    """Return one record batch of an Arrow file, and close the file."""
    with source:
        return pa.ipc.open_file(source).get_batch(index)
