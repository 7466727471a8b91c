"""Files of hashes that are read by range of hash space, and into how many ranges a phase across units is cut.

Promises: a file has one Arrow record batch per bucket, rows in the order they came, so that any range of any unit is
read without the rest; a task holds its partition and works on a small piece of it at a time, whatever the sizes.
Leaves to others: what the rows are.

    write_buckets(path, pa.record_batch([hashes, records], schema))           # by the first column
    partition = Partition([read_part(folder.open(name), "p000of004") for name in names], "p000of004")
    for piece in partition.pieces():                                          # a slice of each file's rows
        partition.gather(piece)                                               # their hashes, and whose they are

How finely space is cut follows from how much there is: a file by its rows, so that a bucket is worth a read; a phase by
its memory; a piece is at most as wide as any file's bucket, because only there rows are in the order they came.

    partition  |        p000of003        |        p001of003  ...      a task
    pieces     |    |    |    |    |  |  |    |    |    |    |        worked on in turn
    buckets    |    |    |    |    |     |    |    |    |    |        of one file
    buckets    |         |         |          |         |             of another, with fewer rows
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

MIN_BUCKETS, MAX_BUCKETS = 2**8, 2**16
"""Of a file; always a power of two."""

ROWS_PER_BUCKET = 2**12
"""About so many, above MIN_BUCKETS of them: 64 kB of HASHES, of which a batch's own description is half a percent."""

MAX_PARTITIONS = 2**12
"""Each of a unit's files is opened once per partition: beyond, there would be more opening than reading."""

MIN_PIECES = MAX_BUCKETS // MAX_PARTITIONS
"""Of a partition: what is held while one is worked on is small beside the rows as they were read."""


def partitions_for(num_rows: int, bytes_per_row: int, memory_mb: int) -> int:
    """Partitions that let a task work in half its memory; the process and its libraries have the other half."""
    return min(MAX_PARTITIONS, max(1, math.ceil(num_rows * bytes_per_row / (memory_mb * 2**19))))


def pieces_for(num_partitions: int, rows_per_file: float) -> int:
    """Pieces of all partitions together, over files of so many rows."""
    return max(buckets_for(math.ceil(rows_per_file)), MIN_PIECES * num_partitions)


def partition_names(num_partitions: int) -> list[str]:
    """Names that say which of how many: a record of one cut of the space never stands for a piece of another."""
    return [f"p{partition:03d}of{num_partitions:03d}" for partition in range(num_partitions)]


def buckets_for(num_rows: int) -> int:
    """Buckets of a file with so many rows."""
    return min(
        MAX_BUCKETS, max(MIN_BUCKETS, 2 ** math.ceil(math.log2(max(1, num_rows) / ROWS_PER_BUCKET)))
    )


