"""fuzzy_dedup: which documents have to go because another says nearly the same, over the whole crawl.

Promises: documents with a band hash in common, and whoever hangs on them, are one group, of which one document stays;
of a group with a document of an earlier run none of this run's does. The answer depends on the signatures and the rule
alone, not on the number of partitions. A partition's memory is bounded by `engine.memory_mb`; the merge opens no
unit's files, holds one partition's pairs at a time, and parents in a sparse file of 8 bytes per record of the input, of
which only the pages with near-duplicates are ever written.
Leaves to others: signatures and bands (stages/dedup/minhash.py), forests and components (stages/dedup/connected_components.py), dropping
(select). Thresholds on scores have no say in who stays: docs/decisions/0006-near-duplicates-before-thresholds.md.

    annotate: <unit>.bands.arrow ──▶ p000of002: pairs, scores ──┐
                                     p001of002: pairs, scores ──┴▶ finish: near_duplicates.arrow, a batch per unit
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
from pipeline.phases.hash_partitions import (
    Partition,
    partition_names,
    partitions_for,
    read_part,
    rows_of,
)
from pipeline.phases.phase import Artifact, MergedArtifact, PartitionPhase, TaskCost
from pipeline.planning.input_splits import InputSplit
from pipeline.planning.previous_runs import find_other_version, find_unfinished
from pipeline.runs.run_folder import RunFolder
from stages.contract import Counters
from stages.dedup import connected_components as components
from stages.dedup.connected_components import Pairs
from stages.dedup.minhash import MinHash, MinHashSettings, compute_bands

BYTES_PER_BAND_HASH = 160
"""Memory of a partition per band hash where all are near-duplicates: 20 as read, as much again while its pieces are
laid out. Later, when the rows are gone, 24 for its group and score, 16 for its pair, and six times the pair while the
forest is made."""

VALUES_AT_A_TIME = 2**23
"""Of what is verified by, so much is held at a time, or that of one group if it is larger: 2**16 signatures by default
(32 MB), or the n-grams of about as many documents of 128 words (64 MB)."""

FOREST = pa.schema(
    [
        pa.field("one", pa.uint64()),
        pa.field("other", pa.uint64()),
        pa.field("score_of_one", pa.float64()),
        pa.field("score_of_other", pa.float64()),
    ]
)
"""Pairs of documents, by their ids by place, and how much each is wanted to stay: 0 where nothing speaks for it."""

NEAR_DUPLICATES = pa.schema(
    [pa.field("record", pa.uint32()), pa.field("representative", pa.uint64())]
)
"""Of a unit, sorted: the record number of a document that has to go, and the doc_id of the one that stays."""


class FuzzyDedup(PartitionPhase):
    """Which documents have to go because another says nearly the same, by ranges of band hashes."""

    name = "fuzzy_dedup"
    version = 2
    parents = (Annotate,)

    forest = Artifact("forest.arrow", FOREST)
    near_duplicates = MergedArtifact("near_duplicates.arrow", NEAR_DUPLICATES)  # a batch per split

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
        return partitions_for(num_hashes, BYTES_PER_BAND_HASH, config.engine.memory_mb)

    def task_ids(self) -> list[str]:
        """As many partitions as the band hashes, counted by annotate, need; none where the phase is off."""
        return partition_names(self.num_partitions)

    @cached_property
    def num_partitions(self) -> int:
        """So many that one fits into a task's memory."""
        if self.config.fuzzy_dedup is None:
            return 0
        return partitions_for(
            sum(self.counts("annotate", "band_hashes")),
            BYTES_PER_BAND_HASH,
            self.config.engine.memory_mb,
        )

    def run(self, task_id: str) -> None:
        """Read one range of every unit's band hashes and write a forest of the pairs in it, with scores."""
        own = len(self.plan.previous_splits)
        sources = self.sources("annotate")
        parts = self.folder.each(
            sources, lambda of: read_part(of[0].open(Annotate.bands.file_name(of[1])), task_id)
        )
        partition = Partition(parts, task_id)
        del parts
        wanted = [self._wanted(place, rows) for place, rows in enumerate(partition.files)]
        found: list[tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[Any]]] = []
        for piece in partition.pieces():
            hashes, ids = partition.gather(piece)
            groups = components.group_equal_hashes(hashes, ids)
            groups = (
                components.select_groups_reaching(*groups, own << 32) if own else groups
            )  # the others are settled
            found.append(
                (
                    groups[0],
                    np.diff(groups[1]),
                    rows_of(wanted, piece)[np.searchsorted(ids, groups[0])],
                )
            )
        counters = Counters()
        counters.add("band_hashes", sum(rows.num_rows for rows in partition.files[own:]))
        del partition, wanted
        documents, sizes, by = (np.concatenate(column) for column in zip(*found, strict=True))
        counters.add("band_hashes_shared", len(documents))
        forest = components.spanning_forest(self._pairs(documents, np.append(0, np.cumsum(sizes))))
        ids, firsts = np.unique(documents, return_index=True)
        scored = self._scores(by[firsts])[np.searchsorted(ids, forest)]
        with self.folder.commit(task_id) as output:
            with pa.ipc.new_file(output.path(self.forest.file_name(task_id)), FOREST) as file:
                file.write_batch(pa.record_batch([*forest.T, *scored.T], schema=FOREST))
            output.record = {"counters": counters.to_json()}

    def _pairs(self, documents: NDArray[np.uint64], starts: NDArray[np.int64]) -> Pairs:
        """The pairs of groups that count."""
        if not self._settings.verify or not len(documents):
            return components.pair_with_first(documents, starts)
        are_sets = self._settings.verify == "exact"
        return np.concatenate(
            [
                components.similar_pairs(
                    some, begins, *_flat(lists), are_sets, self._settings.threshold
                )
                for some, begins, lists in self._in_pieces(documents, starts)
            ]
        )

    def _in_pieces(
        self, documents: NDArray[np.uint64], starts: NDArray[np.int64]
    ) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.int64], pa.Array]]:
        """Runs of whole groups with about so many values, each as documents, starts, and what they are compared by."""
        sizes = self._verified_by(
            documents, lambda lists: pc.list_value_length(lists).cast(pa.int64())
        ).to_numpy()
        ends = np.append(0, np.cumsum(sizes))[starts]  # values before each group
        begin = 0
        while begin < len(starts) - 1:
            end = max(
                begin + 1,
                int(np.searchsorted(ends, ends[begin] + VALUES_AT_A_TIME, side="right")) - 1,
            )
            some = documents[starts[begin] : starts[end]]
            yield (
                some,
                starts[begin : end + 1] - starts[begin],
                self._verified_by(some, lambda lists: lists),
            )
            begin = end

    def _verified_by(
        self, documents: NDArray[np.uint64], take: Callable[[pa.Array], pa.Array]
    ) -> pa.Array:
        """Of each document what `take` makes of its signature, or n-grams, read where it lies."""
        sources, name = (
            self.sources("annotate"),
            Annotate.ngrams if self._settings.verify == "exact" else Annotate.signatures,
        )
        places = documents >> np.uint64(32)
        order = np.argsort(places, kind="stable")
        found: list[pa.Array] = []
        for place in np.unique(places):
            folder, key = sources[int(place)]
            stored = pa.ipc.open_file(folder.map(name.file_name(key))).get_batch(0)
            rows = np.searchsorted(
                stored["record"].to_numpy(), documents[places == place].astype(np.uint32)
            )
            found.append(take(stored.column(1).take(pa.array(rows))))
        return pa.concat_arrays(found).take(pa.array(np.argsort(order)))

    @property
    def _settings(self) -> MinHashSettings:
        assert self.config.annotate.minhash is not None
        return self.config.annotate.minhash

    def finish(self) -> None:
        """Merge the forests into components, and write for each unit who has to go, and who stays in its place."""
        if self.config.fuzzy_dedup is None:
            return
        with self.folder.commit(self.near_duplicates.name) as output:
            files = [output.path("parents"), output.path("chosen"), output.path("best")]
            parents, chosen, best = (_zeros(file, int(self._starts[-1])) for file in files)
            for positions, _ in self._forests():
                components.unite(parents, positions.astype(np.uint64))
            for positions, scores in self._forests():
                scores[components.find_roots(parents, positions.ravel()) < self._own] = (
                    0  # whoever came first stays there
                )
                components.choose_best(
                    parents, chosen, best.view(np.float64), positions.ravel(), scores
                )
            counters = self._write(output.path(self.near_duplicates.file_name), parents, chosen)
            output.record = {"counters": counters.to_json()}
            for file in files:
                file.unlink()

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """(num_units + 1,) the position of each unit's first record among all records, those of earlier runs first."""
        return np.append(0, np.cumsum(self.counts("extract", "num_records"))).astype(np.int64)

    @property
    def _own(self) -> int:
        """The position of the first record of this run."""
        return int(self._starts[len(self.plan.previous_splits)])

    def _positions(self, ids: NDArray[np.uint64]) -> NDArray[np.int64]:
        return self._starts[(ids >> np.uint64(32)).astype(np.int64)] + ids.astype(np.uint32)

    def _ids(self, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
        splits = np.searchsorted(self._starts, positions, side="right") - 1
        return splits.astype(np.uint64) << np.uint64(32) | (
            positions - self._starts[splits]
        ).astype(np.uint64)

    def _forests(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float64]]]:
        """Of each partition the positions of its pairs, (n, 2), and the scores there, (2 * n,)."""
        for task_id in self.task_ids():
            forest = _batch(self.folder.open(self.forest.file_name(task_id)), 0)
            one, other, *scores = (column.to_numpy() for column in forest.columns)
            yield self._positions(np.stack([one, other], axis=1)), np.stack(scores, axis=1).ravel()

    def _wanted(self, place: int, rows: pa.RecordBatch) -> NDArray[Any]:
        """(n,) of a file's rows what decides who stays; of earlier runs' 0, whoever came first stays there."""
        assert self.config.fuzzy_dedup is not None
        keep = self.config.fuzzy_dedup.keep
        if keep == "first" or place < len(self.plan.previous_splits):
            return np.broadcast_to(np.float32(0), rows.num_rows)
        return rows["num_chars" if keep == "longest" else "perplexity"].to_numpy(
            zero_copy_only=False
        )

    def _scores(self, wanted: NDArray[Any]) -> NDArray[np.float64]:
        """How much documents are wanted to stay, by what decides it: the more characters, or the less perplexity."""
        assert self.config.fuzzy_dedup is not None
        values = wanted.astype(np.float64)
        if self.config.fuzzy_dedup.keep != "best":
            return values
        return np.divide(
            1.0, values, out=np.zeros_like(values), where=values > 0
        )  # not a number: it has none

    def _kept_there(self, ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """For a document of an earlier run that its run dropped as a near-duplicate, the one that stayed in its place.

        Where that one lies in a run before that one, the document itself: `explain` goes on from there.
        """
        kept, places = ids.copy(), ids >> np.uint64(32)
        for place in np.unique(places[places < len(self.plan.previous_splits)]):
            split = self.plan.previous_splits[int(place)]
            if split.run.config.fuzzy_dedup is None:
                continue
            verdict = _batch(split.open(self.name, self.near_duplicates.file_name), split.index)
            here = np.flatnonzero(places == place)
            found = pc.index_in(pa.array(ids[here].astype(np.uint32)), value_set=verdict["record"])
            stays = verdict["representative"].take(found.drop_null()).to_numpy()
            is_theirs = stays >> np.uint64(32) < len(split.run.splits)
            first = np.uint64(int(place) - split.index) << np.uint64(32)
            kept[here[found.is_valid().to_numpy(zero_copy_only=False)][is_theirs]] = (
                stays[is_theirs] + first
            )
        return kept

    def _write(
        self, path: Path, parents: NDArray[np.uint64], chosen: NDArray[np.uint64]
    ) -> Counters:
        """One record batch per unit; how many documents go, and how many stay in their place."""
        counters = Counters()
        with pa.ipc.new_file(path, NEAR_DUPLICATES) as file:
            starts = self._starts[len(self.plan.previous_splits) :]
            for first, end in itertools.pairwise(starts):
                members = first + np.flatnonzero(
                    (parents[first:end] != 0) | (chosen[first:end] != 0)
                )
                stays = chosen[components.find_roots(parents, members)].astype(np.int64) - 1
                goes = stays != members
                counters.add("near_duplicates", int(goes.sum()))
                counters.add("representatives", int((~goes).sum()))
                records = (members[goes] - first).astype(np.uint32)
                representatives = self.doc_ids(self._kept_there(self._ids(stays[goes])))
                file.write_batch(
                    pa.record_batch([records, representatives], schema=NEAR_DUPLICATES)
                )
        return counters

    def sum_of_records(self) -> Counters:
        """The partitions' and the merge's."""
        if self.config.fuzzy_dedup is None:
            return Counters()
        return super().sum_of_records() + Counters.from_json(
            self.folder.record(self.near_duplicates.name)["counters"]
        )

    def near_duplicates_of(self, split: InputSplit) -> pa.RecordBatch:
        """The documents of a unit that have to go, as NEAR_DUPLICATES; none where the phase is off."""
        if self.config.fuzzy_dedup is None:
            return pa.record_batch(
                [pa.nulls(0, f.type) for f in NEAR_DUPLICATES], schema=NEAR_DUPLICATES
            )
        return _batch(self.folder.open(self.near_duplicates.file_name), split.index)


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


def _batch(source: pa.NativeFile, index: int) -> pa.RecordBatch:
    with source:
        return pa.ipc.open_file(source).get_batch(index)


def _flat(lists: pa.Array) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """(n + 1,) where each list starts in the values of all, and these."""
    sizes = pc.list_value_length(lists).to_numpy()
    return np.append(0, np.cumsum(sizes)).astype(np.int64), lists.flatten().to_numpy()


def _zeros(path: Path, num_positions: int) -> NDArray[np.uint64]:
    """(num_positions,) zeros in a sparse file: what is never written to takes neither memory nor disk."""
    mapped: np.memmap[Any, Any] = np.memmap(path, np.uint64, "w+", shape=(max(1, num_positions),))
    return mapped.view(np.ndarray)
