"""The manifest: table of contents of a dataset, with a digest that identifies the dataset."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np

from shardwriter.format.entries import Count, ShardEntry, TokenizerEntry, Totals
from shardwriter.format.errors import EDITED, FormatError
from shardwriter.format.json_fields import check_fields, show_value
from shardwriter.format.members import (
    FORMAT_NAME,
    FORMAT_VERSION,
    MANIFEST_FILE,
    check_version,
)

_DIGEST_START = b'{\n "digest": "'
_ZERO_DIGEST = b"0" * 64

_MANIFEST_TYPES: Mapping[str, type] = {
    "format": str,
    "version": int,
    "tokenizer": dict,
    "token_dtype": str,
    "shards": list,
    "totals": dict,
    "fingerprint": str,
    "run": dict,
}


@dataclass(frozen=True)
class Manifest:
    """The table of contents of a dataset.

    tokenizer:   tokenizer that made the tokens
    shards:      entry of each shard; `shards[k]` is shard k
    totals:      sums over the shards
    fingerprint: identifies the run that made the dataset
    run:         a JSON object in which the run describes itself; readers ignore it
    """

    tokenizer: TokenizerEntry
    shards: tuple[ShardEntry, ...]
    totals: Totals
    fingerprint: str
    run: Mapping[str, Any] = field(default_factory=dict[str, Any])

    @property
    def token_dtype(self) -> np.dtype[Any]:
        """Dtype of every token array in the dataset."""
        return self.tokenizer.token_dtype

    @property
    def digest(self) -> str:
        """SHA-256 of the manifest. It covers the dataset: the manifest has all SHA-256 sums."""
        return _compute_digest(self._format_without_digest())

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object without the digest, which depends on the bytes of the file."""
        return {
            "format": FORMAT_NAME,
            "version": FORMAT_VERSION,
            "tokenizer": self.tokenizer.to_json(),
            "token_dtype": self.token_dtype.name,
            "shards": [entry.to_json() for entry in self.shards],
            "totals": asdict(self.totals),
            "fingerprint": self.fingerprint,
            "run": self.run,
        }

    @classmethod
    def from_json(cls, value: Any, where: str = MANIFEST_FILE) -> Self:
        """Read the JSON object that `to_json` returns. Contradictions are found by `find_faults`.

        Raises:
            FormatError: another format or version; or a key is missing, unknown or of another type.
        """
        _check_format(value, where)
        fields = check_fields(value, where, _MANIFEST_TYPES)
        tokenizer = TokenizerEntry.from_json(fields["tokenizer"], f"{where}: tokenizer")
        if fields["token_dtype"] != tokenizer.token_dtype.name:
            wanted = f"{tokenizer.token_dtype.name!r} for {tokenizer.vocab_size} ids"
            raise FormatError(
                f"{where}: token_dtype", repr(fields["token_dtype"]), wanted, EDITED
            )
        shards: list[ShardEntry] = []
        for k, entry in enumerate(fields["shards"]):
            shards.append(ShardEntry.from_json(entry, f"{where}: shards[{k}]"))
        totals = Totals.from_json(fields["totals"], f"{where}: totals")
        return cls(tokenizer, tuple(shards), totals, fields["fingerprint"], fields["run"])

    def find_faults(self, where: str = MANIFEST_FILE) -> list[FormatError]:
        """Return one error for each place where the manifest contradicts itself."""
        faults: list[FormatError] = []
        for place, found, wanted in self._list_expectations():
            if found != wanted:
                faults.append(
                    FormatError(f"{where}: {place}", f"{found}", f"{wanted}", EDITED)
                )
        return faults

    def _list_expectations(self) -> Iterator[tuple[str, object, object]]:
        """Yield (place, found value, wanted value) for every value that follows from others."""
        for k, entry in enumerate(self.shards):
            # Readers find shard k at index k, without a look-up table.
            yield f"shards[{k}].shard", entry.shard, k
        totals = self.totals
        sums = Totals.from_shards(self.shards, totals.languages, totals.buckets)
        found, wanted = asdict(totals), asdict(sums)
        for key in wanted:
            yield f"totals.{key}", found[key], wanted[key]
        for labels, counts in (
            ("languages", totals.languages),
            ("buckets", totals.buckets),
        ):
            if counts:
                place = f"totals.{labels}, documents and tokens added up"
                yield place, _add_up(counts), [sums.num_docs, sums.num_tokens]

    def dumps(self) -> bytes:
        """Return the bytes of the file: ASCII, sorted keys, indented by one space."""
        digest = self.digest.encode("ascii")
        # Replace the first occurrence only: a SHA-256 of zeros elsewhere must stay.
        return self._format_without_digest().replace(_ZERO_DIGEST, digest, 1)

    @classmethod
    def inspect(
        cls, data: bytes, where: str = MANIFEST_FILE
    ) -> tuple[Self, list[FormatError]]:
        """Return the manifest in a file's bytes, and every contradiction in it.

        Raises:
            FormatError: the bytes are not a manifest.
        """
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            # json raises one of these on any bytes that are not JSON in UTF-8.
            found = f"{len(data)} bytes that are not JSON ({error})"
            raise FormatError(where, found, "a JSON object", EDITED) from error
        _check_format(value, where)
        stored_digest = value.pop("digest", None)
        manifest = cls.from_json(value, where)
        faults = manifest.find_faults(where)
        # Over the bytes of the file, not over the parsed value: a reformatted manifest is refused
        # too.
        digest = _compute_digest(data)
        if stored_digest != digest:
            place = f"{where}: digest of the file"
            faults.append(FormatError(place, digest, repr(stored_digest), EDITED))
        return manifest, faults

    @classmethod
    def loads(cls, data: bytes, where: str = MANIFEST_FILE) -> Self:
        """Read the bytes that `dumps` returns.

        Raises:
            FormatError: the first fault that was found.
        """
        manifest, faults = cls.inspect(data, where)
        if faults:
            raise faults[0]
        return manifest

    def _format_without_digest(self) -> bytes:
        """Return the bytes of the file with zeros in place of the digest."""
        # "digest" sorts before every other key, so its place in the file is fixed.
        value = {"digest": _ZERO_DIGEST.decode("ascii"), **self.to_json()}
        return (
            json.dumps(value, sort_keys=True, indent=1, allow_nan=False).encode("ascii")
            + b"\n"
        )


def _compute_digest(data: bytes) -> str:
    """Return the SHA-256 of a manifest file with zeros in place of its digest."""
    start = len(_DIGEST_START)
    stop = start + len(_ZERO_DIGEST)
    return hashlib.sha256(data[:start] + _ZERO_DIGEST + data[stop:]).hexdigest()


def _add_up(counts: Mapping[str, Count]) -> list[int]:
    """Return the documents and tokens of all labels."""
    num_docs = sum(count.num_docs for count in counts.values())
    return [num_docs, sum(count.num_tokens for count in counts.values())]


def _check_format(value: Any, where: str) -> None:
    if not isinstance(value, dict) or value.get("format") != FORMAT_NAME:
        found = show_value(value.get("format") if isinstance(value, dict) else value)
        raise FormatError(
            f"{where}: format", found, repr(FORMAT_NAME), "give the manifest of a dataset"
        )
    check_version(f"{where}: version", value.get("version"))
