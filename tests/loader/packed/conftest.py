"""A packed dataset, and what its rows must be, computed token by token."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from loader.packed.pack import pack_dataset
from loader.reading.manifest_columns import read_manifest_columns
from loader.storage import ReadSettings
from tests.loader.conftest import END, Dataset
from tests.loader.resume_law import T

IGNORED = -100


def pack(folder: Path | str, seq_len: int = T, **given: Any) -> str:
    """Pack a dataset in small windows; return the path of the file."""
    settings = ReadSettings()
    columns = read_manifest_columns(folder, settings)
    arguments: dict[str, Any] = {
        "seq_len": seq_len,
        "settings": settings,
        "window_tokens": 700,
    }
    return pack_dataset(columns, **{**arguments, **given})[0]


@pytest.fixture(scope="session")
def packed(larger: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Seven shards with documents of 1 to 200 tokens, packed for rows of 7, 32 and 64 tokens."""
    folder = tmp_path_factory.mktemp("packed") / "dataset"
    shutil.copytree(larger.folder, folder)
    for seq_len in (7, T, 64):
        pack(folder, seq_len)
    return Dataset(folder, larger.tokens, larger.doc_starts)


def list_pieces(dataset: Dataset, seq_len: int) -> list[list[bytes]]:
    """Return the pieces of each document, cut one after the other."""
    documents: list[list[bytes]] = []
    for tokens, doc_starts in zip(dataset.tokens, dataset.doc_starts, strict=True):
        for document in np.split(tokens, doc_starts[1:-1]):
            pieces, first = list[bytes](), 0
            while len(document) - first > seq_len + 1:
                pieces.append(document[first : first + seq_len + 1].tobytes())
                first += seq_len
            documents.append([*pieces, document[first:].tobytes()])
    return documents


def split_row(row: np.ndarray, ignored: np.ndarray) -> list[np.ndarray]:
    """Return the pieces of a row: in these datasets only the last tokens of documents are 0."""
    padding = np.flatnonzero(~ignored)[-1] + 1
    row = row[:padding].astype(np.int64)
    ends = np.flatnonzero(row == END) + 1
    return [piece for piece in np.split(row, ends) if len(piece)]
