"""Small shards and datasets for the tests of this folder."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardwriter import Documents, build_manifest, write_shard
from shardwriter.format import MANIFEST_FILE, Count, ShardEntry, TokenizerEntry
from tests.conftest import REPOSITORY

END = 0

Written = tuple[bytes, bytes, ShardEntry]


@pytest.fixture(scope="session")
def tokenizer() -> TokenizerEntry:
    """A vocabulary of 50 ids, in which 0 ends a document."""
    return TokenizerEntry(
        "tiny", "ab" * 32, vocab_size=50, end_of_document=END, special_ids={"<pad>": 1}
    )


@pytest.fixture(scope="session")
def worked_example() -> Documents:
    """The three documents of docs/data-format.md and of the docstring of writer.py."""
    return Documents(
        tokens=np.array([11, 12, 0, 21, 0, 31, 32, 33, 0], np.uint16),
        doc_num_tokens=np.array([3, 2, 4]),
        doc_ids=np.array([7, 5, 9], np.uint64),
    )


@pytest.fixture(scope="session")
def write() -> Callable[..., Written]:
    """Return a function that writes a shard to memory: tar, index and entry."""

    def write(documents: Documents, tokenizer: TokenizerEntry, **settings: Any) -> Written:
        tar, index = io.BytesIO(), io.BytesIO()
        entry = write_shard(
            tar, index, tokenizer=tokenizer, documents=documents, **{"shard": 0, **settings}
        )
        return tar.getvalue(), index.getvalue(), entry

    return write


@pytest.fixture(scope="session")
def random_documents() -> Callable[..., Documents]:
    """Return a function that makes documents of given lengths, with metadata."""

    def random_documents(doc_num_tokens: Sequence[int], first_doc_id: int = 0) -> Documents:
        lengths = np.array(doc_num_tokens, np.int64)
        tokens = (
            np.random.default_rng(len(lengths))
            .integers(2, 50, lengths.sum())
            .astype(np.uint32)
        )
        tokens[np.cumsum(lengths) - 1] = END
        doc_ids = np.arange(first_doc_id, first_doc_id + len(lengths), dtype=np.uint64)
        return Documents(
            tokens=tokens,
            doc_num_tokens=lengths,
            doc_ids=doc_ids,
            metadata=[
                {"doc_id": i, "url": f"https://example.org/{i}/é"} for i in doc_ids.tolist()
            ],
        )

    return random_documents


@pytest.fixture
def dataset(
    tmp_path: Path,
    write: Callable[..., Written],
    random_documents: Callable[..., Documents],
    tokenizer: TokenizerEntry,
) -> Path:
    """A folder with two shards of three samples each, and their manifest."""
    entries: list[ShardEntry] = []
    for shard in range(2):
        documents = random_documents([5, 9, 30, 4, 7 + shard], first_doc_id=100 * shard)
        tar, index, entry = write(documents, tokenizer, shard=shard, sample_tokens=16)
        (tmp_path / entry.file).write_bytes(tar)
        (tmp_path / entry.index_file).write_bytes(index)
        entries.append(entry)
    manifest = build_manifest(
        entries,
        tokenizer=tokenizer,
        fingerprint="f00d",
        languages={"fr": Count(4, 60), "en": Count(6, 51)},
        run={"sources": ["a.warc.wet.gz"]},
    )
    (tmp_path / MANIFEST_FILE).write_bytes(manifest.dumps())
    return tmp_path


@pytest.fixture(scope="session")
def page() -> str:
    """Return docs/data-format.md."""
    return (REPOSITORY / "docs" / "data-format.md").read_text(encoding="utf-8")
