"""Limits of memory, time and number of faults."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from stages.settings.warc import WarcAdvanced, WarcSettings
from stages.warc.reader import WarcReader
from tests.stages.warc.files import (
    ARC_A,
    ARC_B,
    ARC_C,
    ARC_START,
    BAD_CRC,
    MIB,
    A,
    C,
    Reading,
    arc_record,
    member,
    record,
)


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
