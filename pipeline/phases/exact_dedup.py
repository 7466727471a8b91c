"""copies: which documents have to go because an earlier one says the very same, over the whole crawl and earlier runs.

Promises: of documents of equal content the first stays, and those of earlier runs come before all of this one; the
answer depends on content and order alone. The merge holds one range of hashes at a time, sized by `engine.memory_mb`.
Leaves to others: when contents are equal (stages), dropping (annotate), leaving the copies' paragraphs out
(deduplicate).

    extract: <unit>.hashes.arrow ──▶ <unit>.contents.arrow ──▶ finish: exact_dedup.arrow, a batch per unit
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.config import RunConfig
from pipeline.phases.extract import Extract
from pipeline.phases.hash_partitions import (
    Partition,
    partition_names,
    partitions_for,
    read_part,
    write_buckets,
)
from pipeline.phases.phase import Artifact, MergedArtifact, PartitionPhase, TaskCost
from pipeline.planning.input_splits import InputSplit
from pipeline.planning.previous_runs import find_other_version, find_unfinished
from pipeline.runs.phase_folder import PendingOutput
from pipeline.runs.run_folder import RunFolder
from stages.contract import Counters
from stages.dedup import connected_components as components
from stages.dedup.exact_dedup import hash_digests, hash_texts
from stages.dedup.paragraphs import ParagraphHashes

BYTES_PER_DOCUMENT = 64
"""Memory of the merge per document of a range: 12 as read, 8 for its id, the rest for sorting equal ones
together."""

CONTENTS = pa.schema([pa.field("hash", pa.uint64()), pa.field("record", pa.uint32())])

COPIES = pa.schema([pa.field("record", pa.uint32()), pa.field("representative", pa.uint64())])
"""Of a unit, sorted: the record number of a document that has to go, and the doc_id of the one that stays."""


class ExactDedup(PartitionPhase):
    """Which documents have to go because an earlier one says the very same."""

    name = "exact_dedup"
    version = 1
    parents = (Extract,)
    task_kind = "splits"  # only `finish` reads the files of all splits

    contents = Artifact("contents.arrow", CONTENTS)  # by range of hashes
    copies = MergedArtifact("exact_dedup.arrow", COPIES)  # one record batch per input split

    reads = (Extract.hashes,)
    cost = TaskCost(grows_with="documents", held_bytes=16)

    @classmethod
    def phases_read_in_previous_runs(cls, config: RunConfig) -> tuple[str, ...]:
        """Return this phase: the contents of documents there are compared too."""
        return (cls.name,) if cls.is_enabled(config) else ()

    @classmethod
    def check_previous_run(cls, config: RunConfig, run: RunFolder) -> Iterator[str]:
        """Yield the reasons why the contents of documents cannot be compared."""
        if config.exact_dedup is None:
            return
        theirs = run.config.exact_dedup
        if theirs is None or theirs.by != config.exact_dedup.by:
            found = "null" if theirs is None else theirs.model_dump()
            ours = config.exact_dedup.model_dump()
            yield f"its exact_dedup is {found}, ours is {ours}; set them to the same value"
        else:
            yield from find_unfinished(run, cls.name)
        yield from find_unfinished(run, Extract.name)
        yield from find_other_version(run, Extract.name, ParagraphHashes)

    def task_ids(self) -> list[str]:
        """One per unit; none where the phase is off."""
        return [] if self.config.exact_dedup is None else [split.key for split in self.plan.splits]

    def run(self, task_id: str) -> None:
        """Write the hash of each document's content."""
        assert self.config.exact_dedup is not None
        extracted, by_text = self.plan.folder("extract"), self.config.exact_dedup.by == "text"
        with extracted.open(Extract.documents.file_name(task_id)) as file:
            documents = pq.read_table(file, columns=["doc_id", "digest"])
        records = documents.column("doc_id").to_numpy().astype(np.uint32)  # the lower half
        if by_text:
            with extracted.open(Extract.hashes.file_name(task_id)) as file:
                lines = pa.ipc.open_file(file).read_all()
            columns = (lines.column(name).to_numpy() for name in ("hash", "record", "line"))
            hashes = hash_texts(*columns, num_records=int(records.max(initial=0)) + 1)[records]
        else:
            hashes, has_digest = hash_digests(documents.column("digest"))
            hashes, records = hashes[has_digest], records[has_digest]
        with self.folder.commit(task_id) as output:
            write_buckets(
                output.path(self.contents.file_name(task_id)),
                pa.record_batch([hashes, records], schema=CONTENTS),
            )
            counters = Counters()
            counters.add("contents", len(records))
            output.record = {"counters": counters.to_json()}

    def finish(self) -> None:
        """Bring equal contents together, range by range, and write for each unit who has to go, and for whom."""
        if self.config.exact_dedup is None:
            return
        num_contents = sum(self.counts("exact_dedup", "contents"))
        names = partition_names(
            partitions_for(num_contents, BYTES_PER_DOCUMENT, self.config.engine.memory_mb)
        )
        with self.folder.commit(self.copies.name) as output:
            parts = [self._merge(output, name) for name in names]
            counters = Counters()
            with pa.ipc.new_file(output.path(self.copies.file_name), COPIES) as file:
                for index in range(len(self.plan.splits)):
                    found = pa.Table.from_batches(
                        [_batch(pa.OSFile(str(part)), index) for part in parts]
                    ).sort_by("record")
                    counters.add("exact_dedup", found.num_rows)
                    file.write_batch(
                        pa.record_batch([c.combine_chunks() for c in found.columns], schema=COPIES)
                    )
            for part in parts:
                part.unlink()
            output.record = {"counters": counters.to_json()}

    def _merge(self, output: PendingOutput, name: str) -> Path:
        """The copies of one range of hashes, a batch per unit."""
        sources = self.sources("exact_dedup")
        parts = self.folder.each(
            sources, lambda of: read_part(of[0].open(self.contents.file_name(of[1])), name)
        )
        own = len(self.plan.previous_splits)
        found: list[components.Pairs] = [np.empty((0, 2), np.uint64)]
        partition = Partition(parts, name)
        for piece in partition.pieces():
            pairs = components.pair_with_first(
                *components.group_equal_hashes(*partition.gather(piece))
            )
            found.append(
                pairs[pairs[:, 1] >> np.uint64(32) >= own]
            )  # what lies in earlier runs stays there
        pairs = np.concatenate(found)
        stays, goes = self.doc_ids(pairs[:, 0]), self.doc_ids(pairs[:, 1])
        path = output.path(name)
        order = np.argsort(goes)
        records, stays = goes[order].astype(np.uint32), stays[order]
        splits = np.arange(len(self.plan.splits) + 1, dtype=np.uint64) << np.uint64(32)
        with pa.ipc.new_file(path, COPIES) as file:
            for start, end in pairwise(np.searchsorted(goes[order], splits)):
                file.write_batch(
                    pa.record_batch([records[start:end], stays[start:end]], schema=COPIES)
                )
        return path

    def sum_of_records(self) -> Counters:
        """The units' and the merge's."""
        if self.config.exact_dedup is None:
            return Counters()
        return super().sum_of_records() + Counters.from_json(
            self.folder.record(self.copies.name)["counters"]
        )

    def exact_copies_of(self, split: InputSplit) -> pa.RecordBatch:
        """The documents of a unit that have to go, as COPIES; none where the phase is off."""
        if self.config.exact_dedup is None:
            return pa.record_batch([pa.nulls(0, f.type) for f in COPIES], schema=COPIES)
        return _batch(self.folder.open(self.copies.file_name), split.index)


def _batch(source: pa.NativeFile, index: int) -> pa.RecordBatch:
    with source:
        return pa.ipc.open_file(source).get_batch(index)
