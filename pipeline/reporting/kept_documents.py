"""The kept documents of a run with their scores, as tables in input order.

documents = KeptDocuments(RunFolder.open("runs/ccnet"))
documents.schema
for table in documents.read(): ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.phases.annotate import Annotate
from pipeline.phases.select import Select
from pipeline.phases.stage_spec import StageSpec
from pipeline.phases.tokenize import TokenizeDocuments
from pipeline.reporting.queries import open_output, read_output
from pipeline.retraction.retracted import read_retracted
from pipeline.runs.run_folder import RunFolder, RunNotFound, RunSplit
from pipeline.runs.split_output import DECISIONS, read_row_groups
from stages.contract import with_columns
from stages.transform.pii import Pii

BUCKET = DECISIONS.field("bucket")

# Megabytes of a table, before the documents that were dropped are left out.
BATCH_MB = 8


def read_num_tokens(
    run: RunFolder, split: RunSplit, doc_ids: pa.ChunkedArray
) -> pa.ChunkedArray:
    """Return the tokens of each document of a split, (n,) int64, null if it was not tokenized."""
    if not run.has_finished(TokenizeDocuments.name):
        return pa.chunked_array([pa.nulls(len(doc_ids), pa.int64())])
    with open_output(run, TokenizeDocuments.documents, split.key) as source:
        index = pa.ipc.open_file(source).read_all().select(["doc_id", "num_tokens"])
        tokenized = index.column("doc_id").combine_chunks()
        positions = pc.index_in(doc_ids, value_set=tokenized)
        return index.column("num_tokens").take(positions)


class KeptDocuments:
    """Reads the documents that select kept: their texts, metadata and scores.

    Documents that were retracted are left out. Texts have the placeholders for personal data
    that the texts of the shards have.
    """

    def __init__(self, run: RunFolder) -> None:
        """Open a run.

        Raises:
            RunNotFound: select is not done yet.
        """
        if not run.has_finished(Select.name):
            raise RunNotFound(
                f"{run.run_dir}: select is not done yet, so nothing is kept; run the config "
                f"to its end first"
            )
        self.run = run
        # (n,) ids, sorted
        self.retracted = read_retracted(run).ids
        self._scores = Select.list_score_columns(run.config)

    @cached_property
    def schema(self) -> pa.Schema:
        """The columns, `text` first. They depend on the config of the run."""
        schema = self._stored
        for added in self._added_by_select:
            schema = schema.append(added)
        if self._pii is not None:
            schema = self._pii.output_schema(schema)
        names = sorted(schema.names, key=lambda name: name != "text")
        return pa.schema([schema.field(name) for name in names])

    @cached_property
    def _stored(self) -> pa.Schema:
        """The columns of annotate, which are the same in every input split."""
        if not self.run.splits:
            return pa.schema([])
        key = self.run.splits[0].key
        with open_output(self.run, Annotate.documents, key) as file:
            return pq.read_schema(file).remove_metadata()

    @property
    def _added_by_select(self) -> list[pa.Field]:
        return [BUCKET, *self._scores]

    @cached_property
    def _pii(self) -> StageSpec | None:
        """The stage that replaces personal data, if the run has it."""
        for spec in TokenizeDocuments.plan_stages(self.run.config):
            if spec.stage is Pii:
                return spec
        return None

    def read(self, splits: Iterable[RunSplit] | None = None) -> Iterator[pa.Table]:
        """Yield the kept documents of input splits, in input order; None: of all splits."""
        for split in self.run.splits if splits is None else splits:
            for table in self._read_split(split):
                yield self._replace_pii(table).select(self.schema.names)

    def read_columns(self, columns: Sequence[str]) -> Iterator[pa.Table]:
        """Yield columns of annotate, without the text, of all kept documents."""
        for split in self.run.splits:
            for table in self._read_split(split, ["doc_id", *columns]):
                yield table.select(columns)

    def _read_split(
        self, split: RunSplit, columns: Sequence[str] | None = None
    ) -> Iterator[pa.Table]:
        kept = self._read_decisions(split)
        ids = kept.column("doc_id").combine_chunks()
        source = open_output(self.run, Annotate.documents, split.key)
        for group in read_row_groups(source, columns, BATCH_MB):
            rows = pc.index_in(group.column("doc_id"), value_set=ids)
            documents = group.filter(pc.is_valid(rows))
            for added in self._added_by_select:
                values = kept.column(added.name).take(rows.drop_null())
                documents = documents.append_column(added, values)
            if documents.num_rows:
                yield documents

    def _read_decisions(self, split: RunSplit) -> pa.Table:
        """Return the ids of the kept documents of a split, with what select adds to them."""
        names = ["doc_id", "decision", "bucket"]
        decisions = read_output(self.run, Select.decisions, split.key, names)
        kept = decisions.filter(pc.equal(decisions.column("decision"), "kept"))
        is_retracted = pc.is_in(kept.column("doc_id"), pa.array(self.retracted))
        kept = kept.filter(pc.invert(is_retracted))
        if len(self._scores):
            scores = read_output(self.run, Select.scores, split.key)
            rows = pc.index_in(kept.column("doc_id"), value_set=scores.column("doc_id"))
            for score in self._scores:
                kept = kept.append_column(score, scores.column(score.name).take(rows))
        return kept

    def _replace_pii(self, documents: pa.Table) -> pa.Table:
        if self._pii is None:
            return documents
        replaced = self._pii.opened().apply(documents).kept
        num_chars = pc.cast(pc.utf8_length(replaced.column("text")), pa.int64())
        return with_columns(replaced, {"num_chars": num_chars})
