"""The file of a packing: pinned bytes, and errors for damaged, foreign and forged files."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.packed.best_fit import PackedShard
from loader.packed.index_file import (
    PackingCounts,
    count_head_bytes,
    dump_head,
    dump_section,
)
from loader.reading.manifest_columns import read_manifest_columns
from loader.storage import ReadFailed, ReadSettings
from shardwriter.format import FormatError, ShardCorrupt
from terminal_output import format_command
from tests.loader.conftest import Dataset, Make
from tests.loader.packed.conftest import T, pack
from tests.loader.packed.test_packed_rows import open_loader

# Raise PACKING_VERSION with every change of this digest.
GOLDEN = "b7cf33e563c0ab045280b9085df48d9a9e982b15c2c8bb91ad40e7dd487319ea"


def test_a_file_has_the_recorded_bytes(packed: Dataset) -> None:
    """Equal datasets give equal bytes on every machine, and in every release of the version."""
    data = (packed.folder / f"packed-{T}.rows").read_bytes()
    assert hashlib.sha256(data).hexdigest() == GOLDEN


def test_a_second_packing_of_a_dataset_is_the_same(packed: Dataset, tmp_path: Path) -> None:
    """The packing depends on nothing but its arguments, and leaves no other files."""
    again = Path(pack(packed.folder, out=tmp_path / "again.rows"))
    assert again.read_bytes() == (packed.folder / f"packed-{T}.rows").read_bytes()
    assert not [path for path in packed.folder.rglob("*") if "staging" in path.parent.name]


def read_all(folder: Path, packing: Path) -> None:
    """Read an epoch."""
    loader = open_loader(folder, packing=packing, tokens="stored", interleave_depth=1)
    for _ in loader:
        pass


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_changed_byte_is_found(
    packed: Dataset, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Header and table are checked when the file is opened, a section when its shard is."""
    content = bytearray((packed.folder / f"packed-{T}.rows").read_bytes())
    head_bytes = count_head_bytes(len(packed.tokens))
    place = data.draw(st.integers(0, head_bytes - 1) | st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    path = tmp_path_factory.mktemp("damaged") / "damaged.rows"
    path.write_bytes(content)
    with pytest.raises(FormatError, match=r"damaged\.rows"):
        read_all(packed.folder, path)


@pytest.mark.parametrize("num_bytes", [0, 20, 200, 5000, -8, -1])
def test_a_file_that_was_cut_off_is_refused(
    packed: Dataset, tmp_path: Path, num_bytes: int
) -> None:
    """Before the first row."""
    path = tmp_path / "cut.rows"
    path.write_bytes((packed.folder / f"packed-{T}.rows").read_bytes()[:num_bytes])
    with pytest.raises(ShardCorrupt, match=r"cut\.rows: found \d+ bytes, wanted \d+"):
        open_loader(packed.folder, packing=path)


def test_the_packing_of_another_dataset_or_length_is_refused(
    packed: Dataset, make: Make, tmp_path: Path
) -> None:
    """The error says what to run."""
    other = make([[60, 50, 4]])
    with pytest.raises(FormatError, match=r"digest of the manifest: found [0-9a-f]{64}"):
        open_loader(other.folder, packing=packed.folder / f"packed-{T}.rows")
    with pytest.raises(
        FormatError, match=r"seq_len: found 7, wanted 32; run .* --seq-len 32"
    ):
        open_loader(packed.folder, packing=packed.folder / "packed-7.rows")
    command = f"{format_command('loader')} pack {other.folder} --seq-len {T}"
    with pytest.raises(
        ReadFailed, match=re.escape(f"there is no packing; run `{command}`")
    ):
        open_loader(other.folder)
    data = bytearray((packed.folder / f"packed-{T}.rows").read_bytes())
    data[8] = 9
    (tmp_path / "new.rows").write_bytes(data)
    with pytest.raises(FormatError, match="version 9, wanted 1"):
        open_loader(packed.folder, packing=tmp_path / "new.rows")


@pytest.mark.parametrize(
    ("row_starts", "piece_starts"),
    [
        ([0, 1, 2], [0, 0]),  # a document twice
        ([0, 1, 2], [0, 21]),  # inside a document
        ([0, 1, 2], [0, 10**12]),  # behind the shard
        ([0, 1, 2], [-5, 20]),
        ([0, 2, 2], [0, 20]),  # an empty row
        ([0, 3, 2], [0, 20]),
        ([0, 1, 1], [0, 20]),  # a piece in no row
        ([1, 1, 2], [0, 20]),
    ],
)
def test_a_forged_packing_is_refused(
    make: Make, tmp_path: Path, row_starts: list[int], piece_starts: list[int]
) -> None:
    """Its digests match, but its rows do not have each piece once."""
    made = make([[20, 15]])
    digest = read_manifest_columns(made.folder, ReadSettings()).digest
    section = dump_section(PackedShard(np.array(row_starts), np.array(piece_starts)))
    counts = PackingCounts(1, 700, 2, 35, 2, 2, 0, 0, 0, 0)
    head = dump_head(T, digest, counts, [(2, 2, hashlib.sha256(section).digest())])
    path = tmp_path / "forged.rows"
    path.write_bytes(head + section)
    with pytest.raises(FormatError, match=r"forged\.rows, shard 0: found rows with other"):
        read_all(made.folder, path)


def test_a_row_with_too_many_tokens_is_refused(make: Make, tmp_path: Path) -> None:
    """Also if the file has each piece once."""
    folder = make([[20, 15]]).folder
    digest = read_manifest_columns(folder, ReadSettings()).digest
    section = dump_section(PackedShard(np.array([0, 2]), np.array([0, 20])))
    counts = PackingCounts(1, 700, 2, 35, 1, 2, 0, 0, 0, 0)
    head = dump_head(T, digest, counts, [(1, 2, hashlib.sha256(section).digest())])
    (tmp_path / "long.rows").write_bytes(head + section)
    with pytest.raises(FormatError, match="at most 33 tokens in a row"):
        read_all(folder, tmp_path / "long.rows")
