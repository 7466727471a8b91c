"""The phase paragraph_dedup: find paragraphs that occur more than once, over the whole crawl or in groups of splits.

A split sends each different hash once, and gets one bit for it: whether the rule removes it because of other splits. So
a paragraph that is on every page takes as many rows as there are splits. What happens inside of a split is decided
there, when its documents are read.

    extract: SPLIT.distinct_hashes.arrow ──▶ p000of002.repeated.arrow: a bit per hash of each split ──┐
             SPLIT.hashes.arrow ──────────────────────────────────────────────────────────────────────┴▶ annotate

The result depends on the paragraphs and the rule alone, not on the number of partitions. Paragraphs of previous runs
come before all of this run, in each of its groups. Paragraphs of exact copies of documents are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.inputs.input_splits import InputSplit
from pipeline.phases.artifact import Artifact
from pipeline.phases.dedup.exact_dedup import ExactDedup
from pipeline.phases.extract import DISTINCT_HASHES, Extract
from pipeline.phases.phase import PartitionPhase
from pipeline.phases.previous_runs import find_other_version, find_unfinished
from pipeline.runs.hash_partitions import (
    FileSlice,
    Partition,
    count_partitions,
    find_bounds,
    name_partitions,
    read_slice,
)
from pipeline.runs.phase_folder import PhaseFolder
from pipeline.runs.run_folder import RunFolder
from stages.contract import Counters
from stages.dedup.duplicate_lines import find_duplicates
from stages.dedup.paragraphs import ParagraphHashes

# Memory of a partition per hash: 8 as read, 1 for the result, and 3 for one file and one chunk.
BYTES_PER_HASH = 12

# Of each hash that a split sends, in their order.
REPEATED = pa.schema([pa.field("is_repeated", pa.bool_())])


class ParagraphDedup(PartitionPhase):
    """Find the hashes to remove, by ranges of hash space, in each group of splits.

    Source of the rule: CCNet (Wenzek et al. 2020, section 3.1; cc_net/dedup.py), see
    stages/dedup/duplicate_lines.py:find_duplicates.
    """

    name = "paragraph_dedup"
    version = 2
    parents = (Extract, ExactDedup)

    repeated = Artifact("repeated.arrow", REPEATED)  # one batch per split of the group

    @classmethod
    def phases_read_in_previous_runs(cls, config: RunConfig) -> tuple[str, ...]:
        """Return extract: its paragraphs there are compared too."""
        return () if config.paragraph_dedup.keep == "keep_all" else (Extract.name,)

    @classmethod
    def check_previous_run(cls, config: RunConfig, run: RunFolder) -> Iterator[str]:
        """Yield the reasons why paragraphs cannot be compared."""
        if config.paragraph_dedup.keep != "keep_all":
            yield from find_unfinished(run, Extract.name)
            yield from find_other_version(run, Extract.name, ParagraphHashes)

    def task_ids(self) -> list[str]:
        """Return the names of all partitions of all groups; none if duplicate paragraphs are kept."""
        if self.config.paragraph_dedup.keep == "keep_all":
            return []
        names = name_partitions(self.num_partitions)
        return [
            _name_task(group, name) for group in range(len(self.groups)) for name in names
        ]

    @cached_property
    def groups(self) -> list[tuple[InputSplit, ...]]:
        """The splits whose paragraphs are compared with each other."""
        splits = self.plan.splits
        group_splits = self.config.paragraph_dedup.group_splits or max(1, len(splits))
        return [splits[i : i + group_splits] for i in range(0, len(splits), group_splits)]

    @cached_property
    def num_partitions(self) -> int:
        """The number of partitions of a group. Each partition fits into the memory of a task."""
        if self.folder.is_complete():
            # As many as there were: `engine.memory_mb` may be another one by now.
            return self.folder.summary()["task_ids"] // len(self.groups)
        counts, num_previous = (
            self.counts(Extract.name, "distinct_paragraphs"),
            len(self.plan.previous_splits),
        )
        sizes = [
            sum(counts[num_previous + split.index] for split in group)
            for group in self.groups
        ]
        num_hashes = sum(counts[:num_previous]) + max(sizes, default=0)
        return count_partitions(num_hashes, BYTES_PER_HASH, self.config.engine.memory_mb)

    def run(self, task_id: str) -> None:
        """Read one range of the hashes of all splits of a group, and write which ones are repeated."""
        group, name = _parse_task(task_id)
        partition = self._read_partition(self.groups[group], name)
        masks = self._find_repeated(partition)[len(self.plan.previous_splits) :]
        counters = Counters()
        counters.add("distinct_paragraphs", sum(len(mask) for mask in masks))
        counters.add("distinct_paragraphs_repeated", sum(int(mask.sum()) for mask in masks))
        with self.folder.commit(task_id) as output:
            path = output.path(self.repeated.file_name(task_id))
            with pa.ipc.new_file(path, REPEATED) as file:
                for mask in masks:
                    file.write_batch(pa.record_batch([pa.array(mask)], schema=REPEATED))
            output.record = {"counters": counters.to_json()}

    def _read_partition(self, splits: Sequence[InputSplit], name: str) -> Partition:
        """Read one partition of all previous splits and of the splits of a group."""

        def read(source: tuple[PhaseFolder, str]) -> FileSlice:
            folder, key = source
            return read_slice(folder.open(Extract.distinct_hashes.file_name(key)), name)

        extracted = self.plan.folder(Extract.name)

        def read_own(split: InputSplit) -> FileSlice:
            if self.config.exact_dedup is None:
                return read((extracted, split.key))
            hashes = extracted.open(Extract.hashes.file_name(split.key))
            return self._select_distinct(split, read_slice(hashes, name))

        previous = self.sources(Extract.name)[: len(self.plan.previous_splits)]
        slices = self.folder.read_each(previous, read) + extracted.read_each(
            splits, read_own
        )
        return Partition(slices, name)

    def _select_distinct(self, split: InputSplit, part: FileSlice) -> FileSlice:
        """Return each hash of the documents that exact_dedup keeps, once."""
        part = part.filter(~self._is_of_copy(split, part.rows))
        is_first = np.zeros(part.rows.num_rows, np.bool_)
        is_first[find_bounds(part.rows["hash"].to_numpy())[:-1]] = True
        return replace(part, rows=part.rows.select(DISTINCT_HASHES.names)).filter(is_first)

    def _is_of_copy(self, split: InputSplit, rows: pa.RecordBatch) -> NDArray[np.bool_]:
        """Return whether each paragraph is of a document that exact_dedup drops."""
        copies = ExactDedup(self.plan).find_copies(split)["record"]
        return pc.is_in(rows["record"], value_set=copies).to_numpy(zero_copy_only=False)

    def _find_repeated(self, partition: Partition) -> list[NDArray[np.bool_]]:
        """Return whether each hash of each file is removed because of other files."""
        keep = self.config.paragraph_dedup.keep
        assert keep != "keep_all"
        masks = [np.zeros(rows.num_rows, np.bool_) for rows in partition.files]
        for chunk in partition.chunks():
            # Each file takes the place of a document, because it has each hash once.
            found = find_duplicates(*partition.gather(chunk), keep)
            ends = np.cumsum([rows.stop - rows.start for rows in chunk])[:-1]
            for mask, rows, part in zip(masks, chunk, np.split(found, ends), strict=True):
                mask[rows] = part
        return masks

    def find_duplicate_lines(self, split: InputSplit) -> NDArray[np.uint64]:
        """Return record << 32 | line of every line of a split to remove, sorted."""
        if self.config.paragraph_dedup.keep == "keep_all":
            return np.empty(0, np.uint64)
        is_repeated = self._read_repeated(split)
        found = [np.empty(0, np.uint64)]
        num_read = 0  # different hashes
        name = Extract.hashes.file_name(split.key)
        with self.plan.folder(Extract.name).open(name) as source:
            file = pa.ipc.open_file(source)
            for bucket in range(file.num_record_batches):
                rows = file.get_batch(bucket)
                if self.config.exact_dedup is not None:
                    rows = rows.filter(pa.array(~self._is_of_copy(split, rows)))
                bounds = find_bounds(rows["hash"].to_numpy())
                here = is_repeated[num_read : num_read + len(bounds) - 1]
                found.append(self._select_lines(rows, bounds, here))
                num_read += len(here)
        return np.sort(np.concatenate(found))

    def _read_repeated(self, split: InputSplit) -> NDArray[np.bool_]:
        """Return whether each hash of a split is removed because of other splits."""
        group = split.index // len(self.groups[0])
        index = split.index - self.groups[group][0].index

        def read(partition: str) -> NDArray[np.bool_]:
            name = self.repeated.file_name(_name_task(group, partition))
            with self.folder.open(name) as source:
                batch = pa.ipc.open_file(source).get_batch(index)
                return batch["is_repeated"].to_numpy(zero_copy_only=False)

        found = self.folder.read_each(name_partitions(self.num_partitions), read)
        return np.concatenate(found)

    def _select_lines(
        self,
        rows: pa.RecordBatch,
        bounds: NDArray[np.int64],
        is_repeated: NDArray[np.bool_],
    ) -> NDArray[np.uint64]:
        """Return the lines to remove.

        Args:
            rows: paragraphs, sorted by hash, as HASHES.
            bounds: (n + 1,) the start of each hash's rows.
            is_repeated: (n,) whether a hash is removed because of other splits.
        """
        records = rows["record"].to_numpy().astype(np.uint64)
        lines = records << np.uint64(32) | rows["line"].to_numpy()
        keeps_first = ~is_repeated
        if self.config.paragraph_dedup.keep == "drop_all_copies":
            keeps_first &= records[bounds[:-1]] == records[bounds[1:] - 1]  # one document
        is_removed = np.ones(len(lines), np.bool_)
        is_removed[bounds[:-1][keeps_first]] = False
        return lines[is_removed]


def _name_task(group: int, partition: str) -> str:
    return f"g{group:03d}-{partition}"


def _parse_task(task_id: str) -> tuple[int, str]:
    group, partition = task_id.split("-")
    return int(group.removeprefix("g")), partition
