"""Selects held-out documents, cuts them into windows, and reads their tokens and metadata."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loader.reading.dataset import Dataset
from loader.reading.manifest_columns import read_manifest_columns
from loader.reading.metadata import read_metadata
from loader.storage import ReadSettings
from training.config import DataConfig
from training.data.tokenizer import open_tokenizer
from training.errors import IncompatibleConfig

Ints = NDArray[np.int64]

# Metadata of documents by which losses are grouped.
GROUP_FIELDS = ("language", "bucket")


@dataclass(frozen=True)
class DocumentLocation:
    """A document: its shard, its number in the shard, and its number of tokens."""

    shard: int
    number: int
    num_tokens: int


@dataclass(frozen=True)
class Window:
    """The inputs first .. first + num_labels - 1 of a document, with the next tokens as labels."""

    document: int
    first: int
    num_labels: int


def list_first_documents(reader: Dataset, num: int | None) -> list[DocumentLocation]:
    """Return the first documents of a dataset, over shards; all of them if num is None."""
    locations: list[DocumentLocation] = []
    remaining = int(reader.manifest.num_docs.sum()) if num is None else num
    for shard in np.flatnonzero(reader.manifest.num_docs).tolist():
        lengths = np.diff(reader.load_index(shard).doc_starts)[:remaining].tolist()
        for number, length in enumerate(lengths):
            locations.append(DocumentLocation(shard, number, length))
        remaining -= len(lengths)
        if not remaining:
            break
    return locations


def cut_windows(locations: list[DocumentLocation], seq_len: int) -> list[Window]:
    """Cut documents into windows of at most seq_len labels."""
    windows: list[Window] = []
    for document, location in enumerate(locations):
        # The first token of a document is never predicted.
        num_labels = location.num_tokens - 1
        starts = range(0, num_labels, seq_len)
        windows += (Window(document, at, min(seq_len, num_labels - at)) for at in starts)
    return windows


def read_window(reader: Dataset, location: DocumentLocation, window: Window) -> Ints:
    """Return (num_labels + 1,) tokens: the inputs of a window and its last label."""
    index = reader.load_index(location.shard)
    start = int(index.doc_starts[location.number]) + window.first
    # Samples hold whole documents, so the window never crosses a sample.
    sample = int(np.searchsorted(index.sample_starts, start, side="right")) - 1
    offset = start - int(index.sample_starts[sample])
    tokens = reader.read_sample(location.shard, sample)[
        offset : offset + window.num_labels + 1
    ]
    return tokens.astype(np.int64)


def group_documents(
    reader: Dataset, locations: list[DocumentLocation]
) -> dict[tuple[str, ...], Ints]:
    """Return the documents of each group, as indices into `locations`.

    Keys are (), (language,), (bucket,) and (language, bucket), such as ("en", "head"). Without
    metadata there is only (), which holds all documents.
    """
    members: dict[tuple[str, ...], list[int]] = defaultdict(list)
    # Locations are sorted, so the last one of each shard determines the number of its documents.
    num_in_shard = {location.shard: location.number + 1 for location in locations}
    document = 0
    for shard, num in num_in_shard.items():
        for fields in _iter_metadata(reader, shard, num):
            labels = [
                str(fields[name]) for name in GROUP_FIELDS if fields.get(name) is not None
            ]
            # A set, because a document with only one label would get its group twice.
            groups = {(), *((label,) for label in labels), tuple(labels)}
            for group in groups:
                members[group].append(document)
            document += 1
    assert document == len(locations)
    return {group: np.array(members[group], np.int64) for group in sorted(members)}


def _iter_metadata(reader: Dataset, shard: int, num: int) -> Iterator[dict[str, Any]]:
    """Yield the metadata of the first documents of a shard; {} for those without."""
    index = reader.load_index(shard)
    docs_per_sample = np.diff(
        np.searchsorted(index.doc_starts, index.sample_starts)
    ).tolist()
    for sample, fields in enumerate(read_metadata(reader, shard)):
        found = fields if fields is not None else [{}] * docs_per_sample[sample]
        yield from found[:num]
        num -= len(found)
        if num <= 0:
            return


def check_tokenizer(data: DataConfig, sha256: str, what: str) -> None:
    """Check that something was made with the tokenizer of the training data.

    Args:
        data: the training data.
        sha256: of its tokenizer.
        what: it is, for the message.

    Raises:
        IncompatibleConfig: it was made with another, or data.tokenizer cannot be read.
    """
    found: dict[str, str] = {}
    sources = {f"data.mixture.{name}": each for name, each in (data.mixture or {}).items()}
    manifests = {name: source.manifest for name, source in sources.items()}
    if data.manifest is not None:
        manifests["data.manifest"] = data.manifest
    for name, manifest in manifests.items():
        columns = read_manifest_columns(manifest, ReadSettings())
        found[f"{name} {manifest}"] = columns.tokenizer.sha256
    if data.tokenizer is not None:
        found[f"data.tokenizer {data.tokenizer}"] = open_tokenizer(data.tokenizer).sha256
    for source, other in found.items():
        if other != sha256:
            raise IncompatibleConfig(
                f"{what} has the tokenizer with sha256 {sha256[:12]}..., but {source} was made "
                f"with another ({other[:12]}...). The figures would mean nothing; use one "
                f"tokenizer for both"
            )
