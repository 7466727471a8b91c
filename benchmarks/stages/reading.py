"""Compare the reader of WET and WARC files with bare decompression and with FastWARC.

    python -m benchmarks.stages.reading --wet FILE.warc.wet.gz --warc FILE.warc.gz --rounds 7

The times are compared with that of bare decompression. MB are bytes of the content of records. Of WET files, `documents`
are tables with clean texts; of WARC files, `bodies` are decoded HTTP bodies, before text is extracted. Without files, both are made of random words.
"""

from __future__ import annotations

import gzip
import tempfile
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from fastwarc.warc import ArchiveIterator, WarcRecordType
from isal import igzip_lib

from benchmarks import frame
from stages.settings.warc import WarcSettings
from stages.warc.http import parse_response
from stages.warc.input_content import InputContent
from stages.warc.reader import WarcReader
from stages.warc.record_framing import Record, read_records

_BLOCK_BYTES = 64 << 10
_BATCH_BYTES = 8_000_000  # the default of engine.advanced.batch_mb
_MAX_RECORD_BYTES = 64 << 20
_MAX_FAULTS = 1000

BARE = "isal, bare"

Reader = Callable[[Path], object]


# ---- Readers ----


def inflate(path: Path) -> None:
    """Decompress all gzip members."""
    with path.open("rb") as file:
        rest = b""
        while rest := rest or file.read(_BLOCK_BYTES):
            decompressor = igzip_lib.IgzipDecompressor(igzip_lib.DECOMP_GZIP)
            while not decompressor.eof and (rest := rest or file.read(_BLOCK_BYTES)):
                decompressor.decompress(rest)
                rest = b""
            rest = decompressor.unused_data


def read_fastwarc(path: Path, record_types: WarcRecordType) -> list[tuple[Any, ...]]:
    """Return URL, date, offset and content of records, read with FastWARC."""
    rows: list[tuple[Any, ...]] = []
    with path.open("rb") as file:
        records = ArchiveIterator(
            file, record_types=record_types, strict_mode=False, parse_http=False
        )
        for record in records:
            url, date = record.headers["WARC-Target-URI"], record.headers["WARC-Date"]
            rows.append((url, date, record.stream_pos, record.reader.read()))
    return rows


def read_frames(path: Path) -> list[Record]:
    """Return all sound records, with their fields, and hash the file."""
    with InputContent(path) as content:
        items = read_records(content, _MAX_RECORD_BYTES, _MAX_FAULTS)
        records = [item for item in items if isinstance(item, Record)]
        content.compute_sha256()
    return records


def read_documents(path: Path) -> None:
    """Make tables of the documents."""
    reader = WarcReader(path, WarcSettings(), split=0, batch_bytes=_BATCH_BYTES)
    deque(reader, maxlen=0)


def read_bodies(path: Path) -> None:
    """Read all responses and decode their bodies."""
    with InputContent(path) as content:
        for item in read_records(content, _MAX_RECORD_BYTES, _MAX_FAULTS):
            if isinstance(item, Record) and item.type == "response":
                parse_response(item.content, _MAX_RECORD_BYTES)
        content.compute_sha256()


def list_wet_readers() -> dict[str, Reader]:
    """Return the readers of WET files by name."""
    return {
        BARE: inflate,
        "FastWARC, records": lambda path: read_fastwarc(path, WarcRecordType.conversion),
        "FastWARC, decoded": frame.read_records,
        "records": read_frames,
        "documents": read_documents,
    }


def list_warc_readers() -> dict[str, Reader]:
    """Return the readers of WARC files by name."""
    return {
        BARE: inflate,
        "FastWARC, records": lambda path: read_fastwarc(path, WarcRecordType.response),
        "records": read_frames,
        "bodies": read_bodies,
    }


# ---- The comparison ----


def measure(path: Path, readers: dict[str, Reader], rounds: int) -> dict[str, Any]:
    """Return speeds of the readers, and their times as multiples of bare decompression."""
    entrants = {name: frame.time_cpu(partial(read, path)) for name, read in readers.items()}
    num_bytes = sum(len(record.content) for record in read_frames(path))
    return frame.compare_with(frame.take_turns(entrants, rounds), BARE, num_bytes)


def make_file(path: Path, kind: str, megabytes: float) -> Path:
    """Write a file with one gzip member per record of about 7 kB, of random words."""
    text = "\n".join(frame.make_lines(100)) + "\n"
    head = (
        "WARC/1.0\r\nWARC-Date: 2026-01-02T03:04:05Z\r\nWARC-Target-URI: http://a.example/"
    )
    content = text.encode()
    if kind == "response":
        content = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n" + content
    with path.open("wb") as file:
        for i in range(max(1, round(megabytes * 1e6 / len(content)))):
            fields = f"{i}\r\nWARC-Type: {kind}\r\nContent-Length: {len(content)}\r\n\r\n"
            record = (head + fields).encode() + content + b"\r\n\r\n"
            file.write(gzip.compress(record, mtime=0))
    return path


def main() -> None:
    """Measure a WET and a WARC file, print the tables, and save them with `--save`."""
    parser = frame.make_parser(__doc__, rounds=7)
    parser.add_argument("--wet", type=Path, help="one gzip member per record")
    parser.add_argument("--warc", type=Path, help="one gzip member per record")
    parser.add_argument(
        "--megabytes", type=float, default=20, help="of files that are made"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wet = args.wet or make_file(Path(folder) / "a.wet.gz", "conversion", args.megabytes)
        warc = args.warc or make_file(
            Path(folder) / "a.warc.gz", "response", args.megabytes
        )
        figures = {
            "wet": measure(wet, list_wet_readers(), args.rounds),
            "warc": measure(warc, list_warc_readers(), args.rounds),
        }
    for kind, rows in figures.items():
        print(f"\n{kind}")
        frame.print_comparison(rows, BARE)
    libraries = ("isal", "fastwarc", "pyarrow", "numba")
    frame.finish(args, "reading", figures, libraries=libraries)


if __name__ == "__main__":
    main()
