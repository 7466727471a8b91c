"""Writes datasets of made documents."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from shardwriter import Documents, build_manifest, write_shard
from shardwriter.format import (
    MANIFEST_FILE,
    ShardEntry,
    TokenizerEntry,
    index_file,
    shard_file,
)


def write_dataset(
    folder: Path, tokenizer: TokenizerEntry, parts: Iterable[Documents]
) -> None:
    """Write a shard for each part, and the manifest. The folder is made."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = [
        write_files(folder, shard, tokenizer, part) for shard, part in enumerate(parts)
    ]
    manifest = build_manifest(entries, tokenizer=tokenizer, fingerprint="benchmark")
    (folder / MANIFEST_FILE).write_bytes(manifest.dumps())


def write_files(
    folder: Path, shard: int, tokenizer: TokenizerEntry, documents: Documents
) -> ShardEntry:
    """Write the tar and the index of a shard; return its entry of the manifest."""
    with (
        (folder / shard_file(shard)).open("wb") as tar,
        (folder / index_file(shard)).open("wb") as index,
    ):
        return write_shard(
            tar, index, shard=shard, tokenizer=tokenizer, documents=documents
        )
