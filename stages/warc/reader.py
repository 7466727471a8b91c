r"""One WET, WARC or ARC file into batches of documents, with an account of everything that did not become one.

Promises: every record is a document, is skipped for a reason from `SKIPPED`, or stands in the quarantine list with a
cause from `CAUSES`, and the three add up; no bytes whatsoever raise anything; after a broken record reading goes on at
the next one that can be found; the same file gives the same rows at any `batch_bytes`; memory is bounded by
`batch_bytes` and `max_record_bytes`. WET texts take CCNet's form: lines stripped, the first one is the title. In ARC
files, the format before WARC, a document counts as a response, and the description of the file as a warcinfo.
Leaves to others: which files there are, fetching them.

    reader = WarcReader(Path("crawl.warc.wet.gz"), WarcSettings(), unit=3, batch_bytes=16 << 20)
    for table in reader:           # schema DOCUMENT; doc_id = 3 << 32 | number of the record
        ...
    reader.report.num_documents    # 41,832
    reader.report.quarantine       # [Quarantined(record=107, offset=91_114, cause="warc.content_length_wrong", ...)]

Why no WARC library frames the records (`stages._records` does): the accounts need it. FastWARC 2.0 hands out a record
that was cut short as an empty one, reads over the end of a gzip member into the next record, takes a missing
Content-Length for 0, gives wrong offsets where a member holds two records, and stops at the first fault. It and warcio
are what the tests compare with, on sound files.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numba import njit
from numpy.typing import NDArray
from pydantic import Field

from stages.contract import DOCUMENT, Counters, DocumentCountError, Settings
from stages.html import extraction as html
from stages.html.extraction import HtmlSettings, Unusable
from stages.warc.http import TooLarge, parse_response
from stages.warc.record_framing import Broken, Record, read_records

CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "warc.empty_file": "The file holds no bytes.",
        "warc.not_a_warc": "No header of a WARC or ARC record was found anywhere in the file.",
        "warc.garbage": "Bytes between records that belong to none.",
        "warc.truncated": "The file ends inside a record or a gzip member.",
        "warc.compression_corrupt": "Decompression fails, or a checksum is wrong.",
        "warc.header_too_long": "The header of a record does not end within 64 KiB.",
        "warc.header_missing": "A record lacks a header field that it cannot do without, or its value is none.",
        "warc.content_length_wrong": "Where Content-Length says that a record ends, no record ends.",
        "warc.record_too_large": "A record, or the page in it when decompressed, is above max_record_bytes.",
        "warc.not_utf8": "The share of undecodable characters in a text is above max_undecodable_share.",
        "warc.http_header_broken": "A record said to be an HTTP response does not begin like one.",
        "warc.too_many_faults": "The file has more than max_faults broken places: the rest was not read.",
        **html.CAUSES,
    }
)
"""Cause -> one sentence, for whatever lands in the quarantine list."""

_OTHER_TYPES = ("warcinfo", "request", "metadata", "revisit", "resource", "continuation", "unknown")
SKIPPED: Mapping[str, str] = MappingProxyType(
    {
        **{
            f"type_{name}": f"The record's type, {name}, holds no document."
            for name in _OTHER_TYPES
        },
        "media_type": "The content type is not among media_types.",
        "http_status": "The server did not answer with one of http_statuses.",
        "not_http": "The response is not one of HTTP (DNS, for example).",
        "content_too_short": "The content is below min_content_bytes.",
    }
)
"""Reason -> one sentence, for sound records that were not meant to become documents."""


class WarcAdvanced(Settings):
    """Limits and choices of the record reader that hardly any run needs to change."""

    max_record_bytes: int = Field(
        default=64 << 20,
        ge=1,
        description="Largest record, and largest page in a record after decompression. Larger ones are quarantined "
        "without being held in memory (zip bombs).",
    )
    min_content_bytes: int = Field(
        default=0, ge=0, description="Skip records whose content is shorter than this."
    )
    max_faults: int = Field(
        default=1000,
        ge=1,
        description="Number of broken places after which the rest of a file is not read.",
    )
    media_types: tuple[str, ...] = Field(
        default=("text/html", "application/xhtml+xml", "text/plain"),
        description="Content types of HTTP responses to read (lower case, without parameters).",
    )
    http_statuses: tuple[int, ...] = Field(
        default=(200,), description="Status codes of HTTP responses to read."
    )
    max_undecodable_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Largest share of a WET text's characters that may be invalid UTF-8; each becomes U+FFFD.",
    )


class WarcSettings(Settings):
    """How records become documents."""

    first_line_is_title: bool = Field(
        default=True,
        description="Whether the first line of a WET text is its title, which is taken off the text (CCNet).",
    )
    html: HtmlSettings = Field(
        default=HtmlSettings(), description="Text extraction from the pages of WARC files."
    )
    advanced: WarcAdvanced = Field(
        default=WarcAdvanced(), description="Limits that hardly any run needs to change."
    )


@dataclass(frozen=True)
class Quarantined:
    """A record, or a stretch of the file that is none, which could not become a document."""

    file: str
    record: int
    """The number that its document would have had in `doc_id`."""
    offset: int | None
    """On disk, of the record or of the gzip member that holds it; None in zstd and lz4 files."""
    cause: str
    detail: str
    skipped_bytes: int
    """What was passed over: decompressed bytes, or bytes on disk where they are no compressed data at all."""


@dataclass
class ReadReport:
    """What became of the records of one file. Complete when the reader has been read to its end."""

    file: str
    num_records: int = 0
    """Records and broken stretches: `num_documents`, `skipped` and `quarantine` together."""
    num_documents: int = 0
    record_types: Counter[str] = field(default_factory=Counter[str])
    """WARC-Type -> records; "broken" for stretches without a readable header."""
    skipped: Counter[str] = field(default_factory=Counter[str])
    quarantine: list[Quarantined] = field(default_factory=list[Quarantined])
    file_bytes: int = 0
    content_bytes: int = 0
    """Decompressed content of all sound records."""
    text_bytes: int = 0
    nul_bytes_replaced: int = 0
    """NUL bytes in texts, each now a space."""
    undecodable_replaced: int = 0
    """Places that could not be decoded, each now U+FFFD."""
    num_cut: int = 0
    """Documents whose content the crawler, or the transfer, had cut short."""
    num_stored_decoded: int = 0
    """Pages stored without the content coding that their HTTP header names."""

    def check(self) -> None:
        """Raise `DocumentCountError` unless every record has exactly one fate."""
        num_fates = self.num_documents + self.skipped.total() + len(self.quarantine)
        if num_fates != self.num_records or self.record_types.total() != self.num_records:
            raise DocumentCountError(
                f"{self.file}: {self.num_records} records, but {self.num_documents} documents, "
                f"{self.skipped.total()} skipped and {len(self.quarantine)} quarantined: a bug in stages/warc/reader.py"
            )

    def counters(self) -> Counters:
        """The same numbers as counters, to be added up over files."""
        counters = Counters()
        for name in _COUNTED:
            counters.add(name, getattr(self, name))
        for prefix, counts in (("type", self.record_types), ("skipped", self.skipped)):
            for name, number in counts.items():
                counters.add(f"{prefix}.{name}", number)
        for entry in self.quarantine:
            counters.add(f"quarantined.{entry.cause}")
        return counters


_COUNTED = (
    "num_records",
    "num_documents",
    "file_bytes",
    "content_bytes",
    "text_bytes",
    "nul_bytes_replaced",
    "undecodable_replaced",
    "num_cut",
    "num_stored_decoded",
)


class WarcReader:
    """The documents of one file, in batches; `report` is complete when they have all been taken."""

    def __init__(
        self,
        path: Path,
        settings: WarcSettings,
        *,
        split: int,
        first_record: int = 0,
        batch_bytes: int,
    ) -> None:
        """Cheap: the file is opened when iteration begins, and anew each time it does.

        Args:
            path: a local WET, WARC or ARC file: gzip, zstd, lz4, or uncompressed.
            settings: what to take and what to refuse.
            split: the unit's index, the upper 32 bits of every `doc_id`.
            first_record: records in the files of the unit that come before this one (the sum of their `num_records`).
            batch_bytes: content per batch, about; a batch holds at least one document.
        """
        self.path = path
        self.settings = settings
        self.report = ReadReport(path.name)
        self._unit = split
        self._first_record = first_record
        self._batch_bytes = batch_bytes

    def __iter__(self) -> Iterator[pa.Table]:
        """Batches of documents in the order of the file.

        Raises:
            OSError: the file cannot be opened or read (never for what it holds).
        """
        self.report = ReadReport(self.path.name, file_bytes=self.path.stat().st_size)
        rows: list[_Row] = []
        held_bytes = 0
        for record in read_records(
            self.path, self.settings.advanced.max_record_bytes, self.settings.advanced.max_faults
        ):
            row = self._judge(record)
            if row is None:
                continue
            rows.append(row)
            held_bytes += len(row.content)
            if held_bytes >= self._batch_bytes:
                yield from self._batch(rows)
                rows, held_bytes = [], 0
        yield from self._batch(rows)
        self.report.quarantine.sort(key=lambda entry: entry.record)
        self.report.check()

    def _judge(self, record: Record | Broken) -> _Row | None:
        """The row of a record that becomes a document; any other is entered into the report."""
        number = self._first_record + self.report.num_records
        self.report.num_records += 1
        self.report.record_types[record.type] += 1
        decision: _Row | _Skipped | Broken = (
            record if isinstance(record, Broken) else self._document(record, number)
        )
        if isinstance(decision, Broken):
            self._quarantine(number, decision)
        elif isinstance(decision, _Skipped):
            self.report.skipped[decision.reason] += 1
        else:
            return decision
        return None

    def _document(self, record: Record, number: int) -> _Row | _Skipped | Broken:
        self.report.content_bytes += len(record.content)
        return _document(record, number, self.settings)

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

    def _batch(self, rows: list[_Row]) -> Iterator[pa.Table]:
        """The table of these rows, if any of them is left after decoding."""
        table = self._table(rows)
        if table.num_rows:
            yield table

    def _table(self, rows: list[_Row]) -> pa.Table:
        """The batch of these rows, less those whose text turns out not to be UTF-8."""
        data = b"".join([row.content for row in rows])
        if not _is_utf8(data, rows):
            rows = self._decodable(rows)
            data = b"".join([row.content for row in rows])
        num_nul_bytes = (
            data.count(0) if b"\0" in data else 0
        )  # there is hardly ever one, and looking is cheap
        if num_nul_bytes:
            data = data.replace(b"\0", b" ")
        texts, titles, text_bytes = _clean(data, rows)
        self.report.num_documents += len(rows)
        self.report.text_bytes += text_bytes
        self.report.nul_bytes_replaced += num_nul_bytes
        self.report.undecodable_replaced += sum(row.num_undecodable for row in rows)
        self.report.num_cut += sum(row.is_cut for row in rows)
        self.report.num_stored_decoded += sum(row.is_stored_decoded for row in rows)
        return pa.table(
            {
                "doc_id": pa.array([self._unit << 32 | row.record for row in rows], pa.uint64()),
                "url": pa.array([row.url for row in rows], pa.string()),
                "source_domain": pa.array([source_domain(row.url) for row in rows], pa.string()),
                "date": pa.array([row.date for row in rows], pa.string()),
                "digest": pa.array([row.digest for row in rows], pa.string()),
                "warc_file": pa.repeat(pa.scalar(self.path.name), len(rows)),
                "warc_offset": pa.array([row.offset for row in rows], pa.int64()),
                "title": pa.array(titles, pa.string()),
                "text": texts,
            },
            schema=DOCUMENT,
        )

    def _decodable(self, rows: list[_Row]) -> list[_Row]:
        """The rows with what is not UTF-8 replaced; those with too much of it go into quarantine."""
        decodable: list[_Row] = []
        for row in rows:
            text = row.content.decode("utf-8", errors="replace")
            num_undecodable = text.count("\ufffd") - row.content.count("\ufffd".encode())
            if num_undecodable <= self.settings.advanced.max_undecodable_share * len(text):
                replaced = row.num_undecodable + num_undecodable
                decodable.append(row._replace(content=text.encode(), num_undecodable=replaced))
            else:
                detail = f"{num_undecodable} of {len(text)} characters are not UTF-8"
                broken = Broken(row.offset, "", "warc.not_utf8", detail, len(row.content))
                self._quarantine(row.record, broken)
        return decodable


class _Row(NamedTuple):
    """A document before its lines are cleaned."""

    record: int
    offset: int | None
    url: str
    date: str | None
    digest: str | None
    title: str | None  # None: it is the first line of the content
    content: bytes
    num_undecodable: int
    is_cut: bool
    is_stored_decoded: bool


class _Skipped(NamedTuple):
    """A sound record that is no document."""

    reason: str


def _document(record: Record, number: int, settings: WarcSettings) -> _Row | _Skipped | Broken:
    """What becomes of a record."""
    if record.type not in ("conversion", "response"):
        return _Skipped(f"type_{record.type}")
    if len(record.content) < settings.advanced.min_content_bytes:
        return _Skipped("content_too_short")
    url = _text(record.fields.get(b"warc-target-uri", b"")).strip("<> ")
    if not url:
        return _broken(record, "warc.header_missing", "WARC-Target-URI is missing")
    if record.type == "conversion":
        return _converted(record, number, url, settings)
    return _answered(record, number, url, settings)


def _converted(record: Record, number: int, url: str, settings: WarcSettings) -> _Row | _Skipped:
    """A WET text. Without a Content-Type it is taken for text/plain, the only type that WET files have."""
    if (
        _media_type(_text(record.fields.get(b"content-type", b"text/plain")))
        not in settings.advanced.media_types
    ):
        return _Skipped("media_type")
    return _Row(
        record=number,
        offset=record.offset,
        url=url,
        date=_optional(record.fields.get(b"warc-date")),
        digest=_optional(record.fields.get(b"warc-block-digest")),
        title=None if settings.first_line_is_title else "",
        content=_line_feeds(record.content),
        num_undecodable=0,
        is_cut=b"warc-truncated" in record.fields,
        is_stored_decoded=False,
    )


def _answered(
    record: Record, number: int, url: str, settings: WarcSettings
) -> _Row | _Skipped | Broken:
    """A page as a server sent it."""
    response = parse_response(record.content, settings.advanced.max_record_bytes)
    if response is None:
        is_http = record.fields.get(b"content-type", b"").lower().startswith(b"application/http")
        if not is_http:
            return _Skipped("not_http")
        return _broken(
            record, "warc.http_header_broken", f"the content begins {record.content[:32]!r}"
        )
    if isinstance(response, TooLarge):
        detail = f"the body expands ({response.coding}) to more than {settings.advanced.max_record_bytes} bytes"
        return _broken(record, "warc.record_too_large", detail)
    if response.status not in settings.advanced.http_statuses:
        return _Skipped("http_status")
    content_type = response.content_type or _text(
        record.fields.get(b"warc-identified-payload-type", b"")
    )
    if _media_type(content_type) not in settings.advanced.media_types:
        return _Skipped("media_type")
    page = html.extract(response.body, content_type, settings.html)
    if isinstance(page, Unusable):
        return _broken(record, page.cause, page.detail)
    return _Row(
        record=number,
        offset=record.offset,
        url=url,
        date=_optional(record.fields.get(b"warc-date")),
        digest=_optional(record.fields.get(b"warc-payload-digest")),
        title=page.title,
        content=_line_feeds(page.text.encode()),
        num_undecodable=page.num_undecodable,
        is_cut=response.is_cut or b"warc-truncated" in record.fields,
        is_stored_decoded=response.is_as_stored,
    )


def _broken(record: Record, cause: str, detail: str) -> Broken:
    return Broken(record.offset, record.type, cause, detail, len(record.content))


def _optional(value: bytes | None) -> str | None:
    return None if value is None else _text(value)


def _text(value: bytes) -> str:
    """A header's value: UTF-8 (ISO 28500:2017, section 4), or Latin-1 where it is not, which loses nothing."""
    try:
        return value.decode("utf-8")
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _line_feeds(content: bytes) -> bytes:
    r"""The content with its lines ended by \n alone, where some end by \r\n or \r."""
    return content.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in content else content


