"""The short cuts for sound files give the same as the careful reader.

`_inflate_whole` and `_read_whole_record` read gzip members that hold one sound record. Without
them, all bytes take the way that damaged files take.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given

from stages.settings.warc import WarcAdvanced, WarcSettings
from stages.warc.input_content import InputContent
from stages.warc.reader import WarcReader
from stages.warc.record_framing import Broken, Record, RecordReader
from tests.faults.fuzz.mutations import mutated_bytes, try_inputs
from tests.stages.warc.files import (
    ARC_A,
    ARC_B,
    ARC_START,
    MIB,
    A,
    B,
    C,
    make_text,
    member,
    page,
    record,
    response,
)
from tests.stages.warc.test_broken_files import BROKEN

NAMES = [str(number) for number in range(40)]
MANY = [record(make_text(name), WARC_Record_ID=f"<urn:{name}>") for name in NAMES]
# 300 kB of random letters: more than one block on disk and one step of decompression.
LARGE = record(bytes(random.Random(5).choices(b"abcdefgh \n", k=300_000)))
CHUNKED = b"5\r\n<p>on\r\n2\r\ne<\r\n3\r\n/p>\r\n0\r\n\r\n"
RESPONSES = [
    response(page(b"<p>plain</p>" * 9)),
    response(page(CHUNKED, "Transfer-Encoding: chunked")),
    response(page(member(b"<p>packed</p>"), "Content-Encoding: gzip")),
    response(page(b"<p>unpacked</p>", "Content-Encoding: gzip")),
    response(page(b"<p>lost</p>", status="404 Not Found")),
]
SHORT_LENGTH = record(make_text("X"), length=100)
LONG_LENGTH = record(make_text("X"), length=1000)
OTHERS = {
    "many": b"".join(map(member, MANY)),
    "many-in-one-member": member(b"".join(MANY)),
    "two-per-member": member(A + B) + member(C + A) + member(B),
    "uncompressed": b"".join(MANY),
    "http": b"".join(map(member, RESPONSES)),
    "http-uncompressed": b"".join(RESPONSES),
    "large": member(A) + member(LARGE) + member(B) + member(LARGE) + member(C),
    "large-half-kept": (member(A) + member(LARGE) + member(B))[:-40],
    "member-inside-member": member(A) + member(record(member(B) * 9)) + member(C),
    "record-cut-over-members": member(A[:70]) + member(A[70:]) + member(B) + member(C),
    "separator-in-own-member": b"".join(member(a[:-4]) + member(a[-4:]) for a in MANY[:9]),
    "separator-of-line-feeds": b"".join(member(a[:-4] + b"\n\n") for a in MANY[:9]),
    "no-separator": b"".join(member(a[:-4]) for a in MANY[:9]),
    "newlines-before": b"".join(member(b"\r\n\r\n" + a) for a in MANY[:9]),
    "newlines-behind": b"".join(member(a + b"\r\n" * 9) for a in MANY[:9]),
    "empty-members": b"".join(member(b"") + member(a) for a in MANY[:9]),
    "version-1.1": b"".join(member(a.replace(b"/1.0", b"/1.1", 1)) for a in MANY[:9]),
    "version-unusual": b"".join(
        member(a.replace(b"/1.0\r", b"/0.17 \r", 1)) for a in MANY[:9]
    ),
    "line-feeds-only": b"".join(member(a.replace(b"\r\n", b"\n")) for a in MANY[:9]),
    "type-unknown": member(A) + member(record(b"x", kind="Other")) + member(B),
    "two-lengths": b"".join(
        member(a.replace(b"WARC-Type", b"Content-Length: 3\r\nWARC-Type", 1))
        for a in MANY[:9]
    ),
    "arc": member(ARC_START) + member(ARC_A) + member(ARC_B),
    "arc-after-warc": member(A) + member(ARC_A) + member(B),
    "bomb": member(A) + member(record(bytes(8 * MIB))) + member(C),
    "bomb-of-whole-members": member(A) + member(b"\n" * 250_000) * 40 + member(C),
    "lengths": b"".join(map(member, [A, SHORT_LENGTH, B, LONG_LENGTH, C])),
}
BASES = [
    OTHERS["many"],
    OTHERS["two-per-member"],
    OTHERS["http"],
    OTHERS["arc"],
    OTHERS["uncompressed"][:3000],
    OTHERS["lengths"],
    OTHERS["separator-in-own-member"],
]
SETTINGS = WarcSettings(advanced=WarcAdvanced(max_record_bytes=MIB))


@contextmanager
def careful_only() -> Generator[None]:
    """Switch the short cuts off."""

    def inflate_nothing(member: bytes) -> bytes:
        return b""

    def read_nothing(reader: RecordReader) -> None:
        return None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stages.warc.decompress._inflate_whole", inflate_nothing)
        patch.setattr(RecordReader, "_read_whole_record", read_nothing)
        yield


def read_items(path: Path) -> tuple[list[Record | Broken], int, int, str]:
    """Return the items of a file, its faults, its decompressed bytes and its digest."""
    with InputContent(path) as content:
        reader = RecordReader(content, MIB, max_faults=1000)
        items = list(iter(reader.read_next, None))
        for item in items:
            if isinstance(item, Record):
                item.fields.pop(b"warc-record-id", None)  # random in ARC files
        num_bytes = reader.window.num_bytes
        return items, reader.num_faults, num_bytes, content.compute_sha256()


def read_documents(path: Path) -> tuple[object, ...]:
    """Return the documents and the report of a file."""
    reader = WarcReader(path, SETTINGS, split=3, batch_bytes=MIB)
    tables = [table.to_pydict() for table in reader]
    return tables, reader.report


def assert_same_items(path: Path) -> None:
    """Check that records, faults and accounts do not depend on the short cuts."""
    items = read_items(path)
    with careful_only():
        assert items == read_items(path), path


def assert_same_bytes(folder: Path, data: bytes) -> None:
    """Check the same for a file of these bytes, and for its documents."""
    path = folder / "file.warc"
    path.write_bytes(data)
    assert_same_items(path)
    documents = read_documents(path)
    with careful_only():
        assert documents == read_documents(path)


@pytest.mark.parametrize("name", BROKEN)
def test_broken_files_give_the_same(folder: Path, name: str) -> None:
    """Causes, offsets and skipped bytes of every known fault."""
    data, _, _ = BROKEN[name]
    assert_same_bytes(folder, data)
    assert_same_bytes(folder, OTHERS["many"] + data + OTHERS["many"])


@pytest.mark.parametrize("name", OTHERS)
def test_unusual_members_give_the_same(folder: Path, name: str) -> None:
    """Members that hold parts of records, several records, large ones, or no record."""
    assert_same_bytes(folder, OTHERS[name])


@pytest.mark.parametrize("num_bytes", range(0, 400, 7))
def test_members_at_the_edge_of_a_block_give_the_same(folder: Path, num_bytes: int) -> None:
    """A record of random bytes moves the next members over the edge at 64 KiB."""
    noise = random.Random(7).randbytes((64 << 10) - 700 + num_bytes)
    assert_same_bytes(folder, member(record(noise)) + b"".join(map(member, MANY[:4])))


@given(data=mutated_bytes(BASES))
def test_mutants_give_the_same(folder: Path, data: bytes) -> None:
    """Up to eight edits per file."""
    assert_same_bytes(folder, data)


@pytest.mark.heavy
def test_6000_mutants_give_the_same(folder: Path) -> None:
    """The same, with many more files."""
    check = partial(assert_same_bytes, folder)
    assert try_inputs(mutated_bytes(BASES), check, seed=16, num_inputs=6000) == 6000


@pytest.mark.shared_data
@pytest.mark.parametrize("part", ["hostile", "common-crawl", "web-archives"])
def test_real_files_give_the_same(shared_data: Path, part: str) -> None:
    """Files of Common Crawl, and damaged ones of other projects."""
    paths = [path for path in sorted((shared_data / part).rglob("*")) if path.is_file()]
    assert paths
    for path in paths:
        assert_same_items(path)


def test_sound_files_take_the_short_cuts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 2,000 records, those in the first 9 KiB and at edges of blocks are read carefully."""
    calls: list[object] = []
    read_carefully = RecordReader._read_record  # pyright: ignore[reportPrivateUsage]

    def count(reader: RecordReader, head: object) -> object:
        calls.append(head)
        return read_carefully(reader, head)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(RecordReader, "_read_record", count)
    path = folder / "sound.warc.gz"
    path.write_bytes(OTHERS["many"] * 50)
    items, *_ = read_items(path)
    assert len(items) == 2000
    num_blocks = path.stat().st_size // (64 << 10)
    assert len(calls) <= 30 + num_blocks
