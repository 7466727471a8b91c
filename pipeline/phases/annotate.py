"""annotate: drop copies and repeated paragraphs, then score what is left. Every score is stored.

Promises: each document that still has text is stored with it and with all its scores; the tally holds histograms of
perplexity per language, from which select may take percentiles of the run. Hashes of MinHash bands go into a file of
their own, which near_deduplicate reads by range, and what there is to verify by, signatures or runs of words, into
another.
Leaves to others: decisions (select).
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.phases.exact_dedup import Copies
from pipeline.phases.extract import EXTRACTED
from pipeline.phases.hash_partitions import write_buckets
from pipeline.phases.paragraph_dedup import Deduplicate
from pipeline.phases.phase import FATE, RowGroups, UnitPhase, UnitSink, flow_schema, row_groups
from pipeline.runs.phase_folder import Task
from stages.contract import with_columns
from stages.dedup.minhash import MinHashSettings
from stages.filters import perplexity
from stages.filters.decontamination import CONTAMINATION

NOT_WITH_DOCUMENTS = ("representative", "copy_by", "duplicate_lines", "minhash", "minhash_signature", "minhash_ngrams")
"""Columns of the flow that are not stored in the documents file."""

COPY_BY = pa.field("copy_by", pa.string())
"""In what a document is the copy of another (the config's copies.by); null: there is no other."""

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


def documents_file(work: str) -> str:
    """Documents with their scores, in input order."""
    return f"{work}.documents.parquet"


def bands_file(work: str) -> str:
    """Hash of each band of each document, as BANDS, by range of hashes (buckets.py)."""
    return f"{work}.bands.arrow"


def signatures_file(work: str) -> str:
    """One record batch: `record` uint32, `signature` fixed-size list of uint32, in input order."""
    return f"{work}.signatures.arrow"


def ngrams_file(work: str) -> str:
    """One record batch of NGRAMS, in input order."""
    return f"{work}.ngrams.arrow"


NGRAMS = pa.schema([pa.field("record", pa.uint32()), pa.field("ngrams", pa.large_list(pa.uint64()))])
"""The hashes of a document's runs of words, each once, sorted."""


class Annotate(UnitPhase):
    """Drop repeated paragraphs, then score what is left. Every score is stored."""

    name = "annotate"

    @property
    def schema(self) -> pa.Schema:  # type: ignore[override]
        """What extract stored, which lines have to go, and where copies are looked for, whose copy the document is."""
        of_copies = [] if self.config.copies is None else [FATE.field("representative"), COPY_BY]
        return pa.schema([*EXTRACTED, pa.field("duplicate_lines", pa.list_(pa.uint32())), *of_copies])

    @property
    def stored(self) -> pa.Schema:
        """The columns of the documents file."""
        return pa.schema([f for f in flow_schema(self) if f.name not in NOT_WITH_DOCUMENTS])

    def read(self, work: str) -> Generator[pa.Table, None, dict[str, Any]]:
        """The unit's documents, with what copies and deduplicate found beside them."""
        unit = self.unit(work)
        copies = Copies(self.plan).copies_of(unit)
        repeats = Deduplicate(self.plan).repeats_of(unit)
        records, lines = repeats >> np.uint64(32), repeats.astype(np.uint32)
        documents = self.plan.folder("extract").open(f"{work}.documents.parquet")
        for table in row_groups(documents, batch_mb=self.config.engine.batch_mb):
            wanted = table.column("doc_id").to_numpy() & np.uint64(0xFFFF_FFFF)
            offsets = np.append(np.searchsorted(records, wanted), np.searchsorted(records, wanted[-1], side="right"))
            column = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(lines))
            place = pc.index_in(pa.array(wanted.astype(np.uint32)), value_set=copies["record"])
            added = {"duplicate_lines": column, "representative": copies["representative"].take(place)}
            if self.config.copies is not None:
                added["copy_by"] = pc.if_else(pc.is_valid(place), pa.scalar(self.config.copies.by), None)
            yield with_columns(table, {name: added[name] for name in self.schema.names if name in added})
        return {}

    def sink(self, work: str, task: Task) -> UnitSink:
        """Documents with their scores, fates, histograms of perplexity, band hashes and signatures."""
        bands = None if self.config.annotate.minhash is None else _Bands(self.config.annotate.minhash)
        return _AnnotateSink(task, work, self.stored, bands)


