"""The phase annotate: remove copies and duplicate lines, then compute the scores of the remaining text.

All scores are stored; thresholds are applied in `select`. The counters have histograms of the perplexity per language,
from which `select` may compute percentiles of the run. Band hashes of MinHash, and the n-grams to compare candidates for
near-duplicates, have files of their own, which fuzzy_clusters and fuzzy_dedup read in parts.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.phases.artifact import Artifact
from pipeline.phases.dedup.exact_dedup import ExactDedup
from pipeline.phases.dedup.paragraph_dedup import ParagraphDedup
from pipeline.phases.dedup.substring_dedup import SubstringDedup
from pipeline.phases.extract import EXTRACTED, Extract
from pipeline.phases.phase import SplitPhase
from pipeline.runs.exchange import SegmentWriter, join_batches, write_by_hash
from pipeline.runs.ngram_sets import NgramWriter
from pipeline.runs.phase_folder import PendingOutput
from pipeline.runs.split_output import DECISIONS, RowGroups, SplitWriter, read_row_groups
from stages.contract import with_columns
from stages.dedup.exact_dedup import ExactDedupFilter
from stages.dedup.minhash import MinHash, MinHashSettings
from stages.dedup.paragraphs import ParagraphRemoval
from stages.dedup.substring_dedup import DROP, SPANS, RepeatedSpans
from stages.filters.classifiers import Classifiers
from stages.filters.decontamination import Decontamination
from stages.filters.language import Language
from stages.filters.length import Length
from stages.filters.lines import Lines
from stages.filters.perplexity import Perplexity
from stages.filters.quality import Quality

# Columns that the documents file does not store.
NOT_WITH_DOCUMENTS = (
    "page_sample",
    "representative",
    "copy_by",
    "duplicate_lines",
    "repeated_spans",
    "drop_repeated",
    "minhash",
    "minhash_ngrams",
)

# The value of `exact_dedup.by` for a copy of another document; null for all others.
COPY_BY = pa.field("copy_by", pa.string())

# Hashes to find near-duplicates by, with the values that rank them and the places of their
# n-grams. So the merge does not open any documents file, and reads some sets of n-grams.
BANDS = pa.schema(
    [
        pa.field("hash", pa.uint64()),
        pa.field("record", pa.uint32()),
        pa.field("num_chars", pa.uint32()),
        pa.field("perplexity", pa.float32()),  # null without one
        pa.field("ngrams", pa.uint64()),  # null where n-grams are not stored
    ]
)

# The columns from which the files of bands and n-grams are made.
BAND_COLUMNS = ("doc_id", "minhash", "minhash_ngrams", "num_chars", "perplexity")


class Annotate(SplitPhase):
    """Remove copies and duplicate lines, then store every score of the remaining text."""

    name = "annotate"
    version = 4
    parents = (Extract, ExactDedup, ParagraphDedup, SubstringDedup)
    stages = (
        ExactDedupFilter,
        RepeatedSpans,
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

    documents = Artifact("documents.parquet", last_use="explain")  # the columns of `stored`
    decisions = Artifact("decisions.parquet", DECISIONS, grows_with="documents")
    # by hash
    bands = Artifact(
        "bands.arrow",
        BANDS,
        grows_with="band_hashes",
        last_use="previous_runs",
        has_segments=True,
    )
    # see pipeline/runs/ngram_sets.py
    ngrams = Artifact("ngrams.bin", last_use="previous_runs")

    @property
    def schema(self) -> pa.Schema:  # type: ignore[override]
        """The columns of extract, and the findings of the deduplication phases that are on."""
        duplicate_lines = pa.field("duplicate_lines", pa.list_(pa.uint32()))
        fields = [*EXTRACTED, duplicate_lines]
        if self.config.exact_dedup is not None:
            fields += [DECISIONS.field("representative"), COPY_BY]
        if self.config.substring_dedup is not None:
            fields += [SPANS, DROP]
        return pa.schema(fields)

    @property
    def stored(self) -> pa.Schema:
        """The columns of the documents file."""
        return pa.schema(
            [f for f in self.output_schema() if f.name not in NOT_WITH_DOCUMENTS]
        )

    def read(self, task_id: str, writer: SplitWriter) -> Generator[pa.Table]:
        """Yield the extracted documents, with the findings of the deduplication phases."""
        del writer
        split = self.split(task_id)
        copies = ExactDedup(self.plan).find_copies(split)
        duplicate_lines = ParagraphDedup(self.plan).find_duplicate_lines(split)
        spans = SubstringDedup(self.plan).find_spans(split)
        documents = self.plan.folder(Extract.name).open(
            Extract.documents.file_name(task_id)
        )
        for batch in read_row_groups(
            documents, batch_mb=self.config.engine.advanced.batch_mb
        ):
            records = batch.column("doc_id").to_numpy() & np.uint64(0xFFFF_FFFF)
            rows = pc.index_in(
                pa.array(records.astype(np.uint32)), value_set=copies["record"]
            )
            added = {
                "duplicate_lines": _list_by_record(records, duplicate_lines),
                "repeated_spans": _list_by_record(records, spans),
                "representative": copies["representative"].take(rows),
            }
            if self.config.exact_dedup is not None:
                by = pa.scalar(self.config.exact_dedup.by)
                added["copy_by"] = pc.if_else(pc.is_valid(rows), by, None)
            if self.config.substring_dedup is not None:
                is_drop = self.config.substring_dedup.action == "drop"
                added["drop_repeated"] = pa.repeat(is_drop, batch.num_rows)
            wanted = self.schema.names
            yield with_columns(
                batch, {name: added[name] for name in added if name in wanted}
            )

    def create_writer(self, task_id: str, output: PendingOutput) -> SplitWriter:
        """Return the writer of documents with their scores, decisions, band hashes and n-grams."""
        settings = self.config.annotate.minhash
        bands = None if settings is None else _BandWriter(settings, output, task_id)
        return _AnnotateWriter(output, task_id, self.stored, bands)


def _list_by_record(
    records: NDArray[np.uint64], values: NDArray[np.uint64]
) -> pa.ListArray:
    """Return the lower halves of values, per record: lines to remove, or bounds of spans.

    Args:
        records: (n,) record numbers, sorted.
        values: record << 32 | value, sorted.
    """
    of_record = values >> np.uint64(32)
    starts = np.searchsorted(of_record, records)
    end = np.searchsorted(of_record, records[-1], side="right")
    offsets = pa.array(np.append(starts, end), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(values.astype(np.uint32)))


class _BandWriter:
    """Writes the band hashes of one split, and the n-grams to compare near-duplicates."""

    def __init__(
        self, settings: MinHashSettings, output: PendingOutput, task_id: str
    ) -> None:
        self._output, self._name = output, Annotate.bands.file_name(task_id)
        self._rows: list[pa.RecordBatch] = []
        self._ngrams: NgramWriter | None = None
        if settings.store_ngrams:
            self._ngrams = NgramWriter(output.path(Annotate.ngrams.file_name(task_id)))

    def add(self, kept: pa.Table) -> None:
        """Add the next documents."""
        wanted = [name for name in BAND_COLUMNS if name in kept.column_names]
        documents = kept.select(wanted)  # without the texts, which the filter would copy
        documents = documents.filter(pc.is_valid(kept.column("minhash"))).combine_chunks()
        records = documents.column("doc_id").to_numpy().astype(np.uint32)  # the lower half
        hashes = pc.list_flatten(documents.column("minhash")).to_numpy()
        num_bands = len(hashes) // max(1, len(records))
        document_of_hash = pa.array(np.repeat(np.arange(len(records)), num_bands))
        columns = [pa.array(hashes)]
        values = [
            pa.array(records),
            documents.column("num_chars"),
            _get_perplexity(documents),
            self._add_ngrams(documents),
        ]
        for column, wanted in zip(values, list(BANDS)[1:], strict=True):
            columns.append(column.take(document_of_hash).cast(wanted.type))
        self._rows += pa.table(columns, schema=BANDS).combine_chunks().to_batches()

    def _add_ngrams(self, documents: pa.Table) -> pa.Array:
        if self._ngrams is None:
            return pa.nulls(documents.num_rows, pa.uint64())
        return pa.array(self._ngrams.add(documents["minhash_ngrams"].combine_chunks()))

    def close(self) -> None:
        """Finish the files of the split."""
        with SegmentWriter(self._output, self._name, BANDS) as file:
            write_by_hash(file, join_batches(BANDS, self._rows))
        if self._ngrams is not None:
            self._ngrams.close()


def _get_perplexity(documents: pa.Table) -> pa.Array | pa.ChunkedArray:
    if "perplexity" in documents.column_names:
        return documents.column("perplexity")
    return pa.nulls(documents.num_rows, pa.float32())


class _AnnotateWriter(SplitWriter):
    def __init__(
        self,
        output: PendingOutput,
        task_id: str,
        schema: pa.Schema,
        bands: _BandWriter | None,
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
            self._bands.close()
