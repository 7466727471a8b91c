"""paragraph_dedup: which lines of which records have to go, over the whole crawl.

Promises: the answer depends on the paragraphs and the rule alone, not on the number of partitions; a partition's
memory is bounded by `engine.memory_mb`. What earlier runs have read counts as read before all of this one, in each of
its groups; the paragraphs of exact copies of documents do not count.
Leaves to others: the rule (stages/dedup/paragraphs.py:find_duplicates), taking the lines out (annotate).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import RunConfig
from pipeline.phases.exact_dedup import ExactDedup
from pipeline.phases.extract import Extract
from pipeline.phases.hash_partitions import (
    MAX_PARTITIONS,
    FileSlice,
    Partition,
    partition_names,
    partitions_for,
    read_part,
)
from pipeline.phases.phase import Artifact, PartitionPhase, TaskCost
from pipeline.planning.input_splits import InputSplit
from pipeline.planning.previous_runs import find_other_version, find_unfinished
from pipeline.runs.run_folder import RunFolder
from stages.contract import Counters
from stages.dedup.paragraphs import ParagraphHashes, find_duplicates

BYTES_PER_PARAGRAPH = 32
"""Memory of a partition per paragraph: 16 as read, as much again while its pieces are laid out. Later 1 for whether it
has to go, and what a piece takes."""

DUPLICATE_LINES = pa.schema([pa.field("record", pa.uint32()), pa.field("line", pa.uint32())])


class ParagraphDedup(PartitionPhase):
    """Which lines of which records have to go, by ranges of hash space over a group of units.

    Source of the rule: CCNet (Wenzek et al. 2020, section 3.1; cc_net/dedup.py), see stages/dedup/paragraphs.py:find_duplicates.
    """

    name = "paragraph_dedup"
    version = 1
    parents = (Extract, ExactDedup)

    duplicate_lines = Artifact("duplicate_lines.arrow", DUPLICATE_LINES)  # one batch per split

    reads = (Extract.hashes,)
    cost = TaskCost(
        grows_with="paragraphs",
        held_bytes=BYTES_PER_PARAGRAPH,
        # benchmarks/driver_scale.py, 2,000 splits
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
        group_splits = cls.splits_per_task(config, num_splits)
        largest = math.ceil(amounts["paragraphs"] * group_splits / num_splits)
        num_partitions = partitions_for(largest, BYTES_PER_PARAGRAPH, config.engine.memory_mb)
        return math.ceil(num_splits / group_splits) * num_partitions

    @classmethod
    def splits_per_task(cls, config: RunConfig, num_splits: int) -> int:
        """Return the splits of a group."""
        return min(num_splits, config.paragraph_dedup.group_splits or num_splits)

    @classmethod
    def suggest_smaller_tasks(cls, room_bytes: float, amount_per_split: float) -> str | None:
        """Return the largest group that fits."""
        group_splits = room_bytes * MAX_PARTITIONS / BYTES_PER_PARAGRAPH / amount_per_split
        return (
            f"set paragraph_dedup.group_splits to {int(group_splits):,} "
            f"(CCNet compares 3 % of a dump at a time)"
        )

    def task_ids(self) -> list[str]:
        """Groups times partitions, as many as the paragraphs, counted by extract, need; none where all copies stay."""
        if self.config.paragraph_dedup.keep == "keep_all":
            return []
        return [
            f"g{g:03d}-{name}"
            for g in range(len(self.groups))
            for name in partition_names(self.num_partitions)
        ]

    @cached_property
    def groups(self) -> list[tuple[InputSplit, ...]]:
        """The units among which copies are looked for."""
        splits, size = (
            self.plan.splits,
            self.config.paragraph_dedup.group_splits or max(1, len(self.plan.splits)),
        )
        return [splits[i : i + size] for i in range(0, len(splits), size)]

    @cached_property
    def num_partitions(self) -> int:
        """So many that one fits into a task's memory, even in the largest group; once all is done, as many as were."""
        if self.folder.complete():
            return self.folder.summary()["task_ids"] // len(self.groups)
        counts, own = self.counts("extract", "paragraphs"), len(self.plan.previous_splits)
        largest = max(
            (sum(counts[own + split.index] for split in group) for group in self.groups), default=0
        )
        return partitions_for(
            sum(counts[:own]) + largest, BYTES_PER_PARAGRAPH, self.config.engine.memory_mb
        )

    def run(self, task_id: str) -> None:
        """Read one range of every unit's hashes, find what is repeated, write it per unit."""
        keep = self.config.paragraph_dedup.keep
        assert keep != "keep_all"
        group, name = task_id.split("-")
        splits, own = self.groups[int(group[1:])], len(self.plan.previous_splits)
        extracted = self.plan.folder("extract")
        sources = self.sources("extract")[:own]
        parts = self.folder.each(
            sources, lambda of: read_part(of[0].open(Extract.hashes.file_name(of[1])), name)
        )

        def of_split(split: InputSplit) -> FileSlice:
            return self._without_copies(
                split, read_part(extracted.open(Extract.hashes.file_name(split.key)), name)
            )

        parts += extracted.each(splits, of_split)
        partition = Partition(parts, name)
        del parts
        files = partition.files[own:]
        gone = [np.zeros(rows.num_rows, np.bool_) for rows in files]
        for piece in partition.pieces():
            found = find_duplicates(*partition.gather(piece), keep)
            ends = np.cumsum([rows.stop - rows.start for rows in piece])[:-1]
            for mine, rows, mask in zip(
                gone, piece[own:], np.split(found, ends)[own:], strict=True
            ):
                mine[rows] = mask
        counters = Counters()
        counters.add("paragraphs", sum(rows.num_rows for rows in files))
        counters.add("paragraphs_repeated", sum(int(mask.sum()) for mask in gone))
        with self.folder.commit(task_id) as output:
            with pa.ipc.new_file(
                output.path(self.duplicate_lines.file_name(task_id)), DUPLICATE_LINES
            ) as file:
                for rows, mask in zip(files, gone, strict=True):
                    file.write_batch(rows.select(DUPLICATE_LINES.names).filter(pa.array(mask)))
            output.record = {"counters": counters.to_json()}

    def _without_copies(self, split: InputSplit, part: FileSlice) -> FileSlice:
        """The paragraphs of those documents that are there to stay."""
        copies = ExactDedup(self.plan).exact_copies_of(split)["record"]
        if not len(copies):
            return part
        return part.filter(
            pc.invert(pc.is_in(part.rows["record"], value_set=copies)).to_numpy(
                zero_copy_only=False
            )
        )

    def duplicate_lines_of(self, split: InputSplit) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Record << 32 | line of every line of a unit that has to go, sorted."""
        if self.config.paragraph_dedup.keep == "keep_all":
            return np.empty(0, np.uint64)
        group = next(
            g
            for g, splits in enumerate(self.groups)
            if splits[0].index <= split.index <= splits[-1].index
        )
        index = split.index - self.groups[group][0].index

        def of_partition(partition: str) -> np.ndarray[Any, np.dtype[np.uint64]]:
            with self.folder.map(
                self.duplicate_lines.file_name(f"g{group:03d}-{partition}")
            ) as source:
                batch = pa.ipc.open_file(source).get_batch(index)
                return (
                    batch["record"].to_numpy().astype(np.uint64) << np.uint64(32)
                    | batch["line"].to_numpy()
                )

        return np.sort(
            np.concatenate(self.folder.each(partition_names(self.num_partitions), of_partition))
        )
