"""Compare the reader of WET and WARC files with bare decompression and with FastWARC.

    python -m benchmarks.stages.reading --wet FILE.warc.wet.gz --warc FILE.warc.gz --rounds 7
    python -m benchmarks.stages.reading --before ../old-checkout      # its reader takes turns too

Prints the MB/s of one core and the ratio of CPU times to bare decompression, as medians over the rounds; all take turns. MB are
bytes of the content of records. Of WET files, `documents` are tables with clean texts; of WARC files, `bodies` are decoded
HTTP bodies, before text is extracted. Without files, both are made of random words.
"""

from __future__ import annotations

import argparse
import gzip
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastwarc.warc import ArchiveIterator, WarcRecordType
from isal import igzip_lib
from rich.console import Console
from rich.table import Table

from benchmarks.result_file import save
from benchmarks.stages.fasttext_kernel import make_lines
from stages.settings.warc import WarcSettings
from stages.warc.http import parse_response
from stages.warc.input_content import InputContent
from stages.warc.reader import WarcReader
from stages.warc.record_framing import Record, read_records

_BLOCK_BYTES = 64 << 10
_BATCH_BYTES = 8_000_000  # the default of engine.advanced.batch_mb
_MAX_RECORD_BYTES = 64 << 20
_MAX_FAULTS = 1000

# Run in another checkout: prints the CPU seconds of reading the documents of a file.
_MEASURE_DOCUMENTS = f"""
import sys, time
from collections import deque
from pathlib import Path
from stages.settings.warc import WarcSettings
from stages.warc.reader import WarcReader
def read():
    reader = WarcReader(Path(sys.argv[1]), WarcSettings(), split=0, batch_bytes={_BATCH_BYTES})
    deque(reader, maxlen=0)
read()
started = time.process_time()
read()
print(time.process_time() - started)
"""

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


def decode_fastwarc(path: Path) -> list[str]:
    """Return the texts of conversion records, read with FastWARC."""
    with path.open("rb") as file:
        records = ArchiveIterator(
            file, record_types=WarcRecordType.conversion, strict_mode=False
        )
        return [record.reader.read().decode("utf-8", "replace") for record in records]


def frame(path: Path) -> list[Record]:
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
        "isal, bare": inflate,
        "FastWARC, records": lambda path: read_fastwarc(path, WarcRecordType.conversion),
        "FastWARC, decoded": decode_fastwarc,
        "records": frame,
        "documents": read_documents,
    }


def list_warc_readers() -> dict[str, Reader]:
    """Return the readers of WARC files by name."""
    return {
        "isal, bare": inflate,
        "FastWARC, records": lambda path: read_fastwarc(path, WarcRecordType.response),
        "records": frame,
        "bodies": read_bodies,
    }


# ---- The comparison ----


def measure(
    path: Path, readers: dict[str, Reader], before: Path | None, rounds: int
) -> list[dict[str, Any]]:
    """Return speeds and ratios of readers that take turns. The first round is not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in readers}
    if before is not None:
        seconds["documents, before"] = []
    for i in range(rounds + 1):
        for name, read in readers.items():
            started = time.process_time()
            read(path)
            seconds[name].append(time.process_time() - started)
        if before is not None:
            seconds["documents, before"].append(_measure_checkout(before, path))
        if i == 0:
            for taken in seconds.values():
                taken.clear()
    megabytes = sum(len(record.content) for record in frame(path)) / 1e6
    bare = statistics.median(seconds["isal, bare"])
    rows: list[dict[str, Any]] = []
    for name, taken in seconds.items():
        median = statistics.median(taken)
        speed, ratio = megabytes / median, median / bare
        row = {"reader": name, "mb_per_s": round(speed, 1), "ratio": round(ratio, 2)}
        rows.append({**row, "best_mb_per_s": round(megabytes / min(taken), 1)})
    return rows


def _measure_checkout(checkout: Path, path: Path) -> float:
    """Return the CPU seconds of another version's reader. It reads the file twice."""
    command = [sys.executable, "-c", _MEASURE_DOCUMENTS, str(path.resolve())]
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
    result = subprocess.run(
        command, cwd=checkout, env=environment, check=True, capture_output=True, text=True
    )
    return float(result.stdout)


def make_file(path: Path, kind: str, megabytes: float) -> Path:
    """Write a file with one gzip member per record of about 7 kB, of random words."""
    text = "\n".join(make_lines(100)) + "\n"
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wet", type=Path, help="one gzip member per record")
    parser.add_argument("--warc", type=Path, help="one gzip member per record")
    parser.add_argument("--before", type=Path, help="another checkout of this repository")
    parser.add_argument(
        "--megabytes", type=float, default=20, help="of files that are made"
    )
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--save", action="store_true", help="write benchmarks/results/")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        wet = args.wet or make_file(Path(folder) / "a.wet.gz", "conversion", args.megabytes)
        warc = args.warc or make_file(
            Path(folder) / "a.warc.gz", "response", args.megabytes
        )
        figures = {
            "rounds": args.rounds,
            "wet": measure(wet, list_wet_readers(), args.before, args.rounds),
            "warc": measure(warc, list_warc_readers(), None, args.rounds),
        }
    print_tables(figures)
    if args.save:
        print(save("reading", figures, libraries=("isal", "fastwarc", "pyarrow", "numba")))


def print_tables(figures: dict[str, Any]) -> None:
    """Print one table per kind of file."""
    for kind in ("wet", "warc"):
        table = Table(kind, "MB/s", "best", "time / isal", box=None)
        for row in figures[kind]:
            speeds = f"{row['mb_per_s']:,}", f"{row['best_mb_per_s']:,}"
            table.add_row(row["reader"], *speeds, f"{row['ratio']:.2f}")
        Console(width=100).print(table)


if __name__ == "__main__":
    main()
