"""Shards from which retracted tokens were removed: which bytes their tars may have.

Manifest and index of a rewritten shard stay as they are, and so do the sizes and offsets in its
tar. Its checksums are in `rewritten-000003.json`. That file is written before the tar is replaced,
so a reader accepts the tar before and after, and a killed rewrite leaves a dataset that is whole.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np

from shardwriter.format.entries import ShardEntry
from shardwriter.format.errors import FormatError
from shardwriter.format.json_fields import check_fields, show_value
from shardwriter.format.retractions import LOG_VERSION

_SHA256 = re.compile("[0-9a-f]{64}")

REWRITTEN_FORMAT = "corpusmill-rewritten-shard"

_REMEDY = "copy the file again from where the dataset was rewritten"

_TYPES: Mapping[str, type] = {
    "format": str,
    "version": int,
    "shard": int,
    "tar_digests": list,
    "sample_crcs": list,
}


@dataclass(frozen=True)
class RewrittenShard:
    """The checksums of a rewritten shard.

    shard:       number of the shard
    sha256:      SHA-256 of the tar after each rewrite, oldest first
    sample_crcs: (sample, crc32 of its raw tokens) after each rewrite, oldest first
    """

    shard: int
    sha256: tuple[str, ...] = ()
    sample_crcs: tuple[tuple[int, int], ...] = ()

    @property
    def accepted_crcs(self) -> dict[int, set[int]]:
        """Sample -> checksums that its tokens may have besides the one in the index."""
        accepted: dict[int, set[int]] = {}
        for sample, crc in self.sample_crcs:
            accepted.setdefault(sample, set()).add(crc)
        return accepted

    def add(self, sha256: str, sample_crcs: Mapping[int, int]) -> Self:
        """Return the checksums with those of another rewrite; the same ones are added once."""
        if self.sha256[-1:] == (sha256,):
            return self
        crcs = (*self.sample_crcs, *sorted(sample_crcs.items()))
        return type(self)(self.shard, (*self.sha256, sha256), crcs)

    def list_sha256(self, entry: ShardEntry) -> set[str]:
        """Return every SHA-256 that the tar of a shard may have."""
        return {entry.sha256, *self.sha256}

    def dumps(self) -> bytes:
        """Return the bytes of the file."""
        value = {
            "format": REWRITTEN_FORMAT,
            "version": LOG_VERSION,
            "shard": self.shard,
            "tar_digests": list(self.sha256),
            "sample_crcs": [list(pair) for pair in self.sample_crcs],
        }
        return json.dumps(value, sort_keys=True).encode("ascii") + b"\n"

    @classmethod
    def loads(cls, data: bytes, shard: int, where: str) -> Self:
        """Read the bytes that `dumps` returns.

        Raises:
            FormatError: they are not the checksums of this shard.
        """
        try:
            value = json.loads(data)
        except (ValueError, RecursionError) as error:
            found = f"{len(data)} bytes that are not JSON ({error})"
            raise FormatError(where, found, "a JSON object", _REMEDY) from error
        fields = check_fields(value, where, _TYPES)
        wanted = {"format": REWRITTEN_FORMAT, "version": LOG_VERSION, "shard": shard}
        for key, expected in wanted.items():
            if fields[key] != expected:
                found = repr(fields[key])
                raise FormatError(f"{where}: {key}", found, repr(expected), _REMEDY)
        try:
            pairs = np.array(fields["sample_crcs"], np.uint32).reshape(-1, 2)
        except (ValueError, TypeError, OverflowError) as error:
            found = f"a list that is not of pairs of integers ({error})"
            place = f"{where}: sample_crcs"
            raise FormatError(place, found, "[sample, crc32], ...", _REMEDY) from error
        digests = tuple(map(str, fields["tar_digests"]))
        if not digests or not all(map(_SHA256.fullmatch, digests)):
            found = show_value(fields["tar_digests"])
            wanted = "digests of 64 hexadecimal digits, at least one"
            raise FormatError(f"{where}: tar_digests", found, wanted, _REMEDY)
        crcs: list[tuple[int, int]] = [(int(s), int(crc)) for s, crc in pairs]
        return cls(shard, digests, tuple(crcs))


def rewritten_file(shard: int) -> str:
    """Return the name of the checksums of a rewritten shard, such as `rewritten-000003.json`."""
    return f"rewritten-{shard:06d}.json"


def open_rewritten(folder: Any, shard: int) -> RewrittenShard:
    """Read the checksums of a rewritten shard from a folder with `read_bytes`."""
    name = rewritten_file(shard)
    return RewrittenShard.loads(folder.read_bytes(name), shard, name)
