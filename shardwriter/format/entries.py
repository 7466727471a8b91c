"""The parts of a manifest: tokenizer, shard entries, totals, and counts by label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Self

import numpy as np

from shardwriter.format.errors import EDITED, FormatError
from shardwriter.format.json_fields import check_fields
from shardwriter.format.members import index_file, shard_file, token_dtype


@dataclass(frozen=True)
class Count:
    """Documents and tokens of a shard or dataset that have some label."""

    num_docs: int
    num_tokens: int

    @classmethod
    def from_json(cls, value: Any, where: str) -> Self:
        """Read the JSON object that `dataclasses.asdict` returns; raises FormatError."""
        return cls(**check_fields(value, where, {"num_docs": int, "num_tokens": int}))


@dataclass(frozen=True)
class TokenizerEntry:
    """The tokenizer that made the token ids.

    name:            of the tokenizer
    sha256:          of its file
    vocab_size:      number of ids, special ids included: ids are 0..vocab_size - 1
    end_of_document: id of the last token of each document
    special_ids:     name -> id of the other special tokens

    Raises:
        ValueError: an id is not below `vocab_size`, or `vocab_size` is out of range.
    """

    name: str
    sha256: str
    vocab_size: int
    end_of_document: int
    special_ids: Mapping[str, int] = field(default_factory=dict[str, int])

    def __post_init__(self) -> None:
        if not 1 <= self.vocab_size <= 2**32:
            raise ValueError(
                f"tokenizer {self.name!r}: vocab_size is {self.vocab_size}, must be in 1..{2**32}"
            )
        ids = {"end_of_document": self.end_of_document, **self.special_ids}
        for name, token in ids.items():
            if not 0 <= token < self.vocab_size:
                raise ValueError(
                    f"tokenizer {self.name!r}: the id of {name!r} is {token}, must be in "
                    f"0..{self.vocab_size - 1}; vocab_size must count special tokens too"
                )

    @property
    def token_dtype(self) -> np.dtype[Any]:
        """Dtype of every token array in the dataset."""
        return token_dtype(self.vocab_size)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any, where: str = "tokenizer") -> Self:
        """Read the JSON object that `to_json` returns; raises FormatError."""
        types = {
            "name": str,
            "sha256": str,
            "vocab_size": int,
            "end_of_document": int,
            "special_ids": dict,
        }
        fields = check_fields(value, where, types)
        special_ids = fields["special_ids"]
        check_fields(special_ids, f"{where}.special_ids", dict.fromkeys(special_ids, int))
        try:
            return cls(**fields)
        except ValueError as error:
            raise FormatError(where, str(error), "ids below vocab_size", EDITED) from error


_SHARD_ENTRY_TYPES: Mapping[str, type] = {
    "shard": int,
    "file": str,
    "shard_bytes": int,
    "sha256": str,
    "index_file": str,
    "index_bytes": int,
    "index_sha256": str,
    "num_samples": int,
    "num_docs": int,
    "num_tokens": int,
}


@dataclass(frozen=True)
class ShardEntry:
    """The manifest's entry of one shard."""

    shard: int
    shard_bytes: int
    sha256: str
    index_bytes: int
    index_sha256: str
    num_samples: int
    num_docs: int
    num_tokens: int

    @property
    def file(self) -> str:
        """Name of the tar in the manifest's folder."""
        return shard_file(self.shard)

    @property
    def index_file(self) -> str:
        """Name of the index in the manifest's folder."""
        return index_file(self.shard)

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object. File names have no folder, so a dataset can be moved."""
        return {**asdict(self), "file": self.file, "index_file": self.index_file}

    @classmethod
    def from_json(cls, value: Any, where: str = "shard") -> Self:
        """Read the JSON object that `to_json` returns; raises FormatError."""
        fields = check_fields(value, where, _SHARD_ENTRY_TYPES)
        # File names follow from the number of the shard. They are stored for
        # readers that do not know the rule.
        names = {"file": fields.pop("file"), "index_file": fields.pop("index_file")}
        entry = cls(**fields)
        for key, found in names.items():
            wanted = getattr(entry, key)
            if found != wanted:
                raise FormatError(
                    f"{where}.{key}",
                    repr(found),
                    f"{wanted!r} for shard {entry.shard}",
                    EDITED,
                )
        return entry


_TOTALS_TYPES: Mapping[str, type] = {
    "num_shards": int,
    "shard_bytes": int,
    "index_bytes": int,
    "num_samples": int,
    "num_docs": int,
    "num_tokens": int,
    "languages": dict,
    "buckets": dict,
}


@dataclass(frozen=True)
class Totals:
    """Sums over the shards of a dataset.

    `languages` and `buckets` map a label to its counts. Each of them is empty or covers all
    documents. Shards have no such counts: the order of documents is global, so each shard of a
    large dataset has all labels.
    """

    num_shards: int
    shard_bytes: int
    index_bytes: int
    num_samples: int
    num_docs: int
    num_tokens: int
    languages: Mapping[str, Count]
    buckets: Mapping[str, Count]

    @classmethod
    def from_shards(
        cls,
        shards: Sequence[ShardEntry],
        languages: Mapping[str, Count],
        buckets: Mapping[str, Count],
    ) -> Self:
        """Sum up the entries of all shards; labels are sorted."""
        return cls(
            num_shards=len(shards),
            shard_bytes=sum(entry.shard_bytes for entry in shards),
            index_bytes=sum(entry.index_bytes for entry in shards),
            num_samples=sum(entry.num_samples for entry in shards),
            num_docs=sum(entry.num_docs for entry in shards),
            num_tokens=sum(entry.num_tokens for entry in shards),
            # Sorted, because equal datasets must give equal manifests.
            languages=dict(sorted(languages.items())),
            buckets=dict(sorted(buckets.items())),
        )

    @classmethod
    def from_json(cls, value: Any, where: str = "totals") -> Self:
        """Read the JSON object that `dataclasses.asdict` returns; raises FormatError."""
        fields = check_fields(value, where, _TOTALS_TYPES)
        for labels in ("languages", "buckets"):
            fields[labels] = _read_counts(fields[labels], f"{where}.{labels}")
        return cls(**fields)


def _read_counts(value: dict[str, Any], where: str) -> dict[str, Count]:
    return {
        label: Count.from_json(count, f"{where}[{label!r}]")
        for label, count in value.items()
    }
