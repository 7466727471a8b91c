"""Limits of memory, time and number of faults."""

from __future__ import annotations

import contextlib
import gzip
import random
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from fastwarc.stream_io import Lz4Writer, ZstdWriter

from stages.settings.warc import WarcAdvanced, WarcSettings
from stages.warc.input_content import InputContent
from stages.warc.reader import WarcReader
from stages.warc.record_framing import Broken, Record, RecordReader
from tests.stages.warc.files import (
    ARC_A,
    ARC_B,
    ARC_C,
    ARC_START,
    BAD_CRC,
    MIB,
    A,
    B,
    C,
    Reading,
    arc_record,
    make_text,
    member,
    record,
)

SMALL_RECORDS = WarcSettings(advanced=WarcAdvanced(max_record_bytes=MIB))


@pytest.fixture(scope="module", autouse=True)
def _compile_kernels(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Compile them before memory is measured: the compiler takes 50 MB."""
    Reading(tmp_path_factory.mktemp("warm"), A)


@pytest.mark.parametrize("pack", [member, bytes], ids=["gzip", "uncompressed"])
def test_decompression_bomb_is_not_held(
    folder: Path, pack: Callable[[bytes], bytes]
) -> None:
    """A record of 200 MB (20 MB uncompressed) needs a few MiB, and the next record is read."""
    num_bytes = 200_000_000 if pack is member else 20_000_000
    path = folder / "bomb"
    path.write_bytes(pack(A) + pack(record(bytes(num_bytes))) + pack(C))
    tracemalloc.start()
    reader = WarcReader(
        path,
        WarcSettings(advanced=WarcAdvanced(max_record_bytes=MIB)),
        split=0,
        batch_bytes=MIB,
    )
    num_docs = sum(table.num_rows for table in reader)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    path.unlink()
    assert num_docs == 2
    assert [entry.cause for entry in reader.report.quarantine] == ["warc.record_too_large"]
    assert peak_bytes < 8 * MIB


ZEROS = bytes(16 * MIB)
UNFINISHED_HEADER = record(b"")[:-6] + b"X-Field: "
# Kind -> a member that expands to 16 MB, and the cause with which it is quarantined.
BOMBS: dict[str, tuple[Callable[[], bytes], str]] = {
    "record": (lambda: record(ZEROS), "record_too_large"),
    "behind a record": (lambda: B + record(ZEROS), "record_too_large"),
    "wrong length": (lambda: record(ZEROS, length=20), "record_too_large"),
    "garbage": (lambda: ZEROS, "garbage"),
    "newlines": (lambda: b"\n" * 16 * MIB, "garbage"),
    "header": (lambda: UNFINISHED_HEADER + ZEROS, "header_too_long"),
}


def read_items(
    path: Path, max_record_bytes: int = MIB
) -> tuple[list[Record | Broken], int]:
    """Return the records and broken stretches of a file, and its decompressed bytes."""
    with InputContent(path) as content:
        reader = RecordReader(content, max_record_bytes, max_faults=1000)
        items = list(iter(reader.read_next, None))
        return items, reader.window.num_bytes


@pytest.mark.parametrize("kind", BOMBS)
def test_a_decompression_bomb_is_not_decompressed_to_its_end(
    folder: Path, kind: str
) -> None:
    """Of each, 4 MB are decompressed. The records around it are read."""
    make, cause = BOMBS[kind]
    path = folder / "bomb.warc.gz"
    bomb = member(make())
    path.write_bytes(member(A) + bomb + member(C) + bomb + member(C))
    items, num_bytes = read_items(path)
    path.unlink()
    causes = [item.cause for item in items if isinstance(item, Broken)]
    assert causes == [f"warc.{cause}"] * 2
    names = "ABCBC" if kind == "behind a record" else "ACC"
    records = [item.content for item in items if isinstance(item, Record)]
    assert records == [make_text(name) for name in names]
    assert num_bytes < 2 * 4 * MIB


@pytest.mark.heavy
def test_of_a_bomb_of_10_gb_a_fiftieth_is_decompressed(folder: Path) -> None:
    """With the default limits. Memory and CPU time are bounded, and the next record is read."""
    path = folder / "bomb.warc.gz"
    with path.open("wb") as file, gzip.GzipFile("", "wb", 1, file, mtime=0) as packed:
        packed.write(record(b"", length=10 * 2**30)[:-4])
        for _ in range(640):
            packed.write(ZEROS)
    with path.open("ab") as file:
        file.write(member(C))
    max_record_bytes = WarcAdvanced().max_record_bytes
    started_s = time.process_time()
    tracemalloc.start()
    items, num_bytes = read_items(path, max_record_bytes)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    path.unlink()
    assert [type(item) for item in items] == [Broken, Record]
    assert num_bytes < 10 * 2**30 // 50
    assert peak_bytes < max_record_bytes
    # It takes about a second; to decompress all of it takes half a minute.
    assert time.process_time() - started_s < 15


def test_much_text_in_one_member_is_no_bomb(folder: Path) -> None:
    """The expansion is measured for each record; a whole crawl may be one member."""
    texts = [record(make_text("A") * 99) for _ in range(40)]
    reading = Reading(folder, member(b"".join(texts) + ARC_A * 200 + B), SMALL_RECORDS)
    assert reading.names == "A" * 40 + "B"
    assert reading.causes == ["garbage"]


def test_a_large_record_of_ordinary_content_is_skipped_to_its_end(folder: Path) -> None:
    """Gzip members inside it are not taken for the next member of the file."""
    nested = member(record(make_text("nested"))) + random.Random(1).randbytes(4 * MIB)
    data = member(A) + member(record(nested * 2)) + member(C)
    reading = Reading(folder, data, SMALL_RECORDS)
    assert (reading.names, reading.causes) == ("AC", ["record_too_large"])


@pytest.mark.parametrize("writer", [ZstdWriter, Lz4Writer])
def test_a_bomb_ends_the_reading_of_a_zstd_or_lz4_file(
    folder: Path, writer: type[ZstdWriter | Lz4Writer]
) -> None:
    """Reading cannot continue in such a file, so the bomb must be 16 times larger."""
    path = folder / "bomb.warc"
    data = A + record(ZEROS) + B + record(ZEROS * 8) + C
    with path.open("wb") as file, contextlib.closing(writer(file)) as packed:
        for start in range(0, len(data), MIB):  # FastWARC's zstd loses longer writes
            packed.write(data[start : start + MIB])
    items, num_bytes = read_items(path)
    path.unlink()
    assert [type(item) for item in items] == [Record, Broken, Record, Broken]
    *_, last = items
    assert isinstance(last, Broken)
    assert last.cause == "warc.record_too_large"
    assert "the rest of the file was not read" in last.detail
    assert num_bytes < 80 * MIB


def test_line_of_20_mb_is_a_document(folder: Path) -> None:
    """A long line is not a fault."""
    (row,) = Reading(folder, member(record(b"title\n" + b"x" * 20_000_000))).rows
    assert len(str(row["text"])) == 20_000_000


def test_reading_stops_after_max_faults(folder: Path) -> None:
    """Neither the list nor the time grows without limit."""
    reading = Reading(
        folder,
        (b"WARC/1.0\r\nWARC-Type: revisit\r\n\r\n") * 5000 + A,
        WarcSettings(advanced=WarcAdvanced(max_faults=20)),
    )
    assert reading.causes == ["header_missing"] * 21 + ["too_many_faults"]
    members = Reading(
        folder,
        bytes(BAD_CRC) * 100 + member(A),
        WarcSettings(advanced=WarcAdvanced(max_faults=20)),
    )
    assert members.causes[-1] == "too_many_faults"
    assert len(members.causes) <= 22


def test_wrong_lengths_take_linear_time(folder: Path) -> None:
    """Each of 20,000 records states a wrong length, and the bytes after it are read only once."""
    lie = b"WARC/1.0\r\nWARC-Type: conversion\r\nContent-Length: 1000000\r\n\r\n"
    reading = Reading(
        folder, lie * 20_000 + A, WarcSettings(advanced=WarcAdvanced(max_faults=10**6))
    )
    assert len(reading.causes) == 20_000
    assert reading.names == "A"


def test_large_arc_record_and_long_line_are_not_held(folder: Path) -> None:
    """100 MB of each need a few MiB of memory, and the next record is read."""
    huge, line = arc_record(bytes(100_000_000)), b"http://" + b"x" * 100_000_000 + b"\n"
    path = folder / "bomb.arc"
    path.write_bytes(b"".join(map(member, [ARC_START, ARC_A, huge, ARC_B, line, ARC_C])))
    del huge, line
    tracemalloc.start()
    reader = WarcReader(
        path,
        WarcSettings(advanced=WarcAdvanced(max_record_bytes=MIB)),
        split=0,
        batch_bytes=MIB,
    )
    num_docs = sum(table.num_rows for table in reader)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    path.unlink()
    assert num_docs == 3
    assert [entry.cause for entry in reader.report.quarantine] == [
        "warc.record_too_large",
        "warc.garbage",
    ]
    assert peak_bytes < 8 * MIB
