"""paragraph_dedup: which lines of which records have to go, over the whole crawl.

Promises: the answer depends on the paragraphs and the rule alone, not on the number of partitions; a partition's
memory is bounded by `engine.memory_mb`. What earlier runs have read counts as read before all of this one, in each of
its groups; the paragraphs of exact copies of documents do not count.
Leaves to others: the rule (stages/dedup/paragraphs.py:duplicated), taking the lines out (annotate).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.phases.exact_dedup import ExactDedup
from pipeline.phases.extract import hashes_file
from pipeline.phases.hash_partitions import (
    FileSlice,
    Partition,
    partition_names,
    partitions_for,
    read_part,
)
from pipeline.phases.phase import PartitionPhase
from pipeline.planning.input_splits import InputSplit
from stages.contract import Counters
from stages.dedup.paragraphs import duplicated

BYTES_PER_PARAGRAPH = 32
"""Memory of a partition per paragraph: 16 as read, as much again while its pieces are laid out. Later 1 for whether it
has to go, and what a piece takes."""


class ParagraphDedup(PartitionPhase):
    """Which lines of which records have to go, by ranges of hash space over a group of units.

    Source of the rule: CCNet (Wenzek et al. 2020, section 3.1; cc_net/dedup.py), see stages/dedup/paragraphs.py:duplicated.
    """

    name = "paragraph_dedup"

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
            sources, lambda of: read_part(of[0].open(hashes_file(of[1])), name)
        )

        def of_split(split: InputSplit) -> FileSlice:
            return self._without_copies(
                split, read_part(extracted.open(hashes_file(split.key)), name)
            )

        parts += extracted.each(splits, of_split)
        partition = Partition(parts, name)
        del parts
        files = partition.files[own:]
        gone = [np.zeros(rows.num_rows, np.bool_) for rows in files]
        for piece in partition.pieces():
            found = duplicated(*partition.gather(piece), keep)
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
                output.path(f"{task_id}.duplicate_lines.arrow"), DUPLICATE_LINES
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
            with self.folder.map(f"g{group:03d}-{partition}.duplicate_lines.arrow") as source:
                batch = pa.ipc.open_file(source).get_batch(index)
                return (
                    batch["record"].to_numpy().astype(np.uint64) << np.uint64(32)
                    | batch["line"].to_numpy()
                )

        return np.sort(
            np.concatenate(self.folder.each(partition_names(self.num_partitions), of_partition))
        )


DUPLICATE_LINES = pa.schema([pa.field("record", pa.uint32()), pa.field("line", pa.uint32())])
