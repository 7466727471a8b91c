"""A byte of an output is returned only if it is the byte that was written."""

from __future__ import annotations

import os
import pickle
import random
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.runs.output_digests import BLOCK_BYTES
from pipeline.runs.phase_folder import PhaseFolder
from pipeline.runs.verified_file import DamagedOutput
from storage import open_store

NAME = "u0.bin"
NUM_BYTES = 3 * BLOCK_BYTES + 1000
CONTENT = random.Random(1).randbytes(NUM_BYTES)

# What can happen to a stored file.
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "flipped bit": lambda content: _flip(content, len(content) // 2, 3),
    "zeroed block": lambda content: content[:4096] + bytes(4096) + content[8192:],
    "cut": lambda content: content[:-1],
    "cut at a block": lambda content: content[: 2 * BLOCK_BYTES],
    "longer": lambda content: content + b"\0",
    "emptied": lambda content: content[:0],
    "another file of that size": lambda content: bytes(reversed(content)),
}


def _flip(content: bytes, position: int, bit: int) -> bytes:
    changed = bytearray(content)
    changed[position] ^= 1 << bit
    return bytes(changed)


def commit(path: Path, content: bytes) -> PhaseFolder:
    """Return a phase folder with one output."""
    folder = PhaseFolder(open_store(path / "extract-00ff"))
    folder.begin()
    with folder.commit("u0") as output:
        output.path(NAME).write_bytes(content)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> PhaseFolder:
    """A phase folder with an output of four blocks."""
    return commit(tmp_path, CONTENT)


@pytest.fixture(scope="module")
def shared_folder() -> Iterator[PhaseFolder]:
    """The same for several examples."""
    with tempfile.TemporaryDirectory() as path:
        yield commit(Path(path), CONTENT)


@given(st.lists(st.tuples(st.integers(0, NUM_BYTES + 10), st.integers(0, NUM_BYTES + 10))))
def test_any_reads_return_what_was_written(
    shared_folder: PhaseFolder, reads: list[tuple[int, int]]
) -> None:
    """Any ranges, in any order, as from a plain file."""
    with shared_folder.open(NAME) as file:
        assert file.size() == NUM_BYTES
        for start, num_bytes in reads:
            file.seek(start)
            assert file.read(num_bytes) == CONTENT[start : start + num_bytes]


@given(st.integers(0, NUM_BYTES))
def test_all_bytes_from_a_position_are_read(shared_folder: PhaseFolder, start: int) -> None:
    """As from a plain file. Beyond the end, pyarrow raises an error without a size."""
    with shared_folder.open(NAME) as file:
        file.seek(start)
        assert file.read() == CONTENT[start:]


