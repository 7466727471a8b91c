"""The phase paragraph_dedup: find paragraphs that occur more than once, over the whole crawl or in groups of splits.

The result depends on the paragraphs and the rule alone, not on the number of partitions. Paragraphs of previous runs
come before all of this run, in each of its groups. Paragraphs of exact copies of documents are not counted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.phases.artifact import Artifact
from pipeline.phases.dedup.exact_dedup import ExactDedup
from pipeline.phases.extract import Extract
from pipeline.phases.phase import PartitionPhase, TaskCost
from pipeline.planning.input_splits import InputSplit
from pipeline.planning.previous_runs import find_other_version, find_unfinished
from pipeline.runs.hash_partitions import (
    MAX_PARTITIONS,
    FileSlice,
    Partition,
    count_partitions,
    name_partitions,
    read_slice,
)
from pipeline.runs.phase_folder import PhaseFolder
from pipeline.runs.run_folder import RunFolder
from stages.contract import Counters
from stages.dedup.duplicate_lines import find_duplicates
from stages.dedup.paragraphs import ParagraphHashes

# Memory of a partition per paragraph: 16 as read, 1 for the result, and 3 for one file and one
# chunk (measured with 150 files of 300,000 paragraphs).
BYTES_PER_PARAGRAPH = 20

DUPLICATE_LINES = pa.schema(
    [pa.field("record", pa.uint32()), pa.field("line", pa.uint32())]
)


class ParagraphDedup(PartitionPhase):
    """Find the lines to remove, by ranges of hash space, in each group of splits.

    Source of the rule: CCNet (Wenzek et al. 2020, section 3.1; cc_net/dedup.py), see
    stages/dedup/duplicate_lines.py:find_duplicates.
    """

    name = "paragraph_dedup"
    version = 1
    parents = (Extract, ExactDedup)

    # one batch per split
    duplicate_lines = Artifact("duplicate_lines.arrow", DUPLICATE_LINES)

    reads = (Extract.hashes,)
    cost = TaskCost(
        grows_with="paragraphs",
        held_bytes=BYTES_PER_PARAGRAPH,
        # benchmarks/runs/driver_scale.py, 2,000 splits
        open_s=0.0006,
        is_hash_partitioned=True,
    )

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

    @classmethod
    def estimate_num_tasks(
        cls, config: RunConfig, num_splits: int, amounts: Mapping[str, float]
    ) -> int:
        """Return groups times partitions."""
        if config.paragraph_dedup.keep == "keep_all":
            return 0
        group_splits = cls.count_splits_per_task(config, num_splits)
        largest = math.ceil(amounts["paragraphs"] * group_splits / num_splits)
        num_partitions = count_partitions(
            largest, BYTES_PER_PARAGRAPH, config.engine.memory_mb
        )
        return math.ceil(num_splits / group_splits) * num_partitions

    @classmethod
    def count_splits_per_task(cls, config: RunConfig, num_splits: int) -> int:
        """Return the splits of a group."""
        return min(num_splits, config.paragraph_dedup.group_splits or num_splits)

    @classmethod
    def suggest_smaller_tasks(
        cls, room_bytes: float, amount_per_split: float
    ) -> str | None:
        """Return the largest group that fits."""
        group_splits = room_bytes * MAX_PARTITIONS / BYTES_PER_PARAGRAPH / amount_per_split
        return (
            f"set paragraph_dedup.group_splits to {int(group_splits):,} "
            f"(CCNet compares 3 % of a dump at a time)"
        )

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
            self.counts(Extract.name, "paragraphs"),
            len(self.plan.previous_splits),
        )
        sizes = [
            sum(counts[num_previous + split.index] for split in group)
            for group in self.groups
        ]
        num_paragraphs = sum(counts[:num_previous]) + max(sizes, default=0)
        return count_partitions(
            num_paragraphs, BYTES_PER_PARAGRAPH, self.config.engine.memory_mb
        )

    def run(self, task_id: str) -> None:
        """Read one range of the hashes of all splits of a group, and write the lines to remove per split."""
        group, name = _parse_task(task_id)
        partition = self._read_partition(self.groups[group], name)
        num_previous = len(self.plan.previous_splits)
        files = partition.files[num_previous:]
        masks = self._find_duplicates(partition, num_previous)
        counters = Counters()
        counters.add("paragraphs", sum(rows.num_rows for rows in files))
        counters.add("paragraphs_repeated", sum(int(mask.sum()) for mask in masks))
        with self.folder.commit(task_id) as output:
            path = output.path(self.duplicate_lines.file_name(task_id))
            with pa.ipc.new_file(path, DUPLICATE_LINES) as file:
                for rows, mask in zip(files, masks, strict=True):
                    file.write_batch(
                        rows.select(DUPLICATE_LINES.names).filter(pa.array(mask))
                    )
            output.record = {"counters": counters.to_json()}

    def _read_partition(self, splits: Sequence[InputSplit], name: str) -> Partition:
        """Read one partition of all previous splits and of the splits of a group."""

        def read(source: tuple[PhaseFolder, str]) -> FileSlice:
            folder, key = source
            return read_slice(folder.open(Extract.hashes.file_name(key)), name)

        extracted = self.plan.folder(Extract.name)

        def read_own(split: InputSplit) -> FileSlice:
            return self._remove_copies(split, read((extracted, split.key)))

        previous = self.sources(Extract.name)[: len(self.plan.previous_splits)]
        slices = self.folder.read_each(previous, read) + extracted.read_each(
            splits, read_own
        )
        return Partition(slices, name)

    def _find_duplicates(
        self, partition: Partition, num_previous: int
    ) -> list[NDArray[np.bool_]]:
        """Return whether each line is removed, for each file behind those of previous runs."""
        keep = self.config.paragraph_dedup.keep
        assert keep != "keep_all"
        masks = [
            np.zeros(rows.num_rows, np.bool_) for rows in partition.files[num_previous:]
        ]
        for chunk in partition.chunks():
            found = find_duplicates(*partition.gather(chunk), keep)
            ends = np.cumsum([rows.stop - rows.start for rows in chunk])[:-1]
            found_by_file = np.split(found, ends)[num_previous:]
            for mask, rows, part in zip(
                masks, chunk[num_previous:], found_by_file, strict=True
            ):
                mask[rows] = part
        return masks

    def _remove_copies(self, split: InputSplit, part: FileSlice) -> FileSlice:
        """Return the paragraphs of the documents that exact_dedup keeps."""
        copies = ExactDedup(self.plan).find_copies(split)["record"]
        if not len(copies):
            return part
        is_copy = pc.is_in(part.rows["record"], value_set=copies)
        return part.filter(pc.invert(is_copy).to_numpy(zero_copy_only=False))

    def find_duplicate_lines(self, split: InputSplit) -> NDArray[np.uint64]:
        """Return record << 32 | line of every line of a split to remove, sorted."""
        if self.config.paragraph_dedup.keep == "keep_all":
            return np.empty(0, np.uint64)
        group = split.index // len(self.groups[0])
        index = split.index - self.groups[group][0].index

        def read(partition: str) -> NDArray[np.uint64]:
            name = self.duplicate_lines.file_name(_name_task(group, partition))
            with self.folder.open(name) as source:
                batch = pa.ipc.open_file(source).get_batch(index)
                records = batch["record"].to_numpy().astype(np.uint64)
                return records << np.uint64(32) | batch["line"].to_numpy()

        found = self.folder.read_each(name_partitions(self.num_partitions), read)
        return np.sort(np.concatenate(found))


def _name_task(group: int, partition: str) -> str:
    return f"g{group:03d}-{partition}"


def _parse_task(task_id: str) -> tuple[int, str]:
    group, partition = task_id.split("-")
    return int(group.removeprefix("g")), partition
