"""Writing and reading the outputs of a task of a `SplitPhase`: decisions, counters, and Parquet files.

Parquet files do not depend on the sizes of the batches in which their rows arrive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from pipeline.runs.phase_folder import PendingOutput
from stages.contract import Counters
from stages.warc.reader import PageTimeout

DECISIONS_SUFFIX = "decisions.parquet"

# Rows of a Parquet row group. It is fixed because files must not depend on batch sizes.
ROWS_PER_GROUP = 512

# Strings that differ from row to row. Without dictionaries of them, files are as large, and on the
# sample crawl take 0.7 to 0.9 of the CPU to write and 0.4 to 0.65 to read.
DISTINCT_STRINGS = frozenset({"url", "title", "digest", "detail", "text"})

DECISIONS = pa.schema(
    [
        pa.field("doc_id", pa.uint64(), nullable=False),
        pa.field("url", pa.string()),
        pa.field("decision", pa.string(), nullable=False),  # "kept", or the drop reason
        pa.field("value", pa.float64()),
        pa.field("limit", pa.float64()),
        pa.field("detail", pa.string()),
        pa.field("num_chars", pa.int64()),  # of the text when the decision was made
        pa.field("language", pa.string()),
        pa.field("bucket", pa.string()),
        # Of a copy or near-duplicate: the doc_id of the document that is kept in its place.
        pa.field("representative", pa.uint64()),
    ]
)


class SplitWriter(ABC):
    """Writes the outputs of one task: counts every document, and keeps the decisions on dropped ones.

    Attributes:
        output: the files, while they are being written.
        task_id: the id of the task.
        counters: of this task; they end in its done-record.
        page_timeout: the time that a page may take which the task parses.
    """

    def __init__(self, output: PendingOutput, task_id: str) -> None:
        self.output = output
        self.task_id = task_id
        self.counters: Counters = Counters()
        self.page_timeout = PageTimeout()
        self._decisions: list[pa.Table] = []

    def add_dropped(self, batch: pa.Table, dropped: pa.Table) -> None:
        """Add the documents that a stage dropped.

        Args:
            batch: the documents before the stage, with the columns of the stages before it.
            dropped: the table of dropped documents in the stage's outcome.
        """
        if not dropped.num_rows:
            return
        rows = batch.take(
            pc.index_in(dropped.column("doc_id"), value_set=batch.column("doc_id"))
        )
        decided = make_decisions(rows, dropped.column("reason"), count_chars(rows), dropped)
        self.counters.add("documents", dropped.num_rows)
        by_reason = decided.group_by("decision", use_threads=False)
        for row in by_reason.aggregate(
            [([], "count_all"), ("num_chars", "sum")]
        ).to_pylist():
            self.counters.add(f"dropped.{row['decision']}", row["count_all"])
            self.counters.add(f"dropped_chars.{row['decision']}", row["num_chars_sum"] or 0)
        self._decisions.append(decided)

    def add_kept(self, batch: pa.Table) -> None:
        """Add documents that passed all stages, in input order."""
        self.counters.add("documents", batch.num_rows)
        self.counters.add("documents_kept", batch.num_rows)
        if batch.num_rows:
            self.write_kept(batch)

    @abstractmethod
    def write_kept(self, batch: pa.Table) -> None:
        """Write documents that passed all stages. There is at least one."""

    def close(self) -> None:
        """Finish the files."""
        table = pa.concat_tables([DECISIONS.empty_table(), *self._decisions]).sort_by(
            "doc_id"
        )
        write_parquet(table, self.output.path(f"{self.task_id}.{DECISIONS_SUFFIX}"))


def count_chars(documents: pa.Table) -> pa.Array | pa.ChunkedArray:
    """Return the known numbers of characters of each document's text, (n,) int64."""
    if "text" in documents.column_names:
        return pc.cast(pc.utf8_length(documents.column("text")), pa.int64())
    if "num_chars" in documents.column_names:
        return documents.column("num_chars")
    return pa.nulls(documents.num_rows, pa.int64())


def make_decisions(
    documents: pa.Table,
    decision: pa.ChunkedArray | pa.Array,
    num_chars: pa.ChunkedArray | pa.Array,
    dropped: pa.Table | None = None,
) -> pa.Table:
    """Return the decisions on documents, as DECISIONS.

    Args:
        documents: their columns, as far as they are known.
        decision: "kept", or the drop reason.
        num_chars: the characters of their texts.
        dropped: `value`, `limit` and `detail` of the same documents, in the same order.
    """
    columns: dict[str, Any] = {}
    for source in (documents, dropped) if dropped is not None else (documents,):
        columns |= {name: source.column(name) for name in source.column_names}
    columns |= {"decision": decision, "num_chars": num_chars}
    missing = {f.name: pa.nulls(documents.num_rows, f.type) for f in DECISIONS}
    return pa.table(
        [columns.get(f.name, missing[f.name]) for f in DECISIONS], schema=DECISIONS
    )


