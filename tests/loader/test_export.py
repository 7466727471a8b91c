"""Exports, read by the libraries of their formats."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from loader.export import export_megatron, export_parquet, read_documents
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


def test_arrow_reads_the_parquet_export(dataset: Dataset, tmp_path: Path) -> None:
    """There is one file with doc_id and tokens per shard that is not empty."""
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
    """They become int32 for Megatron and stay uint32 in Parquet."""
    made = make([[40, 3]], vocab_size=200_000)
    export_megatron(open_reader(made.folder), tmp_path / "web")
    assert np.fromfile(tmp_path / "web.bin", "<i4").tolist() == made.tokens[0].tolist()
    export_parquet(open_reader(made.folder), tmp_path / "parquet")
    (path,) = (tmp_path / "parquet").iterdir()
    assert pq.read_table(path)["tokens"].to_pylist() == [
        made.tokens[0].tolist()[:40],
        made.tokens[0].tolist()[40:],
    ]
