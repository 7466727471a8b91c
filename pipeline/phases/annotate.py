"""annotate: drop copies and repeated paragraphs, then score what is left. Every score is stored.

Promises: each document that still has text is stored with it and with all its scores; the tally holds histograms of
perplexity per language, from which select may take percentiles of the run. Hashes of MinHash bands go into a file of
their own, which fuzzy_dedup reads by range, and what there is to verify by, signatures or runs of words, into
another.
Leaves to others: decisions (select).
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.phases.exact_dedup import ExactDedup
from pipeline.phases.extract import EXTRACTED, Extract
from pipeline.phases.hash_partitions import write_buckets
from pipeline.phases.paragraph_dedup import ParagraphDedup
from pipeline.phases.phase import Artifact, SplitPhase, TaskCost
from pipeline.phases.split_output import DECISIONS, RowGroups, SplitWriter, row_groups
from pipeline.runs.phase_folder import PendingOutput
from stages.contract import with_columns
from stages.dedup.exact_dedup import ExactDedupFilter
from stages.dedup.minhash import MinHash, MinHashSettings
from stages.dedup.paragraphs import ParagraphRemoval
from stages.filters.classifiers import Classifiers
from stages.filters.decontamination import Decontamination
from stages.filters.language import Language
from stages.filters.length import Length
from stages.filters.lines import Lines
from stages.filters.perplexity import Perplexity
from stages.filters.quality import Quality

NOT_WITH_DOCUMENTS = (
    "representative",
    "copy_by",
    "duplicate_lines",
    "minhash",
    "minhash_signature",
    "minhash_ngrams",
)
"""Columns of the flow that are not stored in the documents file."""

COPY_BY = pa.field("copy_by", pa.string())
"""In what a document is the copy of another (the config's exact_dedup.by); null: there is no other."""

BANDS = pa.schema(
    [
        pa.field("hash", pa.uint64()),
        pa.field("record", pa.uint32()),
        pa.field("num_chars", pa.uint32()),
        pa.field("perplexity", pa.float32()),  # null without one
    ]
)
"""By what near-duplicates are found, and beside each hash what decides which of them stays: so nobody has to look into
the documents of every unit for the few that matter."""


NGRAMS = pa.schema(
    [pa.field("record", pa.uint32()), pa.field("ngrams", pa.large_list(pa.uint64()))]
)
"""The hashes of a document's runs of words, each once, sorted."""


class Annotate(SplitPhase):
    """Drop repeated paragraphs, then score what is left. Every score is stored."""

    name = "annotate"
    version = 2
    parents = (Extract, ExactDedup, ParagraphDedup)
    stages = (
        ExactDedupFilter,
        ParagraphRemoval,
        Lines,
        Length,
        Language,
        Perplexity,
        Classifiers,
        Quality,
        Decontamination,
        MinHash,
    )
    filters = {ExactDedupFilter: ExactDedup}

    documents = Artifact("documents.parquet")  # the columns of `stored`
    decisions = Artifact("decisions.parquet", DECISIONS, grows_with="documents")
    bands = Artifact("bands.arrow", BANDS, grows_with="band_hashes")  # by range of hashes
    signatures = Artifact("signatures.arrow")  # one record batch of `record`, `signature`
    ngrams = Artifact("ngrams.arrow", NGRAMS)  # one record batch

    reads = (Extract.documents, ParagraphDedup.duplicate_lines)
    amounts = {
        "left": "chars",
        "scored": "documents_kept",
        "band_hashes": "band_hashes",
    }
    cost = TaskCost(
        grows_with="left",
        steps={"read": "text", "paragraphs": "text"},
        held_bytes=64,
        held_per="band_hashes",
        # measured with 10,000 splits
        open_artifact_s={ParagraphDedup.duplicate_lines: 0.0004},
    )

    @property
    def schema(self) -> pa.Schema:  # type: ignore[override]
        """What extract stored, which lines have to go, and where copies are looked for, whose copy the document is."""
        of_copies = (
            [] if self.config.exact_dedup is None else [DECISIONS.field("representative"), COPY_BY]
        )
        return pa.schema(
            [*EXTRACTED, pa.field("duplicate_lines", pa.list_(pa.uint32())), *of_copies]
        )

    @property
    def stored(self) -> pa.Schema:
        """The columns of the documents file."""
        return pa.schema([f for f in self.output_schema() if f.name not in NOT_WITH_DOCUMENTS])

    def read(self, task_id: str, writer: SplitWriter) -> Generator[pa.Table]:
        """Yield the extracted documents, with the findings of exact_dedup and paragraph_dedup."""
        del writer
        split = self.split(task_id)
        copies = ExactDedup(self.plan).find_copies(split)
        duplicate_lines = ParagraphDedup(self.plan).find_duplicate_lines(split)
        records, lines = duplicate_lines >> np.uint64(32), duplicate_lines.astype(np.uint32)
        documents = self.plan.folder("extract").open(Extract.documents.file_name(task_id))
        for table in row_groups(documents, batch_mb=self.config.engine.advanced.batch_mb):
            wanted = table.column("doc_id").to_numpy() & np.uint64(0xFFFF_FFFF)
            offsets = np.append(
                np.searchsorted(records, wanted), np.searchsorted(records, wanted[-1], side="right")
            )
            column = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(lines))
            place = pc.index_in(pa.array(wanted.astype(np.uint32)), value_set=copies["record"])
            added = {
                "duplicate_lines": column,
                "representative": copies["representative"].take(place),
            }
            if self.config.exact_dedup is not None:
                added["copy_by"] = pc.if_else(
                    pc.is_valid(place), pa.scalar(self.config.exact_dedup.by), None
                )
            yield with_columns(
                table, {name: added[name] for name in self.schema.names if name in added}
            )

    def create_writer(self, task_id: str, output: PendingOutput) -> SplitWriter:
        """Return the writer of documents with their scores, decisions, band hashes and signatures."""
        bands = (
            None if self.config.annotate.minhash is None else _Bands(self.config.annotate.minhash)
        )
        return _AnnotateWriter(output, task_id, self.stored, bands)


