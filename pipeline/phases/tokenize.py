"""The phase tokenize: make token ids of the kept documents, in the order of the global shuffle.

The tokens file of a split and its index are sorted by order key, so write_shards reads any range of keys with one
read. The order depends on document ids and the seed alone.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.errors import TaskFailed
from pipeline.phases.annotate import Annotate
from pipeline.phases.artifact import Artifact
from pipeline.phases.phase import SplitPhase
from pipeline.phases.select import Select
from pipeline.phases.stage_spec import StageSpec
from pipeline.runs.exchange import join_batches, write_sorted
from pipeline.runs.phase_folder import PendingOutput
from pipeline.runs.split_output import DECISIONS, SplitWriter, read_row_groups, read_table
from shardwriter.format import TokenizerEntry
from stages.contract import with_columns
from stages.filters.classifiers import Classifiers
from stages.filters.score import QUALITY_SCORE
from stages.kernels.splitmix import GOLDEN, mix_bits
from stages.mixing.mix import COPY_SHIFT, NUM_COPIES, QUALITY_BIN
from stages.transform.pii import Pii
from stages.transform.tokenize import Tokenize

# Rows of a record batch of the index: 40 kB. A shard reads whole batches.
DOCS_PER_BATCH = 256

# The index of a tokens file, sorted by order_key.
DOCUMENT_INDEX = pa.schema(
    [
        pa.field("order_key", pa.uint64(), nullable=False),
        pa.field("doc_id", pa.uint64(), nullable=False),
        # Position in the split's tokens file, counted in tokens.
        pa.field("token_start", pa.int64(), nullable=False),
        pa.field("num_tokens", pa.int64(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("language", pa.string()),
        pa.field("language_score", pa.float64()),
        pa.field("perplexity", pa.float64()),
        pa.field("bucket", pa.string()),
    ]
)

# The numbers of replaced items, if placeholders are on.
PII = pa.schema([field for field in Pii.adds if field.name != "text"])


class TokenizeDocuments(SplitPhase):
    """Make token ids of the kept documents, in the order of the global shuffle."""

    name = "tokenize"
    version = 3
    parents = (Annotate, Select)
    stages = (Pii, Tokenize)

    tokens = Artifact("tokens.bin", last_use="run")  # in the order of the global shuffle
    documents = Artifact("documents.arrow", grows_with="kept")  # the columns of `index`
    decisions = Artifact("decisions.parquet", DECISIONS, grows_with="kept")

    @classmethod
    def fingerprint_inputs(cls, config: RunConfig, num_files: int) -> dict[str, Any]:
        """Return the seed of the global shuffle."""
        del num_files
        return {"order_seed": config.write_shards.seed}

    @cached_property
    def index(self) -> pa.Schema:
        """The columns of the index: DOCUMENT_INDEX, scores, and numbers of replaced items."""
        classifiers = self.config.annotate.classifiers
        scores = [] if classifiers is None else Classifiers.added_columns(classifiers)
        quality = [] if self.config.select.score is None else [QUALITY_SCORE]
        copies = [] if self.config.select.mix is None else [NUM_COPIES]
        replaced = [] if self.config.tokenize.pii is None else PII
        return pa.schema([*DOCUMENT_INDEX, *scores, *quality, *copies, *replaced])

    @cached_property
    def schema(self) -> pa.Schema:  # type: ignore[override]
        """The text, and the stored columns that the index has."""
        stored = Annotate(self.plan).output_schema()
        indexed = [name for name in self.index.names if name in stored.names]
        names = dict.fromkeys(["doc_id", "text", "num_chars", *indexed])  # each once
        columns = [stored.field(name) for name in names]
        decided = Select.list_score_columns(self.config)
        return pa.schema([*columns, pa.field("bucket", pa.string()), *decided])

    def read(self, task_id: str, writer: SplitWriter) -> Generator[pa.Table]:
        """Yield the texts of the documents that select kept."""
        del writer
        source = self.plan.folder(Select.name).open(Select.decisions.file_name(task_id))
        decisions = read_table(source, ["doc_id", "decision", "bucket"])
        kept = decisions.filter(pc.equal(decisions.column("decision"), "kept"))
        decided = kept.drop_columns("decision")
        for name, column in self._read_scores(task_id, kept.column("doc_id")).items():
            decided = decided.append_column(name, column)
        kept_ids = kept.column("doc_id").combine_chunks()
        documents = self.plan.folder(Annotate.name).open(
            Annotate.documents.file_name(task_id)
        )
        added = [name for name in decided.column_names if name != "doc_id"]
        names = [name for name in self.schema.names if name not in added]
        for batch in read_row_groups(
            documents, names, self.config.engine.advanced.batch_mb
        ):
            rows = pc.index_in(batch.column("doc_id"), value_set=kept_ids)
            is_kept = pc.is_valid(rows)
            found = batch.filter(is_kept)
            if found.num_rows:
                found_rows = rows.filter(is_kept)
                columns = {name: decided.column(name).take(found_rows) for name in added}
                yield with_columns(found, columns)

    def _read_scores(
        self, task_id: str, doc_ids: pa.ChunkedArray
    ) -> dict[str, pa.ChunkedArray]:
        """Return the scores that select has stored of documents: column -> values, (n,)."""
        names = Select.list_score_columns(self.config).names
        if not names:
            return {}
        source = self.plan.folder(Select.name).open(Select.scores.file_name(task_id))
        stored = read_table(source)
        rows = pc.index_in(doc_ids, value_set=stored.column("doc_id").combine_chunks())
        return {name: stored.column(name).take(rows) for name in names}

    def create_writer(self, task_id: str, output: PendingOutput) -> SplitWriter:
        """Return the writer of the tokens file and its index."""
        dtype = describe_tokenizer(self.config).token_dtype
        return _TokenWriter(
            output, task_id, dtype, self.config.write_shards.seed, self.index
        )


class _TokenWriter(SplitWriter):
    """Writes tokens in input order, and sorts them once at the end, in the page cache."""

    def __init__(
        self,
        output: PendingOutput,
        task_id: str,
        dtype: np.dtype[Any],
        seed: int,
        index: pa.Schema,
    ) -> None:
        super().__init__(output, task_id)
        self._dtype = dtype
        self._seed = seed
        self._index = index
        self._unsorted = output.path(f"{task_id}.unsorted")
        self._unsorted.touch()
        self._rows: list[pa.Table] = []

    def write_kept(self, batch: pa.Table) -> None:
        tokens = batch.column("tokens").combine_chunks()
        # Opened for each batch, because a task that fails does not close its writer.
        with self._unsorted.open("ab") as file:
            file.write(tokens.flatten().to_numpy().astype(self._dtype).data)
        self._rows.append(
            batch.select([n for n in batch.column_names if n in self._index.names])
        )
        names = ["language", "bucket"]
        counted = batch
        if NUM_COPIES.name in batch.column_names:
            names.append(QUALITY_BIN.name)
            counted = self._count_copies(batch)
        for name in names:
            if name in counted.column_names:
                groups = counted.group_by(name, use_threads=False)
                for row in groups.aggregate([("num_tokens", "sum")]).to_pylist():
                    self.counters.add(f"{name}_tokens.{row[name]}", row["num_tokens_sum"])

    def _count_copies(self, batch: pa.Table) -> pa.Table:
        """Count the copies beside the first ones. Return the batch with the tokens of all."""
        copies = pc.cast(batch.column(NUM_COPIES.name), pa.int64())
        num_tokens = pc.multiply(copies, batch.column("num_tokens"))
        num_extra = pc.subtract(pc.sum(copies), batch.num_rows)
        self.counters.add("extra_copies", num_extra.as_py())
        own = pc.sum(batch.column("num_tokens"))
        num_extra_tokens = pc.subtract(pc.sum(num_tokens), own)
        self.counters.add("extra_tokens", num_extra_tokens.as_py())
        return with_columns(batch, {"num_tokens": num_tokens})

    def close(self) -> None:
        """Sort the tokens and their index by the order key, and write both."""
        super().close()
        rows = pa.concat_tables(self._rows) if self._rows else self._index.empty_table()
        lengths = rows.column("num_tokens").to_numpy()
        documents, doc_ids = list_copies(rows)
        keys = compute_order_keys(doc_ids, self._seed)
        order = np.argsort(keys)
        documents = documents[order]
        self._write_tokens(documents, lengths)
        self._unsorted.unlink()
        copied = rows.take(pa.array(documents))
        copied = with_columns(copied, {"doc_id": pa.array(doc_ids[order])})
        self._write_index(copied, keys[order], lengths[documents])

    def _write_tokens(self, order: NDArray[np.int64], lengths: NDArray[np.int64]) -> None:
        """Write the documents' tokens in the given order; a document may occur repeatedly."""
        starts = np.cumsum(lengths) - lengths
        path = self.output.path(TokenizeDocuments.tokens.file_name(self.task_id))
        with path.open("wb") as file:
            if not lengths.sum():
                return  # an empty file cannot be mapped
            # As a plain array, because slices of a memmap object are slow.
            tokens = np.memmap(self._unsorted, self._dtype, "r").view(np.ndarray)
            for i in order:
                file.write(tokens[starts[i] : starts[i] + lengths[i]].data)

    def _write_index(
        self, rows: pa.Table, keys: NDArray[np.uint64], lengths: NDArray[np.int64]
    ) -> None:
        """Write the index; all arguments are in the order of the keys."""
        columns: dict[str, Any] = {name: rows.column(name) for name in rows.column_names}
        columns["order_key"] = pa.array(keys)
        columns["token_start"] = pa.array(np.cumsum(lengths) - lengths)
        missing = {f.name: pa.nulls(len(keys), f.type) for f in self._index}
        ordered = [columns.get(f.name, missing[f.name]) for f in self._index]
        path = self.output.path(TokenizeDocuments.documents.file_name(self.task_id))
        batches = pa.table(ordered, schema=self._index).to_batches()
        index = join_batches(self._index, batches)
        write_sorted(path, index, DOCS_PER_BATCH)


