"""The phase fuzzy_clusters: find similar documents over the whole crawl, and join them to clusters.

Documents that share a band hash are candidates, and their n-gram sets are compared. Similar pairs, also of other
partitions, connect the documents of a cluster. Which of them are dropped is decided in fuzzy_dedup.

    annotate: SPLIT.bands.arrow ──▶ p000of002: pairs, scores ──┐
              SPLIT.ngrams.bin      p001of002: pairs, scores ──┴▶ finish: clusters.arrow, one batch per task

A partition's task reads one range of the band hashes of all splits, and of the documents that share one, only those
n-gram sets that another set in their group can be similar to. The place of a set is stored beside the band hashes, and
goes with the document to fuzzy_dedup (pipeline/runs/ngram_sets.py). The merge opens no files of splits
(merge_forests.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.phases.annotate import Annotate
from pipeline.phases.artifact import Artifact, MergedArtifact
from pipeline.phases.dedup.merge_forests import (
    CLUSTERS,
    LEFT_OUT,
    Components,
    Forest,
    write_clusters,
)
from pipeline.phases.phase import PartitionPhase
from pipeline.phases.previous_runs import (
    PreviousSplit,
    find_other_version,
    find_unfinished,
)
from pipeline.runs.exchange import (
    ExchangedFiles,
    Partition,
    count_partitions,
    name_partitions,
    take_rows,
)
from pipeline.runs.ngram_sets import NgramReader, count_ngrams
from pipeline.runs.run_folder import RunFolder
from stages.contract import Counters
from stages.dedup import connected_components as components
from stages.dedup.candidate_groups import divide_groups, find_comparable
from stages.dedup.connected_components import Pairs
from stages.dedup.minhash import MinHash, MinHashSettings, compute_bands, flatten_lists
from stages.kernels.dedup import near_duplicates as kernel

# Memory of a partition per band hash if all documents are near-duplicates: 28 as read, and
# 28 while its chunks are built. Later, without the rows, 32 for group, score and place, 16 for
# the pair, and 96 while the spanning forest is built.
BYTES_PER_BAND_HASH = 160

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

# Documents of all groups, group after group; the sizes of the groups; and the ranking value
# of each document, and the place of its n-grams.
Groups = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[Any], NDArray[np.uint64]]


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
    version = 3
    parents = (Annotate,)

    forest = Artifact("forest.arrow", FOREST)
    # a batch per task of fuzzy_dedup
    clusters = MergedArtifact("clusters.arrow", CLUSTERS)

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

    def task_ids(self) -> list[str]:
        """Return the names of the partitions; none where the phase is off."""
        return name_partitions(self.num_partitions)

    @cached_property
    def num_partitions(self) -> int:
        """The number of partitions. One fits into a task's memory."""
        if self.config.fuzzy_dedup is None:
            return 0
        counts = self.counts(Annotate.name, "band_hashes")
        memory_mb = self.config.engine.memory_mb
        return count_partitions(sum(counts), BYTES_PER_BAND_HASH, memory_mb, len(counts))

    def run(self, task_id: str) -> None:
        """Read one range of the band hashes of all splits, and write a spanning forest of its pairs, with scores."""
        files = ExchangedFiles(self.list_sources(Annotate.name), Annotate.bands)
        counters = Counters()
        with (
            self.folder.commit(task_id) as output,
            pa.ipc.new_file(output.path(self.forest.file_name(task_id)), FOREST) as file,
        ):
            for part in self.read_parts(task_id, files, BYTES_PER_BAND_HASH):
                counters.add("band_hashes", sum(rows.num_rows for rows in part.files))
                file.write_batch(self._find_forest(part, counters))
            output.record = {"counters": counters.to_json()}

    def _find_forest(self, part: Partition, counters: Counters) -> pa.RecordBatch:
        """Return a spanning forest of the pairs of a part, as FOREST."""
        documents, sizes, values, places = self._find_groups(part)
        counters.add("band_hashes_shared", len(documents))
        pairs = self._compare(documents, np.append(0, np.cumsum(sizes)), places)
        forest = components.spanning_forest(pairs)
        ids, firsts = np.unique(documents, return_index=True)
        rows = firsts[np.searchsorted(ids, forest)]
        facts = [*self._compute_scores(values[rows]).T, *places[rows].T]
        return pa.record_batch([*forest.T, *facts], schema=FOREST)

    def _find_groups(self, part: Partition) -> Groups:
        """Return the documents of a part that share a band hash."""
        num_previous = len(self.plan.previous_splits)
        values = [self._read_values(i, rows) for i, rows in enumerate(part.files)]
        places = [self._read_places(rows) for rows in part.files]
        found: list[Groups] = []
        for chunk in part.chunks():
            hashes, ids = part.gather(chunk)
            rows, starts = components.group_equal_hashes(hashes, np.arange(len(ids)))
            if num_previous:
                # Groups inside previous runs were decided there.
                is_own = ids[rows[starts[1:] - 1]] >= num_previous << 32
                rows, starts = components.select_groups(rows, starts, is_own)
            ranking, found_places = (
                take_rows(columns, chunk)[rows] for columns in (values, places)
            )
            found.append((ids[rows], np.diff(starts), ranking, found_places))
        documents, sizes, ranking, found_places = (
            np.concatenate(column) for column in zip(*found, strict=True)
        )
        return documents, sizes, ranking, found_places

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

    def _read_places(self, rows: pa.RecordBatch) -> NDArray[np.uint64]:
        """Return the places of the documents' n-grams, shape (n,); 0 without a rule."""
        if Rule.from_config(self.config) is None:
            return np.broadcast_to(np.uint64(0), rows.num_rows)
        return rows["ngrams"].to_numpy()

    def _compute_scores(self, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return scores that rise with the number of characters, or fall with the perplexity."""
        assert self.config.fuzzy_dedup is not None
        scores = values.astype(np.float64)
        if self.config.fuzzy_dedup.keep != "best":
            return scores
        # A document without a perplexity has NaN here, and gets 0: the comparison is false.
        return np.divide(1.0, scores, out=np.zeros_like(scores), where=scores > 0)

    def _compare(
        self,
        documents: NDArray[np.uint64],
        starts: NDArray[np.int64],
        places: NDArray[np.uint64],
    ) -> Pairs:
        """Return pairs that connect the similar documents of each group, or all of them without a rule."""
        rule = Rule.from_config(self.config)
        if rule is None:
            return components.pair_with_first(documents, starts)
        sizes = count_ngrams(places)
        rows, starts = find_comparable(documents, starts, sizes, rule.min_jaccard)
        documents, places, sizes = documents[rows], places[rows], sizes[rows]
        reader = open_ngrams(self)
        found: list[Pairs] = [np.empty((0, 2), np.uint64)]
        memory_mb = self.config.engine.memory_mb
        for some in divide_groups(starts, sizes, memory_mb):
            bounds = starts[some.start : some.stop + 1]
            here = slice(bounds[0], bounds[-1])
            ngrams = reader.read(documents[here], places[here])
            pairs = kernel.find_similar_pairs(
                documents[here],
                bounds - bounds[0],
                *flatten_lists(ngrams),
                rule.min_jaccard,
                rule.must_contain,
            )
            found.append(pairs)
        return np.concatenate(found)

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
