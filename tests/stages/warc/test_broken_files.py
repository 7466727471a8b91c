"""Files with known faults: intact documents are read, and each fault has a cause."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.warc.causes import CAUSES
from tests.stages.warc.files import (
    ARC_A,
    ARC_B,
    ARC_C,
    ARC_HUGE,
    ARC_LONG,
    ARC_SHORT,
    ARC_START,
    BAD_CRC,
    LONG,
    SHORT,
    A,
    B,
    C,
    Reading,
    make_text,
    member,
    record,
)

FLIPPED = bytearray(member(B))
FLIPPED[len(FLIPPED) // 2] ^= 0x55
SWALLOWING = record(make_text("X"), length=len(make_text("X")) + 4 + len(C) - 4)
HUGE = record(make_text("X"), length=10**12)
NO_LENGTH = record(make_text("X"), without="Content-Length")
NO_TYPE = record(make_text("X"), without="WARC-Type")
NO_URL = record(make_text("X"), without="WARC-Target-URI")
LONG_HEADER = record(b"x", X="y" * 70_000)
ONE_MEMBER = member(A + B + C)
FLIPPED_ARC = bytearray(member(ARC_B))
FLIPPED_ARC[len(FLIPPED_ARC) // 2] ^= 0x55

# Name -> bytes of the file, names of the documents to be read, causes.
BROKEN = {
    "empty": (b"", "", ["empty_file"]),
    "empty-gzip": (member(b""), "", ["empty_file"]),
    "newlines": (b"\r\n" * 9, "", ["empty_file"]),
    "text": (b"No records here.\n" * 999, "", ["not_a_warc"]),
    "text-gzip": (member(b"No records here.\n" * 999), "", ["not_a_warc"]),
    "png": (b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 99, "", ["not_a_warc"]),
    "gzip-magic-only": (b"\x1f\x8b", "", ["truncated"]),
    "zstd-magic-only": (b"\x28\xb5\x2f\xfd" + bytes(99), "", ["compression_corrupt"]),
    "lz4-magic-only": (b"\x04\x22\x4d\x18" + bytes(99), "", ["compression_corrupt"]),
    "gzip-cut": (member(A) + member(B)[:90], "A", ["truncated"]),
    "gzip-cut-in-header": (member(A) + member(B)[:8], "A", ["truncated"]),
    "gzip-cut-in-checksum": (member(A) + member(B)[:-3], "A", ["truncated"]),
    "gzip-flipped": (member(A) + bytes(FLIPPED) + member(C), "AC", ["compression_corrupt"]),
    "gzip-bad-checksum": (
        member(A) + bytes(BAD_CRC) + member(C),
        "AC",
        ["compression_corrupt"],
    ),
    "gzip-two-broken": (
        bytes(FLIPPED) + bytes(BAD_CRC) + member(C),
        "C",
        ["compression_corrupt"] * 2,
    ),
    "gzip-damaged-at-start": (b"xx" + member(A)[2:] + member(B), "B", ["garbage"]),
    "gzip-garbage-between": (
        member(A) + b"garbage" + member(B) + bytes(99) + member(C),
        "ABC",
        ["garbage"] * 2,
    ),
    "gzip-garbage-behind": (member(A) + bytes(512), "A", ["garbage"]),
    "gzip-no-warc-between": (member(A) + member(b"hello") + member(C), "AC", ["garbage"]),
    "one-member-cut": (ONE_MEMBER[:-60], "AB", ["truncated"]),
    "cut": (A + B[:-50], "A", ["truncated"]),
    "cut-in-header": (A + B[:70], "A", ["truncated"]),
    "garbage-between": (A + b"garbage\r\n" + B, "AB", ["garbage"]),
    "garbage-before": (b"garbage\r\n" + A + B, "AB", ["garbage"]),
    "garbage-behind": (A + B + b"garbage", "AB", ["garbage"]),
    "length-too-short": (A + SHORT + C, "AC", ["content_length_wrong"]),
    "length-too-long": (A + LONG + C, "AC", ["content_length_wrong"]),
    "length-huge": (A + HUGE + C, "AC", ["content_length_wrong"]),
    "gzip-length-too-short": (
        member(A) + member(SHORT) + member(C),
        "AC",
        ["content_length_wrong"],
    ),
    "gzip-length-too-long": (
        member(A) + member(LONG) + member(C),
        "AC",
        ["content_length_wrong"],
    ),
    "gzip-length-huge": (
        member(A) + member(HUGE) + member(C),
        "AC",
        ["content_length_wrong"],
    ),
    "gzip-length-huge-at-end": (member(A) + member(HUGE), "A", ["content_length_wrong"]),
    "gzip-swallowing-the-next": (
        member(A) + member(SWALLOWING) + member(C),
        "AC",
        ["content_length_wrong"],
    ),
    "one-member-length-huge": (member(A + HUGE + C), "AC", ["content_length_wrong"]),
    "no-length": (A + NO_LENGTH + C, "AC", ["header_missing"]),
    "length-no-number": (
        A + record(b"x").replace(b"Length: 1", b"Length: -1") + C,
        "AC",
        ["header_missing"],
    ),
    "no-type": (A + NO_TYPE + C, "AC", ["header_missing"]),
    "no-url": (A + NO_URL + C, "AC", ["header_missing"]),
    "header-too-long": (A + LONG_HEADER + C, "AC", ["header_too_long"]),
    "header-without-end": (A + B[:80] + b"y" * 100_000, "A", ["header_too_long"]),
    "not-utf8": (A + record(b"\xff" * 50) + C, "AC", ["not_utf8"]),
    "arc-no-more-than-a-start": (ARC_START[:60], "", ["not_a_warc"]),
    "arc-garbage-between": (ARC_START + ARC_A + b"garbage\n" + ARC_B, "AB", ["garbage"]),
    "arc-garbage-for-a-start": (b"filedesc:\n" + ARC_A + ARC_B, "AB", ["garbage"]),
    "arc-date-that-is-none": (
        ARC_START + ARC_B.replace(b" 2026", b" MMXX") + ARC_C,
        "C",
        ["garbage"],
    ),
    "arc-cut": (ARC_START + ARC_A + ARC_B[:-50], "A", ["truncated"]),
    "arc-cut-in-header": (ARC_START + ARC_A + ARC_B[:40], "A", ["garbage"]),
    "arc-length-too-short": (
        ARC_START + ARC_A + ARC_SHORT + ARC_C,
        "AC",
        ["content_length_wrong"],
    ),
    "arc-length-too-long": (
        ARC_START + ARC_A + ARC_LONG + ARC_C,
        "AC",
        ["content_length_wrong"],
    ),
    "arc-length-huge": (
        ARC_START + ARC_A + ARC_HUGE + ARC_C,
        "AC",
        ["content_length_wrong"],
    ),
    "arc-gzip-length-huge": (
        member(ARC_START + ARC_A) + member(ARC_HUGE) + member(ARC_C),
        "AC",
        ["content_length_wrong"],
    ),
    "arc-gzip-flipped": (
        member(ARC_START) + bytes(FLIPPED_ARC) + member(ARC_C),
        "C",
        ["compression_corrupt"],
    ),
    "arc-gzip-cut": (
        member(ARC_START) + member(ARC_A) + member(ARC_B)[:90],
        "A",
        ["truncated"],
    ),
    "lonely-versions": (A + b"WARC/1.0\r\n\r\n" * 3 + C, "AC", ["header_missing"]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_file_gives_intact_documents_and_causes(folder: Path, name: str) -> None:
    """Intact records on both sides are read, and each fault has one quarantine entry."""
    data, names, causes = BROKEN[name]
    reading = Reading(folder, data)
    assert (reading.names, reading.causes) == (names, causes)
    for entry in reading.report.quarantine:
        assert entry.cause in CAUSES
        assert entry.detail


def test_every_cause_is_reached() -> None:
    """The cases above reach each cause of CAUSES (those of HTML have their own tests)."""
    reached = {f"warc.{cause}" for _, _, causes in BROKEN.values() for cause in causes}
    elsewhere = {"warc.too_many_faults", "warc.record_too_large", "warc.http_header_broken"}
    assert {cause for cause in CAUSES if cause.startswith("warc.")} == reached | elsewhere


def test_quarantine_entry_locates_the_fault(folder: Path) -> None:
    """File, number and offset lead to the record; the skipped bytes are counted."""
    reading = Reading(folder, A + SHORT + C)
    (entry,) = reading.report.quarantine
    assert (entry.file, entry.record, entry.offset) == (reading.path.name, 1, len(A))
    assert entry.skipped_bytes == len(SHORT)
    assert [row["doc_id"] for row in reading.rows] == [0, 2]
