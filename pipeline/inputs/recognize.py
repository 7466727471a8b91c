"""Recognize crawl files and text files by their content, not by their names.

file = recognize(Path("crawl/CC-MAIN-2026.warc.wet.gz"))
file.kind          # Kind.WET
file.compression   # "gzip"
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path

import pyarrow as pa

from stages.text_records import jsonl, parquet
from stages.warc.arc import is_arc
from stages.warc.input_content import InputContent
from stages.warc.record_framing import Broken, read_records
from stages.warc.stream_window import StreamWindow

# Decompressed bytes that decide the format.
_HEAD_BYTES = 16 << 10
# A WARC file begins with warcinfo, and each page can have a request and metadata beside it.
_NUM_RECORDS = 12
_MAX_RECORD_BYTES = 64 << 20
_MAX_FAULTS = 4
_MAX_LINE_BYTES = 4 << 20

_SHOWN_BYTES = 24

_COMPRESSIONS = {
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\x5d\x2a\x4d\x18": "zstd",  # a dictionary, first in a .warc.zst
    b"\x04\x22\x4d\x18": "lz4",
}

# Beginning of a file that cannot be read -> what it is.
_OTHER_FORMATS = {
    b"": "it is empty",
    b"%PDF": "it is a PDF",
    b"PK\x03\x04": "it is a zip archive; unpack it",
    b"BZh": "it is compressed with bzip2; recompress it with gzip or zstd",
    b"\xfd7zXZ": "it is compressed with xz; recompress it with gzip or zstd",
    b"7z\xbc\xaf": "it is a 7z archive; unpack it",
}
_LOWER_CASE_MARKUP = (b"<!doctype html", b"<html", b"<?xml")
_TAR_MAGIC = (257, b"ustar")


class Kind(StrEnum):
    """What a file has; the value is its display name."""

    WET = "WET"
    WARC = "WARC"
    ARC = "ARC"
    JSONL = "JSONL"
    PARQUET = "Parquet"


# A run can read files of several kinds if they have the same content.
CONTENTS = {
    Kind.WET: "text",
    Kind.WARC: "HTML",
    Kind.ARC: "HTML",
    Kind.JSONL: "rows",
    Kind.PARQUET: "rows",
}


@dataclass(frozen=True)
class Recognized:
    """One file, and what it has.

    Attributes:
        location: its path or address.
        num_bytes: its size on disk.
        kind: what it has; None: a run cannot read it.
        compression: gzip, zstd, lz4 or none.
        problem: why a run cannot read it; "" if it can.
        columns: the names of its columns, of JSONL and Parquet.
    """

    location: str
    num_bytes: int
    kind: Kind | None
    compression: str = "none"
    problem: str = ""
    columns: tuple[str, ...] = ()


def recognize(path: Path) -> Recognized:
    """Read the beginning of a file and return what it is.

    Raises:
        OSError: the file cannot be read.
    """
    num_bytes = path.stat().st_size
    with InputContent(path) as content:
        start = content.read_range(0, _HEAD_BYTES)
        if start.startswith(parquet.MAGIC):
            return _recognize_parquet(path, num_bytes)
        compression = _find_compression(start)
        head = start if compression == "none" else _decompress_head(content)
        kind = Kind.ARC if is_arc(head) else None
        problem = "" if kind else _describe_other_format(head)
        if head[:5].upper() == b"WARC/":
            kind, problem = _recognize_warc(content)
        elif head.lstrip().startswith(b"{"):
            return _recognize_jsonl(path, num_bytes, compression, content)
    return Recognized(str(path), num_bytes, kind, compression, problem)


def _recognize_parquet(path: Path, num_bytes: int) -> Recognized:
    try:
        with parquet.open_parquet(path) as file:
            columns = tuple(parquet.list_columns(file.schema_arrow))
    except (pa.ArrowException, OSError) as error:
        problem = f"it is Parquet that cannot be read: {error}"
        return Recognized(str(path), num_bytes, None, problem=problem)
    return Recognized(str(path), num_bytes, Kind.PARQUET, columns=columns)


def _recognize_jsonl(
    path: Path, num_bytes: int, compression: str, content: InputContent
) -> Recognized:
    line = _decompress_head(content, _MAX_LINE_BYTES).lstrip().partition(b"\n")[0]
    columns = tuple(jsonl.list_columns(line))
    if columns:
        return Recognized(str(path), num_bytes, Kind.JSONL, compression, columns=columns)
    problem = "its first line is not a JSON object"
    return Recognized(str(path), num_bytes, None, compression, problem)


def _find_compression(start: bytes) -> str:
    for magic, name in _COMPRESSIONS.items():
        if start.startswith(magic):
            return name
    return "none"


def _decompress_head(content: InputContent, num_bytes: int = _HEAD_BYTES) -> bytes:
    """Return the first decompressed bytes, fewer if the file is damaged."""
    window = StreamWindow.open(content, max_item_bytes=_MAX_RECORD_BYTES)
    window.read_until(num_bytes)
    return bytes(window.buffer[:num_bytes])


def _recognize_warc(content: InputContent) -> tuple[Kind | None, str]:
    """Return the kind of a WARC file by its first records, or the reason why it has none."""
    types = Counter(_read_types(content))
    if types["conversion"]:
        return Kind.WET, ""
    if types["response"] or not types:
        return Kind.WARC, ""
    if types["metadata"]:
        return None, "it is a WAT file: it has metadata of pages, and no text"
    found = ", ".join(sorted(types))
    return (
        None,
        f"its first records are of the types {found}; wanted conversion or response",
    )


def _read_types(content: InputContent) -> Iterator[str]:
    records = read_records(content, _MAX_RECORD_BYTES, _MAX_FAULTS)
    for record in islice(records, _NUM_RECORDS):
        if not isinstance(record, Broken) and record.type != "warcinfo":
            yield record.type


def _describe_other_format(head: bytes) -> str:
    if not head:
        return _OTHER_FORMATS[b""]
    for start, description in _OTHER_FORMATS.items():
        if start and head.startswith(start):
            return description
    if head.lstrip()[:14].lower().startswith(_LOWER_CASE_MARKUP):
        return "it is a web page or XML, not an archive of pages"
    position, magic = _TAR_MAGIC
    if head[position:].startswith(magic):
        return "it is a tar archive; unpack it"
    return f"it begins {head[:_SHOWN_BYTES]!r}"
