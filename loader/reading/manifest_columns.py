"""Read the shard entries of a manifest as numpy columns.

Of a large manifest, the first process of a node makes the columns and keeps them in the cache. The
others map them.

    manifest = read_manifest_columns("s3://bucket/dataset", ReadSettings())
    manifest.num_tokens.sum()
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from loader.order.permutation import Int64Array
from loader.order.row_order import count_rows
from loader.reading.columns_block import (
    BLOCK_VERSION,
    DIGEST_BYTES,
    is_block_of,
    make_block,
    read_block,
)
from loader.retraction.tombstones import Tombstones, read_retractions
from loader.storage import Cache, Counters, ReadFailed, ReadSettings, open_dataset
from shardwriter.format import MANIFEST_FILE, Manifest, TokenizerEntry
from storage import Store
from storage.errors import AccessRefused, NotFound
from storage.names import is_file_name
from terminal_output import format_command, format_count

# A smaller manifest, of up to 11,000 shards, is parsed in 20 ms by each process.
_MIN_CACHED_BYTES = 4 * 2**20

# Folder of the dataset in a run of the pipeline.
_DATASET_OF_RUN = "dataset"

_LINK_TARGET = re.compile(r"[\w.-]{1,255}")

_DIGEST = re.compile(rb"[0-9a-f]{64}")


@dataclass(frozen=True, eq=False)
class ManifestColumns:
    """The manifest of a dataset of S shards. The arrays are (S,) int64.

    address:      path or address of the dataset's folder; "" for a manifest in memory
    digest:       SHA-256 that identifies the dataset
    tokenizer:    tokenizer that made the tokens
    totals:       the "totals" object of the manifest
    shard_bytes:  bytes of each tar
    num_samples:  samples of each shard
    num_docs:     documents of each shard
    num_tokens:   tokens of each shard
    index_sha256: (S, 32) uint8, SHA-256 of each index
    lineage:      digests that the dataset has had: of its manifest, and after each retraction
    tombstones:   its retracted tokens, or None
    rewritten:    shards that may have been rewritten without these tokens
    """

    address: str
    digest: str
    tokenizer: TokenizerEntry
    totals: Mapping[str, Any]
    shard_bytes: Int64Array
    num_samples: Int64Array
    num_docs: Int64Array
    num_tokens: Int64Array
    index_sha256: NDArray[np.uint8]
    lineage: tuple[str, ...] = ()
    tombstones: Tombstones | None = None
    rewritten: frozenset[int] = frozenset()

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> Self:
        """Convert a manifest in memory. The result has no address, so no shard can be read."""
        return cls("", **read_block(make_block(manifest.dumps(), "manifest")))

    @property
    def current_digest(self) -> str:
        """Digest of the dataset with its retractions; without any, that of the manifest."""
        return self.lineage[-1] if self.lineage else self.digest

    @property
    def num_shards(self) -> int:
        """Number of shards, empty ones included."""
        return len(self.num_tokens)

    def count_shard_rows(self, seq_len: int) -> Int64Array:
        """Return the (S,) number of rows of each shard.

        Raises:
            ValueError: `seq_len` is below 1, or the dataset has no row of this length.
        """
        if seq_len < 1:
            raise ValueError(f"seq_len is {seq_len}, must be at least 1")
        rows = count_rows(self.num_tokens, seq_len)
        if not rows.sum():
            if len(rows):
                longest = int(self.num_tokens.max())
                found = f"{format_count(len(rows), 'shard')}, the longest with {format_count(longest, 'token')}"
            else:
                found = "no shards"
            raise ValueError(
                f"{self.address or 'manifest'}: {found}, but a row of seq_len={seq_len} needs "
                f"{seq_len + 1} tokens of one shard; lower seq_len, or write fewer, longer shards"
            )
        return rows


def read_manifest_columns(
    source: str | Path | Manifest, settings: ReadSettings
) -> ManifestColumns:
    """Read the manifest at a path or address of the manifest, of its folder or of a run.

    The retractions beside it are read too.

    Raises:
        ReadFailed: the manifest cannot be read.
        FormatError: the file is not a manifest, has another version, or was changed after it was
            written.
    """
    if isinstance(source, Manifest):
        return ManifestColumns.from_manifest(source)
    folder, name = split_manifest_address(source)
    try:
        return _read_manifest(folder, name, settings)
    except (NotFound, AccessRefused) as error:
        # Try the folder first: a dataset that is neither a link nor in a run then costs no extra
        # request. S3 answers 403 for a missing object if the keys may not list the bucket.
        for target in _list_other_folders(folder, settings):
            with contextlib.suppress(NotFound, AccessRefused):
                return _read_manifest(target, name, settings)
        if isinstance(error, NotFound) and "://" not in folder:
            remedy = (
                f"correct the path, or make the dataset with `{format_command('pipeline')} run` "
                "(those of configs/train-tiny.yaml with `make demo held-out`)"
            )
            raise NotFound(error.where, "there is no dataset", remedy) from None
        raise error from None


def _read_manifest(folder: str, name: str, settings: ReadSettings) -> ManifestColumns:
    store = open_dataset(folder, settings)
    columns = ManifestColumns(folder, **_read_block(store, name, settings))
    retractions = read_retractions(store, columns.digest, columns.num_tokens)
    return replace(columns, **retractions._asdict())


def _read_block(store: Store, name: str, settings: ReadSettings) -> dict[str, Any]:
    """Read the columns of a manifest. Those of a large one are shared with other processes."""

    def make() -> bytes:
        return make_block(store.map(name), store.locate(name))

    num_bytes = store.get_size(name)
    if num_bytes < _MIN_CACHED_BYTES:
        return read_block(make())
    digest = bytes(store.read_range(name, DIGEST_BYTES.start, DIGEST_BYTES.stop))
    cache = _open_cache(settings)
    if cache is None or not _DIGEST.fullmatch(digest):
        return read_block(make())
    key = f"{digest[:16].decode()}-columns-{BLOCK_VERSION}-{num_bytes}"
    block = cache.get(key, None, make)
    if not is_block_of(block, digest):  # damaged by the disk, or another file of this name
        cache.drop(key)
        block = cache.get(key, None, make)
    return read_block(block)


def _open_cache(settings: ReadSettings) -> Cache | None:
    """Return the cache, or None if its folder cannot be used: local datasets need none."""
    with contextlib.suppress(ReadFailed):
        return Cache(settings, Counters())
    return None


def _list_other_folders(folder: str, settings: ReadSettings) -> Iterator[str]:
    """Yield where the dataset is if the folder is a link in a bucket, or a run."""
    if target := _read_bucket_link(folder, settings):
        yield target
    in_run = f"{folder}/{_DATASET_OF_RUN}"
    yield in_run
    if target := _read_bucket_link(in_run, settings):
        yield target


def split_manifest_address(source: str | Path) -> tuple[str, str]:
    """Return (folder, file name) of the manifest; `source` is the address of either."""
    address = str(source)
    if address.endswith(".json"):
        folder, _, name = address.rpartition("/")
        return folder or ".", name
    return address.rstrip("/") or "/", MANIFEST_FILE


def _read_bucket_link(folder: str, settings: ReadSettings) -> str | None:
    """Return the address that an object in place of the folder points to, or None.

    Buckets have no symbolic links. The pipeline writes an object `<run>/dataset` that holds the
    name of a folder beside it (docs/data-format.md).
    """
    parent, _, link = folder.rpartition("/")
    if "://" not in parent:
        return None
    with contextlib.suppress(ReadFailed, UnicodeDecodeError):
        target = open_dataset(parent, settings).read_bytes(link).decode("ascii").strip()
        # A link holds one plain name. Anything else in its place, such as HTML, is not followed.
        is_name = _LINK_TARGET.fullmatch(target) and is_file_name(target)
        return f"{parent}/{target}" if is_name else None
    return None
