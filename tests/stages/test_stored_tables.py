"""Tables are stored, found again by equal keys, and built anew when their files are damaged."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from stages.stored_tables import TableKey, load_or_build


class Letters(NamedTuple):
    """A table of two arrays."""

    codes: NDArray[np.uint32]
    is_vowel: NDArray[np.bool_]


LETTERS = Letters(np.arange(97, 100, dtype=np.uint32), np.array([True, False, False]))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CORPUSMILL_CACHE", str(folder))
    return folder


def load(key: TableKey) -> tuple[Letters, bool]:
    """Return the table, and whether it was built."""
    built: list[Letters] = []

    def build() -> Letters:
        built.append(LETTERS)
        return LETTERS

    return load_or_build(key, Letters, build), bool(built)


def test_a_stored_table_equals_the_one_that_was_built():
    """The second process builds nothing."""
    key = TableKey("letters", [__file__])
    assert load(key) == (LETTERS, True)
    table, was_built = load(key)
    assert not was_built
    for stored, expected in zip(table, LETTERS, strict=True):
        assert stored.dtype == expected.dtype
        assert np.array_equal(stored, expected)


def test_other_code_or_content_has_another_table(tmp_path: Path):
    """An edited source file, or another model, builds its own table."""
    source = tmp_path / "rules.py"
    source.write_text("LETTERS = 'abc'")
    load(TableKey("letters", [str(source)], b"model"))
    assert not load(TableKey("letters", [str(source)], b"model"))[1]
    assert load(TableKey("letters", [str(source)], b"other model"))[1]
    source.write_text("LETTERS = 'abd'")
    assert load(TableKey("letters", [str(source)], b"model"))[1]


def test_a_damaged_file_is_made_again():
    """It may be cut at any byte, or have another byte anywhere."""
    key = TableKey("letters", [__file__])
    load(key)
    whole = key.path.read_bytes()
    flipped = [
        whole[:i] + bytes([whole[i] ^ 1]) + whole[i + 1 :] for i in range(len(whole))
    ]
    for damaged in [*flipped[::7], *(whole[:size] for size in range(0, len(whole), 7))]:
        key.path.write_bytes(damaged)
        assert load(key)[1]
        assert key.path.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_no_error(cache: Path):
    """The table is then built in each process."""
    cache.write_text("a file where the folder should be")
    key = TableKey("letters", [__file__])
    assert load(key) == (LETTERS, True)
    assert load(key) == (LETTERS, True)
