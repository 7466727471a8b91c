"""Read the shard entries of a manifest as numpy columns.

Four numbers per shard are kept: 32 bytes, where an entry as a Python object takes about 2,000. A
manifest of 100,000 shards fits easily.

    manifest = read_manifest_columns("s3://bucket/dataset", ReadSettings())
    manifest.num_tokens.sum()
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import re
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from loader.order.permutation import Int64Array
from loader.order.row_order import count_rows
from loader.storage import ReadFailed, ReadSettings, open_dataset, read_whole
from shardwriter.format import MANIFEST_FILE, FormatError, Manifest, TokenizerEntry

_COLUMNS = ("shard_bytes", "num_samples", "num_docs", "num_tokens")
_SHARD_ENTRY_KEYS = {"index_file", *_COLUMNS}
_LINK_TARGET = re.compile(r"[\w.-]{1,255}")

# Place of the digest in the file (docs/data-format.md, "Manifest").
_DIGEST_BYTES = slice(14, 78)


@dataclass(frozen=True, eq=False)
class ManifestColumns:
    """The manifest of a dataset of S shards. The arrays are (S,) int64.

    address:     path or address of the dataset's folder; "" for a manifest in memory
    digest:      SHA-256 that identifies the dataset
    tokenizer:   tokenizer that made the tokens
    totals:      the "totals" object of the manifest
    shard_bytes: bytes of each tar
    num_samples: samples of each shard
    num_docs:    documents of each shard
    num_tokens:  tokens of each shard
    """

    address: str
    digest: str
    tokenizer: TokenizerEntry
    totals: Mapping[str, Any]
    shard_bytes: Int64Array
    num_samples: Int64Array
    num_docs: Int64Array
    num_tokens: Int64Array

    @classmethod
    def from_manifest(cls, manifest: Manifest) -> Self:
        """Convert a manifest in memory. The result has no address, so no shard can be read."""
        columns: dict[str, Int64Array] = {}
        for name in _COLUMNS:
            values = [getattr(entry, name) for entry in manifest.shards]
            columns[name] = np.array(values, np.int64)
        totals = manifest.to_json()["totals"]
        return cls("", manifest.digest, manifest.tokenizer, totals, **columns)

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
                found = f"{len(rows)} shards, the longest with {longest} tokens"
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
    """Read the manifest at a path or address of the manifest or of its folder.

    Raises:
        ReadFailed: the manifest cannot be read.
        FormatError: the file is not a manifest, has another version, or was changed after it was
            written.
    """
    if isinstance(source, Manifest):
        return ManifestColumns.from_manifest(source)
    folder, name = split_manifest_address(source)
    store = open_dataset(folder, settings)
    try:
        data = read_whole(store, name)
    except ReadFailed as error:
        # Try the folder first: a dataset that is not a link then costs no extra request.
        target = _read_bucket_link(folder, settings)
        if target is None:
            raise error from None
        folder, store = target, open_dataset(target, settings)
        data = read_whole(store, name)
    return _parse_manifest(data, store.locate(name), folder)


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
        return f"{parent}/{target}" if _LINK_TARGET.fullmatch(target) else None
    return None


def _parse_manifest(data: bytes, where: str, address: str) -> ManifestColumns:
    digest = _check_digest(data, where)
    try:
        with _garbage_collector_paused():
            # value["shards"] is a list of lists of four numbers, in the order of _COLUMNS.
            value = json.loads(data, object_hook=_shrink_shard_entry)
            head = {key: part for key, part in value.items() if key != "digest"}
            tokenizer = Manifest.from_json({**head, "shards": []}, where).tokenizer
            # (S, 4): one line of numbers per shard
            numbers = np.array(value["shards"], np.int64).reshape(-1, len(_COLUMNS))
            # Copied to make each column contiguous.
            columns = dict(zip(_COLUMNS, numbers.T.copy(), strict=True))
            return ManifestColumns(address, digest, tokenizer, value["totals"], **columns)
    except FormatError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        found = f"a manifest with another layout ({error!r})"
        raise FormatError(
            where, found, "the keys of version 1", "restore manifest.json"
        ) from error


def _check_digest(data: bytes, where: str) -> str:
    """Return the digest of a manifest file, or raise FormatError if the file does not match it."""
    stored_digest = data[_DIGEST_BYTES].decode("ascii", "replace")
    # Hash the file with zeros in place of its digest, without copying 100 MB.
    sha256 = hashlib.sha256(data[: _DIGEST_BYTES.start])
    sha256.update(b"0" * 64)
    sha256.update(memoryview(data)[_DIGEST_BYTES.stop :])
    found_digest = sha256.hexdigest()
    if found_digest != stored_digest:
        Manifest.loads(data, where)  # raises a more specific error if it finds one
        raise FormatError(
            f"{where}: digest", stored_digest, found_digest, "restore manifest.json"
        )
    return stored_digest


@contextlib.contextmanager
def _garbage_collector_paused() -> Generator[None]:
    """Pause cyclic garbage collection: it takes half of the time to parse 100,000 shards."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _shrink_shard_entry(value: dict[str, Any]) -> Any:
    """Replace a shard entry by its four numbers while the JSON is parsed, to save memory."""
    if value.keys() >= _SHARD_ENTRY_KEYS:
        return [value[name] for name in _COLUMNS]
    return value
