"""Make Arrow tables of rows.

Texts of web pages lose invisible characters, white space at the ends of lines and blank lines at the
end. Rows of text files keep their text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from stages.contract import DOCUMENT, join_doc_id
from stages.kernels.invisible_characters import remove_invisible, remove_invisible_bytes
from stages.kernels.line_cleaning import clean_lines
from stages.kernels.utf8 import are_utf8
from stages.warc.documents import Row, parse_source_domain
from stages.warc.read_report import ReadReport


class TableBuilder:
    """Builds the table of a batch from parts.

    Parts of about 500 kB are fastest: their contents are still in the processor's cache when they
    are cleaned, and the memory of one part is used again for the next.
    """

    def __init__(
        self, split: int, report: ReadReport, batch_bytes: int, *, are_pages: bool
    ) -> None:
        """Create a builder.

        Args:
            split: index of the input split.
            report: on the file that the rows come from. It counts them.
            batch_bytes: approximate content of all rows of a batch.
            are_pages: whether the texts are those of web pages.
        """
        self._are_pages = are_pages
        self._split = split
        self._report = report
        self._batch_bytes = batch_bytes
        self._start_batch()

    def _start_batch(self) -> None:
        self._columns: dict[str, list[Any]] = {name: [] for name in DOCUMENT.names}
        # The texts, and room for more. The system provides memory where it is written first.
        self._text = np.empty(self._batch_bytes, np.uint8)
        self._starts = [np.zeros(1, np.int64)]  # where each text starts
        self._num_bytes = 0

    def add(self, data: bytes, rows: Sequence[Row]) -> None:
        """Add rows.

        Args:
            data: the contents of all rows, joined; UTF-8.
            rows: the rows.
        """
        num_nul_bytes = data.count(0) if b"\0" in data else 0  # rare, and `in` is cheap
        if num_nul_bytes:
            data = data.replace(b"\0", b" ")
        titles, text_bytes = self._add_texts(data, rows)
        self._add_columns(rows, titles)
        report = self._report
        report.num_documents += len(rows)
        report.text_bytes += text_bytes
        report.nul_bytes_replaced += num_nul_bytes
        for row in rows:
            report.undecodable_replaced += row.num_undecodable
            report.num_cut += row.is_cut
            report.num_stored_decoded += row.is_stored_decoded
            report.num_without_main_content += row.main_content_chars is not None

    def finish(self) -> Iterator[pa.Table]:
        """Yield the table of all rows since the last call, as DOCUMENT, unless there are none."""
        columns, texts = self._columns, self._wrap_texts()
        self._start_batch()
        num_rows = len(texts)
        if not num_rows:
            return
        arrays: dict[str, Any] = {
            "text": texts,
            "warc_file": pa.repeat(pa.scalar(self._report.file), num_rows),
        }
        for field in DOCUMENT:
            if field.name not in arrays:
                arrays[field.name] = pa.array(columns[field.name], field.type)
        yield pa.table(arrays, schema=DOCUMENT)

    def _wrap_texts(self) -> pa.Array:
        starts = np.concatenate(self._starts)
        return _wrap_strings(starts, self._text[: self._num_bytes])

    def _add_columns(self, rows: Sequence[Row], titles: list[str]) -> None:
        columns = self._columns
        columns["doc_id"] += [join_doc_id(self._split, row.record) for row in rows]
        columns["url"] += [row.url for row in rows]
        columns["source_domain"] += [parse_source_domain(row.url) for row in rows]
        columns["date"] += [row.date for row in rows]
        columns["digest"] += [row.digest for row in rows]
        columns["warc_offset"] += [row.offset for row in rows]
        columns["title"] += titles
        columns["main_content_chars"] += [row.main_content_chars for row in rows]
        columns["page_sample"] += [
            row.page_sample and remove_invisible(row.page_sample) for row in rows
        ]

    def _add_texts(self, data: bytes, rows: Sequence[Row]) -> tuple[list[str], int]:
        """Append the texts. Return the titles and the bytes of the texts."""
        contents, starts = np.frombuffer(data, np.uint8), _compute_offsets(rows)
        if self._are_pages:
            contents, starts, num_removed = remove_invisible_bytes(contents, starts)
            self._report.invisible_removed += num_removed
        text = self._reserve(len(contents))
        if self._are_pages:
            takes_title = np.array([row.title is None for row in rows], np.bool_)
            offsets, spans = clean_lines(contents, starts, takes_title, text)
        else:
            offsets, spans = starts, np.zeros((len(rows), 2), np.int64)
            text[: len(contents)] = contents
        self._starts.append(offsets[1:] + self._num_bytes)
        num_bytes = int(offsets[-1])
        self._num_bytes += num_bytes
        titles: list[str] = []
        for row, (start, end) in zip(rows, spans.tolist(), strict=True):
            title = (
                contents[start:end].tobytes().decode() if row.title is None else row.title
            )
            titles.append(remove_invisible(title))
        return titles, num_bytes

    def _reserve(self, num_bytes: int) -> NDArray[np.uint8]:
        """Return room for more bytes of text, (num_bytes,) or longer."""
        needed = self._num_bytes + num_bytes
        if needed > len(self._text):
            text = np.empty(max(needed, 2 * len(self._text)), np.uint8)
            text[: self._num_bytes] = self._text[: self._num_bytes]
            self._text = text
        return self._text[self._num_bytes :]


def is_utf8(data: bytes, rows: Sequence[Row]) -> bool:
    """Return whether each content by itself is UTF-8.

    Args:
        data: the contents of all rows, joined.
        rows: the rows.
    """
    return are_utf8(np.frombuffer(data, np.uint8), _compute_offsets(rows))


def _compute_offsets(rows: Sequence[Row]) -> NDArray[np.int64]:
    """Return where each content starts in the concatenation of all, (n + 1,)."""
    lengths = np.fromiter((len(row.content) for row in rows), np.int64, len(rows))
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _wrap_strings(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> pa.Array:
    """Return a large_string array, (n,), that uses `data` without a copy."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)
