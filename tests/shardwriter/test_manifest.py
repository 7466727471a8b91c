"""Building the manifest of a dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardwriter import build_manifest
from shardwriter.format import (
    MANIFEST_FILE,
    Manifest,
    TokenizerEntry,
)


def load_manifest(dataset: Path) -> Manifest:
    """Return the manifest in a folder."""
    return Manifest.loads((dataset / MANIFEST_FILE).read_bytes())


def test_build_manifest_sorts_shards_and_adds_up(
    dataset: Path, tokenizer: TokenizerEntry
) -> None:
    """Entries may be given in any order; totals are their sums."""
    shards = load_manifest(dataset).shards
    manifest = build_manifest(reversed(shards), tokenizer=tokenizer, fingerprint="f")
    assert manifest.shards == shards
    assert manifest.totals.num_tokens == sum(entry.num_tokens for entry in shards) == 111
    assert (
        sum(count.num_docs for count in manifest.totals.languages.values())
        == manifest.totals.num_docs
        == 10
    )


def test_a_run_without_documents_has_a_manifest(tokenizer: TokenizerEntry) -> None:
    """The manifest of no shards can be written and read."""
    assert (
        Manifest.loads(
            build_manifest([], tokenizer=tokenizer, fingerprint="f").dumps()
        ).totals.num_tokens
        == 0
    )


def test_missing_and_repeated_shards_are_refused(
    dataset: Path, tokenizer: TokenizerEntry
) -> None:
    """The error names the missing shards and those that were given twice."""
    first, second = load_manifest(dataset).shards
    with pytest.raises(ValueError, match=r"\[0, 2\] missing, \[1\] given twice"):
        build_manifest(
            [second, second, replace(second, shard=3)], tokenizer=tokenizer, fingerprint="f"
        )
    with pytest.raises(
        ValueError, match=r"shards\[0\]\.languages.*: found \[5, 55\], wanted \[6, 55\]"
    ):
        build_manifest(
            [replace(first, num_docs=6), second], tokenizer=tokenizer, fingerprint="f"
        )
