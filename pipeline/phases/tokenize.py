"""tokenize: kept documents to token ids, in the order of the global shuffle.

Promises: a unit's tokens file and its index are sorted by order key, so that write_shards reads any range of keys
with one read; the order is a function of document ids and the seed alone.
Leaves to others: the encoders (stages/transform/tokenize.py), cutting shards.
"""

from __future__ import annotations

from collections.abc import Generator
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.config import RunConfig
from pipeline.errors import TaskFailed
from pipeline.phases.annotate import Annotate
from pipeline.phases.phase import Artifact, SplitPhase, TaskCost
from pipeline.phases.select import Select
from pipeline.phases.split_output import DECISIONS, SplitWriter, row_groups
from pipeline.planning.stage_spec import StageSpec
from pipeline.runs.phase_folder import PendingOutput
from shardwriter.format import TokenizerEntry
from stages.filters.classifiers import Classifiers
from stages.transform.pii import Pii
from stages.transform.tokenize import Tokenize

DOCUMENT_INDEX = pa.schema(
    [
        pa.field("order_key", pa.uint64(), nullable=False),
        pa.field("doc_id", pa.uint64(), nullable=False),
        pa.field(
            "token_start", pa.int64(), nullable=False
        ),  # in the unit's tokens file, counted in tokens
        pa.field("num_tokens", pa.int64(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("language", pa.string()),
        pa.field("language_score", pa.float64()),
        pa.field("perplexity", pa.float64()),
        pa.field("bucket", pa.string()),
    ]
)
"""Of a tokens file, sorted by order_key: what write_shards reads ranges of."""

PII = pa.schema([field for field in Pii.adds if field.name != "text"])
"""What is counted where there are placeholders."""


class TokenizeDocuments(SplitPhase):
    """Kept documents to token ids, in the order of the global shuffle."""

    name = "tokenize"
    version = 1
    parents = (Annotate, Select)
    stages = (Pii, Tokenize)

    tokens = Artifact("tokens.bin")  # in the order of the global shuffle
    documents = Artifact("documents.arrow", grows_with="kept")  # the columns of `index`
    decisions = Artifact("decisions.parquet", DECISIONS, grows_with="kept")

    reads = (Annotate.documents, Select.decisions)
    amounts = {"kept": "documents_kept", "tokens": "tokens"}
    cost = TaskCost(grows_with="tokens", steps={"read": "left"}, held_bytes=4)

    @classmethod
    def fingerprint_inputs(cls, config: RunConfig, num_files: int) -> dict[str, Any]:
        """Return the seed of the global shuffle."""
        del num_files
        return {"order_seed": config.write_shards.seed}

    @cached_property
    def index(self) -> pa.Schema:
        """What is told of each document beside its tokens: DOCUMENT_INDEX, scores by classifiers, what was replaced."""
        classifiers = self.config.annotate.classifiers
        scores = [] if classifiers is None else Classifiers.added_columns(classifiers)
        return pa.schema(
            [*DOCUMENT_INDEX, *scores, *([] if self.config.tokenize.pii is None else PII)]
        )

    @cached_property
    def schema(self) -> pa.Schema:  # type: ignore[override]
        """Text, and what the shards say of each document."""
        stored = Annotate(self.plan).output_schema()
        names = [
            "doc_id",
            "text",
            "num_chars",
            *(n for n in self.index.names if n in stored.names and n != "doc_id"),
        ]
        return pa.schema([*(stored.field(name) for name in names), pa.field("bucket", pa.string())])

    def read(self, task_id: str, writer: SplitWriter) -> Generator[pa.Table]:
        """Yield the texts of the documents that select kept."""
        del writer
        with self.plan.folder("select").open(Select.decisions.file_name(task_id)) as file:
            table = pq.read_table(file, columns=["doc_id", "decision", "bucket"])
        kept = table.filter(pc.equal(table.column("decision"), "kept"))
        ids = kept.column("doc_id").combine_chunks()
        for group in row_groups(
            self.plan.folder("annotate").open(Annotate.documents.file_name(task_id)),
            [n for n in self.schema.names if n != "bucket"],
            self.config.engine.advanced.batch_mb,
        ):
            place = pc.index_in(group.column("doc_id"), value_set=ids)
            found = pc.is_valid(place)
            rows = group.filter(found)
            if rows.num_rows:
                yield rows.append_column("bucket", kept.column("bucket").take(place.filter(found)))

    def create_writer(self, task_id: str, output: PendingOutput) -> SplitWriter:
        """Return the writer of the tokens file and its index."""
        dtype = describe_tokenizer(self.config).token_dtype
        return _TokenWriter(output, task_id, dtype, self.config.write_shards.seed, self.index)


class _TokenWriter(SplitWriter):
    """Tokens are spooled in input order and permuted once, by way of the page cache, when the unit is whole."""

    def __init__(
        self, output: PendingOutput, task_id: str, dtype: np.dtype[Any], seed: int, index: pa.Schema
    ) -> None:
        super().__init__(output, task_id)
        self._dtype, self._seed, self._index = dtype, seed, index
        self._spool = output.path(f"{task_id}.spool")
        self._file = self._spool.open("wb")
        self._rows: list[pa.Table] = []

    def write_kept(self, batch: pa.Table) -> None:
        tokens = batch.column("tokens").combine_chunks()
        self._file.write(tokens.flatten().to_numpy().astype(self._dtype).tobytes())
        self._rows.append(batch.select([n for n in batch.column_names if n in self._index.names]))
        for name in ("language", "bucket"):
            if name in batch.column_names:
                for row in (
                    batch.group_by(name, use_threads=False)
                    .aggregate([("num_tokens", "sum")])
                    .to_pylist()
                ):
                    self.counters.add(f"{name}_tokens.{row[name]}", row["num_tokens_sum"])

    def close(self) -> None:
        """Sort the tokens and their index by the order key, and write both."""
        super().close()
        self._file.close()
        rows = pa.concat_tables(self._rows) if self._rows else self._index.empty_table()
        doc_ids, lengths = rows.column("doc_id").to_numpy(), rows.column("num_tokens").to_numpy()
        keys = compute_order_keys(doc_ids, self._seed)
        order = np.argsort(keys)
        starts = np.cumsum(lengths) - lengths
        with self.output.path(TokenizeDocuments.tokens.file_name(self.task_id)).open("wb") as file:
            if lengths.sum():
                tokens = np.memmap(self._spool, self._dtype, "r").view(
                    np.ndarray
                )  # the slices of a memmap cost more
                for i in order:
                    file.write(tokens[starts[i] : starts[i] + lengths[i]].data)
        self._spool.unlink()
        index = rows.take(pa.array(order))
        columns = {
            "order_key": pa.array(keys[order]),
            "token_start": pa.array(np.cumsum(lengths[order]) - lengths[order]),
            **{
                name: index.column(name)
                for name in index.column_names
                if name not in ("order_key", "token_start")
            },
        }
        full = [columns.get(f.name, pa.nulls(len(order), f.type)) for f in self._index]
        with pa.ipc.new_file(
            self.output.path(TokenizeDocuments.documents.file_name(self.task_id)), self._index
        ) as out:
            out.write_table(pa.table(full, schema=self._index).combine_chunks())


def describe_tokenizer(config: RunConfig) -> TokenizerEntry:
    """What the manifest says of the tokenizer.

    Raises:
        UnitFailed: it has no token that ends a document.
    """
    stage = StageSpec(Tokenize, config.tokenize).opened()
    assert isinstance(stage, Tokenize)
    info = stage.describe()
    if info.end_of_document is None:
        raise TaskFailed(
            "tokenize.end_of_document is null, but shards need a token that ends each document; name one"
        )
    return TokenizerEntry(
        info.name, info.sha256, info.vocab_size, info.end_of_document, dict(info.special_ids)
    )


def compute_order_keys(
    doc_ids: np.ndarray[Any, Any], seed: int
) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """Places of documents in the global shuffle: a keyed bijection of 64-bit numbers, so no two documents share one.

    SplitMix64's finaliser (Steele, Lea and Flood 2014, "Fast splittable pseudorandom number generators") over the id
    plus a key that the same function makes of the seed.
    """
    key = _splitmix64(np.array([seed], np.uint64))
    return _splitmix64(doc_ids.astype(np.uint64) + key)


def _splitmix64(x: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint64]]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
