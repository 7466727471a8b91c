"""File names that are made of data stay in their folder, and are different for different data."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.names import MAX_NAME_BYTES, FileNames, is_file_name

HOSTILE = [
    "",
    ".",
    "..",
    "../a",
    "a/../../b",
    "/etc/passwd",
    "C:\\x",
    "..\\x",
    "a\0b",
    "a\nb",
    "\x1b[2J",
    ".hidden",
    "\ud800",
    "a" * 300,
    "é" * 200,
    "%2E.",
    "%empty",
]


@pytest.mark.parametrize(
    "text", ["en_head", "unknown_all", "zh-Hant_tail", "eng_Latn", "日本語", "a b", "a%b"]
)
def test_a_text_that_is_a_file_name_stays_as_it_is(text: str) -> None:
    """The usual labels of models are such texts."""
    assert FileNames(".json.gz").make(text) == f"{text}.json.gz"


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_text_gets_a_name_in_the_folder(text: str, tmp_path: Path) -> None:
    """A file of that name can be made, and it is in the folder."""
    name = FileNames(".gz").make(text)
    path = tmp_path / name
    path.write_bytes(b"")
    assert [found.name for found in tmp_path.iterdir()] == [name]
    assert path.resolve().parent == tmp_path.resolve()


@given(texts=st.lists(st.sampled_from(HOSTILE) | st.text(max_size=4), max_size=9))
def test_different_texts_get_different_names(texts: list[str]) -> None:
    """Also where case is ignored. The same text gets the same name again."""
    names = FileNames(".gz")
    made = {text: names.make(text) for text in texts}
    assert len({name.casefold() for name in made.values()}) == len(made)
    for text, name in made.items():
        assert names.make(text) == name
        assert is_file_name(name)
        assert len(name.encode()) <= MAX_NAME_BYTES


def test_texts_that_differ_by_case_only_get_different_names() -> None:
    """The first one keeps its form."""
    names = FileNames()
    assert names.make("EN") == "EN"
    assert names.make("en").startswith("en%~")
    assert names.make("e\u0301") == "e\u0301"
    assert names.make("é").startswith("%C3%A9%~")


@pytest.mark.parametrize("text", HOSTILE[:-2])
def test_a_hostile_text_is_no_file_name(text: str) -> None:
    """A reader of links refuses it."""
    assert not is_file_name(text)