def _media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


_HOST = re.compile(
    r"[A-Za-z][A-Za-z0-9+.\-]*://(?:[^/?#@]*@)?(\[[^\]/?#]*\]|[^\[\]/?#:]*)"
)  # RFC 3986, section 3.2


def source_domain(url: str) -> str:
    """The host of a URL in lower case, without user and port; "" if there is none.

    CCNet takes `urlparse(url).netloc`, which keeps both.

    >>> source_domain("https://user@WWW.Example.org:8080/a")
    'www.example.org'
    """
    host = _HOST.match(url)
    return host[1].lower() if host else ""


def _is_utf8(data: bytes, rows: list[_Row]) -> bool:
    """Whether each content by itself is UTF-8 (Arrow checks 1.5 GB/s, `bytes.decode` 0.8)."""
    try:
        _strings(_offsets(rows), data).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _offsets(rows: list[_Row]) -> NDArray[np.int64]:
    """(n + 1,) int64: where each content begins in all of them laid end to end."""
    lengths = np.fromiter((len(row.content) for row in rows), np.int64, len(rows))
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def _strings(offsets: NDArray[np.int64], data: bytes | NDArray[np.uint8]) -> pa.Array:
    """(n,) large_string over `data`, which is not copied."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.large_string(), len(offsets) - 1, buffers)


def _clean(data: bytes, rows: list[_Row]) -> tuple[pa.Array, list[str], int]:
    """Texts and titles in CCNet's form, and the bytes of all texts."""
    takes_title = np.array([row.title is None for row in rows], np.bool_)
    text = np.empty(len(data), np.uint8)
    offsets, titles = _clean_lines(np.frombuffer(data, np.uint8), _offsets(rows), takes_title, text)
    spans = zip(rows, titles.tolist(), strict=True)
    named = [
        data[span[0] : span[1]].decode() if row.title is None else row.title for row, span in spans
    ]
    num_bytes = int(offsets[-1])
    return _strings(offsets, text[:num_bytes]), named, num_bytes


