"""Reading rows of local shards, and the errors for damaged ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from loader.reading.dataset import Dataset as OpenDataset
from loader.reading.manifest_columns import read_manifest_columns
from loader.reading.row_pieces import PlainRows
from loader.reading.rows import LoadedRows, RowMarks
from loader.storage import ReadFailed, ReadSettings
from shardwriter.format import FormatError, Manifest, ShardCorrupt
from tests.loader.conftest import Dataset, Make

T = 16


def open_reader(folder: Path, **settings: object) -> OpenDataset:
    """Return a reader of rows of 16 tokens."""
    given = ReadSettings(**settings)
    columns = read_manifest_columns(folder, given)
    return OpenDataset(columns, settings=given, layout=PlainRows(T))


def load_rows(
    reader: OpenDataset, shards: list[int], rows: list[int]
) -> tuple[np.ndarray, RowMarks]:
    """Return rows and their marks."""
    loaded = LoadedRows(len(rows), T, with_marks=True)
    reader.load(np.array(shards), np.array(rows), np.arange(len(rows)), loaded)
    stored = loaded.store(reader.token_dtype, reader.manifest.tokenizer.end_of_document)
    return stored.join(slice(0, len(rows))), loaded.marks


def read_rows(reader: OpenDataset, shards: list[int], rows: list[int]) -> np.ndarray:
    """Return rows as int64."""
    tokens, marks = load_rows(reader, shards, rows)
    assert marks.is_whole.all()
    return tokens.astype(np.int64)


@pytest.mark.parametrize("sample_tokens", [1, 20, 64, 10_000])
def test_rows_are_the_tokens_of_the_shard(make: Make, sample_tokens: int) -> None:
    """Rows in any order equal the written tokens, for any size of samples."""
    made = make([[3, 70, 1, 20, 9], [50, 8]], sample_tokens=sample_tokens)
    places = [
        (shard, row)
        for shard in range(2)
        for row in range((len(made.tokens[shard]) - 1) // T)
    ]
    shards, rows = (
        list(each)
        for each in zip(*np.random.default_rng(0).permutation(places).tolist(), strict=True)
    )
    found = read_rows(open_reader(made.folder), shards, rows)
    for shard, row, tokens in zip(shards, rows, found, strict=True):
        assert tokens.tolist() == made.tokens[shard][row * T : (row + 1) * T + 1].tolist()


def test_closed_shards_are_opened_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More shards can be read than stay open at a time."""
    monkeypatch.setattr("loader.reading.dataset.MAX_OPEN_SHARDS", 2)
    made = make([[40, 40]] * 5)
    reader = open_reader(made.folder)
    for _ in range(2):
        for shard in range(5):
            assert (
                read_rows(reader, [shard], [1])[0].tolist()
                == made.tokens[shard][T : 2 * T + 1].tolist()
            )


def test_a_flipped_bit_is_an_error_of_its_sample(make: Make) -> None:
    """The error names the shard, the sample and its bytes; other samples stay readable."""
    made = make([[60, 60, 60]], sample_tokens=64)
    path = made.folder / "shard-000000.tar"
    data = bytearray(path.read_bytes())
    reader = open_reader(made.folder)
    offset = int(reader.load_index(0).sample_offsets[1])
    data[offset + 5] ^= 16
    path.write_bytes(data)
    reader = open_reader(made.folder)
    read_rows(reader, [0], [0])
    wanted = rf"shard-000000.tar, sample 000000-00001, bytes {offset}\.\.{offset + 119}: found tokens with another crc32"
    for _ in range(2):
        with pytest.raises(ShardCorrupt, match=wanted):
            read_rows(reader, [0], [4])


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-512])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("name", "spoil", "error", "message"),
    [
        (
            "shard-000001.tar",
            Path.unlink,
            ReadFailed,
            r"shard-000001.tar: there is no such file; correct the path, or copy",
        ),
        (
            "shard-000001.idx",
            Path.unlink,
            ReadFailed,
            r"shard-000001.idx: there is no such file",
        ),
        (
            "shard-000001.tar",
            _cut,
            ShardCorrupt,
            r"shard-000001.tar: found \d+ bytes, wanted \d+ bytes",
        ),
    ],
)
def test_missing_and_truncated_files_are_found_before_the_first_row(
    make: Make, name: str, spoil: object, error: type[Exception], message: str
) -> None:
    """Creating the reader raises the error."""
    made = make([[60], [60]])
    assert callable(spoil)
    spoil(made.folder / name)
    with pytest.raises(error, match=message):
        open_reader(made.folder)


