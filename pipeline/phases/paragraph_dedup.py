"""deduplicate: which lines of which records have to go, over the whole crawl.

Promises: the answer depends on the paragraphs and the rule alone, not on the number of partitions; a partition's
memory is bounded by `engine.memory_mb`. What earlier runs have read counts as read before all of this one, in each of
its groups; the paragraphs of exact copies of documents do not count.
Leaves to others: the rule (stages/paragraphs.py:duplicated), taking the lines out (annotate).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.phases.exact_dedup import Copies
from pipeline.phases.extract import hashes_file
from pipeline.phases.hash_partitions import Part, Partition, partition_names, partitions_for, read_part
from pipeline.phases.phase import PartitionPhase
from pipeline.planning.input_splits import Unit
from stages.contract import Tally
from stages.dedup.paragraphs import duplicated

BYTES_PER_PARAGRAPH = 32
"""Memory of a partition per paragraph: 16 as read, as much again while its pieces are laid out. Later 1 for whether it
has to go, and what a piece takes."""


class Deduplicate(PartitionPhase):
    """Which lines of which records have to go, by ranges of hash space over a group of units.

    Source of the rule: CCNet (Wenzek et al. 2020, section 3.1; cc_net/dedup.py), see stages/paragraphs.py:duplicated.
    """

    name = "deduplicate"

    def works(self) -> list[str]:
        """Groups times partitions, as many as the paragraphs, counted by extract, need; none where all copies stay."""
        if self.config.deduplicate.keep == "all":
            return []
        return [f"g{g:03d}-{name}" for g in range(len(self.groups)) for name in partition_names(self.num_partitions)]

    @cached_property
    def groups(self) -> list[tuple[Unit, ...]]:
        """The units among which copies are looked for."""
        units, size = self.plan.units, self.config.deduplicate.group_units or max(1, len(self.plan.units))
        return [units[i : i + size] for i in range(0, len(units), size)]

    @cached_property
    def num_partitions(self) -> int:
        """So many that one fits into a task's memory, even in the largest group; once all is done, as many as were."""
        if self.folder.complete():
            return self.folder.summary()["works"] // len(self.groups)
        counts, own = self.counts("extract", "paragraphs"), len(self.plan.earlier_units)
        largest = max((sum(counts[own + unit.index] for unit in group) for group in self.groups), default=0)
        return partitions_for(sum(counts[:own]) + largest, BYTES_PER_PARAGRAPH, self.config.engine.memory_mb)

    def run(self, work: str) -> None:
        """Read one range of every unit's hashes, find what is repeated, write it per unit."""
        keep = self.config.deduplicate.keep
        assert keep != "all"
        group, name = work.split("-")
        units, own = self.groups[int(group[1:])], len(self.plan.earlier_units)
        extracted = self.plan.folder("extract")
        sources = self.sources("extract")[:own]
        parts = self.folder.each(sources, lambda of: read_part(of[0].open(hashes_file(of[1])), name))

        def of_unit(unit: Unit) -> Part:
            return self._without_copies(unit, read_part(extracted.open(hashes_file(unit.key)), name))

        parts += extracted.each(units, of_unit)
        partition = Partition(parts, name)
        del parts
        files = partition.files[own:]
        gone = [np.zeros(rows.num_rows, np.bool_) for rows in files]
        for piece in partition.pieces():
            found = duplicated(*partition.gather(piece), keep)
            ends = np.cumsum([rows.stop - rows.start for rows in piece])[:-1]
            for mine, rows, mask in zip(gone, piece[own:], np.split(found, ends)[own:], strict=True):
                mine[rows] = mask
        tally = Tally()
        tally.add("paragraphs", sum(rows.num_rows for rows in files))
        tally.add("paragraphs_repeated", sum(int(mask.sum()) for mask in gone))
        with self.folder.commit(work) as task:
            with pa.ipc.new_file(task.path(f"{work}.repeats.arrow"), REPEATS) as file:
                for rows, mask in zip(files, gone, strict=True):
                    file.write_batch(rows.select(REPEATS.names).filter(pa.array(mask)))
            task.record = {"tally": tally.to_json()}

    def _without_copies(self, unit: Unit, part: Part) -> Part:
        """The paragraphs of those documents that are there to stay."""
        copies = Copies(self.plan).copies_of(unit)["record"]
        if not len(copies):
            return part
        return part.filter(pc.invert(pc.is_in(part.rows["record"], value_set=copies)).to_numpy(zero_copy_only=False))

    def repeats_of(self, unit: Unit) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Record << 32 | line of every line of a unit that has to go, sorted."""
        if self.config.deduplicate.keep == "all":
            return np.empty(0, np.uint64)
        group = next(g for g, units in enumerate(self.groups) if units[0].index <= unit.index <= units[-1].index)
        index = unit.index - self.groups[group][0].index

        def of_partition(partition: str) -> np.ndarray[Any, np.dtype[np.uint64]]:
            with self.folder.map(f"g{group:03d}-{partition}.repeats.arrow") as source:
                batch = pa.ipc.open_file(source).get_batch(index)
                return batch["record"].to_numpy().astype(np.uint64) << np.uint64(32) | batch["line"].to_numpy()

        return np.sort(np.concatenate(self.folder.each(partition_names(self.num_partitions), of_partition)))


REPEATS = pa.schema([pa.field("record", pa.uint32()), pa.field("line", pa.uint32())])
