"""Reading the metadata of documents."""

from __future__ import annotations

import pytest

from loader.reading.dataset import Dataset as OpenDataset
from loader.reading.manifest_columns import read_manifest_columns
from loader.reading.metadata import read_metadata
from loader.storage import ReadSettings
from shardwriter.format import ShardCorrupt, shard_file
from tests.loader.conftest import Dataset, Make

SETTINGS = ReadSettings()


def open_reader(dataset: Dataset) -> OpenDataset:
    """Return a reader; the length of its rows does not matter here."""
    return OpenDataset(read_manifest_columns(dataset.folder, SETTINGS), settings=SETTINGS)


def test_metadata_are_returned_in_order(dataset: Dataset) -> None:
    """Each sample gives one list with one object per document; an empty shard gives none."""
    reader = open_reader(dataset)
    for shard, starts in enumerate(dataset.doc_starts):
        samples = list(read_metadata(reader, shard))
        assert len(samples) == reader.load_index(shard).num_samples
        found = [about["doc_id"] for about_all in samples for about in about_all or ()]
        assert found == [doc + (shard << 32) for doc in range(len(starts) - 1)]


def test_a_dataset_without_metadata_gives_none(make: Make) -> None:
    """Each sample gives None, and there is no error."""
    reader = open_reader(make([[30, 40, 90]], metadata=False))
    assert list(read_metadata(reader, 0)) == [None] * reader.load_index(0).num_samples


@pytest.mark.parametrize(
    ("before", "after"),
    [(b'{"doc_id"', b'}"doc_id"'), (b"},\n", b"}\n\n"), (b"[\n{", b"{\n{")],
    ids=["no JSON", "a comma less", "no list"],
)
def test_a_damaged_member_is_an_error(make: Make, before: bytes, after: bytes) -> None:
    """The error names the shard, the bytes and the member."""
    dataset = make([[30, 4, 9, 90]])
    path = dataset.folder / shard_file(0)
    path.write_bytes(path.read_bytes().replace(before, after, 1))
    with pytest.raises(
        ShardCorrupt, match=r"shard-000000.tar, bytes 0\..*, 000000-00000.json"
    ):
        list(read_metadata(open_reader(dataset), 0))


def test_a_missing_object_is_an_error(make: Make) -> None:
    """A list with fewer objects than documents is refused."""
    dataset = make([[30, 4]])
    path = dataset.folder / shard_file(0)
    data = path.read_bytes()
    lines = data[data.index(b"[\n") : data.index(b"\n]\n") + 3]
    fewer = b"[\n" + lines.split(b"\n")[2] + b"\n]\n"
    path.write_bytes(data.replace(lines, fewer.ljust(len(lines))))
    with pytest.raises(ShardCorrupt, match="found 1, wanted a list of 2 objects"):
        list(read_metadata(open_reader(dataset), 0))