def _edges() -> NDArray[np.bool_]:
    """(256,) bool: the bytes that white space in UTF-8 may begin or end with."""
    is_edge = np.zeros(256, np.bool_)
    spaces = [chr(code).encode() for code in range(0x10000) if chr(code).isspace()]
    is_edge[[space[0] for space in spaces] + [space[-1] for space in spaces]] = True
    return is_edge


_IS_EDGE = _edges()


@njit(cache=True, nogil=True)
def _clean_lines(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    takes_title: NDArray[np.bool_],
    text: NDArray[np.uint8],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    r"""Strip every line of every content and join the lines by \n, without blank lines at the end.

    White space is what `str.strip` takes for it. Lines that need nothing are copied together: a clean text in one go.

    Args:
        data: (d,) uint8, contents in UTF-8 end to end.
        starts: (n + 1,) int64, where each content begins.
        takes_title: (n,) bool, whether its first line is the title and not part of its text.
        text: (d,) uint8, filled with the texts end to end: never longer than the contents.

    Returns:
        (n + 1,) int64, where each text begins in `text`; (n, 2) int64, where its title begins and ends in `data`.
    """
    num_docs = len(starts) - 1
    text_starts = np.zeros(num_docs + 1, np.int64)
    titles = np.zeros((num_docs, 2), np.int64)
    for doc in range(num_docs):
        line, stop = starts[doc], starts[doc + 1]
        written = text_starts[doc]
        run, run_end = -1, -1  # data[run:run_end] waits to be copied
        kept = written  # where the text ends if only blank lines follow
        is_title = takes_title[doc]
        while line < stop:
            end = line
            while end < stop and data[end] != 10:
                end += 1
            low, high = line, end
            if line < end and (_IS_EDGE[data[line]] or _IS_EDGE[data[end - 1]]):
                low, high = _strip(data, line, end)
            if is_title:
                titles[doc, 0], titles[doc, 1] = low, high
                is_title = False
            elif run < 0:
                run, run_end = low, high
            elif (
                low == line and run_end == line - 1
            ):  # this line and the last need nothing between them
                run_end = high
            else:
                written = _copy(data, run, run_end, text, written)
                text[written] = 10
                written += 1
                run, run_end = low, high
            if run >= 0 and high > low:
                kept = written + run_end - run
            line = end + 1
        if run >= 0:
            _copy(data, run, run_end, text, written)
        text_starts[doc + 1] = kept
    return text_starts, titles


@njit(cache=True, nogil=True)
def _copy(
    data: NDArray[np.uint8], low: int, high: int, text: NDArray[np.uint8], written: int
) -> int:
    """Write data[low:high] to `text`; the new end of what is written."""
    text[written : written + high - low] = data[low:high]
    return written + high - low


@njit(cache=True, nogil=True)
def _strip(data: NDArray[np.uint8], low: int, high: int) -> tuple[int, int]:
    """The part of data[low:high] without white space at its ends."""
    while low < high:
        num_bytes = _white_space(data, low, high)
        if num_bytes == 0:
            break
        low += num_bytes
    while low < high:
        width = 1
        if data[high - 1] >= 0x80:
            width = 2 if high - low >= 2 and data[high - 2] >= 0xC0 else 3
        if high - low < width or _white_space(data, high - width, high) != width:
            break
        high -= width
    return low, high


@njit(cache=True, nogil=True)
def _white_space(data: NDArray[np.uint8], at: int, stop: int) -> int:
    """Bytes of the character at `at` if it is white space to `str.isspace`, else 0."""
    first = data[at]
    if first < 0x80:
        return 1 if first == 32 or 9 <= first <= 13 or 28 <= first <= 31 else 0
    if first == 0xC2 and at + 1 < stop:
        return 2 if data[at + 1] == 0x85 or data[at + 1] == 0xA0 else 0
    if at + 2 >= stop:
        return 0
    second, third = data[at + 1], data[at + 2]
    if first == 0xE2 and second == 0x80:  # U+2000 to U+200A, U+2028, U+2029, U+202F
        return 3 if third <= 0x8A or third == 0xA8 or third == 0xA9 or third == 0xAF else 0
    is_other = (
        (first == 0xE1 and second == 0x9A and third == 0x80)  # U+1680
        or (first == 0xE2 and second == 0x81 and third == 0x9F)  # U+205F
        or (first == 0xE3 and second == 0x80 and third == 0x80)  # U+3000
    )
    return 3 if is_other else 0