def write_parquet(table: pa.Table, path: Path) -> None:
    """Write a table as one Parquet file with row groups of ROWS_PER_GROUP rows."""
    with RowGroups(path) as rows:
        rows.add(table)
        if not table.num_rows:
            rows.start(table.schema)


def choose_parquet_settings(schema: pa.Schema) -> dict[str, Any]:
    """Return the arguments of `pyarrow.parquet.ParquetWriter` for the files of a run."""
    strings = {field.name for field in schema if pa.types.is_string(field.type)}
    return {
        "compression": "zstd",
        # Level 2 writes in 1.2 times the CPU, and makes files 14 % smaller.
        "compression_level": 1,
        "use_dictionary": sorted(strings - DISTINCT_STRINGS),
    }


class RowGroups:
    """Writes a Parquet file with row groups of ROWS_PER_GROUP rows, for tables of any size."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: list[pa.Table] = []
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self, schema: pa.Schema) -> None:
        """Create the file, unless it exists."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._path, schema, **choose_parquet_settings(schema)
            )

    def add(self, table: pa.Table) -> None:
        """Append rows."""
        self.start(table.schema)
        self._pending.append(table)
        if sum(t.num_rows for t in self._pending) >= ROWS_PER_GROUP:
            rows = pa.concat_tables(self._pending)
            whole = rows.num_rows - rows.num_rows % ROWS_PER_GROUP
            for start in range(0, whole, ROWS_PER_GROUP):
                # Only a group with rows of several chunks is copied.
                group = rows.slice(start, ROWS_PER_GROUP).combine_chunks()
                self._writer.write_table(group, row_group_size=ROWS_PER_GROUP)
            self._pending = [rows.slice(whole)] if whole < rows.num_rows else []

    def close(self) -> None:
        """Write the remaining rows and finish the file."""
        if self._pending:
            self._writer.write_table(pa.concat_tables(self._pending).combine_chunks())
            self._pending = []
        if self._writer is not None:
            self._writer.close()


def read_table(source: pa.NativeFile, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a Parquet file in this thread, and close it.

    With pre_buffer a thread of Arrow reads the file, and may release it after this function has
    returned. If Python is exiting then, the thread cannot get Python's lock, and the process aborts:
    one command in eight that ended right after a read did.
    """
    with source, pq.ParquetFile(source, pre_buffer=False) as file:
        return file.read(columns=columns, use_threads=False)


def read_matching_rows(
    source: pa.NativeFile, column: str, value: Any, columns: Sequence[str] | None = None
) -> pa.Table:
    """Read the rows of a Parquet file with this value in a column, as `read_table` does.

    Row groups whose statistics exclude the value are skipped.
    """
    with source, pq.ParquetFile(source, pre_buffer=False) as file:
        index = file.schema_arrow.get_field_index(column)
        names = list(columns) if columns is not None else file.schema_arrow.names
        found: list[pa.Table] = [file.schema_arrow.empty_table().select(names)]
        for number in range(file.num_row_groups):
            if _excludes(file.metadata.row_group(number).column(index), value):
                continue
            wanted = dict.fromkeys([*names, column])
            rows = file.read_row_group(number, list(wanted), use_threads=False)
            matching = rows.filter(pc.equal(rows.column(column), value))
            found.append(matching.select(names))
        return pa.concat_tables(found)


def _excludes(chunk: pq.ColumnChunkMetaData, value: Any) -> bool:
    statistics = chunk.statistics
    if statistics is None or not statistics.has_min_max:
        return False
    return not statistics.min <= value <= statistics.max


def read_row_groups(
    source: pa.NativeFile, columns: Sequence[str] | None = None, batch_mb: float = 0
) -> Iterator[pa.Table]:
    """Yield tables of whole row groups, each of at least `batch_mb` MB in memory, except the last."""
    with source, pq.ParquetFile(source) as file:
        groups: list[pa.Table] = []
        num_bytes = 0
        for index in range(file.num_row_groups):
            groups.append(file.read_row_group(index, columns=columns))
            num_bytes += groups[-1].nbytes
            if num_bytes >= batch_mb * 2**20:
                yield pa.concat_tables(groups)
                groups, num_bytes = [], 0
        if groups:
            yield pa.concat_tables(groups)
