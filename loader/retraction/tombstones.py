"""The token ranges of retracted documents, and how they are read from a dataset.

Row order and row contents are arithmetic on token positions, so a retraction changes neither. It
only replaces tokens: docs/retraction.md.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from loader.order.permutation import BoolArray, Int64Array
from shardwriter.format import (
    RETRACTIONS_FILE,
    FormatError,
    RetractionLog,
    read_tombstones,
)
from storage import Store
from storage.errors import AccessRefused, NotFound

log = logging.getLogger(__name__)


class TokenRanges(NamedTuple):
    """K ranges of tokens in n rows, sorted by row: retracted tokens, padding, repeated tokens.

    rows:   (K,) int64, the row of each range
    firsts: (K,) int64, its first token, counted from the start of the row
    ends:   (K,) int64, the token after its last
    """

    rows: Int64Array
    firsts: Int64Array
    ends: Int64Array

    @classmethod
    def join(cls, parts: Sequence[TokenRanges]) -> Self:
        """Return the ranges of several parts of the same rows."""
        rows, firsts, ends = (
            np.concatenate(columns) for columns in zip(*parts, strict=True)
        )
        order = np.argsort(rows, kind="stable")
        return cls(rows[order], firsts[order], ends[order])

    def select(self, rows: slice) -> TokenRanges:
        """Return the ranges of consecutive rows, which are then counted from the first of them."""
        # Called for each batch: the method takes half the time of np.searchsorted.
        chosen = slice(*self.rows.searchsorted((rows.start, rows.stop)).tolist())
        return TokenRanges(
            self.rows[chosen] - rows.start, self.firsts[chosen], self.ends[chosen]
        )

    def fill(self, target: Any, value: int, *, offset: int = 0) -> None:
        """Set the elements of the ranges in (n, num_tokens) numbers, in place.

        Args:
            target: array or tensor; column t has token t + offset.
            value: the new value.
            offset: 1 for labels, which are the tokens after those of the same column.
        """
        columns = (self.rows.tolist(), self.firsts.tolist(), self.ends.tolist())
        for row, first, end in zip(*columns, strict=True):
            target[row, max(first - offset, 0) : end - offset] = value

    def mark(self, num_rows: int, num_tokens: int) -> BoolArray:
        """Return (num_rows, num_tokens) bool, true inside the ranges."""
        marks = np.zeros((num_rows, num_tokens), np.bool_)
        self.fill(marks, 1)
        return marks


@dataclass(frozen=True, eq=False)
class Tombstones:
    """R ranges of retracted tokens, sorted, without overlap.

    shard_starts: (S + 1,) int64, tokens before each shard of the dataset
    starts:       (R,) int64, first token of each range, counted from the start of the dataset
    stops:        (R,) int64, the token after its last
    """

    shard_starts: Int64Array
    starts: Int64Array
    stops: Int64Array

    @classmethod
    def from_table(cls, table: NDArray[np.uint64], shard_num_tokens: Int64Array) -> Self:
        """Join the ranges of (D, 4) tombstones, which may overlap or repeat each other.

        Raises:
            FormatError: a range is not inside its shard.
        """
        shard_starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(shard_num_tokens)])
        shards, firsts, counts = (table[:, k].astype(np.int64) for k in (0, 2, 3))
        num_shards = len(shard_num_tokens)
        is_known = (shards >= 0) & (shards < num_shards) & (firsts >= 0) & (counts > 0)
        room = np.zeros(len(table), np.int64)
        room[is_known] = shard_num_tokens[shards[is_known]] - firsts[is_known]
        if (counts > room).any():
            row = int(np.argmax(counts > room))
            raise FormatError(
                f"{RETRACTIONS_FILE}: tombstone {row}",
                f"shard {shards[row]}, tokens {firsts[row]} + {counts[row]}",
                "a range inside a shard of this dataset",
                "copy the retractions again from where the dataset was retracted",
            )
        starts = shard_starts[shards] + firsts
        return cls(shard_starts, *_join_ranges(starts, starts + counts))

    def find(
        self, shards: Int64Array, first_tokens: Int64Array, num_tokens: int | Int64Array
    ) -> TokenRanges:
        """Return the retracted tokens of n rows, or of n pieces of rows.

        Args:
            shards: (n,) shard of each row.
            first_tokens: (n,) first token of each row, counted from the start of its shard.
            num_tokens: tokens of a row, or (n,) of each row.
        """
        starts = self.shard_starts[shards] + first_tokens
        # (n,) The retracted ranges that a row touches are firsts..lasts - 1.
        firsts = np.searchsorted(self.stops, starts, side="right")
        lasts = np.searchsorted(self.starts, starts + num_tokens, side="left")
        counts = np.maximum(lasts - firsts, 0)
        rows = np.repeat(np.arange(len(starts)), counts)
        # Places 0, 1, ... of the ranges within their row.
        places = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
        ranges = firsts[rows] + places
        row_tokens = np.broadcast_to(num_tokens, len(starts))[rows]
        return TokenRanges(
            rows,
            np.maximum(self.starts[ranges] - starts[rows], 0),
            np.minimum(self.stops[ranges] - starts[rows], row_tokens),
        )


def _join_ranges(starts: Int64Array, stops: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Return sorted ranges without overlap that cover the same tokens; adjacent ones are joined."""
    order = np.argsort(starts, kind="stable")
    starts, reached = starts[order], np.maximum.accumulate(stops[order])
    # A range begins where nothing before it reaches its first token.
    is_first = np.ones(len(starts), np.bool_)
    is_first[1:] = starts[1:] > reached[:-1]
    lasts = np.append(np.flatnonzero(is_first)[1:] - 1, len(starts) - 1)
    return starts[is_first], reached[lasts] if len(starts) else reached


