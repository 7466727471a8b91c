"""Sets of n-grams are read as they were written, or the damage is named."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.runs.ngram_sets import LocalSets, NgramWriter, count_ngrams, read_places
from pipeline.runs.phase_folder import PhaseFolder
from pipeline.runs.verified_file import DamagedOutput
from storage.local import LocalStore

SETS = st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=40), max_size=20)
FILE = "000000.ngrams.bin"


def write(folder: Path, sets: list[list[int]]) -> tuple[PhaseFolder, list[int]]:
    """Write a file of sets; return its folder, and the places of all sets."""
    outputs = PhaseFolder(LocalStore(folder))
    outputs.begin()
    with outputs.commit("000000") as output:
        writer = NgramWriter(output.path(FILE))
        parts = [
            pa.array(part, pa.large_list(pa.uint32())) for part in (sets[:3], sets[3:])
        ]
        places = [int(place) for part in parts for place in writer.add(part)]
        writer.close()
    return outputs, places


@settings(deadline=None, max_examples=50)
@given(files=st.tuples(SETS, SETS), data=st.data())
def test_sets_are_read_in_any_order(
    tmp_path_factory: pytest.TempPathFactory,
    files: tuple[list[list[int]], list[list[int]]],
    data: st.DataObject,
) -> None:
    """Any documents of any file, also several times; equal sets of a file are stored once."""
    folder = tmp_path_factory.mktemp("sets")
    written = [write(folder / str(source), sets) for source, sets in enumerate(files)]
    for sets, (_, places) in zip(files, written, strict=True):
        assert len({tuple(each) for each in sets}) == len(set(places))
    sent = [
        (source, *part)
        for source, (outputs, places) in enumerate(written)
        for part in read_places(outputs, FILE, np.unique(np.array(places, np.uint64)))
    ]
    local = LocalSets(folder / "sets.bin", sent)
    rows = [(i, j) for i, sets in enumerate(files) for j in range(len(sets))]
    chosen = data.draw(st.lists(st.sampled_from(rows), max_size=30)) if rows else []
    starts, values = local.read(
        np.array([i << 32 | j for i, j in chosen], np.uint64),
        np.array([written[i][1][j] for i, j in chosen], np.uint64),
    )
    found = [values[start:end].tolist() for start, end in itertools.pairwise(starts)]
    assert found == [files[i][j] for i, j in chosen]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), "no file"),
        (lambda path: path.write_bytes(path.read_bytes()[:50]), "50 bytes"),
        (lambda path: path.write_bytes(path.read_bytes().replace(b"\7", b"\6")), "crc32"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, damage: object, message: str) -> None:
    """The error names the file, and what is there."""
    outputs, places = write(tmp_path, [[3] * 30, [7, 8, 9]])
    assert callable(damage)
    damage(tmp_path / FILE)
    with pytest.raises(DamagedOutput, match=f"{FILE}.*{message}"):
        list(read_places(outputs, FILE, np.array(places[1:], np.uint64)))


def test_a_place_of_another_set_is_an_error(tmp_path: Path) -> None:
    """The file is whole, but the band hashes are of another one."""
    outputs, places = write(tmp_path, [[1, 2, 3, 4, 5]])
    place = np.array(places, np.uint64) - np.uint64(1)
    assert count_ngrams(place).tolist() == [4]
    with pytest.raises(DamagedOutput, match="found other n-grams"):
        list(read_places(outputs, FILE, place))