class _Bands:
    """The band hashes of one unit, and where it is wanted what pairs are verified by."""

    def __init__(self, settings: MinHashSettings) -> None:
        self._settings = settings
        self._rows: list[pa.RecordBatch] = []
        self._verified_by: list[pa.RecordBatch] = []

    def add(self, kept: pa.Table) -> None:
        """Add the next documents."""
        documents = kept.filter(pc.is_valid(kept.column("minhash"))).combine_chunks()
        records = documents.column("doc_id").to_numpy().astype(np.uint32)  # the lower half
        hashes = pc.list_flatten(documents.column("minhash")).to_numpy()
        of_document = pa.array(
            np.repeat(np.arange(len(records)), len(hashes) // max(1, len(records)))
        )
        columns = [pa.array(records), documents.column("num_chars"), _perplexity(documents)]
        repeated = [
            column.take(of_document).cast(f.type)
            for column, f in zip(columns, list(BANDS)[1:], strict=True)
        ]
        rows = pa.table([pa.array(hashes), *repeated], schema=BANDS)
        self._rows += rows.combine_chunks().to_batches()
        if self._settings.verify == "exact":
            lists = documents.column("minhash_ngrams").combine_chunks()
            self._verified_by.append(pa.record_batch([pa.array(records), lists], schema=NGRAMS))
        elif self._settings.verify:
            values = pc.list_flatten(documents.column("minhash_signature")).combine_chunks()
            lists = pa.FixedSizeListArray.from_arrays(values, self._settings.num_permutations)
            self._verified_by.append(
                pa.record_batch([pa.array(records), lists], names=["record", "signature"])
            )

    def write(self, output: PendingOutput, task_id: str) -> None:
        """Write the files of the unit."""
        write_buckets(output.path(Annotate.bands.file_name(task_id)), _one_batch(BANDS, self._rows))
        if self._settings.verify == "exact":
            _write_one_batch(
                output.path(Annotate.ngrams.file_name(task_id)), NGRAMS, self._verified_by
            )
        elif self._settings.verify:
            lists = pa.list_(pa.uint32(), self._settings.num_permutations)
            schema = pa.schema([pa.field("record", pa.uint32()), pa.field("signature", lists)])
            _write_one_batch(
                output.path(Annotate.signatures.file_name(task_id)), schema, self._verified_by
            )


def _perplexity(documents: pa.Table) -> pa.Array | pa.ChunkedArray:
    has_it = "perplexity" in documents.column_names
    return documents.column("perplexity") if has_it else pa.nulls(documents.num_rows, pa.float32())


def _write_one_batch(path: Path, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> None:
    with pa.ipc.new_file(path, schema) as file:
        file.write_batch(_one_batch(schema, batches))


def _one_batch(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    empty = pa.record_batch([pa.nulls(0, f.type) for f in schema], schema=schema)
    return pa.concat_batches([empty, *batches])


class _AnnotateWriter(SplitWriter):
    def __init__(
        self, output: PendingOutput, task_id: str, schema: pa.Schema, bands: _Bands | None
    ) -> None:
        super().__init__(output, task_id)
        self._schema, self._bands = schema, bands
        self._documents = RowGroups(output.path(Annotate.documents.file_name(task_id)))

    def write_kept(self, batch: pa.Table) -> None:
        if self._bands is not None:
            self._bands.add(batch)
        documents = batch.select(self._schema.names)
        self._documents.add(documents)
        self.counters.add("chars", pc.sum(documents.column("num_chars")).as_py())
        self.counters.add("paragraphs", pc.sum(documents.column("num_lines")).as_py())

    def close(self) -> None:
        """Finish the documents, and write the band hashes."""
        super().close()
        self._documents.start(self._schema)
        self._documents.close()
        if self._bands is not None:
            self._bands.write(self.output, self.task_id)