class Retractions(NamedTuple):
    """The retractions of a dataset.

    lineage:    digests that the dataset has had: of its manifest, and after each retraction
    tombstones: its retracted tokens, or None
    rewritten:  shards that may have been rewritten without these tokens
    """

    lineage: tuple[str, ...]
    tombstones: Tombstones | None = None
    rewritten: frozenset[int] = frozenset()


def read_retractions(
    store: Store, manifest_digest: str, shard_num_tokens: Int64Array
) -> Retractions:
    """Read the retractions of a dataset, if it has any.

    Args:
        store: the folder of the dataset.
        manifest_digest: the digest of its manifest.
        shard_num_tokens: (S,) tokens of each shard.

    Raises:
        ReadFailed: a file cannot be read.
        FormatError: a file is damaged or belongs to another dataset.
    """
    try:
        data = store.read_bytes(RETRACTIONS_FILE)
    except NotFound:
        return Retractions((manifest_digest,))
    except AccessRefused:
        # S3 answers 403 for a missing object if the keys may not list the bucket.
        log.warning(
            "%s: access refused; either no document was retracted, or the retractions cannot be "
            "read: allow the keys to list the bucket (s3:ListBucket) to know",
            store.locate(RETRACTIONS_FILE),
        )
        return Retractions((manifest_digest,))
    where = store.locate(RETRACTIONS_FILE)
    found = RetractionLog.loads(data, where)
    if found.manifest_digest != manifest_digest:
        raise FormatError(
            f"{where}: manifest_digest",
            found.manifest_digest,
            f"{manifest_digest} as in the manifest",
            "put the manifest and the retractions of one dataset in one folder",
        )
    tables = [np.zeros((0, 4), np.uint64)]
    for entry in found.entries:
        content = bytes(store.map(entry.tombstones))
        tables.append(read_tombstones(content, entry, store.locate(entry.tombstones)))
    table = np.concatenate(tables)
    tombstones = Tombstones.from_table(table, shard_num_tokens) if len(table) else None
    return Retractions(found.lineage, tombstones, frozenset(found.rewritten))
