"""Describe a dataset for `python -m loader inspect`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from loader.export import Document, read_documents
from loader.reading.dataset import Dataset
from loader.reading.manifest_columns import ManifestColumns
from loader.storage import ReadSettings
from shardwriter.format import FormatError
from terminal_output import format_count


def describe_counts(columns: ManifestColumns) -> Iterator[str]:
    """Yield lines with the counts of a dataset, of its languages and of its buckets."""
    totals, tokenizer = columns.totals, columns.tokenizer
    yield f"dataset    {columns.address}"
    yield f"digest     {columns.digest}"
    dtype = tokenizer.token_dtype.name
    yield f"tokenizer  {tokenizer.name}, {tokenizer.vocab_size:,} ids, {dtype}"
    size = (
        f"{totals['shard_bytes']:,} bytes, {format_count(totals['num_samples'], 'sample')}"
    )
    yield f"shards     {totals['num_shards']:,}, {size}"
    yield f"documents  {totals['num_docs']:,}"
    yield f"tokens     {totals['num_tokens']:,}"
    if columns.num_shards:
        # [minimum, median, maximum] of the tokens per shard
        percentiles = np.percentile(columns.num_tokens, [0, 50, 100])
        low, median, high = percentiles.astype(np.int64).tolist()
        yield f"           {low:,} / {median:,} / {high:,} per shard (min, median, max)"
    yield from _describe_labels("language", totals["languages"], totals["num_tokens"])
    yield from _describe_labels("bucket", totals["buckets"], totals["num_tokens"])


def _describe_labels(
    title: str, counts: dict[str, dict[str, int]], total_tokens: int
) -> Iterator[str]:
    """Yield documents and tokens of each language or bucket, the largest first."""
    by_tokens = sorted(counts.items(), key=lambda item: -item[1]["num_tokens"])
    for label, count in by_tokens:
        share = count["num_tokens"] / max(1, total_tokens)
        shown = f"documents {count['num_docs']:>12,}  tokens {count['num_tokens']:>18,}"
        yield f"{title:10} {label:10} {shown} {share:7.2%}"


def open_decoder(tokenizer: Path | None, columns: ManifestColumns) -> Callable[[Any], str]:
    """Return a function that shows tokens as text, or as numbers if no tokenizer is given.

    Raises:
        FormatError: the dataset was made with another tokenizer.
    """
    if tokenizer is None:
        return lambda tokens: " ".join(map(str, tokens.tolist()))
    from tokenizers import Tokenizer

    found = hashlib.sha256(tokenizer.read_bytes()).hexdigest()
    if found != columns.tokenizer.sha256:
        raise FormatError(
            str(tokenizer),
            f"sha256 {found}",
            f"{columns.tokenizer.sha256} of {columns.tokenizer.name!r}",
            "give the tokenizer that made the dataset",
        )
    opened = Tokenizer.from_file(str(tokenizer))
    return lambda tokens: opened.decode(tokens.tolist())


def sample_documents(columns: ManifestColumns, num: int) -> list[Document]:
    """Return the first documents of `num` shards, spread evenly over the dataset."""
    # Empty shards are valid, but have no document to show.
    filled_shards = np.flatnonzero(columns.num_docs)
    if not len(filled_shards) or num < 1:
        return []
    dataset = Dataset(columns, settings=ReadSettings())
    num_shown = min(num, len(filled_shards))
    chosen = np.linspace(0, len(filled_shards) - 1, num=num_shown).astype(np.int64)
    return [
        next(read_documents(dataset, shard)) for shard in filled_shards[chosen].tolist()
    ]