@given(
    position=st.integers(0, NUM_BYTES - 1),
    bit=st.integers(0, 7),
    reads=st.lists(st.tuples(st.integers(0, NUM_BYTES), st.integers(0, NUM_BYTES))),
)
def test_a_read_of_a_damaged_block_raises_and_others_do_not(
    shared_folder: PhaseFolder, position: int, bit: int, reads: list[tuple[int, int]]
) -> None:
    """A read returns the right bytes, or raises if it touches the damaged block."""
    path = shared_folder.path(NAME)
    path.write_bytes(_flip(CONTENT, position, bit))
    for start, num_bytes in reads:
        end = min(start + num_bytes, NUM_BYTES)
        blocks = range(start // BLOCK_BYTES, -(-end // BLOCK_BYTES))
        with shared_folder.open(NAME) as file:
            file.seek(start)
            if start < end and position // BLOCK_BYTES in blocks:
                with pytest.raises(DamagedOutput):
                    file.read(num_bytes)
            else:
                assert file.read(num_bytes) == CONTENT[start:end]
    path.write_bytes(CONTENT)


@pytest.mark.parametrize("kind", DAMAGES)
def test_each_kind_of_damage_is_named(folder: PhaseFolder, kind: str) -> None:
    """The error has the path, what was found and what was wanted."""
    folder.path(NAME).write_bytes(DAMAGES[kind](CONTENT))
    with pytest.raises(DamagedOutput) as caught, folder.open(NAME) as file:
        file.read()
    damage = caught.value.damage
    assert (damage.folder, damage.file) == (str(folder.root), NAME)
    assert str(caught.value).startswith(f"{damage}; run the config")
    if "crc32" in damage.found:
        assert re.fullmatch(r"bytes \d+ to \d+", damage.place)
    else:
        assert damage.wanted == f"a file of {NUM_BYTES} bytes"


def test_a_missing_file_is_damage_and_a_missing_record_is_not(folder: PhaseFolder) -> None:
    """A task without a record is not done, even if its files exist."""
    folder.path(NAME).unlink()
    with pytest.raises(DamagedOutput, match="found no file, wanted a file of 197608 bytes"):
        folder.open(NAME)
    folder.root.put("u1.bin", b"of a task that was killed")
    with pytest.raises(FileNotFoundError):
        folder.open("u1.bin")


def test_the_error_survives_pickling(folder: PhaseFolder) -> None:
    """Ray sends errors between processes."""
    folder.path(NAME).unlink()
    with pytest.raises(DamagedOutput) as caught:
        folder.open(NAME)
    copied = pickle.loads(pickle.dumps(caught.value))
    assert (str(copied), copied.damage) == (str(caught.value), caught.value.damage)


def test_arrow_passes_the_error_on(tmp_path: Path) -> None:
    """A damaged page of a Parquet file raises DamagedOutput, not an error of the decoder."""
    folder = PhaseFolder(open_store(tmp_path / "extract-00ff"))
    folder.begin()
    table = pa.table({"number": np.random.default_rng(1).integers(0, 2**62, 100_000)})
    with folder.commit("u0") as output:
        pq.write_table(table, output.path("u0.parquet"))
        with pa.ipc.new_file(output.path("u0.arrow"), table.schema) as file:
            file.write_table(table)
    with folder.open("u0.parquet") as source:
        assert pq.read_table(source).equals(table)
    with folder.open("u0.arrow") as source:
        assert pa.ipc.open_file(source).read_all().equals(table)
    for name in ("u0.parquet", "u0.arrow"):
        path = folder.path(name)
        path.write_bytes(_flip(path.read_bytes(), 300_000, 0))
    with pytest.raises(DamagedOutput), folder.open("u0.parquet") as source:
        pq.read_table(source)
    with pytest.raises(DamagedOutput), folder.open("u0.parquet") as source:
        pq.ParquetFile(source).read_row_group(0)
    with pytest.raises(DamagedOutput), folder.open("u0.arrow") as source:
        pa.ipc.open_file(source).read_all()


def test_a_file_that_is_cut_while_it_is_open_raises(folder: PhaseFolder) -> None:
    """A memory map would kill the process."""
    with folder.open(NAME) as file:
        os.truncate(folder.path(NAME), 2 * BLOCK_BYTES)
        assert file.read(10) == CONTENT[:10]
        file.seek(2 * BLOCK_BYTES)
        with pytest.raises(DamagedOutput, match=f"found {2 * BLOCK_BYTES} bytes"):
            file.read(10)


def test_digests_of_an_earlier_record_are_read_again(folder: PhaseFolder) -> None:
    """A task that was repeated may have written another record, but processes keep records."""
    with folder.open(NAME) as file:
        assert file.read(10) == CONTENT[:10]
    changed = _flip(CONTENT, 5, 0)
    with folder.commit("u0") as output:
        output.path(NAME).write_bytes(changed)
    with folder.open(NAME) as file:
        assert file.read(10) == changed[:10]
    with folder.commit("u0") as output:
        output.path(NAME).write_bytes(b"shorter")
    with folder.open(NAME) as file:
        assert file.read() == b"shorter"
