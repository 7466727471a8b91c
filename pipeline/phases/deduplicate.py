"""deduplicate: which lines of which records have to go, over the whole crawl.

Promises: the answer depends on the paragraphs and the rule alone, not on the number of partitions; a partition's
memory is bounded by `engine.memory_mb`.
Leaves to others: the rule (stages/paragraphs.py:duplicated), taking the lines out (annotate).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.inputs import Unit
from pipeline.phases.base import PartitionPhase
from pipeline.phases.buckets import bucket_range, partition_names, partitions_for, read_buckets
from stages.contract import Tally
from stages.paragraphs import duplicated

BYTES_PER_PARAGRAPH = 32
"""Memory of a partition per paragraph: 16 as read, up to 8 for what has to go, and its buckets' work in turn."""


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
        extracted = self.plan.folder("extract")
        records = extracted.records(unit.key for unit in self.plan.units)
        counts = dict(zip(self.plan.units, (r["tally"]["counts"].get("paragraphs", 0) for r in records), strict=True))
        largest = max((sum(counts[unit] for unit in group) for group in self.groups), default=0)
        return partitions_for(largest, BYTES_PER_PARAGRAPH, self.config.engine.memory_mb)

    def run(self, work: str) -> None:
        """Read one range of every unit's hashes, find what is repeated, write it per unit."""
        keep = self.config.deduplicate.keep
        assert keep != "all"
        group, partition = work.split("-")
        units = self.groups[int(group[1:])]
        extracted, buckets = self.plan.folder("extract"), bucket_range(partition)
        batches = [read_buckets(extracted.open(f"{unit.key}.hashes.arrow"), *buckets) for unit in units]
        repeats: list[list[pa.RecordBatch]] = [[] for _ in units]
        tally = Tally()
        for bucket in zip(*batches, strict=True):  # one range of hashes, from every unit
            sizes = [batch.num_rows for batch in bucket]
            documents = np.repeat(np.arange(len(units), dtype=np.uint64) << np.uint64(32), sizes)
            documents |= np.concatenate([batch["record"].to_numpy() for batch in bucket])
            hashes = np.concatenate([batch["hash"].to_numpy() for batch in bucket])
            gone = duplicated(hashes, documents, keep)
            tally.add("paragraphs", len(gone))
            tally.add("paragraphs_repeated", int(gone.sum()))
            for mine, batch, mask in zip(repeats, bucket, np.split(gone, np.cumsum(sizes)[:-1]), strict=True):
                mine.append(batch.filter(pa.array(mask)).select(REPEATS.names))
        with self.folder.commit(work) as task:
            with pa.ipc.new_file(task.path(f"{work}.repeats.arrow"), REPEATS) as file:
                for mine in repeats:
                    file.write_batch(pa.concat_batches(mine))
            task.record = {"tally": tally.to_json()}

    def repeats_of(self, unit: Unit) -> np.ndarray[Any, np.dtype[np.uint64]]:
        """Record << 32 | line of every line of a unit that has to go, sorted."""
        if self.config.deduplicate.keep == "all":
            return np.empty(0, np.uint64)
        group = next(g for g, units in enumerate(self.groups) if units[0].index <= unit.index <= units[-1].index)
        found: list[np.ndarray[Any, np.dtype[np.uint64]]] = []
        for partition in partition_names(self.num_partitions):
            with self.folder.map(f"g{group:03d}-{partition}.repeats.arrow") as source:
                batch = pa.ipc.open_file(source).get_batch(unit.index - self.groups[group][0].index)
                found.append(batch["record"].to_numpy().astype(np.uint64) << np.uint64(32) | batch["line"].to_numpy())
        return np.sort(np.concatenate(found))


REPEATS = pa.schema([pa.field("record", pa.uint32()), pa.field("line", pa.uint32())])
