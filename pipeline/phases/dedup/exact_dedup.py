"""The phase exact_dedup: find documents whose content an earlier document already has, over the whole crawl.

Of documents with equal content the first is kept. Documents of previous runs come before all of this run. The result
depends on contents and their order alone.

    extract: SPLIT.hashes.arrow ──▶ SPLIT.contents.arrow ──▶ finish: exact_dedup.arrow, one batch per split
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.inputs.input_splits import InputSplit
from pipeline.phases.artifact import Artifact, MergedArtifact
from pipeline.phases.extract import Extract
from pipeline.phases.phase import PartitionPhase
from pipeline.phases.previous_runs import find_other_version, find_unfinished
from pipeline.runs.hash_partitions import (
    FileSlice,
    Partition,
    count_partitions,
    name_partitions,
    read_slice,
    write_buckets,
)
from pipeline.runs.phase_folder import PendingOutput, PhaseFolder
from pipeline.runs.run_folder import RunFolder
from pipeline.runs.split_output import read_table
from stages.contract import Counters
from stages.dedup import connected_components as components
from stages.dedup.exact_dedup import hash_digests, hash_texts
from stages.dedup.paragraphs import ParagraphHashes

# Memory of the merge per document of a partition: 12 as read, 8 for its id, the rest for
# grouping equal contents.
BYTES_PER_DOCUMENT = 64

CONTENTS = pa.schema([pa.field("hash", pa.uint64()), pa.field("record", pa.uint32())])

# Of one split, sorted: the record number of a document to drop, and the doc_id of the
# document that is kept.
COPIES = pa.schema(
    [pa.field("record", pa.uint32()), pa.field("representative", pa.uint64())]
)


class ExactDedup(PartitionPhase):
    """Find documents whose content an earlier document already has."""

    name = "exact_dedup"
    version = 1
    parents = (Extract,)
    task_kind = "splits"  # only `finish` reads the files of all splits

    contents = Artifact("contents.arrow", CONTENTS)  # by range of hashes
    copies = MergedArtifact("exact_dedup.arrow", COPIES)  # one record batch per input split

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
        """Return the keys of the splits; none where the phase is off."""
        return (
            []
            if self.config.exact_dedup is None
            else [split.key for split in self.plan.splits]
        )

    def run(self, task_id: str) -> None:
        """Write the hash of each document's content."""
        hashes, records = self._hash_contents(task_id)
        with self.folder.commit(task_id) as output:
            rows = pa.record_batch([hashes, records], schema=CONTENTS)
            write_buckets(output.path(self.contents.file_name(task_id)), rows)
            counters = Counters()
            counters.add("contents", len(records))
            output.record = {"counters": counters.to_json()}

    def _hash_contents(self, task_id: str) -> tuple[NDArray[np.uint64], NDArray[np.uint32]]:
        """Return the hashes of the documents' contents, and their record numbers."""
        assert self.config.exact_dedup is not None
        extracted = self.plan.folder(Extract.name)
        source = extracted.open(Extract.documents.file_name(task_id))
        documents = read_table(source, ["doc_id", "digest"])
        records = documents.column("doc_id").to_numpy().astype(np.uint32)  # the lower half
        if self.config.exact_dedup.by == "digest":
            hashes, has_digest = hash_digests(documents.column("digest"))
            return hashes[has_digest], records[has_digest]
        with extracted.open(Extract.hashes.file_name(task_id)) as file:
            lines = pa.ipc.open_file(file).read_all()
        columns = [lines.column(name).to_numpy() for name in ("hash", "record", "line")]
        num_records = int(records.max(initial=0)) + 1
        return hash_texts(*columns, num_records=num_records)[records], records

    def finish(self) -> None:
        """Merge the contents of all splits, partition by partition, and write the copies of each split."""
        if self.config.exact_dedup is None:
            return
        num_contents = sum(self.counts(self.name, "contents"))
        memory_mb = self.config.engine.memory_mb
        names = name_partitions(
            count_partitions(num_contents, BYTES_PER_DOCUMENT, memory_mb)
        )
        with self.folder.commit(self.copies.name) as output:
            merged = [self._merge(output, name) for name in names]
            counters = Counters()
            with pa.ipc.new_file(output.path(self.copies.file_name), COPIES) as file:
                for index in range(len(self.plan.splits)):
                    batches = [_read_batch(pa.OSFile(str(path)), index) for path in merged]
                    found = pa.Table.from_batches(batches).sort_by("record")
                    counters.add("exact_dedup", found.num_rows)
                    columns = [column.combine_chunks() for column in found.columns]
                    file.write_batch(pa.record_batch(columns, schema=COPIES))
            for path in merged:
                path.unlink()
            output.record = {"counters": counters.to_json()}

    def _merge(self, output: PendingOutput, name: str) -> Path:
        """Write the copies of one partition, one record batch per split, and return the file."""
        goes, kept = self._find_copies(name)
        order = np.argsort(goes)
        goes, kept = goes[order], kept[order]
        split_starts = np.arange(len(self.plan.splits) + 1, dtype=np.uint64) << np.uint64(
            32
        )
        path = output.path(name)
        with pa.ipc.new_file(path, COPIES) as file:
            for start, end in pairwise(np.searchsorted(goes, split_starts)):
                columns = [goes[start:end].astype(np.uint32), kept[start:end]]
                file.write_batch(pa.record_batch(columns, schema=COPIES))
        return path

    def _find_copies(self, name: str) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the ids of copies in one partition, and those of the kept documents, both (n,)."""

        def read(source: tuple[PhaseFolder, str]) -> FileSlice:
            folder, key = source
            return read_slice(folder.open(self.contents.file_name(key)), name)

        partition = Partition(self.folder.read_each(self.sources(self.name), read), name)
        num_previous = len(self.plan.previous_splits)
        found: list[components.Pairs] = [np.empty((0, 2), np.uint64)]
        for chunk in partition.chunks():
            pairs = components.pair_with_first(
                *components.group_equal_hashes(*partition.gather(chunk))
            )
            is_own = pairs[:, 1] >> np.uint64(32) >= num_previous
            found.append(pairs[is_own])  # copies inside previous runs stay there
        pairs = np.concatenate(found)
        return self.doc_ids(pairs[:, 1]), self.doc_ids(pairs[:, 0])

    def find_copies(self, split: InputSplit) -> pa.RecordBatch:
        """Return the documents of a split to drop, as COPIES; none where the phase is off."""
        if self.config.exact_dedup is None:
            return pa.record_batch([pa.nulls(0, f.type) for f in COPIES], schema=COPIES)
        return _read_batch(self.folder.open(self.copies.file_name), split.index)


def _read_batch(source: pa.NativeFile, index: int) -> pa.RecordBatch:
    with source:
        return pa.ipc.open_file(source).get_batch(index)
