"""What a manifest says, as columns: light enough for 100,000 shards.

Promises: the digest of the manifest holds, and format and version are ours, or the error of `shardwriter.format` is
raised. Some 32 bytes per shard stay in memory; an entry of the manifest as an object would take 2,000.
Leaves to others: the files that the manifest names (`reader`).

    catalogue = read_catalogue("s3://bucket/dataset", ReadSettings())
    catalogue.num_tokens.sum()
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from loader.order import Ints, count_rows
from loader.storage import ReadFailed, ReadSettings, open_store
from shardwriter.format import MANIFEST_FILE, FormatError, Manifest, TokenizerEntry

_COLUMNS = ("shard_bytes", "num_samples", "num_docs", "num_tokens")
_SHARD_KEYS = {"index_file", *_COLUMNS}
_LINK = re.compile(r"[\w.-]{1,255}")
_DIGEST_BYTES = slice(14, 78)  # docs/data-format.md, "Manifest"


@dataclass(frozen=True, eq=False)
class Catalogue:
    """A dataset: where it lies, which it is, and four numbers per shard, each (S,) int64."""

    address: str
    digest: str
    tokenizer: TokenizerEntry
    totals: Mapping[str, Any]
    shard_bytes: Ints
    num_samples: Ints
    num_docs: Ints
    num_tokens: Ints

    @classmethod
    def of(cls, manifest: Manifest) -> Self:
        """Of a manifest in memory, which has no address."""
        columns = {
            name: np.array([getattr(entry, name) for entry in manifest.shards], np.int64)
            for name in _COLUMNS
        }
        return cls("", manifest.digest, manifest.tokenizer, manifest.to_json()["totals"], **columns)

    def shard_rows(self, seq_len: int) -> Ints:
        """(S,) rows of each shard; raises ValueError where there is not one row in the whole dataset."""
        if seq_len < 1:
            raise ValueError(f"seq_len is {seq_len}, must be at least 1")
        rows = count_rows(self.num_tokens, seq_len)
        if not rows.sum():
            longest = int(self.num_tokens.max(initial=0))
            found = (
                f"{len(rows)} shards, the longest with {longest} tokens"
                if len(rows)
                else "no shards at all"
            )
            raise ValueError(
                f"{self.address or 'manifest'}: {found}; a row of seq_len={seq_len} takes {seq_len + 1} tokens "
                f"of one shard: lower seq_len, or make fewer, longer shards"
            )
        return rows


def split_address(source: str | Path) -> tuple[str, str]:
    """Folder and name of the manifest; the source may be either."""
    text = str(source)
    if text.endswith(".json"):
        folder, _, name = text.rpartition("/")
        return folder or ".", name
    return text.rstrip("/") or "/", MANIFEST_FILE


def read_catalogue(source: str | Path | Manifest, settings: ReadSettings) -> Catalogue:
    """The catalogue at a path or address of a manifest or of its folder.

    Raises:
        ReadFailed: it cannot be read.
        FormatError: no manifest, of another version, or changed since it was written.
    """
    if isinstance(source, Manifest):
        return Catalogue.of(source)
    folder, name = split_address(source)
    store = open_store(folder, settings)
    try:
        return _parse(store.read(name), store.where(name), folder)
    except ReadFailed as error:
        if (target := _linked(folder, settings)) is None:
            raise error from None
    store = open_store(target, settings)
    return _parse(store.read(name), store.where(name), target)


def _linked(folder: str, settings: ReadSettings) -> str | None:
    """The neighbour whose name stands in an object, where there is one in the place of a folder: a bucket's link."""
    parent, _, link = folder.rpartition("/")
    if "://" not in parent:
        return None
    with contextlib.suppress(ReadFailed, UnicodeDecodeError):
        target = open_store(parent, settings).read(link).decode("ascii").strip()
        return f"{parent}/{target}" if _LINK.fullmatch(target) else None
    return None


def _parse(data: bytes, where: str, address: str) -> Catalogue:
    digest = data[_DIGEST_BYTES].decode("ascii", "replace")
    hashed = hashlib.sha256(data[: _DIGEST_BYTES.start])
    hashed.update(b"0" * 64)
    hashed.update(memoryview(data)[_DIGEST_BYTES.stop :])
    if hashed.hexdigest() != digest:
        Manifest.loads(data, where)  # says what is wrong with it
        raise FormatError(f"{where}: digest", digest, hashed.hexdigest(), "restore manifest.json")
    was_enabled = gc.isenabled()
    gc.disable()  # half the time of reading 100,000 shards is the collector, looking for cycles in JSON
    try:
        value = json.loads(data, object_hook=_slimmed)
        rest = {key: part for key, part in value.items() if key != "digest"}
        head = Manifest.from_json({**rest, "shards": []}, where)
        numbers = np.array(value["shards"], np.int64).reshape(-1, len(_COLUMNS))
        columns = dict(zip(_COLUMNS, numbers.T.copy(), strict=True))
        return Catalogue(address, digest, head.tokenizer, value["totals"], **columns)
    except FormatError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise FormatError(
            where,
            f"a manifest of another layout ({error!r})",
            "the keys of version 1",
            "restore it",
        ) from error
    finally:
        if was_enabled:
            gc.enable()


def _slimmed(value: dict[str, Any]) -> Any:
    """The entry of a shard as its four numbers, so that the rest of it is dropped while the next one is read."""
    return [value[name] for name in _COLUMNS] if value.keys() >= _SHARD_KEYS else value
