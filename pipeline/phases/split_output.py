"""Writing the outputs of a task of a `SplitPhase`: decisions, counters, and Parquet files.

Parquet files do not depend on the sizes of the batches in which their rows arrive.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.runs.phase_folder import PendingOutput
from stages.contract import Counters

ROWS_PER_GROUP = 512
"""Rows of a Parquet row group. It is fixed because files must not depend on batch sizes."""

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


class SplitSink(ABC):
    """Common to all sinks: counts every row that comes in, and keeps the fates of those that were dropped."""

    def __init__(self, output: PendingOutput, task_id: str) -> None:
        self.output = output
        self.task_id = task_id
        self.counters: Counters = Counters()
        self._decisions: list[pa.Table] = []

    def add(self, kept: pa.Table, dropped: pa.Table) -> None:
        """Take the next rows."""
        self.counters.add("documents", kept.num_rows + dropped.num_rows)
        self.counters.add("documents_kept", kept.num_rows)
        if dropped.num_rows:
            reasons = dropped.group_by("reason", use_threads=False).aggregate(
                [("reason", "count"), ("dropped_chars", "sum")]
            )
            for row in reasons.to_pylist():
                self.counters.add(f"dropped.{row['reason']}", row["reason_count"])
                self.counters.add(f"dropped_chars.{row['reason']}", row["dropped_chars_sum"] or 0)
            self._decisions.append(
                make_decisions(dropped, dropped.column("reason"), dropped.column("dropped_chars"))
            )
        if kept.num_rows:
            self.take(kept)

    @abstractmethod
    def take(self, kept: pa.Table) -> None:
        """Take the next rows that are still alive."""

    def close(self, report: Mapping[str, Any]) -> None:
        """Finish the outputs."""
        del report
        table = pa.concat_tables([DECISIONS.empty_table(), *self._decisions]).sort_by("doc_id")
        write_parquet(table, self.output.path(f"{self.task_id}.decisions.parquet"))


def make_decisions(
    rows: pa.Table, decision: pa.ChunkedArray | pa.Array, num_chars: pa.ChunkedArray | pa.Array
) -> pa.Table:
    """The ledger's rows for documents whose fate is known."""
    given = {"decision": decision, "num_chars": num_chars}
    columns = [
        given.get(
            f.name,
            rows.column(f.name) if f.name in rows.column_names else pa.nulls(rows.num_rows, f.type),
        )
        for f in DECISIONS
    ]
    return pa.table(columns, schema=DECISIONS)


def write_parquet(table: pa.Table, path: Path) -> None:
    """One Parquet file in row groups of fixed size."""
    with RowGroups(path) as rows:
        rows.add(table)
        if not table.num_rows:
            rows.start(table.schema)


class RowGroups:
    """A Parquet file whose row groups have ROWS_PER_GROUP rows, however they come."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._pending: list[pa.Table] = []
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def start(self, schema: pa.Schema) -> None:
        """Begin the file, if it is not begun."""
        if self._writer is None:
            self._writer = pq.ParquetWriter(
                self._path, schema, compression="zstd", compression_level=1
            )

    def add(self, table: pa.Table) -> None:
        """Append rows."""
        self.start(table.schema)
        self._pending.append(table)
        if sum(t.num_rows for t in self._pending) >= ROWS_PER_GROUP:
            rows = pa.concat_tables(self._pending).combine_chunks()
            whole = rows.num_rows - rows.num_rows % ROWS_PER_GROUP
            for start in range(0, whole, ROWS_PER_GROUP):
                self._writer.write_table(
                    rows.slice(start, ROWS_PER_GROUP), row_group_size=ROWS_PER_GROUP
                )
            self._pending = [rows.slice(whole)] if whole < rows.num_rows else []

    def close(self) -> None:
        """Write what is left and end the file."""
        if self._pending:
            self._writer.write_table(pa.concat_tables(self._pending).combine_chunks())
            self._pending = []
        if self._writer is not None:
            self._writer.close()


def row_groups(
    source: pa.NativeFile, columns: Sequence[str] | None = None, batch_mb: float = 0
) -> Iterator[pa.Table]:
    """A Parquet file's row groups, so many at a time that they hold `batch_mb` in memory, but one at least."""
    with source, pq.ParquetFile(source) as file:
        groups: list[pa.Table] = []
        for index in range(file.num_row_groups):
            groups.append(file.read_row_group(index, columns=columns))
            if sum(group.nbytes for group in groups) >= batch_mb * 2**20:
                yield pa.concat_tables(groups)
                groups = []
        if groups:
            yield pa.concat_tables(groups)
