"""Fetch single records of a snapshot by their byte ranges, and read them as one WARC file."""

from __future__ import annotations

import bisect
import tempfile
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa

from pipeline.config import PageQuery
from pipeline.inputs.input_files import InputFile
from pipeline.inputs.page_index import read_pages
from pipeline.inputs.polite_reader import PoliteReader
from stages.warc.read_report import Quarantined, ReadReport
from stages.warc.reader import WarcReader
from storage import StorageSettings
from storage.errors import NotFound, ObjectChanged, StorageError
from storage.names import FileNames

# Cause of a quarantine entry -> description.
CAUSES = {"index.record_missing": "The snapshot has no record where its index says."}


@dataclass(frozen=True)
class _Page:
    """A record that was fetched, or that could not be."""

    file: str
    offset: int
    num_bytes: int
    start: int  # in the file of fetched records
    error: StorageError | None = None


def fetch_pages(
    file: InputFile,
    query: PageQuery,
    server: PoliteReader,
    storage: StorageSettings,
    open_warc: Callable[[Path], WarcReader],
    first_record: int,
) -> Generator[pa.Table, None, ReadReport]:
    """Yield the documents of the pages of a part of the index, and return the report on them.

    Args:
        file: the part of the index.
        query: the pages.
        server: reads the index and the records.
        storage: has the folder for the records.
        open_warc: returns a reader of the file of fetched records.
        first_record: records in the earlier files of the split.

    Raises:
        OSError: the server does not answer, or refuses requests for long.
    """
    assert file.part is not None
    wanted = read_pages(server, server.get_name(file.location), file.part, query)
    report = ReadReport(file.name)
    with tempfile.TemporaryDirectory(
        dir=storage.scratch_dir, prefix="corpusmill-"
    ) as folder:
        path = Path(folder) / FileNames().make(file.name)
        fetched = _fetch(server, wanted, path)
        found = [page for page in fetched if page.error is None]
        if found:
            places = _Places(found)
            warc_reader = open_warc(path)
            for table in warc_reader:
                yield places.set_in_table(table)
            report = warc_reader.report
            report.quarantine = [places.set_in_entry(each) for each in report.quarantine]
    _add_missing(report, [page for page in fetched if page.error], first_record)
    return report


def _fetch(
    reader: PoliteReader, wanted: Sequence[tuple[str, int, int]], path: Path
) -> list[_Page]:
    """Write the records of pages one after another into a file, which is a WARC file then."""
    pages: list[_Page] = []
    with path.open("wb") as target:
        for name, offset, num_bytes in wanted:
            page = _Page(name.rpartition("/")[2], offset, num_bytes, target.tell())
            try:
                target.write(reader.read_range(name, offset, offset + num_bytes))
            except (NotFound, ObjectChanged) as error:
                page = replace(page, error=error)
            pages.append(page)
    return pages


class _Places:
    """Finds the place of a record in the snapshot by its place in the file of fetched records."""

    def __init__(self, pages: Sequence[_Page]) -> None:
        self._pages = pages
        self._starts = [page.start for page in pages]

    def find(self, offset: int) -> _Page:
        """Return the page whose record has this byte."""
        return self._pages[bisect.bisect_right(self._starts, offset) - 1]

    def set_in_table(self, table: pa.Table) -> pa.Table:
        """Return documents with their places in the snapshot."""
        found = [self.find(offset) for offset in table.column("warc_offset").to_pylist()]
        columns = {
            "warc_file": pa.array([page.file for page in found], pa.string()),
            "warc_offset": pa.array([page.offset for page in found], pa.int64()),
        }
        for name, column in columns.items():
            table = table.set_column(table.schema.get_field_index(name), name, column)
        return table

    def set_in_entry(self, entry: Quarantined) -> Quarantined:
        """Return a quarantine entry with its place in the snapshot."""
        page = self.find(entry.offset or 0)
        return replace(entry, file=page.file, offset=page.offset)


def _add_missing(report: ReadReport, pages: Sequence[_Page], first_record: int) -> None:
    for page in pages:
        report.quarantine.append(
            Quarantined(
                page.file,
                first_record + report.num_records,
                page.offset,
                "index.record_missing",
                str(page.error),
                page.num_bytes,
            )
        )
        report.num_records += 1
        report.record_types["broken"] += 1
    report.check()