def list_copies(rows: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Return the rows of an index as often as their documents have copies, with the ids of these.

    Returns:
        (m,) int64, the numbers of the rows, and (m,) uint64: copy k of a document, from 0, has the
        id doc_id + k * 2**COPY_SHIFT, so that each has its own place in the global shuffle.
    """
    doc_ids = rows.column("doc_id").to_numpy()
    if NUM_COPIES.name not in rows.column_names:
        return np.arange(len(doc_ids)), doc_ids
    copies = rows.column(NUM_COPIES.name).to_numpy().astype(np.int64)
    documents = np.repeat(np.arange(len(doc_ids)), copies)
    numbers = np.arange(len(documents)) - np.repeat(np.cumsum(copies) - copies, copies)
    return documents, doc_ids[documents] + (
        numbers.astype(np.uint64) << np.uint64(COPY_SHIFT)
    )


def describe_tokenizer(config: RunConfig) -> TokenizerEntry:
    """Return the tokenizer's entry in the manifest.

    Raises:
        TaskFailed: it has no token that ends a document.
    """
    stage = StageSpec(Tokenize, config.tokenize).opened()
    assert isinstance(stage, Tokenize)
    info = stage.describe()
    if info.end_of_document is None:
        raise TaskFailed(
            "tokenize.end_of_document is null, but shards need a token that ends each document; "
            "set it to the name of a token"
        )
    return TokenizerEntry(
        info.name,
        info.sha256,
        info.vocab_size,
        info.end_of_document,
        dict(info.special_ids),
    )


def compute_order_keys(
    doc_ids: np.ndarray[Any, Any], seed: int
) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Return the sort keys of documents in the global shuffle.

    The function is a keyed bijection of 64-bit numbers, so two documents never have the same key: SplitMix64 of the id
    plus a key, which is the same function of the seed.
    """
    key = mix_bits(np.array([seed], np.uint64) + GOLDEN)
    return mix_bits(doc_ids.astype(np.uint64) + key + GOLDEN)
