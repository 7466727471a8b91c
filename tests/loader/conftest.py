"""Small datasets with known tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from shardwriter import Documents, build_manifest, write_shard
from shardwriter.format import MANIFEST_FILE, Count, ShardEntry, TokenizerEntry

END = 0


@dataclass(frozen=True, eq=False)
class Dataset:
    """A dataset in a folder, with the tokens and document starts of each shard."""

    folder: Path
    tokens: list[NDArray[np.int64]]
    doc_starts: list[NDArray[np.int64]]

    def rows(self, seq_len: int) -> set[bytes]:
        """Return every row of seq_len + 1 tokens as int64 bytes. All rows differ."""
        cut = [
            shard[j * seq_len : (j + 1) * seq_len + 1]
            for shard in self.tokens
            for j in range(max(0, len(shard) - 1) // seq_len)
        ]
        rows = {row.tobytes() for row in cut}
        assert len(rows) == len(cut), "rows must differ for tests to tell them apart"
        return rows


Make = Callable[..., Dataset]


def write_dataset(
    folder: Path,
    shards: Sequence[Sequence[int]],
    *,
    seed: int = 0,
    vocab_size: int = 50_000,
    sample_tokens: int = 64,
    metadata: bool = True,
) -> Dataset:
    """Write shards whose documents have these lengths, with random tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(seed)
    tokenizer = TokenizerEntry(
        "tiny", "ab" * 32, vocab_size=vocab_size, end_of_document=END
    )
    entries: list[ShardEntry] = []
    written = Dataset(folder, [], [])
    for shard, doc_num_tokens in enumerate(shards):
        lengths = np.array(doc_num_tokens, np.int64)
        tokens = rng.integers(1, vocab_size, int(lengths.sum()))
        tokens[np.cumsum(lengths) - 1] = END
        doc_ids = np.arange(len(lengths), dtype=np.uint64) + np.uint64(shard << 32)
        about: list[dict[str, Any]] = [
            {"doc_id": doc, "url": f"https://example.org/{doc}"} for doc in doc_ids.tolist()
        ]
        documents = Documents(tokens, lengths, doc_ids, about if metadata else None)
        paths = folder / f"shard-{shard:06d}.tar", folder / f"shard-{shard:06d}.idx"
        with paths[0].open("wb") as tar, paths[1].open("wb") as index:
            settings = {
                "shard": shard,
                "tokenizer": tokenizer,
                "sample_tokens": sample_tokens,
            }
            entries.append(write_shard(tar, index, documents=documents, **settings))
        written.tokens.append(tokens)
        written.doc_starts.append(
            np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        )
    num_docs = sum(entry.num_docs for entry in entries)
    num_tokens = sum(entry.num_tokens for entry in entries)
    languages = {"en": Count(num_docs, num_tokens)}
    manifest = build_manifest(
        entries, tokenizer=tokenizer, fingerprint="f00d", languages=languages
    )
    (folder / MANIFEST_FILE).write_bytes(manifest.dumps())
    return written


@pytest.fixture(scope="session")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Five shards with documents of 1 to 90 tokens; one is empty, one too short for a row."""
    lengths = [[30, 1, 90, 7, 40, 64], [], [3, 2], [50] * 9, [11, 90, 5, 5, 61, 8, 80]]
    return write_dataset(tmp_path_factory.mktemp("dataset"), lengths)


@pytest.fixture(scope="session")
def larger(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """Seven shards with about 3,000 tokens each."""
    rng = np.random.default_rng(5)
    lengths = [rng.integers(1, 200, 30).tolist() for _ in range(7)]
    return write_dataset(
        tmp_path_factory.mktemp("larger"), lengths, seed=1, sample_tokens=256
    )


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Return a function that writes a dataset for one test."""

    def make(
        shards: Sequence[Sequence[int]], name: str = "made", **settings: Any
    ) -> Dataset:
        return write_dataset(tmp_path / name, shards, **settings)

    return make
