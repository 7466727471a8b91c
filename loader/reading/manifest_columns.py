"""Read the shard entries of a manifest as numpy columns.

Four numbers and a digest per shard are kept: 64 bytes, where an entry as a Python object takes about
2,000. A manifest of 100,000 shards fits easily.

    manifest = read_manifest_columns("s3://bucket/dataset", ReadSettings())
    manifest.num_tokens.sum()
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import re
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from loader.order.permutation import Int64Array
from loader.order.row_order import count_rows
from loader.retraction.tombstones import Tombstones, read_retractions
from loader.storage import ReadFailed, ReadSettings, open_dataset, read_whole
from shardwriter.format import MANIFEST_FILE, FormatError, Manifest, TokenizerEntry
from storage.errors import AccessRefused, NotFound
from storage.names import is_file_name
from terminal_output import format_command, format_count

_COLUMNS = ("shard_bytes", "num_samples", "num_docs", "num_tokens")
_SHARD_ENTRY_KEYS = {"index_file", "shard", "index_sha256", *_COLUMNS}

# Largest sum of a column. Every JSON reader represents it exactly, and no sum overflows int64.
_MAX_SUM = 2**53 - 1

# Folder of the dataset in a run of the pipeline.
_DATASET_OF_RUN = "dataset"

_LINK_TARGET = re.compile(r"[\w.-]{1,255}")

# Place of the digest in the file (docs/data-format.md, "Manifest").
_DIGEST_BYTES = slice(14, 78)


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
        value = manifest.to_json()
        columns = _make_columns(map(_shrink_shard_entry, value["shards"]), value["totals"])
        return cls("", manifest.digest, manifest.tokenizer, value["totals"], **columns)

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
    columns = _parse_manifest(read_whole(store, name), store.locate(name), folder)
    retractions = read_retractions(store, columns.digest, columns.num_tokens)
    return replace(columns, **retractions._asdict())


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


def _parse_manifest(data: bytes, where: str, address: str) -> ManifestColumns:
    digest = _check_digest(data, where)
    try:
        with _garbage_collector_paused():
            # value["shards"] is a list of _ShardNumbers.
            value = json.loads(data, object_hook=_shrink_shard_entry)
            head = {**value, "shards": []}
            del head["digest"]
            tokenizer = Manifest.from_json(head, where).tokenizer
            columns = _make_columns(value["shards"], value["totals"])
            return ManifestColumns(address, digest, tokenizer, value["totals"], **columns)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        # The full parser is slow, but its errors name the key.
        Manifest.loads(data, where)
        found = f"a manifest with another layout ({error!r})"
        remedy = "restore manifest.json"
        raise FormatError(where, found, "the keys of this version", remedy) from error


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


class _ShardNumbers(NamedTuple):
    """The parts of a shard entry that readers need."""

    shard: int
    shard_bytes: int
    num_samples: int
    num_docs: int
    num_tokens: int
    index_sha256: str


def _shrink_shard_entry(value: dict[str, Any]) -> Any:
    """Replace a shard entry by the parts that are needed while JSON is parsed, to save memory."""
    if value.keys() >= _SHARD_ENTRY_KEYS:
        return _ShardNumbers(*map(value.__getitem__, _ShardNumbers._fields))
    return value


def _make_columns(
    entries: Iterable[_ShardNumbers], totals: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the columns of the shard entries, which may hold any JSON values.

    Raises:
        ValueError: a value has another type or is out of range, the shards are not numbered
            0, 1, 2, ..., or the totals are not the sums of the entries.
    """
    numbers: list[tuple[int, ...]] = []
    digests: list[bytes] = []
    for k, entry in enumerate(entries):
        *row, digest = entry
        # `type(...) is`, because bool is a subclass of int, and numpy would round a float.
        has_integers = all(type(number) is int for number in row)
        if not has_integers or row[:1] != [k] or min(row) < 0:
            raise ValueError(f"the entry of shard {k} has the numbers {row}")
        numbers.append(tuple(row))
        digests.append(bytes.fromhex(digest))
    if any(len(digest) != hashlib.sha256().digest_size for digest in digests):
        raise ValueError("an index_sha256 has not 64 hexadecimal digits")
    if totals["num_shards"] != len(numbers):
        raise ValueError(
            f"{format_count(len(numbers), 'shard')}, but totals.num_shards differs"
        )
    by_name = dict(zip(_ShardNumbers._fields, zip(*numbers, strict=True), strict=False))
    columns: dict[str, Any] = {}
    for name in _COLUMNS:
        values = by_name.get(name, ())
        # Added up as Python's integers, which do not overflow.
        if not sum(values) == totals[name] <= _MAX_SUM:
            raise ValueError(
                f"totals.{name} is not the sum of the shards, up to {_MAX_SUM}"
            )
        columns[name] = np.array(values, np.int64)
    columns["index_sha256"] = np.frombuffer(b"".join(digests), np.uint8).reshape(-1, 32)
    return columns
