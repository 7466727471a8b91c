"""What all questions about a run's documents have in common: reading stored rows, and adding them up.

read_output(run, Select.decisions, split.key, ["doc_id", "decision"])
read_row(run, Annotate.documents, doc_id)["text"]
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from pipeline.phases.annotate import Annotate
from pipeline.phases.artifact import Artifact
from pipeline.phases.extract import Extract
from pipeline.runs.run_folder import RunFolder
from pipeline.runs.split_output import read_matching_rows, read_table

# A row of a file: column -> value.
Row = Mapping[str, Any]

# Rows of totals that are held before equal ones are added up.
MAX_ROWS_HELD = 2**22


def open_output(run: RunFolder, artifact: Artifact, key: str) -> pa.NativeFile:
    """Open the file of an input split.

    Raises:
        FileNotFoundError: the phase has not done the split.
        DamagedOutput: the file was changed.
    """
    return run.folder(artifact.phase).open(artifact.file_name(key))


def read_output(
    run: RunFolder, artifact: Artifact, key: str, columns: Sequence[str] | None = None
) -> pa.Table:
    """Read columns of the file of an input split. Raises what `open_output` raises."""
    return read_table(open_output(run, artifact, key), columns)


def read_row(
    run: RunFolder, artifact: Artifact, doc_id: int, columns: Sequence[str] | None = None
) -> Row | None:
    """Read the row of a document, or None if the file or the row does not exist."""
    key = run.splits[doc_id >> 32].key
    with contextlib.suppress(FileNotFoundError):
        source = open_output(run, artifact, key)
        for row in read_matching_rows(source, "doc_id", doc_id, columns).to_pylist():
            return row
    return None


def read_text(run: RunFolder, doc_id: int) -> str | None:
    """Return the text of a document as annotate left it, or as it was extracted; None: not stored."""
    for artifact in (Annotate.documents, Extract.documents):
        if row := read_row(run, artifact, doc_id, ["doc_id", "text"]):
            return row["text"]
    return None


class Totals:
    """Sums of columns by groups of rows, which are added in any order.

    Memory grows with the number of groups, not with that of the rows.
    """

    def __init__(self, keys: Sequence[str], sums: Sequence[str]) -> None:
        """Start with no rows.

        Args:
            keys: the columns that make a group.
            sums: columns of int64 that are added up.
        """
        self.keys = list(keys)
        self.sums = list(sums)
        self._tables: list[pa.Table] = []
        self._max_rows = MAX_ROWS_HELD

    def add(self, rows: pa.Table) -> None:
        """Add rows that have these columns."""
        self._tables.append(add_up(rows, self.keys, self.sums))
        if sum(table.num_rows for table in self._tables) > self._max_rows:
            self._tables = [self.total()]
            # So that each row is added up a few times only, however many groups there are.
            self._max_rows = max(MAX_ROWS_HELD, 2 * self._tables[0].num_rows)

    def total(self) -> pa.Table:
        """Return the sums, a row for each group."""
        if not self._tables:
            columns = {name: pa.array([], pa.string()) for name in self.keys}
            columns |= {name: pa.array([], pa.int64()) for name in self.sums}
            return pa.table(columns)
        return add_up(pa.concat_tables(self._tables), self.keys, self.sums)


def add_up(rows: pa.Table, keys: Sequence[str], sums: Sequence[str]) -> pa.Table:
    """Return the sums of columns by groups; a group without values has null."""
    groups = rows.group_by(list(keys), use_threads=False)
    totals = groups.aggregate([(name, "sum") for name in sums])
    return totals.select([*keys, *(f"{name}_sum" for name in sums)]).rename_columns(
        [*keys, *sums]
    )


def add_ones(rows: pa.Table) -> pa.Table:
    """Return rows with a column `num_docs` of ones, to count them by adding up."""
    ones = pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows)
    return rows.append_column("num_docs", ones)
