"""Read a JSONL or Parquet file, or a part of it, as batches of documents.

Each row becomes a document, is skipped for a reason, or is quarantined with a cause
(stages/text_records/causes.py); the three add up. No content of a file raises an error.

    reader = TextReader(Path("part-0.jsonl.gz"), TextColumns(), split=3, batch_bytes=16 << 20)
    for table in reader:           # schema DOCUMENT; doc_id = 3 << 32 | number of the row
        ...
    reader.report.num_documents    # 41,832

The rows do not depend on `batch_bytes`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from stages.settings.warc import TextColumns
from stages.text_records import jsonl, parquet
from stages.text_records.fields import BrokenRow, Values, make_row
from stages.warc.documents import Row, Skipped
from stages.warc.input_content import InputContent
from stages.warc.read_report import Quarantined, ReadReport
from stages.warc.tables import TableBuilder

# A file is not read further if more rows than both are broken. The list of broken rows is held
# in memory.
_MAX_FAULTS = 1000
_MAX_FAULT_SHARE = 0.1


class TextReader:
    """The documents of one file or part of it. `report` is complete after the last batch."""

    def __init__(
        self,
        path: Path,
        columns: TextColumns,
        *,
        split: int,
        first_record: int = 0,
        start: int = 0,
        stop: int | None = None,
        num_bytes: int | None = None,
        batch_bytes: int,
    ) -> None:
        """Create a reader. The file is opened when iteration begins.

        Args:
            path: a local JSONL (gzip, zstd, lz4 or uncompressed) or Parquet file.
            columns: the columns to read.
            split: index of the input split, the upper 32 bits of each `doc_id`.
            first_record: records in the earlier files of the split.
            start: first row group of the part, or in an uncompressed JSONL file its first byte.
            stop: end of the part, exclusive; None: the end of the file.
            num_bytes: size of the part on disk, for the report; None: that of the file.
            batch_bytes: approximate text per batch. A batch has at least one document.
        """
        self.path = path
        self.report = ReadReport(path.name)
        self._columns = columns
        self._split = split
        self._first_record = first_record
        self._start, self._stop = start, stop
        self._num_bytes = num_bytes
        self._batch_bytes = batch_bytes

    def __iter__(self) -> Iterator[pa.Table]:
        """Yield batches of documents in the order of the file.

        Raises:
            OSError: the file cannot be opened or read (never because of its content).
        """
        size = self.path.stat().st_size
        num_bytes = size if self._num_bytes is None else self._num_bytes
        self.report = ReadReport(self.path.name, file_bytes=num_bytes)
        builder = TableBuilder(self._split, self.report, self._batch_bytes, are_pages=False)
        rows: list[Row] = []
        held_bytes = 0
        for row in self._read_documents():
            rows.append(row)
            held_bytes += len(row.content)
            if held_bytes >= self._batch_bytes:
                builder.add(b"".join([row.content for row in rows]), rows)
                yield from builder.finish()
                rows, held_bytes = [], 0
        builder.add(b"".join([row.content for row in rows]), rows)
        yield from builder.finish()
        self.report.check()

    def _read_documents(self) -> Iterator[Row]:
        """Yield the documents. Count and list all other rows in the report."""
        report = self.report
        for found in self._read_rows():
            number = self._first_record + report.num_records
            row: Row | Skipped | BrokenRow = (
                found
                if isinstance(found, BrokenRow)
                else make_row(found, self._columns, number, self.path.name)
            )
            report.num_records += 1
            report.record_types["broken" if isinstance(row, BrokenRow) else "row"] += 1
            if isinstance(row, Row):
                report.content_bytes += len(row.content)
                yield row
            elif isinstance(row, Skipped):
                report.skipped[row.reason] += 1
            else:
                self._quarantine(number, row)
                if self._has_too_many_faults():
                    self._add_fault("text.too_many_faults", row.position)
                    return
        if not report.num_records:
            self._report_no_rows()

    def _read_rows(self) -> Iterator[Values | BrokenRow]:
        with InputContent(self.path) as content:
            is_parquet = content.read_range(0, len(parquet.MAGIC)) == parquet.MAGIC
            if not is_parquet:
                yield from jsonl.read_rows(content, self._columns, self._start, self._stop)
        if is_parquet:
            yield from parquet.read_rows(self.path, self._columns, self._start, self._stop)

    def _has_too_many_faults(self) -> bool:
        num_faults = len(self.report.quarantine)
        return num_faults > max(_MAX_FAULTS, _MAX_FAULT_SHARE * self.report.num_records)

    def _report_no_rows(self) -> None:
        """Count a file without rows as skipped, and an empty one as broken."""
        report = self.report
        if not self.path.stat().st_size:
            self._add_fault("text.empty_file", 0)
            return
        report.num_records += 1
        report.record_types["row"] += 1
        report.skipped["no_rows"] += 1

    def _add_fault(self, cause: str, position: int) -> None:
        """Add a fault of the file as a whole."""
        number = self._first_record + self.report.num_records
        self.report.num_records += 1
        self.report.record_types["broken"] += 1
        self._quarantine(number, BrokenRow(position, cause, "", 0))

    def _quarantine(self, number: int, broken: BrokenRow) -> None:
        self.report.quarantine.append(
            Quarantined(
                self.path.name,
                number,
                broken.position,
                broken.cause,
                broken.detail,
                broken.skipped_bytes,
            )
        )
