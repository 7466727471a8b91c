"""The phases exact_hashes and exact_dedup: find documents whose content an earlier document already has.

Of documents with equal content, over the whole crawl, the first is kept. Documents of previous runs come before all of
this run. The result depends on contents and their order alone.

    extract: SPLIT.hashes.arrow ──▶ SPLIT.contents.arrow
    SPLIT.contents.arrow ──▶ p000of002.found.arrow: copies of each split ──▶ finish: exact_dedup.arrow, a segment per split
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.inputs.input_splits import InputSplit
from pipeline.phases.artifact import Artifact, MergedArtifact
from pipeline.phases.dedup.hash_phase import FindingPhase, SplitHashes
from pipeline.phases.extract import Extract
from pipeline.phases.previous_runs import (
    find_other_version,
    find_unfinished,
    find_unreadable,
)
from pipeline.runs.exchange import (
    ExchangedFiles,
    Partition,
    SegmentWriter,
    join_batches,
    read_batch,
    write_by_hash,
)
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


# Splits whose copies are joined at a time.
_SPLITS_PER_READ = 64


class ExactHashes(SplitHashes):
    """Hash the content of every document."""

    name = "exact_hashes"
    section = "exact_dedup"
    version = 1
    parents = (Extract,)

    # by hash
    contents = Artifact(
        "contents.arrow", CONTENTS, last_use="previous_runs", has_segments=True
    )

    def run(self, task_id: str) -> None:
        """Write the hash of each document's content."""
        hashes, records = self._hash_contents(task_id)
        with self.folder.commit(task_id) as output:
            with SegmentWriter(output, self.contents.file_name(task_id), CONTENTS) as file:
                write_by_hash(file, pa.record_batch([hashes, records], schema=CONTENTS))
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


class ExactDedup(FindingPhase):
    """Find documents whose content an earlier document already has, by ranges of hash space."""

    name = "exact_dedup"
    version = 2
    parents = (ExactHashes,)
    compared = (ExactHashes.contents, "contents")
    bytes_per_row = BYTES_PER_DOCUMENT

    # a segment per split
    found = Artifact("found.arrow", COPIES, last_use="run", has_segments=True)
    copies = MergedArtifact("exact_dedup.arrow", COPIES)  # a batch per split

    @classmethod
    def phases_read_in_previous_runs(cls, config: RunConfig) -> tuple[str, ...]:
        """Return exact_hashes: the contents of documents there are compared too."""
        return (ExactHashes.name,) if cls.is_enabled(config) else ()

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
            yield from find_unreadable(run, ExactHashes.contents)
        yield from find_unfinished(run, Extract.name)
        yield from find_other_version(run, Extract.name, ParagraphHashes)

    def find(self, part: Partition) -> Sequence[pa.RecordBatch]:
        """Return the copies of each split."""
        pairs: list[components.Pairs] = [np.empty((0, 2), np.uint64)]
        for chunk in part.chunks():
            groups = components.group_equal_hashes(*part.gather(chunk))
            pairs.append(components.pair_with_first(*groups))
        kept, goes = (self.doc_ids(ids) for ids in np.concatenate(pairs).T)
        order = np.argsort(goes)
        goes, kept = goes[order], kept[order]
        # Behind those are copies inside of previous runs, which stay there.
        splits = np.arange(len(self.plan.splits) + 1, dtype=np.uint64) << np.uint64(32)
        bounds = itertools.pairwise(np.searchsorted(goes, splits).tolist())
        return [
            pa.record_batch([goes[start:end].astype(np.uint32), kept[start:end]], COPIES)
            for start, end in bounds
        ]

    def finish(self) -> None:
        """Join the copies of each split."""
        super().finish()
        counters = Counters()
        with self.folder.commit(self.copies.name) as output:
            with pa.ipc.new_file(output.path(self.copies.file_name), COPIES) as file:
                for batches in self._read_found():
                    rows = join_batches(COPIES, batches).sort_by("record")
                    counters.add("exact_dedup", rows.num_rows)
                    file.write_batch(rows)
            output.record = {"counters": counters.to_json()}

    def _read_found(self) -> Iterator[tuple[pa.RecordBatch, ...]]:
        """Yield the copies of each split, task by task."""
        files = ExchangedFiles([(self.folder, self.task_ids())], self.found)
        num_splits = len(self.plan.splits)
        for first in range(0, num_splits, _SPLITS_PER_READ):
            ranges = files.find(first, min(first + _SPLITS_PER_READ, num_splits))
            yield from zip(*files.read_each(ranges), strict=True)

    def find_copies(self, split: InputSplit) -> pa.RecordBatch:
        """Return the documents of a split to drop, as COPIES; none where the phase is off."""
        if self.config.exact_dedup is None:
            return pa.record_batch([pa.nulls(0, f.type) for f in COPIES], schema=COPIES)
        return read_batch(self.folder.open(self.copies.file_name), split.index)
