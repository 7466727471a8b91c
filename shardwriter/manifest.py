"""Build the manifest of a dataset from the entries of its shards.

For example:

    manifest = build_manifest(
        entries, tokenizer=tokenizer, fingerprint="9f2c...", run={"config": "ccnet.yaml"}
    )
    (folder / MANIFEST_FILE).write_bytes(manifest.dumps())
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from shardwriter.format import Count, Manifest, ShardEntry, TokenizerEntry, Totals

_MAX_SHOWN_SHARDS = 10


def build_manifest(
    entries: Iterable[ShardEntry],
    *,
    tokenizer: TokenizerEntry,
    fingerprint: str,
    languages: Mapping[str, Count] | None = None,
    buckets: Mapping[str, Count] | None = None,
    run: Mapping[str, Any] | None = None,
) -> Manifest:
    """Build the manifest of a dataset.

    Args:
        entries: what `write_shard` returned for each shard, in any order. The shards must be
            numbered 0, 1, 2, ... without a gap.
        tokenizer: as given to every `write_shard`.
        fingerprint: of the run.
        languages: documents and tokens of each language, of all shards; None: not counted.
        buckets: the same of each perplexity bucket.
        run: JSON object in which the run describes itself.

    Raises:
        ValueError: a shard is missing or occurs twice, or an entry contradicts itself.
    """
    # Tasks finish in any order. Sorting makes the manifest independent of it.
    shards = tuple(sorted(entries, key=lambda entry: entry.shard))
    numbers = [entry.shard for entry in shards]
    if numbers != list(range(len(numbers))):
        missing = sorted(set(range(max(numbers) + 1)) - set(numbers))
        repeated = sorted(
            {later for earlier, later in pairwise(numbers) if earlier == later}
        )
        raise ValueError(
            f"shards of the manifest: {missing[:_MAX_SHOWN_SHARDS]} missing, "
            f"{repeated[:_MAX_SHOWN_SHARDS]} given twice; give each of 0, 1, 2, ... once"
        )
    totals = Totals.from_shards(shards, languages or {}, buckets or {})
    manifest = Manifest(tokenizer, shards, totals, fingerprint, run or {})
    if faults := manifest.find_faults():
        raise faults[0]
    return manifest