def write_buckets(path: Path, rows: pa.RecordBatch) -> None:
    """One record batch per bucket, by the top bits of the first column (uint64), each in the order of `rows`."""
    num_buckets = buckets_for(rows.num_rows)
    order, bounds = _sorted(_places(rows) // (MAX_BUCKETS // num_buckets), num_buckets)
    with pa.ipc.new_file(path, rows.schema) as file:
        for start, end in pairwise(bounds):
            file.write_batch(
                rows.take(pa.array(order[start:end]))
            )  # one at a time: no second copy of them all


@dataclass(frozen=True)
class FileSlice:
    """What a partition has of one file, bucket by bucket.

    Attributes:
        rows: of all its buckets; those of the outer ones that lie outside of the partition are left out.
        bounds: (number of buckets + 1,) where the rows of each begin, and the last end.
        width: of a bucket, in MAX_BUCKETS-ths of hash space.
    """

    rows: pa.RecordBatch
    bounds: NDArray[np.int64]
    width: int

    def filter(self, stays: NDArray[np.bool_]) -> FileSlice:
        """The rows where it is true, in their buckets."""
        before = np.append(0, np.cumsum(stays))
        return replace(self, rows=self.rows.filter(pa.array(stays)), bounds=before[self.bounds])


class Partition:
    """A partition's rows of several files, to be worked on piece by piece.

    Attributes:
        files: the rows of each; those of a piece lie together, in the order they came.
    """

    def __init__(self, parts: Sequence[FileSlice], name: str) -> None:
        first, end = _range(name)
        width = min((part.width for part in parts), default=MAX_BUCKETS)
        while width > 1 and end - first < MIN_PIECES * width:
            width //= 2
        edges = np.concatenate(
            [[first], np.arange(first // width + 1, math.ceil(end / width)) * width, [end]]
        )
        cut = [_cut(part, edges) for part in parts]
        self.files = [rows for rows, _ in cut]
        self._bounds = np.array([bounds for _, bounds in cut]).reshape(len(parts), len(edges))
        self._hashes = [rows["hash"].to_numpy() for rows in self.files]
        self._records = [rows["record"].to_numpy() for rows in self.files]

    def pieces(self) -> Iterator[list[slice]]:
        """Which rows of each file are in a piece, piece by piece: what has equal hashes is in the same one."""
        for index in range(self._bounds.shape[1] - 1):
            yield [slice(start, end) for start, end in self._bounds[:, index : index + 2].tolist()]

    def gather(self, piece: Sequence[slice]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """The columns `hash` and `record` of a piece, file after file.

        Returns:
            hashes: (n,).
            ids: (n,) place of the file << 32 | record: never decreasing where no file's records do.
        """
        counts = [rows.stop - rows.start for rows in piece]
        places = np.repeat(np.arange(len(piece), dtype=np.uint64) << np.uint64(32), counts)
        return rows_of(self._hashes, piece), places | rows_of(self._records, piece)


def rows_of(columns: Sequence[NDArray[Any]], piece: Sequence[slice]) -> NDArray[Any]:
    """Of one column of each file the rows of a piece, file after file."""
    return np.concatenate([column[rows] for column, rows in zip(columns, piece, strict=True)])


def read_part(source: pa.NativeFile, partition: str) -> FileSlice:
    """What a partition has of one file."""
    return _read(source, *_range(partition))


def read_around(source: pa.NativeFile, number: int) -> pa.RecordBatch:
    """The rows of a file among which those with a hash would be."""
    return _read(source, number >> 48, (number >> 48) + 1).rows


def _range(partition: str) -> tuple[int, int]:
    """First and end of a partition, by the top 16 bits of the hashes in it."""
    index, num_partitions = map(int, partition.removeprefix("p").split("of"))
    return MAX_BUCKETS * index // num_partitions, MAX_BUCKETS * (index + 1) // num_partitions


def _read(source: pa.NativeFile, first: int, end: int) -> FileSlice:
    with source:
        file = pa.ipc.open_file(source)
        width = MAX_BUCKETS // file.num_record_batches
        buckets = range(first // width, math.ceil(end / width))
        batches = [file.get_batch(bucket) for bucket in buckets]
        for outer in {0, len(batches) - 1} if first % width or end % width else ():
            places = _places(batches[outer])
            batches[outer] = batches[outer].filter(pa.array((places >= first) & (places < end)))
        bounds = np.append(0, np.cumsum([batch.num_rows for batch in batches]))
        return FileSlice(pa.concat_batches(batches), bounds, width)


def _cut(part: FileSlice, edges: NDArray[np.int64]) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
    """A file's rows piece by piece, and where the rows of each begin, and the last end: pieces lie between edges."""
    if len(edges) == len(part.bounds):  # each bucket is a piece
        return part.rows, part.bounds
    order, bounds = _sorted(
        np.searchsorted(edges, _places(part.rows), side="right") - 1, len(edges) - 1
    )
    return part.rows.take(pa.array(order)), bounds


def _places(rows: pa.RecordBatch) -> NDArray[np.uint16]:
    return (rows.column(0).to_numpy() >> np.uint64(48)).astype(np.uint16)


def _sorted(keys: NDArray[Any], num_keys: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The order that brings equal keys together and leaves them in theirs, and where each key's rows begin and end."""
    bounds = np.append(0, np.cumsum(np.bincount(keys, minlength=num_keys)))
    return np.argsort(keys.astype(np.uint16), kind="stable"), bounds  # by radix: 16 bits
