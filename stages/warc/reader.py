r"""Read one WET, WARC or ARC file as batches of documents.

Each record becomes a document, is skipped for a reason (`stages.warc.causes.SKIPPED`), or is
quarantined with a cause (`stages.warc.causes.CAUSES`); the three add up. No content of a file
raises an error: after a broken record, reading continues at the next one that can be found. The
first line of a WET text is its title, as in CCNet. Lines keep their indentation.

    reader = WarcReader(Path("crawl.warc.wet.gz"), WarcSettings(), split=3, batch_bytes=16 << 20)
    for table in reader:           # schema DOCUMENT; doc_id = 3 << 32 | number of the record
        ...
    reader.report.num_documents    # 41,832
    reader.report.quarantine       # [Quarantined(record=107, offset=91_114, cause=...)]

The rows do not depend on `batch_bytes`. Memory is bounded by `batch_bytes` and `max_record_bytes`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from stages.contract import join_doc_id
from stages.settings.warc import WarcSettings
from stages.warc.documents import Row, Skipped, parse_document
from stages.warc.input_content import InputContent
from stages.warc.read_report import Quarantined, ReadReport
from stages.warc.record_framing import Broken, Record, read_records
from stages.warc.tables import TableBuilder, is_utf8

# Contents that are joined and cleaned together: they fit into a processor's cache.
_PART_BYTES = 512 << 10


@dataclass(frozen=True)
class PageTimeout:
    """A limit on the time to extract the text of one page.

    Attributes:
        too_slow: doc_id -> seconds, for the pages that exceeded it before. They are quarantined.
        watch: called with a doc_id; the text of that page is extracted in the block.
    """

    too_slow: Mapping[int, int] = field(default_factory=dict[int, int])
    watch: Callable[[int], AbstractContextManager[object]] = nullcontext


class WarcReader:
    """The documents of one file, in batches. `report` is complete after the last batch."""

    def __init__(
        self,
        path: Path,
        settings: WarcSettings,
        *,
        split: int,
        first_record: int = 0,
        batch_bytes: int,
        page_timeout: PageTimeout = PageTimeout(),
    ) -> None:
        """Create a reader. The file is opened when iteration begins, and again for each iteration.

        Args:
            path: a local WET, WARC or ARC file: gzip, zstd, lz4, or uncompressed.
            settings: which records become documents.
            split: index of the input split, the upper 32 bits of each `doc_id`.
            first_record: records in the earlier files of the split (the sum of their
                `num_records`).
            batch_bytes: approximate content per batch. A batch has at least one document.
            page_timeout: the time that a page may take. By default any time.
        """
        self.path = path
        self.settings = settings
        self.report = ReadReport(path.name)
        self._split = split
        self._first_record = first_record
        self._batch_bytes = batch_bytes
        self._page_timeout = page_timeout

    def __iter__(self) -> Iterator[pa.Table]:
        """Yield batches of documents in the order of the file.

        Raises:
            OSError: the file cannot be opened or read (never because of its content).
        """
        self.report = ReadReport(self.path.name, file_bytes=self.path.stat().st_size)
        with InputContent(self.path) as content:
            yield from self._read_batches(content)
            self.report.sha256 = content.compute_sha256()
        # Texts that are not UTF-8 are found per batch, after later records were quarantined.
        self.report.quarantine.sort(key=lambda entry: entry.record)
        self.report.check()

    def _read_batches(self, content: InputContent) -> Iterator[pa.Table]:
        limits = self.settings.advanced
        builder = TableBuilder(self._split, self.report, self._batch_bytes, are_pages=True)
        rows: list[Row] = []
        part_bytes = batch_bytes = 0
        for record in read_records(content, limits.max_record_bytes, limits.max_faults):
            row = self._process(record)
            if row is None:
                continue
            rows.append(row)
            part_bytes += len(row.content)
            batch_bytes += len(row.content)
            is_full = batch_bytes >= self._batch_bytes
            if is_full or part_bytes >= _PART_BYTES:
                self._add_rows(builder, rows)
                rows, part_bytes = [], 0
            if is_full:
                batch_bytes = 0
                yield from builder.finish()
        self._add_rows(builder, rows)
        yield from builder.finish()

    def _process(self, record: Record | Broken) -> Row | None:
        """Return the row of a document. Count any other record in the report."""
        number = self._first_record + self.report.num_records
        self.report.num_records += 1
        self.report.record_types[record.type] += 1
        result: Row | Skipped | Broken
        if isinstance(record, Broken):
            result = record
        else:
            self.report.content_bytes += len(record.content)
            result = self._parse(record, number)
        if isinstance(result, Row):
            return result
        if isinstance(result, Skipped):
            self.report.skipped[result.reason] += 1
        else:
            self._quarantine(number, result)
        return None

    def _parse(self, record: Record, number: int) -> Row | Skipped | Broken:
        # Texts of conversion records are not parsed.
        if record.type != "response":
            return parse_document(record, number, self.settings)
        doc_id = join_doc_id(self._split, number)
        if (limit_s := self._page_timeout.too_slow.get(doc_id)) is not None:
            detail = f"it took more than {limit_s} s of CPU time"
            num_bytes = len(record.content)
            return Broken(record.offset, record.type, "html.too_slow", detail, num_bytes)
        with self._page_timeout.watch(doc_id):
            return parse_document(record, number, self.settings)

    def _quarantine(self, number: int, broken: Broken) -> None:
        self.report.quarantine.append(
            Quarantined(
                self.path.name,
                number,
                broken.offset,
                broken.cause,
                broken.detail,
                broken.skipped_bytes,
            )
        )

    def _add_rows(self, builder: TableBuilder, rows: list[Row]) -> None:
        """Add the rows that are UTF-8, or nearly so, to a batch. Quarantine the others."""
        data = b"".join([row.content for row in rows])
        if not is_utf8(data, rows):
            rows = self._replace_undecodable(rows)
            data = b"".join([row.content for row in rows])
        if rows:
            builder.add(data, rows)

    def _replace_undecodable(self, rows: list[Row]) -> list[Row]:
        """Replace what is not UTF-8 by U+FFFD. Quarantine the rows that have too much of it."""
        max_share = self.settings.advanced.max_undecodable_share
        decodable: list[Row] = []
        for row in rows:
            text = row.content.decode("utf-8", errors="replace")
            num_undecodable = text.count("\ufffd") - row.content.count("\ufffd".encode())
            if num_undecodable <= max_share * len(text):
                replaced = row.num_undecodable + num_undecodable
                decodable.append(
                    row._replace(content=text.encode(), num_undecodable=replaced)
                )
            else:
                detail = f"{num_undecodable} of {len(text)} characters are not UTF-8"
                broken = Broken(row.offset, "", "warc.not_utf8", detail, len(row.content))
                self._quarantine(row.record, broken)
        return decodable
