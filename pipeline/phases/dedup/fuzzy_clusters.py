"""The phase fuzzy_clusters: find similar documents over the whole crawl, and join them to clusters.

Documents that share a band hash are candidates, and their n-gram sets are compared. Similar pairs, also of other
partitions, connect the documents of a cluster. Which of them are dropped is decided in fuzzy_dedup.

    annotate: SPLIT.bands.arrow ──▶ p000of002: pairs, scores ──┐
              SPLIT.ngrams.arrow    p001of002: pairs, scores ──┴▶ finish: clusters.arrow, one batch per task

A partition's task reads one range of the band hashes of all splits, and the n-grams of the documents that share one.
The merge opens no files of splits, and its memory grows with the documents that have near-duplicates.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.phases.annotate import Annotate, read_ngrams
from pipeline.phases.phase import Artifact, MergedArtifact, PartitionPhase, TaskCost
from pipeline.planning.previous_runs import (
    PreviousSplit,
    find_other_version,
    find_unfinished,
)
from pipeline.runs.hash_partitions import (
    FileSlice,
    Partition,
    count_partitions,
    name_partitions,
    read_slice,
    take_rows,
)
from pipeline.runs.phase_folder import PhaseFolder
from pipeline.runs.run_folder import RunFolder
from stages.contract import Counters
from stages.dedup import connected_components as components
from stages.dedup.connected_components import Pairs
from stages.dedup.minhash import MinHash, MinHashSettings, compute_bands, flatten_lists
from stages.kernels.dedup import near_duplicates as kernel

# Memory of a partition per band hash if all documents are near-duplicates: 20 as read, and
# 20 while its chunks are built. Later, without the rows, 24 for group and score, 16 for the
# pair, and 96 while the spanning forest is built.
BYTES_PER_BAND_HASH = 160

# N-grams that are held at a time, except that one group or cluster is never divided: those
# of 2**16 documents of 128 words (32 MB).
MAX_NGRAMS_HELD = 2**23

# Documents of clusters that one task of fuzzy_dedup decides on, except that one cluster is
# never divided.
MAX_MEMBERS_PER_TASK = 2**18

# Pairs of documents, by ids in the order of `sources`, with scores: a document with a higher
# score is preferred.
FOREST = pa.schema(
    [
        pa.field("one", pa.uint64()),
        pa.field("other", pa.uint64()),
        pa.field("score_of_one", pa.float64()),
        pa.field("score_of_other", pa.float64()),
    ]
)

# A cluster: its documents, by ids in the order of `sources`, from the preferred one on; how
# many of them previous runs have kept; and whether the first two were already compared.
CLUSTERS = pa.schema(
    [
        pa.field("documents", pa.large_list(pa.uint64())),
        pa.field("num_previous", pa.uint32()),
        pa.field("was_compared", pa.bool_()),
    ]
)

# Documents of all groups, group after group; the sizes of the groups; and the ranking value
# of each document.
Groups = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[Any]]


@dataclass(frozen=True)
class Rule:
    """When two documents with a common band are similar.

    Attributes:
        min_jaccard: Jaccard similarity that they reach; 0: any.
        must_contain: the representative contains all n-grams of the document that is dropped.
    """

    min_jaccard: float
    must_contain: bool

    @classmethod
    def from_config(cls, config: RunConfig) -> Rule | None:
        """Return the rule of the config; None: candidates are not compared."""
        dedup, minhash = config.fuzzy_dedup, config.annotate.minhash
        if dedup is None or minhash is None or dedup.rule is None:
            return None
        threshold = dedup.threshold or minhash.threshold
        return cls(
            min_jaccard=0.0 if dedup.rule == "contained" else threshold,
            must_contain=dedup.rule != "jaccard",
        )


class FuzzyClusters(PartitionPhase):
    """Find pairs of similar documents by ranges of band hashes, and join them to clusters."""

    name = "fuzzy_clusters"
    section = "fuzzy_dedup"
    version = 1
    parents = (Annotate,)

    forest = Artifact("forest.arrow", FOREST)
    # a batch per task of fuzzy_dedup
    clusters = MergedArtifact("clusters.arrow", CLUSTERS)

    reads = (Annotate.bands,)
    cost = TaskCost(
        grows_with="band_hashes",
        held_bytes=BYTES_PER_BAND_HASH,
        # benchmarks/driver_scale.py, 2,000 splits
        open_s=0.0006,
        is_hash_partitioned=True,
        # 80 bytes per document with near-duplicates, at most every third one
        driver_bytes=27,
    )

    @classmethod
    def phases_read_in_previous_runs(cls, config: RunConfig) -> tuple[str, ...]:
        """Return annotate, for its band hashes and n-grams, and fuzzy_dedup, for the documents it dropped."""
        return (Annotate.name, "fuzzy_dedup") if cls.is_enabled(config) else ()

    @classmethod
    def check_previous_run(cls, config: RunConfig, run: RunFolder) -> Iterator[str]:
        """Yield the reasons why documents cannot be compared."""
        if config.fuzzy_dedup is None:
            return
        ours, theirs = config.annotate.minhash, run.config.annotate.minhash
        assert ours is not None, "the config requires it"
        if theirs is None:
            yield (
                "its annotate.minhash is null, so it has no signatures; "
                "run it again with annotate.minhash: {...}"
            )
            return
        yield from find_unfinished(run, Annotate.name)
        yield from find_unfinished(run, "fuzzy_dedup")
        yield from find_other_version(run, Annotate.name, MinHash)
        yield from _compare_minhash(ours, theirs, config.fuzzy_dedup.rule is not None)

    @classmethod
    def estimate_num_tasks(
        cls, config: RunConfig, num_splits: int, amounts: Mapping[str, float]
    ) -> int:
        """Return the number of partitions."""
        del num_splits
        if config.fuzzy_dedup is None:
            return 0
        num_hashes = math.ceil(amounts["band_hashes"])
        return count_partitions(num_hashes, BYTES_PER_BAND_HASH, config.engine.memory_mb)

    def task_ids(self) -> list[str]:
        """Return the names of the partitions; none where the phase is off."""
        return name_partitions(self.num_partitions)

    @cached_property
    def num_partitions(self) -> int:
        """The number of partitions. One fits into a task's memory."""
        if self.config.fuzzy_dedup is None:
            return 0
        num_hashes = sum(self.counts(Annotate.name, "band_hashes"))
        return count_partitions(
            num_hashes, BYTES_PER_BAND_HASH, self.config.engine.memory_mb
        )

    def run(self, task_id: str) -> None:
        """Read one range of the band hashes of all splits, and write a spanning forest of its pairs, with scores."""
        counters = Counters()
        documents, sizes, values = self._find_groups(task_id, counters)
        counters.add("band_hashes_shared", len(documents))
        pairs = self._compare(documents, np.append(0, np.cumsum(sizes)))
        forest = components.spanning_forest(pairs)
        ids, firsts = np.unique(documents, return_index=True)
        scores = self._compute_scores(values[firsts])[np.searchsorted(ids, forest)]
        with self.folder.commit(task_id) as output:
            with pa.ipc.new_file(
                output.path(self.forest.file_name(task_id)), FOREST
            ) as file:
                file.write_batch(pa.record_batch([*forest.T, *scores.T], schema=FOREST))
            output.record = {"counters": counters.to_json()}

    def _find_groups(self, name: str, counters: Counters) -> Groups:
        """Return the documents of one partition that share a band hash."""

        def read(source: tuple[PhaseFolder, str]) -> FileSlice:
            folder, key = source
            return read_slice(folder.open(Annotate.bands.file_name(key)), name)

        num_previous = len(self.plan.previous_splits)
        partition = Partition(self.folder.each(self.sources(Annotate.name), read), name)
        values = [self._read_values(i, rows) for i, rows in enumerate(partition.files)]
        found: list[Groups] = []
        for chunk in partition.chunks():
            hashes, ids = partition.gather(chunk)
            documents, starts = components.group_equal_hashes(hashes, ids)
            if num_previous:
                # Groups inside previous runs were decided there.
                first_own = num_previous << 32
                documents, starts = components.select_groups_reaching(
                    documents, starts, first_own
                )
            rows = np.searchsorted(ids, documents)
            found.append((documents, np.diff(starts), take_rows(values, chunk)[rows]))
        num_hashes = sum(rows.num_rows for rows in partition.files[num_previous:])
        counters.add("band_hashes", num_hashes)
        del partition, values  # before the groups are copied into one array
        documents, sizes, ranking = (
            np.concatenate(part) for part in zip(*found, strict=True)
        )
        return documents, sizes, ranking

    def _read_values(self, index: int, rows: pa.RecordBatch) -> NDArray[Any]:
        """Return the values that rank the documents of a file, shape (n,).

        They are 0 for previous runs, whose documents always come first.
        """
        assert self.config.fuzzy_dedup is not None
        keep = self.config.fuzzy_dedup.keep
        if keep == "first" or index < len(self.plan.previous_splits):
            return np.broadcast_to(np.float32(0), rows.num_rows)
        column = rows["num_chars" if keep == "longest" else "perplexity"]
        return column.to_numpy(zero_copy_only=False)

    def _compute_scores(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return scores that rise with the number of characters, or fall with the perplexity."""
        assert self.config.fuzzy_dedup is not None
        scores = values.astype(np.float64)
        if self.config.fuzzy_dedup.keep != "best":
            return scores
        # A document without a perplexity has NaN here, and gets 0: the comparison is false.
        return np.divide(1.0, scores, out=np.zeros_like(scores), where=scores > 0)

    def _compare(self, documents: NDArray[np.uint64], starts: NDArray[np.int64]) -> Pairs:
        """Return pairs that connect the similar documents of each group; all documents without a rule."""
        rule = Rule.from_config(self.config)
        if rule is None or not len(documents):
            return components.pair_with_first(documents, starts)
        found: list[Pairs] = []
        for some, some_starts, ngrams in read_ngrams_of_groups(self, documents, starts):
            found.append(
                kernel.find_similar_pairs(
                    some,
                    some_starts,
                    *flatten_lists(ngrams),
                    rule.min_jaccard,
                    rule.must_contain,
                )
            )
        return np.concatenate(found)

    # ---- Merging the partitions ----

    def finish(self) -> None:
        """Merge the forests into clusters, and write them in the order of preference."""
        if self.config.fuzzy_dedup is None:
            return
        ids = self._find_members()
        parents = np.zeros(len(ids), np.uint64)
        scores = np.zeros(len(ids))
        for pairs, pair_scores in self._read_forests():
            positions = np.searchsorted(ids, pairs)
            components.unite(parents, positions.astype(np.uint64))
            scores[positions] = pair_scores
        roots = components.find_roots(parents, np.arange(len(ids)))
        ids, roots, scores, was_pair = self._resolve_previous(ids, roots, scores)
        # The last key is the first to sort by. Documents of previous runs come first, in their order.
        scores[ids < self._first_own_id] = np.inf
        order = np.lexsort((ids, -scores, roots))
        with self.folder.commit(self.clusters.name) as output:
            counters = _write_clusters(
                str(output.path(self.clusters.file_name)),
                ids[order],
                roots[order],
                was_pair[order],
                self._first_own_id,
            )
            output.record = {"counters": counters.to_json()}

    def _find_members(self) -> NDArray[np.uint64]:
        """Return the sorted ids of the documents that have a similar document.

        Neighbouring arrays are merged when they have about the same size, so each id is copied only
        log2(number of partitions) times.
        """
        merged: list[NDArray[np.uint64]] = []
        for pairs, _ in self._read_forests():
            merged.append(np.unique(pairs))
            while len(merged) > 1 and len(merged[-2]) < 2 * len(merged[-1]):
                merged.append(np.union1d(merged.pop(), merged.pop()))
        return np.unique(np.concatenate([np.empty(0, np.uint64), *merged]))

    def _read_forests(self) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.float64]]]:
        """Yield the ids of the pairs of each partition, and their scores, both (n, 2)."""
        for task_id in self.task_ids():
            forest = read_batch(self.folder.open(self.forest.file_name(task_id)), 0)
            one, other, *scores = (column.to_numpy() for column in forest.columns)
            yield np.stack([one, other], axis=1), np.stack(scores, axis=1)

    @property
    def _first_own_id(self) -> int:
        return len(self.plan.previous_splits) << 32

    def _resolve_previous(
        self,
        ids: NDArray[np.uint64],
        roots: NDArray[np.int64],
        scores: NDArray[np.float64],
    ) -> tuple[
        NDArray[np.uint64], NDArray[np.int64], NDArray[np.float64], NDArray[np.bool_]
    ]:
        """Replace the documents that previous runs dropped as near-duplicates.

        With a rule, they are left out, because they represent no other document. Without a rule,
        the documents that were kept for them replace them.

        Returns:
            ids, roots, scores: without the replaced documents.
            was_pair: whether the cluster of each document had two documents before.
        """
        was_pair = np.bincount(roots, minlength=1)[roots] == 2
        is_dropped = np.zeros(len(ids), np.bool_)
        ids = ids.copy()
        for index in np.unique(ids[ids < self._first_own_id] >> np.uint64(32)):
            here = np.flatnonzero(ids >> np.uint64(32) == index)
            split = self.plan.previous_splits[int(index)]
            is_dropped[here], ids[here] = _find_representatives(
                split, int(index), ids[here]
            )
        if Rule.from_config(self.config) is None:
            is_dropped[:] = False
        is_left = ~is_dropped
        return ids[is_left], roots[is_left], scores[is_left], was_pair[is_left]

    def count_batches(self) -> int:
        """Return the number of batches of `clusters`: one for each task of fuzzy_dedup."""
        with self.folder.open(self.clusters.file_name) as source:
            return pa.ipc.open_file(source).num_record_batches

    def read_clusters(self, index: int) -> pa.RecordBatch:
        """Return the clusters of one task of fuzzy_dedup, as CLUSTERS."""
        return read_batch(self.folder.open(self.clusters.file_name), index)

    def sum_of_records(self) -> Counters:
        """Return the counters of the tasks and of the merge."""
        if self.config.fuzzy_dedup is None:
            return Counters()
        merged = self.folder.record(self.clusters.name)["counters"]
        return super().sum_of_records() + Counters.from_json(merged)


def _write_clusters(
    path: str,
    ids: NDArray[np.uint64],
    roots: NDArray[np.int64],
    was_pair: NDArray[np.bool_],
    first_own_id: int,
) -> Counters:
    """Write the clusters of two or more documents in batches, and count them and their documents.

    Args:
        path: of the file.
        ids: (n,) documents, cluster after cluster, in the order of preference.
        roots: (n,) a number for each cluster.
        was_pair: (n,) whether the cluster was found as one pair of similar documents.
        first_own_id: ids below it belong to previous runs.
    """
    bounds = np.append(np.flatnonzero(np.diff(roots, prepend=-1)), len(roots))
    sizes = np.diff(bounds)
    is_previous = np.append(0, np.cumsum(ids < first_own_id))
    num_previous = np.diff(is_previous[bounds])
    is_written = (sizes > 1) & (num_previous < sizes)
    offsets = np.append(0, np.cumsum(sizes[is_written]))
    columns = [
        pa.LargeListArray.from_arrays(
            pa.array(offsets), pa.array(ids[np.repeat(is_written, sizes)])
        ),
        pa.array(num_previous[is_written].astype(np.uint32)),
        pa.array((was_pair[bounds[:-1]] & (sizes == 2))[is_written]),
    ]
    clusters = pa.record_batch(columns, schema=CLUSTERS)
    # The task of a cluster follows from the number of documents before it.
    tasks = offsets[:-1] // MAX_MEMBERS_PER_TASK
    starts = np.append(np.flatnonzero(np.diff(tasks, prepend=-1)), len(tasks))
    with pa.ipc.new_file(path, CLUSTERS) as file:
        for start, end in itertools.pairwise(starts.tolist()):
            file.write_batch(clusters.slice(start, end - start))
    counters = Counters()
    counters.add("clusters", clusters.num_rows)
    return counters


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


def read_ngrams_of_groups(
    phase: PartitionPhase, documents: NDArray[np.uint64], starts: NDArray[np.int64]
) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64], pa.LargeListArray]]:
    """Yield whole groups with about MAX_NGRAMS_HELD n-grams: documents, starts, and their n-gram sets.

    Args:
        phase: the phase that reads the outputs of annotate.
        documents: (m,) by ids in the order of `sources`, group by group.
        starts: (num_groups + 1,) the start of each group.
    """

    def measure(lists: pa.Array) -> pa.Array:
        return pc.list_value_length(lists).cast(pa.int64())

    sizes = _read_ngrams(phase, documents, measure).to_numpy()
    num_before = np.append(0, np.cumsum(sizes))[starts]  # n-grams before each group
    begin = 0
    while begin < len(starts) - 1:
        limit = num_before[begin] + MAX_NGRAMS_HELD
        end = max(begin + 1, int(np.searchsorted(num_before, limit, side="right")) - 1)
        some = documents[starts[begin] : starts[end]]
        some_starts = starts[begin : end + 1] - starts[begin]
        yield some, some_starts, _read_ngrams(phase, some, lambda lists: lists)
        begin = end


def _read_ngrams(
    phase: PartitionPhase,
    documents: NDArray[np.uint64],
    convert: Callable[[pa.Array], pa.Array],
) -> pa.Array:
    """Return, per document, the result of `convert` for its n-gram set."""
    sources = phase.sources(Annotate.name)
    indexes = documents >> np.uint64(32)
    found: list[pa.Array] = []
    for index in np.unique(indexes):
        folder, key = sources[int(index)]
        records = documents[indexes == index].astype(np.uint32)
        distinct, places = np.unique(records, return_inverse=True)
        source = folder.open(Annotate.ngrams.file_name(key))
        lists = pa.concat_arrays([convert(part) for part in read_ngrams(source, distinct)])
        found.append(lists.take(pa.array(places)))
    by_file = np.argsort(indexes, kind="stable")
    return pa.concat_arrays(found).take(pa.array(np.argsort(by_file)))


def _compare_minhash(
    ours: MinHashSettings, theirs: MinHashSettings, are_compared: bool
) -> Iterator[str]:
    for name in ("num_permutations", "ngram_words"):
        here, there = getattr(ours, name), getattr(theirs, name)
        if here != there:
            yield (
                f"its annotate.minhash.{name} is {there}, ours {here}: "
                f"their signatures cannot be compared"
            )
    if compute_bands(ours) != compute_bands(theirs):
        yield (
            f"its annotate.minhash.threshold is {theirs.threshold} (bands and rows "
            f"{compute_bands(theirs)}), ours {ours.threshold} ({compute_bands(ours)}): bands with another "
            f"number of rows never have equal hashes"
        )
    if are_compared and not theirs.store_ngrams:
        yield (
            "its annotate.minhash.store_ngrams is false: it has not stored the n-grams that "
            "our fuzzy_dedup.rule compares"
        )


def read_batch(source: pa.NativeFile, index: int) -> pa.RecordBatch:
    """Return one record batch of an Arrow file, and close the file."""
    with source:
        return pa.ipc.open_file(source).get_batch(index)
