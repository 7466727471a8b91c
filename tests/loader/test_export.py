"""Exports, read by the libraries of their formats."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import numpy as np
import pytest

from loader.export import export_mds, export_megatron, export_parquet, read_documents
from loader.reading.dataset import Dataset as OpenDataset
from loader.reading.manifest_columns import read_manifest_columns
from loader.storage import ReadSettings
from tests.loader.conftest import Dataset, Make


def open_reader(folder: Path) -> OpenDataset:
    """Return a reader of the dataset."""
    return OpenDataset(
        read_manifest_columns(folder, ReadSettings()), settings=ReadSettings()
    )


def list_documents(dataset: Dataset) -> list[list[int]]:
    """Return the tokens of every document, in order."""
    return [
        tokens[start:stop].tolist()
        for tokens, starts in zip(dataset.tokens, dataset.doc_starts, strict=True)
        for start, stop in zip(starts[:-1].tolist(), starts[1:].tolist(), strict=True)
    ]


def test_documents_are_returned_in_order(dataset: Dataset) -> None:
    """Ids and tokens equal those that were written."""
    reader = open_reader(dataset.folder)
    found = [document for shard in range(5) for document in read_documents(reader, shard)]
    assert [document.tokens.tolist() for document in found] == list_documents(dataset)
    assert [document.doc_id for document in found if document.doc_id >> 32 == 3] == [
        (3 << 32) + i for i in range(9)
    ]


def test_megatron_files_follow_the_layout(dataset: Dataset, tmp_path: Path) -> None:
    """The index points to each document in the file of tokens."""
    num_docs = export_megatron(open_reader(dataset.folder), tmp_path / "web")
    index = (tmp_path / "web.idx").read_bytes()
    assert index[:9] == b"MMIDIDX\0\0"
    assert struct.unpack_from("<QBQQ", index, 9) == (1, 8, num_docs, num_docs + 1)
    lengths = np.frombuffer(index, "<i4", num_docs, 34)
    pointers = np.frombuffer(index, "<i8", num_docs, 34 + 4 * num_docs)
    tokens = np.fromfile(tmp_path / "web.bin", "<u2")
    pairs = zip(pointers.tolist(), lengths.tolist(), strict=True)
    assert [
        tokens[at // 2 : at // 2 + num].tolist() for at, num in pairs
    ] == list_documents(dataset)


def test_megatron_reads_the_export(dataset: Dataset, tmp_path: Path) -> None:
    """megatron.core's IndexedDataset gives the documents."""
    indexed = pytest.importorskip("megatron.core.datasets.indexed_dataset")
    num_docs = export_megatron(open_reader(dataset.folder), tmp_path / "web")
    found = indexed.IndexedDataset(str(tmp_path / "web"))
    assert len(found) == num_docs
    assert [found[i].tolist() for i in range(num_docs)] == list_documents(dataset)
    assert found.document_indices.tolist() == list(range(num_docs + 1))


def test_mosaicml_reads_the_export(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streaming's reader gives ids and tokens from several MDS shards."""
    mds = pytest.importorskip("streaming.base.format.mds.reader")
    monkeypatch.setattr("loader.export.mds.MDS_SHARD_BYTES", 500)
    num_docs = export_mds(open_reader(dataset.folder), tmp_path)
    index = json.loads((tmp_path / "index.json").read_text())
    assert len(index["shards"]) > 2
    readers = [
        mds.MDSReader.from_json(str(tmp_path), "", shard) for shard in index["shards"]
    ]
    samples = [reader.get_item(i) for reader in readers for i in range(reader.samples)]
    assert [sample["tokens"].tolist() for sample in samples] == list_documents(dataset)
    assert len({int(sample["doc_id"]) for sample in samples}) == num_docs


def test_mds_files_follow_the_layout(dataset: Dataset, tmp_path: Path) -> None:
    """Offsets, config and samples are at the places that the index names."""
    num_docs = export_mds(open_reader(dataset.folder), tmp_path)
    (shard,) = json.loads((tmp_path / "index.json").read_text())["shards"]
    data = (tmp_path / shard["raw_data"]["basename"]).read_bytes()
    assert shard["samples"] == num_docs == struct.unpack_from("<I", data)[0]
    assert shard["raw_data"]["bytes"] == len(data)
    offsets = np.frombuffer(data, "<u4", num_docs + 1, 4).tolist()
    assert offsets[-1] == len(data)
    assert json.loads(data[4 + 4 * (num_docs + 1) : offsets[0]])["column_names"] == [
        "doc_id",
        "tokens",
    ]
    first = data[offsets[0] : offsets[1]]
    num_bytes, doc_id = struct.unpack_from("<IQ", first)
    assert (num_bytes, doc_id) == (len(first) - 12, 0)
    assert np.frombuffer(first[14:], "<u2").tolist() == list_documents(dataset)[0]


def test_arrow_reads_the_parquet_export(dataset: Dataset, tmp_path: Path) -> None:
    """There is one file with doc_id and tokens per shard that is not empty."""
    import pyarrow.parquet as pq

    num_docs = export_parquet(open_reader(dataset.folder), tmp_path / "out")
    files = sorted((tmp_path / "out").iterdir())
    assert [path.name for path in files][-1] == "train-00003-of-00004.parquet"
    found = [
        tokens for path in files for tokens in pq.read_table(path)["tokens"].to_pylist()
    ]
    assert found == list_documents(dataset)
    assert len(found) == num_docs


def test_hugging_face_reads_the_parquet_export(dataset: Dataset, tmp_path: Path) -> None:
    """datasets.load_dataset gives the documents."""
    datasets = pytest.importorskip("datasets")
    export_parquet(open_reader(dataset.folder), tmp_path / "out")
    files = sorted(map(str, (tmp_path / "out").glob("*.parquet")))
    found = datasets.load_dataset(
        "parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache")
    )
    assert [row["tokens"] for row in found] == list_documents(dataset)


def test_tokens_of_a_large_vocabulary_keep_their_values(make: Make, tmp_path: Path) -> None:
    """They become int32 for Megatron and uint32 in the other formats."""
    made = make([[40, 3]], vocab_size=200_000)
    export_megatron(open_reader(made.folder), tmp_path / "web")
    assert np.fromfile(tmp_path / "web.bin", "<i4").tolist() == made.tokens[0].tolist()
    export_mds(open_reader(made.folder), tmp_path / "mds")
    assert '"ndarray:uint32"' in (tmp_path / "mds" / "index.json").read_text()
