"""The digest of a file is that of its whole content, in any order of reading."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stages.settings.warc import WarcAdvanced, WarcSettings
from stages.warc.input_content import InputContent
from tests.stages.warc.files import ARC_A, BAD_CRC, LONG, A, B, C, Reading, member

READS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20)), max_size=8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=32), reads=READS)
def test_any_reads_give_the_bytes_and_the_digest(
    data: bytes, reads: list[tuple[int, int]], tmp_path: Path
) -> None:
    """Forward, backward, across gaps, beyond the end, by several readers."""
    path = tmp_path / "file"
    path.write_bytes(data)
    with InputContent(path) as content:
        sequential = content.open()
        for start, num_bytes in reads:
            assert content.open(start).read(num_bytes) == data[start : start + num_bytes]
            position = sequential.tell()
            assert sequential.read(3) == data[position : position + 3]
        assert content.compute_sha256() == hashlib.sha256(data).hexdigest()


def test_a_reader_seeks_from_the_start_only(tmp_path: Path) -> None:
    """Other ways would need the size, which may change."""
    (tmp_path / "file").write_bytes(b"1234")
    with InputContent(tmp_path / "file") as content:
        file = content.open(1)
        assert file.seek(2) == file.tell() == 2
        with pytest.raises(io.UnsupportedOperation):
            file.seek(0, io.SEEK_END)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        A + B + C,
        member(A) + member(B),
        member(A) + BAD_CRC + b"garbage" * 99 + member(C),
        A + LONG * 3 + B,
        member(A) + member(B)[:-20],
        member(ARC_A),
        b"<html>" * 9,
    ],
    ids=["empty", "stored", "gzip", "broken", "rewinds", "cut", "arc", "no warc"],
)
def test_the_report_has_the_digest_of_the_file(folder: Path, data: bytes) -> None:
    """Also of what the reader skipped, read twice or never reached."""
    limits = WarcSettings(advanced=WarcAdvanced(max_faults=1))
    for limited in (WarcSettings(), limits):
        reading = Reading(folder, bytes(data), limited)
        assert reading.report.sha256 == hashlib.sha256(data).hexdigest()
