"""Files with digests return the written bytes, or CheckpointDamaged."""

from __future__ import annotations

import io
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from training.checkpoint.block_digests import (
    BLOCK_BYTES,
    DigestWriter,
    FileDigest,
    open_verified,
)
from training.errors import CheckpointDamaged

# Around the ends of blocks, where mistakes are likely.
LENGTHS = st.sampled_from([0, 1, 4096, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1])


def write_parts(path: Path, parts: list[bytes]) -> FileDigest:
    """Write parts one after another."""
    with path.open("wb") as file:
        writer = DigestWriter(file)
        for part in parts:
            assert writer.write(part) == len(part)
        return writer.finish()


def open_file(path: Path, digest: FileDigest) -> io.BufferedReader:
    """Open a file for verified reading."""
    return open_verified(lambda: path.open("rb"), str(path), digest)


@given(lengths=st.lists(LENGTHS, max_size=4), seed=st.binary(min_size=1, max_size=8))
def test_all_bytes_come_back(lengths: list[int], seed: bytes) -> None:
    """However the content was split into writes, it is read back, and the file has the size."""
    parts = [(seed * (length // len(seed) + 1))[:length] for length in lengths]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        digest = write_parts(path, parts)
        assert path.stat().st_size == digest.file_bytes
        with open_file(path, digest) as file:
            assert file.read() == b"".join(parts)


@given(
    reads=st.lists(
        st.tuples(st.integers(0, 3 * BLOCK_BYTES), st.integers(0, 2 * BLOCK_BYTES)),
        max_size=6,
    )
)
def test_ranges_equal_those_of_a_plain_file(reads: list[tuple[int, int]]) -> None:
    """Seeks and reads in any order behave as on the content alone."""
    content = bytes(range(251)) * (5 * BLOCK_BYTES // 502)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        digest = write_parts(path, [content])
        plain = io.BytesIO(content)
        with open_file(path, digest) as file:
            for start, length in reads:
                assert file.seek(start) == plain.seek(start)
                assert file.read(length) == plain.read(length)
            assert file.seek(-3, os.SEEK_END) == plain.seek(-3, os.SEEK_END)
            assert file.read() == plain.read()


@given(
    num_bytes=st.sampled_from([1, 999, BLOCK_BYTES, 2 * BLOCK_BYTES + 7]), data=st.data()
)
def test_every_flipped_bit_is_noticed(num_bytes: int, data: st.DataObject) -> None:
    """A flip in the content or in the digests raises, and the message has the file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "file")
        digest = write_parts(path, [bytes(num_bytes)])
        position = data.draw(st.integers(0, digest.file_bytes - 1))
        damaged = bytearray(path.read_bytes())
        damaged[position] ^= 1 << data.draw(st.integers(0, 7))
        path.write_bytes(damaged)
        with (
            pytest.raises(CheckpointDamaged, match=f"{path}: .*differ"),
            open_file(path, digest) as file,
        ):
            file.read()


def test_blocks_without_damage_can_be_read(tmp_path: Path) -> None:
    """Only the damaged block raises, and the message has its bytes."""
    digest = write_parts(tmp_path / "file", [bytes(3 * BLOCK_BYTES)])
    with (tmp_path / "file").open("r+b") as file:
        file.seek(BLOCK_BYTES)
        file.write(b"\1")
    with open_file(tmp_path / "file", digest) as file:
        assert file.read(BLOCK_BYTES) == bytes(BLOCK_BYTES)
        file.seek(2 * BLOCK_BYTES)
        assert file.read() == bytes(BLOCK_BYTES)
        file.seek(BLOCK_BYTES)
        with pytest.raises(CheckpointDamaged, match="bytes 1048576 to 2097151 differ"):
            file.read(1)


@pytest.mark.parametrize("num_bytes", [0, 5, 99])
def test_another_length_is_noticed(tmp_path: Path, num_bytes: int) -> None:
    """The message has both lengths."""
    digest = write_parts(tmp_path / "file", [b"0123456789"])
    os.truncate(tmp_path / "file", num_bytes)
    with pytest.raises(CheckpointDamaged, match=f"has {num_bytes} bytes, expected 26"):
        open_file(tmp_path / "file", digest)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The path is in the message."""
    with pytest.raises(CheckpointDamaged, match=r"absent is missing"):
        open_file(tmp_path / "absent", FileDigest(1, "00"))