def test_a_damaged_index_is_an_error(make: Make) -> None:
    """The checksum of the index finds the damage when the shard is opened."""
    made = make([[60]])
    _flip(made.folder / "shard-000000.idx")
    with pytest.raises(ShardCorrupt, match=r"shard-000000.idx, byte 60: found crc32"):
        read_rows(open_reader(made.folder), [0], [0])


def test_rows_of_a_corrupt_shard_are_blank_with_skip_and_count(make: Make) -> None:
    """They consist of end-of-document ids; the rows of other shards are whole."""
    made = make([[60], [60]])
    _flip(made.folder / "shard-000000.idx")
    reader = open_reader(made.folder, on_corrupt="skip_and_count")
    tokens, marks = load_rows(reader, [0, 1], [0, 0])
    assert marks.is_whole.tolist() == [False, True]
    assert not tokens[0].any()
    assert tokens[1].tolist() == made.tokens[1][: T + 1].tolist()
    assert reader.counters["lost_shards"] == 1
    assert marks.doc_starts is not None
    assert marks.doc_starts[0].sum() == 1


def test_the_index_of_another_shard_is_refused(make: Make) -> None:
    """The index contains the number of its shard."""
    made = make([[60], [60]])
    one, other = (made.folder / f"shard-00000{shard}.idx" for shard in range(2))
    other.write_bytes(one.read_bytes())
    with pytest.raises(
        FormatError, match=r"shard-000001.idx: shard: found 0, wanted 1 as in the manifest"
    ):
        read_rows(open_reader(made.folder), [1], [0])


def test_the_index_of_another_dataset_is_refused(make: Make) -> None:
    """The counts of the index must equal those of the manifest."""
    made, other = make([[60]]), make([[61]], name="other")
    index = made.folder / "shard-000000.idx"
    index.write_bytes((other.folder / index.name).read_bytes())
    with pytest.raises(
        FormatError, match=r"num_tokens: found 61, wanted 60|shard_bytes: found"
    ):
        read_rows(open_reader(made.folder), [0], [0])


def test_another_token_width_is_refused(make: Make) -> None:
    """Tokens of four bytes are not read as tokens of two, if the manifest belongs to another dataset."""
    small, large = (
        make([[256]], vocab_size=100),
        make([[128]], name="large", vocab_size=100_000),
    )
    manifest = Manifest.loads((small.folder / "manifest.json").read_bytes())
    entry = Manifest.loads((large.folder / "manifest.json").read_bytes()).shards[0]
    forged = Manifest(
        manifest.tokenizer,
        (entry,),
        type(manifest.totals).from_shards([entry], {}, {}),
        "f",
    )
    (large.folder / "manifest.json").write_bytes(forged.dumps())
    with pytest.raises(
        FormatError,
        match=r"tokens: found uint32, wanted uint16, because the manifest's tokenizer has 100 ids",
    ):
        read_rows(open_reader(large.folder), [0], [0])


def test_another_format_version_is_refused(make: Make) -> None:
    """The error shows the version that was found."""
    made = make([[60]])
    path = made.folder / "manifest.json"
    path.write_text(path.read_text().replace('"version": 2', '"version": 7'))
    with pytest.raises(FormatError, match=r"version: found 7, wanted 2"):
        open_reader(made.folder)


def test_an_edited_manifest_is_refused(make: Make) -> None:
    """Its digest, or a contradiction in it, shows the change."""
    made = make([[60]])
    path = made.folder / "manifest.json"
    value = json.loads(path.read_text())
    value["shards"][0]["num_tokens"] = 600
    path.write_text(json.dumps(value, sort_keys=True, indent=1) + "\n")
    with pytest.raises(FormatError, match=r"manifest.json: "):
        open_reader(made.folder)


def test_manifest_columns_agree_with_the_manifest(dataset: Dataset) -> None:
    """The fast parser gives the same values as `Manifest.loads`."""
    manifest = Manifest.loads((dataset.folder / "manifest.json").read_bytes())
    columns = read_manifest_columns(dataset.folder, ReadSettings())
    assert columns.digest == manifest.digest
    assert columns.tokenizer == manifest.tokenizer
    assert columns.num_tokens.tolist() == [entry.num_tokens for entry in manifest.shards]
    in_memory = read_manifest_columns(manifest, ReadSettings())
    assert in_memory.shard_bytes.tolist() == columns.shard_bytes.tolist()


def test_samples_can_be_read_one_by_one(dataset: Dataset) -> None:
    """The tokens of all samples, end to end, are the tokens of the shard."""
    reader = open_reader(dataset.folder)
    samples = [
        reader.read_sample(0, sample) for sample in range(reader.load_index(0).num_samples)
    ]
    assert np.concatenate(samples).tolist() == dataset.tokens[0].tolist()
