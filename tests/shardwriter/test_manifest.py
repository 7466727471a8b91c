"""Building the manifest of a dataset."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from shardwriter import build_manifest
from shardwriter.format import (
    MANIFEST_FILE,
    Count,
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
    languages = {"fr": Count(4, 60), "en": Count(6, 51)}
    manifest = build_manifest(
        reversed(shards), tokenizer=tokenizer, fingerprint="f", languages=languages
    )
    assert manifest.shards == shards
    assert manifest.totals.num_tokens == sum(entry.num_tokens for entry in shards) == 111
    assert manifest.totals.num_docs == 10
    assert list(manifest.totals.languages.items()) == sorted(languages.items())


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
        ValueError, match=r"totals\.languages.*: found \[9, 111\], wanted \[10, 111\]"
    ):
        build_manifest(
            [first, second],
            tokenizer=tokenizer,
            fingerprint="f",
            languages={"en": Count(9, 111)},
        )