class _Bands:
    """The band hashes of one unit, and where it is wanted what pairs are verified by."""

    def __init__(self, settings: MinHashSettings) -> None:
        self._settings = settings
        self._rows: list[pa.RecordBatch] = []
        self._verified_by: list[pa.RecordBatch] = []

    def add(self, kept: pa.Table) -> int:
        """Take the next documents; how many band hashes they have."""
        documents = kept.filter(pc.is_valid(kept.column("minhash"))).combine_chunks()
        records = documents.column("doc_id").to_numpy().astype(np.uint32)  # the lower half
        hashes = pc.list_flatten(documents.column("minhash")).to_numpy()
        of_document = pa.array(np.repeat(np.arange(len(records)), len(hashes) // max(1, len(records))))
        columns = [pa.array(records), documents.column("num_chars"), _perplexity(documents)]
        repeated = [column.take(of_document).cast(f.type) for column, f in zip(columns, list(BANDS)[1:], strict=True)]
        rows = pa.table([pa.array(hashes), *repeated], schema=BANDS)
        self._rows += rows.combine_chunks().to_batches()
        if self._settings.verify == "exact":
            lists = documents.column("minhash_ngrams").combine_chunks()
            self._verified_by.append(pa.record_batch([pa.array(records), lists], schema=NGRAMS))
        elif self._settings.verify:
            values = pc.list_flatten(documents.column("minhash_signature")).combine_chunks()
            lists = pa.FixedSizeListArray.from_arrays(values, self._settings.num_permutations)
            self._verified_by.append(pa.record_batch([pa.array(records), lists], names=["record", "signature"]))
        return len(hashes)

    def write(self, task: Task, work: str) -> None:
        """Write the files of the unit."""
        write_buckets(task.path(bands_file(work)), _one_batch(BANDS, self._rows))
        if self._settings.verify == "exact":
            _write_one_batch(task.path(ngrams_file(work)), NGRAMS, self._verified_by)
        elif self._settings.verify:
            lists = pa.list_(pa.uint32(), self._settings.num_permutations)
            schema = pa.schema([pa.field("record", pa.uint32()), pa.field("signature", lists)])
            _write_one_batch(task.path(signatures_file(work)), schema, self._verified_by)


def _perplexity(documents: pa.Table) -> pa.Array | pa.ChunkedArray:
    has_it = "perplexity" in documents.column_names
    return documents.column("perplexity") if has_it else pa.nulls(documents.num_rows, pa.float32())


def _write_one_batch(path: Path, schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> None:
    with pa.ipc.new_file(path, schema) as file:
        file.write_batch(_one_batch(schema, batches))


def _one_batch(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    empty = pa.record_batch([pa.nulls(0, f.type) for f in schema], schema=schema)
    return pa.concat_batches([empty, *batches])


class _AnnotateSink(UnitSink):
    def __init__(self, task: Task, work: str, schema: pa.Schema, bands: _Bands | None) -> None:
        super().__init__(task, work)
        self._schema, self._bands = schema, bands
        self._documents = RowGroups(task.path(documents_file(work)))

    def add(self, kept: pa.Table, dropped: pa.Table) -> None:
        super().add(kept, dropped)
        if "chars_removed" in kept.column_names:
            for rows in (kept, dropped):
                self.tally.add("chars_removed", pc.sum(rows.column("chars_removed")).as_py() or 0)

    def take(self, kept: pa.Table) -> None:
        if self._bands is not None:
            self.tally.add("band_hashes", self._bands.add(kept))
        kept = kept.select(self._schema.names)
        self._documents.add(kept)
        self.tally.add("chars", pc.sum(kept.column("num_chars")).as_py())
        self.tally.add("paragraphs", pc.sum(kept.column("num_lines")).as_py())
        if "lines_removed" in kept.column_names:
            self.tally.add("lines_removed", pc.sum(pc.list_value_length(kept.column("lines_removed"))).as_py() or 0)
        languages = kept.column("language")
        for count in pc.value_counts(languages.drop_null()).to_pylist():
            self.tally.add(f"language.{count['values']}", count["counts"])
        if CONTAMINATION.name in kept.column_names:
            found = pc.list_flatten(kept.column(CONTAMINATION.name))
            shared = pa.table({name: pc.struct_field(found, name) for name in ("set", "words")})
            sums = shared.group_by("set", use_threads=False).aggregate([("words", "count"), ("words", "sum")])
            for row in sums.to_pylist():
                self.tally.add(f"contaminated.{row['set']}", row["words_count"])
                self.tally.add(f"contaminated_words.{row['set']}", row["words_sum"])
        if "perplexity" in kept.column_names:
            for language in pc.unique(languages.filter(pc.is_valid(kept.column("perplexity")))).to_pylist():
                mine = kept.filter(pc.equal(languages, language)).column("perplexity").drop_null()
                self.tally.observe(f"perplexity.{language}", perplexity.bins(mine.to_numpy()).tolist())

    def close(self, report: Mapping[str, Any]) -> None:
        super().close(report)
        self._documents.start(self._schema)
        self._documents.close()
        if self._bands is not None:
            self._bands.write(self.task, self.work)
