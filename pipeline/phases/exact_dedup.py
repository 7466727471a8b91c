"""copies: which documents have to go because an earlier one says the very same, over the whole crawl and earlier runs.

Promises: of documents of equal content the first stays, and those of earlier runs come before all of this one; the
answer depends on content and order alone. The merge holds one range of hashes at a time, sized by `engine.memory_mb`.
Leaves to others: when contents are equal (stages/copies.py), dropping (annotate), leaving the copies' paragraphs out
(deduplicate).

    extract: <unit>.hashes.arrow ──▶ <unit>.contents.arrow ──▶ finish: copies.arrow, a batch per unit
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.phases.extract import hashes_file
from pipeline.phases.hash_partitions import (
    Partition,
    partition_names,
    partitions_for,
    read_part,
    write_buckets,
)
from pipeline.phases.phase import PartitionPhase
from pipeline.planning.input_splits import Unit
from pipeline.runs.phase_folder import Task
from stages.contract import Tally
from stages.dedup import connected_components as components
from stages.dedup.exact import digest_hashes, text_hashes

BYTES_PER_DOCUMENT = 64
"""Memory of the merge per document of a range: 12 as read, 8 for its id, the rest for sorting equal ones
together."""

CONTENTS = pa.schema([pa.field("hash", pa.uint64()), pa.field("record", pa.uint32())])

COPIES = pa.schema([pa.field("record", pa.uint32()), pa.field("representative", pa.uint64())])
"""Of a unit, sorted: the record number of a document that has to go, and the doc_id of the one that stays."""

_MERGE = "copies"


def contents_file(work: str) -> str:
    """Hash of each document's content, as CONTENTS, by range of hashes (buckets.py)."""
    return f"{work}.contents.arrow"


class Copies(PartitionPhase):
    """Which documents have to go because an earlier one says the very same."""

    name = "copies"

    def works(self) -> list[str]:
        """One per unit; none where the phase is off."""
        return [] if self.config.copies is None else [unit.key for unit in self.plan.units]

    def run(self, work: str) -> None:
        """Write the hash of each document's content."""
        assert self.config.copies is not None
        extracted, by_text = self.plan.folder("extract"), self.config.copies.by == "text"
        with extracted.open(f"{work}.documents.parquet") as file:
            documents = pq.read_table(file, columns=["doc_id", "digest"])
        records = documents.column("doc_id").to_numpy().astype(np.uint32)  # the lower half
        if by_text:
            with extracted.open(hashes_file(work)) as file:
                lines = pa.ipc.open_file(file).read_all()
            columns = (lines.column(name).to_numpy() for name in ("hash", "record", "line"))
            hashes = text_hashes(*columns, num_records=int(records.max(initial=0)) + 1)[records]
        else:
            hashes, has_digest = digest_hashes(documents.column("digest"))
            hashes, records = hashes[has_digest], records[has_digest]
        with self.folder.commit(work) as task:
            write_buckets(task.path(contents_file(work)), pa.record_batch([hashes, records], schema=CONTENTS))
            tally = Tally()
            tally.add("contents", len(records))
            task.record = {"tally": tally.to_json()}

    def finish(self) -> None:
        """Bring equal contents together, range by range, and write for each unit who has to go, and for whom."""
        if self.config.copies is None:
            return
        num_contents = sum(self.counts("copies", "contents"))
        names = partition_names(partitions_for(num_contents, BYTES_PER_DOCUMENT, self.config.engine.memory_mb))
        with self.folder.commit(_MERGE) as task:
            parts = [self._merge(task, name) for name in names]
            tally = Tally()
            with pa.ipc.new_file(task.path(f"{_MERGE}.arrow"), COPIES) as file:
                for index in range(len(self.plan.units)):
                    found = pa.Table.from_batches([_batch(pa.OSFile(str(part)), index) for part in parts]).sort_by(
                        "record"
                    )
                    tally.add("copies", found.num_rows)
                    file.write_batch(pa.record_batch([c.combine_chunks() for c in found.columns], schema=COPIES))
            for part in parts:
                part.unlink()
            task.record = {"tally": tally.to_json()}

    def _merge(self, task: Task, name: str) -> Path:
        """The copies of one range of hashes, a batch per unit."""
        sources = self.sources("copies")
        parts = self.folder.each(sources, lambda of: read_part(of[0].open(contents_file(of[1])), name))
        own = len(self.plan.earlier_units)
        found: list[components.Pairs] = [np.empty((0, 2), np.uint64)]
        partition = Partition(parts, name)
        for piece in partition.pieces():
            pairs = components.stars(*components.groups_of_equal(*partition.gather(piece)))
            found.append(pairs[pairs[:, 1] >> np.uint64(32) >= own])  # what lies in earlier runs stays there
        pairs = np.concatenate(found)
        stays, goes = self.doc_ids(pairs[:, 0]), self.doc_ids(pairs[:, 1])
        path = task.path(name)
        order = np.argsort(goes)
        records, stays = goes[order].astype(np.uint32), stays[order]
        units = np.arange(len(self.plan.units) + 1, dtype=np.uint64) << np.uint64(32)
        with pa.ipc.new_file(path, COPIES) as file:
            for start, end in pairwise(np.searchsorted(goes[order], units)):
                file.write_batch(pa.record_batch([records[start:end], stays[start:end]], schema=COPIES))
        return path

    def sum_of_records(self) -> Tally:
        """The units' and the merge's."""
        if self.config.copies is None:
            return Tally()
        return super().sum_of_records() + Tally.from_json(self.folder.record(_MERGE)["tally"])

    def copies_of(self, unit: Unit) -> pa.RecordBatch:
        """The documents of a unit that have to go, as COPIES; none where the phase is off."""
        if self.config.copies is None:
            return pa.record_batch([pa.nulls(0, f.type) for f in COPIES], schema=COPIES)
        return _batch(self.folder.open(f"{_MERGE}.arrow"), unit.index)


def _batch(source: pa.NativeFile, index: int) -> pa.RecordBatch:
    with source:
        return pa.ipc.open_file(source).get_batch(index)
