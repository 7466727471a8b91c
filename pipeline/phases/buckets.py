"""Files of hashes that are read by range of hash space, and into how many ranges a phase across units is cut.

Promises: a file has one Arrow record batch per bucket, rows in the order they came, so that any range of any unit is
read without the rest; a task holds its partition and works on a small piece of it at a time, whatever the sizes.
Leaves to others: what the rows are.

    write_buckets(path, pa.record_batch([hashes, records], schema))           # by the first column
    parts = [read_partition(folder.open(name), "p000of004") for name in names]
    for piece in pieces(parts, "p000of004"):                                  # one record batch of each file
        gather(piece)                                                         # its hashes, and whose they are

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
from dataclasses import dataclass
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
    return min(MAX_BUCKETS, max(MIN_BUCKETS, 2 ** math.ceil(math.log2(max(1, num_rows) / ROWS_PER_BUCKET))))


def write_buckets(path: Path, rows: pa.RecordBatch) -> None:
    """One record batch per bucket, by the top bits of the first column (uint64), each in the order of `rows`."""
    num_buckets = buckets_for(rows.num_rows)
    order, bounds = _sorted(_places(rows) // (MAX_BUCKETS // num_buckets), num_buckets)
    with pa.ipc.new_file(path, rows.schema) as file:
        for start, end in pairwise(bounds):
            file.write_batch(rows.take(pa.array(order[start:end])))  # one at a time: no second copy of them all


@dataclass(frozen=True)
class Part:
    """What a partition has to read of one file: the buckets that it reaches into, without the rows that lie outside.

    A place in hash space is given by the top 16 bits, as are `first`, where the first bucket starts, and `width`, that
    of every bucket.
    """

    buckets: tuple[pa.RecordBatch, ...]
    first: int
    width: int


def read_partition(source: pa.NativeFile, partition: str) -> Part:
    """A partition's buckets of one file."""
    return _read(source, *_range(partition))


def read_around(source: pa.NativeFile, number: int) -> pa.RecordBatch:
    """The rows of a file among which those with a hash would be."""
    return _read(source, number >> 48, (number >> 48) + 1).buckets[0]


def pieces(parts: Sequence[Part], partition: str) -> Iterator[tuple[pa.RecordBatch, ...]]:
    """Piece by piece of a partition the rows of each file, each in the order they came."""
    first, end = _range(partition)
    width = min((part.width for part in parts), default=MAX_BUCKETS)
    while width > 1 and (end - first) < MIN_PIECES * width:
        width //= 2
    inner = np.arange(first // width + 1, math.ceil(end / width)) * width
    edges = np.concatenate([[first], inner, [end]])
    yield from zip(*(_pieces_of(part, edges) for part in parts), strict=True)


def gather(piece: Sequence[pa.RecordBatch]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """One piece of several files, whose columns `hash` and `record` are laid end to end.

    Returns:
        hashes: (n,).
        ids: (n,) place of the file << 32 | record: never decreasing where no file's records do.
    """
    places = np.repeat(np.arange(len(piece), dtype=np.uint64) << np.uint64(32), [batch.num_rows for batch in piece])
    hashes = np.concatenate([batch["hash"].to_numpy() for batch in piece])
    return hashes, places | np.concatenate([batch["record"].to_numpy() for batch in piece])


def _range(partition: str) -> tuple[int, int]:
    """First and end of a partition, by the top 16 bits of the hashes in it."""
    index, num_partitions = map(int, partition.removeprefix("p").split("of"))
    return MAX_BUCKETS * index // num_partitions, MAX_BUCKETS * (index + 1) // num_partitions


def _read(source: pa.NativeFile, first: int, end: int) -> Part:
    with source:
        file = pa.ipc.open_file(source)
        width = MAX_BUCKETS // file.num_record_batches
        buckets = range(first // width, math.ceil(end / width))
        batches = [file.get_batch(bucket) for bucket in buckets]
        for outer in {0, len(batches) - 1} if first % width or end % width else ():
            places = _places(batches[outer])
            batches[outer] = batches[outer].filter(pa.array((places >= first) & (places < end)))
        return Part(tuple(batches), buckets.start * width, width)


def _pieces_of(part: Part, edges: NDArray[np.int64]) -> Iterator[pa.RecordBatch]:
    """A file's buckets cut at the edges, two of which at least lie in or around each."""
    for index, bucket in enumerate(part.buckets):
        start = part.first + index * part.width
        mine = edges[np.searchsorted(edges, start) : np.searchsorted(edges, start + part.width, side="right")]
        if len(mine) == 2:
            yield bucket
            continue
        order, bounds = _sorted(np.searchsorted(mine, _places(bucket), side="right") - 1, len(mine) - 1)
        rows = bucket.take(pa.array(order))
        yield from (rows.slice(start, end - start) for start, end in pairwise(bounds))


def _places(rows: pa.RecordBatch) -> NDArray[np.uint16]:
    return (rows.column(0).to_numpy() >> np.uint64(48)).astype(np.uint16)


def _sorted(keys: NDArray[Any], num_keys: int) -> tuple[NDArray[np.int64], list[int]]:
    """The order that brings equal keys together and leaves them in theirs, and where each key's rows begin and end."""
    counts = np.bincount(keys, minlength=num_keys)
    return np.argsort(keys.astype(np.uint16), kind="stable"), [0, *np.cumsum(counts).tolist()]  # by radix: 16 bits
