"""The agreement of two encoders is stored, found again, and tested anew when its file is damaged."""

from __future__ import annotations

from pathlib import Path

import pytest

from stages.transform.encoders import choose_encoder
from stages.transform.probe_record import ProbeRecord
from stages.transform.tokenizer_files import Definition, read_definition
from tests.stages.transform.test_tokenize import gpt2_folder

__all__ = ["gpt2_folder"]  # a fixture

FINDING = "gigatoken agrees with tokenizers on 3 probe texts"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("CORPUSMILL_CACHE", str(folder))
    return folder


@pytest.fixture
def definition(gpt2_folder: Path) -> Definition:
    """A tokenizer of two files."""
    return read_definition(gpt2_folder, None)


def find_files(cache: Path) -> list[Path]:
    """Return the files in the cache."""
    return sorted(path for path in cache.rglob("*") if path.is_file())


def test_a_record_is_found_by_equal_digests_only():
    """Another tokenizer has another record."""
    ProbeRecord("a", "b").write(FINDING)
    assert ProbeRecord("a", "b").read() == FINDING
    assert ProbeRecord("a", "c").read() is None


def test_the_stored_finding_is_the_one_that_was_made(definition: Definition, cache: Path):
    """The manifest of a dataset has the same reason from the record as from the probe."""
    _, first = choose_encoder(definition, "auto")
    (file,) = find_files(cache)
    written_ns = file.stat().st_mtime_ns
    encoder, second = choose_encoder(definition, "auto")
    assert encoder.library == "gigatoken"
    assert second == first
    assert file.stat().st_mtime_ns == written_ns  # no second probe


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"gigatoken agrees", b"0" * 64 + b" " + FINDING.encode()]
)
def test_a_damaged_record_is_made_again(
    definition: Definition, cache: Path, content: bytes
):
    """Its digest does not fit, so both encoders read the probe texts again."""
    _, finding = choose_encoder(definition, "auto")
    (file,) = find_files(cache)
    whole = file.read_bytes()
    file.write_bytes(content)
    assert choose_encoder(definition, "auto")[1] == finding
    assert file.read_bytes() == whole


def test_a_cut_record_is_not_used():
    """A process may be killed while it writes, at any byte."""
    record = ProbeRecord("a", "b")
    record.write(FINDING)
    whole = record.path.read_bytes()
    for size in range(len(whole)):
        record.path.write_bytes(whole[:size])
        assert record.read() is None


def test_a_cache_that_cannot_be_written_is_no_error(definition: Definition, cache: Path):
    """The texts are then encoded in each process."""
    cache.write_text("a file where the folder should be")
    encoder, finding = choose_encoder(definition, "auto")
    assert encoder.library == "gigatoken"
    assert choose_encoder(definition, "auto")[1] == finding
