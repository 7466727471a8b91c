"""Random damage: nothing raises, and records before the damage are read."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.stages.warc.files import (
    ARC_A,
    ARC_START,
    Reading,
    arc_record,
    clean_in_python,
    make_page,
    make_text,
    member,
    page,
    record,
    response,
)

RECORDS = [record(make_text(str(i))) for i in range(6)]
ARC_RECORDS = [arc_record(make_page(str(i))) for i in range(6)]
PACKED = {
    "gzip": list(map(member, RECORDS)),
    "uncompressed": RECORDS,
    "arc-gzip": [member(ARC_START) + member(ARC_RECORDS[0]), *map(member, ARC_RECORDS[1:])],
    "arc": [ARC_START + ARC_RECORDS[0], *ARC_RECORDS[1:]],
}
NOISE = st.binary(max_size=40) | st.sampled_from(
    [
        b"WARC/1.0\r\n",
        b"\x1f\x8b\x08\0\0\0\0\0\0\x03",
        b"\r\n\r\n",
        RECORDS[0],
        ARC_RECORDS[0],
        b"filedesc:",
        b" ",
    ]
)


@pytest.mark.parametrize("packing", PACKED)
@given(at=st.floats(0, 1), cut=st.integers(0, 200), inserted=NOISE)
def test_damage_never_raises_and_keeps_earlier_records(
    folder: Path, packing: str, at: float, cut: int, inserted: bytes
) -> None:
    """Bytes are cut, inserted or overwritten: all records before are read, and counts match."""
    parts = PACKED[packing]
    data = b"".join(parts)
    place = int(at * len(data))
    reading = Reading(folder, data[:place] + inserted + data[place + cut :])
    num_whole = sum(len(b"".join(parts[: i + 1])) <= place for i in range(len(parts)))
    assert reading.names[:num_whole] == "012345"[:num_whole]
    reading.report.check()


# The second bit hides the end of the deflate data: garbage follows a complete record.
@example(flips=[(0.15625, 1), (0.162109375, 1)])
@given(
    flips=st.lists(
        st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), max_size=6
    )
)
@pytest.mark.parametrize("packing", [*PACKED, "one-member"])
def test_flipped_bits_never_raise(
    folder: Path, packing: str, flips: list[tuple[float, int]]
) -> None:
    """Counts match, and gzip's checksums prevent false documents."""
    data = bytearray(
        member(b"".join(RECORDS)) if packing == "one-member" else b"".join(PACKED[packing])
    )
    for at, mask in flips:
        data[int(at * len(data))] ^= mask
    reading = Reading(folder, bytes(data))
    reading.report.check()
    if packing == "gzip":
        texts = {clean_in_python(make_text(str(i)).decode()) for i in range(6)}
        assert {(row["title"], row["text"]) for row in reading.rows} <= texts


@given(st.binary(max_size=300))
def test_random_bytes_never_raise(folder: Path, data: bytes) -> None:
    """Random bytes alone, in a gzip member, after a version line and as a page."""
    for wrapped in (
        data,
        member(data),
        b"WARC/1.0\r\n" + data,
        ARC_START + data,
        ARC_A[:30] + data + ARC_A[30:],
        response(page(data)),
        response(data),
        b"\x1f\x8b\x08" + data,
    ):
        Reading(folder, wrapped).report.check()
