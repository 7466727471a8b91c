"""The phase fuzzy_dedup: find documents that are near-duplicates of another, over the whole crawl.

Documents that share a band hash are near-duplicates, also transitively, and one document of each cluster is kept. Of a
cluster with a document of a previous run, all documents of this run are dropped. Thresholds on scores do not influence
which document is kept (docs/decisions/0006-near-duplicates-before-thresholds.md). The result depends on the signatures
and the rule alone, not on the number of partitions.

    annotate: SPLIT.bands.arrow ──▶ p000of002: pairs, scores ──┐
                                    p001of002: pairs, scores ──┴▶ finish: near_duplicates.arrow, one batch per split

The merge opens no files of splits. It holds the pairs of one partition, and its arrays are sparse files of 8 bytes per
record of the input, of which only the pages with near-duplicates are ever written.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.phases.annotate import Annotate
from pipeline.phases.extract import Extract
from pipeline.phases.phase import Artifact, MergedArtifact, PartitionPhase, TaskCost
from pipeline.planning.input_splits import InputSplit
from pipeline.planning.previous_runs import find_other_version, find_unfinished
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
from stages.dedup.minhash import MinHash, MinHashSettings, compute_bands

# Memory of a partition per band hash if all documents are near-duplicates: 20 as read, and
# 20 while its chunks are built. Later, without the rows, 24 for group and score, 16 for the
# pair, and 96 while the spanning forest is built.
BYTES_PER_BAND_HASH = 160

# Values of signatures or n-gram sets that are verified at a time, except that one group is
# never divided. By default 2**16 signatures (32 MB), or the n-grams of as many documents of
# 128 words (64 MB).
MAX_VALUES_HELD = 2**23

# Pairs of documents, by ids in the order of `sources`, with scores: the highest score of a
# cluster is kept.
FOREST = pa.schema(
    [
        pa.field("one", pa.uint64()),
        pa.field("other", pa.uint64()),
        pa.field("score_of_one", pa.float64()),
        pa.field("score_of_other", pa.float64()),
    ]
)

# Of one split, sorted: the record number of a document to drop, and the doc_id of the
# document that is kept.
NEAR_DUPLICATES = pa.schema(
    [pa.field("record", pa.uint32()), pa.field("representative", pa.uint64())]
)

# Documents of all groups, group after group; the sizes of the groups; and the ranking value
# of each document.
Groups = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[Any]]


class FuzzyDedup(PartitionPhase):
    """Find near-duplicates by ranges of band hashes, and merge them into clusters."""

    name = "fuzzy_dedup"
    version = 2
    parents = (Annotate,)

    forest = Artifact("forest.arrow", FOREST)
    # a batch per split
    near_duplicates = MergedArtifact("near_duplicates.arrow", NEAR_DUPLICATES)

    reads = (Annotate.bands,)
    cost = TaskCost(
        grows_with="band_hashes",
        held_bytes=BYTES_PER_BAND_HASH,
        # benchmarks/driver_scale.py, 2,000 splits
        open_s=0.0006,
        is_hash_partitioned=True,
        driver_bytes=24,  # three sparse files of 8 bytes per document
    )

    @classmethod
    def phases_read_in_previous_runs(cls, config: RunConfig) -> tuple[str, ...]:
        """Return annotate, for its band hashes, and this phase, for the documents it kept."""
        return (Annotate.name, cls.name) if cls.is_enabled(config) else ()

    @classmethod
    def check_previous_run(cls, config: RunConfig, run: RunFolder) -> Iterator[str]:
        """Yield the reasons why signatures cannot be compared."""
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
        yield from find_unfinished(run, cls.name)
        yield from find_other_version(run, Annotate.name, MinHash)
        yield from _compare_minhash(ours, theirs)

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
        pairs = self._verify(documents, np.append(0, np.cumsum(sizes)))
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
        """Return (n,) the values that rank the documents of a file; 0 for previous runs, which come first anyway."""
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

    # ---- Verification of candidate pairs ----

    def _verify(self, documents: NDArray[np.uint64], starts: NDArray[np.int64]) -> Pairs:
        """Return the pairs of near-duplicates in the groups: all, or those that are similar enough."""
        settings = self._settings
        if not settings.verify or not len(documents):
            return components.pair_with_first(documents, starts)
        are_sets = settings.verify == "exact"
        found: list[Pairs] = []
        for some, some_starts, lists in self._read_group_values(documents, starts):
            offsets, values = _flatten(lists)
            found.append(
                components.similar_pairs(
                    some, some_starts, offsets, values, are_sets, settings.threshold
                )
            )
        return np.concatenate(found)

    def _read_group_values(
        self, documents: NDArray[np.uint64], starts: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64], pa.Array]]:
        """Yield whole groups with about MAX_VALUES_HELD values: documents, starts, and their lists of values."""

        def measure(lists: pa.Array) -> pa.Array:
            return pc.list_value_length(lists).cast(pa.int64())

        sizes = self._read_lists(documents, measure).to_numpy()
        num_before = np.append(0, np.cumsum(sizes))[starts]  # values before each group
        begin = 0
        while begin < len(starts) - 1:
            limit = num_before[begin] + MAX_VALUES_HELD
            end = max(begin + 1, int(np.searchsorted(num_before, limit, side="right")) - 1)
            some = documents[starts[begin] : starts[end]]
            some_starts = starts[begin : end + 1] - starts[begin]
            yield some, some_starts, self._read_lists(some, lambda lists: lists)
            begin = end

    def _read_lists(
        self, documents: NDArray[np.uint64], convert: Callable[[pa.Array], pa.Array]
    ) -> pa.Array:
        """Return, per document, the result of `convert` for its signature or n-gram set.

        Files are memory-mapped: only the pages of these documents are read.
        """
        sources = self.sources(Annotate.name)
        artifact = (
            Annotate.ngrams if self._settings.verify == "exact" else Annotate.signatures
        )
        indexes = documents >> np.uint64(32)
        found: list[pa.Array] = []
        for index in np.unique(indexes):
            folder, key = sources[int(index)]
            stored = _read_batch(folder.open(artifact.file_name(key)), 0)
            records = documents[indexes == index].astype(np.uint32)
            rows = np.searchsorted(stored["record"].to_numpy(), records)
            found.append(convert(stored.column(1).take(pa.array(rows))))
        by_file = np.argsort(indexes, kind="stable")
        return pa.concat_arrays(found).take(pa.array(np.argsort(by_file)))

    @property
    def _settings(self) -> MinHashSettings:
        assert self.config.annotate.minhash is not None
        return self.config.annotate.minhash

    # ---- Merging the partitions ----

    def finish(self) -> None:
        """Merge the forests into clusters, and write the documents to drop per split."""
        if self.config.fuzzy_dedup is None:
            return
        with self.folder.commit(self.near_duplicates.name) as output:
            files = [output.path("parents"), output.path("chosen"), output.path("best")]
            parents, chosen, best = (
                _map_zeros(file, int(self._starts[-1])) for file in files
            )
            for positions, _ in self._read_forests():
                components.unite(parents, positions.astype(np.uint64))
            for positions, scores in self._read_forests():
                # In a cluster with a document of a previous run, the first position wins: that document is kept.
                roots = components.find_roots(parents, positions.ravel())
                scores[roots < self._first_own_position] = 0
                components.choose_best(
                    parents, chosen, best.view(np.float64), positions.ravel(), scores
                )
            counters = self._write(
                output.path(self.near_duplicates.file_name), parents, chosen
            )
            output.record = {"counters": counters.to_json()}
            for file in files:
                file.unlink()

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """(number of sources + 1,) the position of each split's first record among all records."""
        return np.append(0, np.cumsum(self.counts(Extract.name, "num_records"))).astype(
            np.int64
        )

    @property
    def _first_own_position(self) -> int:
        return int(self._starts[len(self.plan.previous_splits)])

    def _convert_to_positions(self, ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        return self._starts[(ids >> np.uint64(32)).astype(np.int64)] + ids.astype(np.uint32)

    def _convert_to_ids(self, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
        splits = np.searchsorted(self._starts, positions, side="right") - 1
        records = (positions - self._starts[splits]).astype(np.uint64)
        return splits.astype(np.uint64) << np.uint64(32) | records

    def _read_forests(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Yield, per partition, (n, 2) the positions of its pairs, and (2 * n,) their scores."""
        for task_id in self.task_ids():
            forest = _read_batch(self.folder.open(self.forest.file_name(task_id)), 0)
            one, other, *scores = (column.to_numpy() for column in forest.columns)
            positions = self._convert_to_positions(np.stack([one, other], axis=1))
            yield positions, np.stack(scores, axis=1).ravel()

    def _write(
        self, path: Path, parents: NDArray[np.uint64], chosen: NDArray[np.uint64]
    ) -> Counters:
        """Write one record batch per split, and count the documents that are dropped and kept."""
        counters = Counters()
        own_starts = self._starts[len(self.plan.previous_splits) :]
        with pa.ipc.new_file(path, NEAR_DUPLICATES) as file:
            for first, end in itertools.pairwise(own_starts):
                is_member = (parents[first:end] != 0) | (chosen[first:end] != 0)
                members = first + np.flatnonzero(is_member)
                kept = chosen[components.find_roots(parents, members)].astype(np.int64) - 1
                is_dropped = kept != members
                counters.add("near_duplicates", int(is_dropped.sum()))
                counters.add("representatives", int((~is_dropped).sum()))
                records = (members[is_dropped] - first).astype(np.uint32)
                kept_ids = self._follow_previous(self._convert_to_ids(kept[is_dropped]))
                columns = [records, self.doc_ids(kept_ids)]
                file.write_batch(pa.record_batch(columns, schema=NEAR_DUPLICATES))
        return counters

    def _follow_previous(self, ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Replace documents that a previous run dropped as near-duplicates by those that it kept for them.

        If the kept document is in a run before that one, the id stays: `explain` follows it from there.
        """
        kept, indexes = ids.copy(), ids >> np.uint64(32)
        for index in np.unique(indexes[indexes < len(self.plan.previous_splits)]):
            split = self.plan.previous_splits[int(index)]
            if split.run.config.fuzzy_dedup is None:
                continue
            decided = _read_batch(
                split.open(self.name, self.near_duplicates.file_name), split.index
            )
            here = np.flatnonzero(indexes == index)
            rows = pc.index_in(
                pa.array(ids[here].astype(np.uint32)), value_set=decided["record"]
            )
            representatives = decided["representative"].take(rows.drop_null()).to_numpy()
            is_in_that_run = representatives >> np.uint64(32) < len(split.run.splits)
            first = np.uint64(int(index) - split.index) << np.uint64(32)
            is_dropped = rows.is_valid().to_numpy(zero_copy_only=False)
            kept[here[is_dropped][is_in_that_run]] = representatives[is_in_that_run] + first
        return kept

    def sum_of_records(self) -> Counters:
        """Return the counters of the tasks and of the merge."""
        if self.config.fuzzy_dedup is None:
            return Counters()
        merged = self.folder.record(self.near_duplicates.name)["counters"]
        return super().sum_of_records() + Counters.from_json(merged)

    def find_near_duplicates(self, split: InputSplit) -> pa.RecordBatch:
        """Return the documents of a split to drop, as NEAR_DUPLICATES; none where the phase is off."""
        if self.config.fuzzy_dedup is None:
            columns = [pa.nulls(0, f.type) for f in NEAR_DUPLICATES]
            return pa.record_batch(columns, schema=NEAR_DUPLICATES)
        return _read_batch(self.folder.open(self.near_duplicates.file_name), split.index)


def _compare_minhash(ours: MinHashSettings, theirs: MinHashSettings) -> Iterator[str]:
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
    if ours.verify and ours.verify != theirs.verify:
        yield (
            f"its annotate.minhash.verify is {theirs.verify or 'null'}, ours "
            f"{ours.verify}: it has not stored the data for our verification"
        )


def _read_batch(source: pa.NativeFile, index: int) -> pa.RecordBatch:
    with source:
        return pa.ipc.open_file(source).get_batch(index)


def _flatten(lists: pa.Array) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return (n + 1,) the start of each list in the values, and the values."""
    sizes = pc.list_value_length(lists).to_numpy()
    return np.append(0, np.cumsum(sizes)).astype(np.int64), lists.flatten().to_numpy()


def _map_zeros(path: Path, num_positions: int) -> NDArray[np.uint64]:
    """Return (num_positions,) zeros in a sparse file: pages that are never written take no memory and no disk."""
    mapped: np.memmap[Any, Any] = np.memmap(
        path, np.uint64, "w+", shape=(max(1, num_positions),)
    )
    return mapped.view(np.ndarray)
