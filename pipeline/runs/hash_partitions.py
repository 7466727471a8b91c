"""Files of hashes that are read by range of hash space, and the partitions of phases that read all files.

A file has one Arrow record batch per bucket, and its rows stay in their order inside a bucket. So a task reads any
range of any file without the rest. A task holds its partition of all files, and processes one small chunk at a time.

    write_buckets(path, pa.record_batch([hashes, records], schema))           # by the first column
    partition = Partition([read_slice(folder.open(name), "p000of004") for name in names], "p000of004")
    for chunk in partition.chunks():                                          # a slice of each file's rows
        hashes, ids = partition.gather(chunk)

The amount of data determines how finely hash space is cut: buckets are large enough for an efficient read, and
partitions are small enough for memory. Rows are in input order only inside a bucket, so a chunk is never wider than
the narrowest bucket of all files.

    partition  |        p000of003        |        p001of003  ...      one task
    chunks     |    |    |    |    |  |  |    |    |    |    |        processed one after another
    buckets    |    |    |    |    |     |    |    |    |    |        of one file
    buckets    |         |         |          |         |             of another file, with fewer rows
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

# Of a file; always a power of two, because a bucket is a range of the top bits.
MIN_BUCKETS, MAX_BUCKETS = 2**8, 2**16

# On average, above MIN_BUCKETS: 64 kB of paragraph hashes. The header of a record batch is
# half a percent of it.
ROWS_PER_BUCKET = 2**12

# Each task opens the files of all splits. With more partitions, a phase opens more than it
# reads.
MAX_PARTITIONS = 2**12

# Of a partition. The memory for one chunk is small beside the rows of the partition.
MIN_CHUNKS = MAX_BUCKETS // MAX_PARTITIONS


def count_partitions(num_rows: int, bytes_per_row: int, memory_mb: int) -> int:
    """Return the number of partitions with which a task needs half its memory.

    The other half is for the process and its libraries.
    """
    half_bytes = memory_mb * 2**19
    return min(MAX_PARTITIONS, max(1, math.ceil(num_rows * bytes_per_row / half_bytes)))


def count_chunks(num_partitions: int, rows_per_file: float) -> int:
    """Return the number of chunks of all partitions together."""
    return max(count_buckets(math.ceil(rows_per_file)), MIN_CHUNKS * num_partitions)


def count_buckets(
    num_rows: int,
    rows_per_bucket: int = ROWS_PER_BUCKET,
    min_buckets: int = MIN_BUCKETS,
) -> int:
    """Return the number of buckets of a file: a power of two, at most MAX_BUCKETS."""
    wanted = 2 ** math.ceil(math.log2(max(1, num_rows) / rows_per_bucket))
    return min(MAX_BUCKETS, max(min_buckets, wanted))


def name_partitions(num_partitions: int) -> list[str]:
    """Return the names of all partitions, such as `p001of004`.

    A name contains the number of partitions, because with another number it is another range.
    """
    return [
        f"p{partition:03d}of{num_partitions:03d}" for partition in range(num_partitions)
    ]


def write_buckets(path: Path, rows: pa.RecordBatch, num_buckets: int | None = None) -> None:
    """Write one record batch per bucket, by the top bits of the first column (uint64).

    Args:
        path: the file.
        rows: in input order.
        num_buckets: a power of two from 2 to MAX_BUCKETS; default: `count_buckets`.
    """
    num_buckets = num_buckets or count_buckets(rows.num_rows)
    order, bounds = _group(
        _take_top_bits(rows) // (MAX_BUCKETS // num_buckets), num_buckets
    )
    with pa.ipc.new_file(path, rows.schema) as file:
        for start, end in pairwise(bounds):
            # One bucket at a time, so that there is no second copy of all rows.
            file.write_batch(rows.take(pa.array(order[start:end])))


def write_merged_buckets(
    path: Path, schema: pa.Schema, parts: Iterable[pa.RecordBatch], num_buckets: int
) -> int:
    """Write what `write_buckets` would write of all parts together, with one in memory.

    The bytes do not depend on where the rows are divided. Each part is written next to `path`
    first, then the parts are merged bucket by bucket.

    Args:
        path: the file.
        schema: of the parts.
        parts: the rows in input order.
        num_buckets: a power of two from 2 to MAX_BUCKETS.

    Returns:
        The number of rows.
    """
    paths: list[Path] = []
    num_rows = 0
    for rows in parts:
        paths.append(path.with_name(f"{path.name}.part{len(paths)}"))
        write_buckets(paths[-1], rows, num_buckets)
        num_rows += rows.num_rows
        del rows  # before the next part is made
    with contextlib.ExitStack() as stack:
        # Pages of memory maps would count as memory of the process.
        sources = [stack.enter_context(pa.OSFile(str(part))) for part in paths]
        files = [pa.ipc.open_file(source) for source in sources]
        with pa.ipc.new_file(path, schema) as merged:
            for bucket in range(num_buckets):
                batches = [file.get_batch(bucket) for file in files]
                merged.write_batch(join_batches(schema, batches))
    for part in paths:
        part.unlink()
    return num_rows


def join_batches(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Return the rows of any number of batches as one batch."""
    empty = pa.record_batch([pa.nulls(0, f.type) for f in schema], schema=schema)
    return pa.concat_batches([empty, *batches])


@dataclass(frozen=True)
class FileSlice:
    """The rows of one file that belong to a partition, bucket by bucket.

    Attributes:
        rows: of all its buckets. Rows of the outer buckets that are outside of the partition are left out.
        bounds: (number of buckets + 1,) the start of each bucket's rows, and the end of the last.
        width: of a bucket, as a multiple of hash space / MAX_BUCKETS.
    """

    rows: pa.RecordBatch
    bounds: NDArray[np.int64]
    width: int

    def filter(self, is_kept: NDArray[np.bool_]) -> FileSlice:
        """Return the rows where `is_kept` is true, in the same buckets."""
        num_kept_before = np.append(0, np.cumsum(is_kept))
        rows = self.rows.filter(pa.array(is_kept))
        return replace(self, rows=rows, bounds=num_kept_before[self.bounds])


class Partition:
    """The rows of one partition of several files, chunk by chunk.

    It empties the list of slices, so that their rows are in memory once.

    Attributes:
        files: the rows of each file. The rows of a chunk are adjacent and in input order.
    """

    def __init__(self, slices: list[FileSlice], name: str) -> None:
        num_files = len(slices)
        first, end = _parse_range(name)
        width = min((each.width for each in slices), default=MAX_BUCKETS)
        while width > 1 and end - first < MIN_CHUNKS * width:
            width //= 2
        inner = np.arange(first // width + 1, math.ceil(end / width)) * width
        edges = np.concatenate([[first], inner, [end]])
        cut: list[tuple[pa.RecordBatch, NDArray[np.int64]]] = []
        slices.reverse()
        while slices:  # each is freed before the next is copied
            cut.append(_cut(slices.pop(), edges))
        self.files = [rows for rows, _ in cut]
        self._bounds = np.array([bounds for _, bounds in cut]).reshape(
            num_files, len(edges)
        )
        self._hashes = [rows["hash"].to_numpy() for rows in self.files]
        self._records = [_get_records(rows) for rows in self.files]

    def chunks(self) -> Iterator[list[slice]]:
        """Yield the rows of each file that belong to a chunk. Equal hashes are in the same chunk."""
        for index in range(self._bounds.shape[1] - 1):
            yield [
                slice(start, end)
                for start, end in self._bounds[:, index : index + 2].tolist()
            ]

    def gather(
        self, chunk: Sequence[slice]
    ) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
        """Return the columns `hash` and `record` of a chunk, file after file.

        Returns:
            hashes: (n,) uint64.
            ids: (n,) uint64, index of the file << 32 | record, where files have records. They never
                decrease if no file's records do.
        """
        counts = [rows.stop - rows.start for rows in chunk]
        file_ids = np.arange(len(chunk), dtype=np.uint64) << np.uint64(32)
        ids = np.repeat(file_ids, counts) | take_rows(self._records, chunk)
        return take_rows(self._hashes, chunk), ids


def _get_records(rows: pa.RecordBatch) -> NDArray[np.uint32]:
    if "record" in rows.schema.names:
        return rows["record"].to_numpy()
    return np.broadcast_to(np.uint32(0), rows.num_rows)


def find_bounds(values: NDArray[Any]) -> NDArray[np.int64]:
    """Return the start of each range of equal values, and the end of the last."""
    is_start = np.append(True, values[1:] != values[:-1])[: len(values)]
    return np.append(np.flatnonzero(is_start), len(values))


def take_rows(columns: Sequence[NDArray[Any]], chunk: Sequence[slice]) -> NDArray[Any]:
    """Return the rows of a chunk of one column per file, file after file."""
    return np.concatenate(
        [column[rows] for column, rows in zip(columns, chunk, strict=True)]
    )


def read_slice(source: pa.NativeFile, partition: str) -> FileSlice:
    """Read the rows of a file that belong to a partition."""
    return _read(source, *_parse_range(partition))


def read_around(source: pa.NativeFile, number: int) -> pa.RecordBatch:
    """Read the rows of a file whose hashes have the same top 16 bits as `number`."""
    return _read(source, number >> 48, (number >> 48) + 1).rows


def read_keys(source: pa.NativeFile, first: int, end: int) -> pa.RecordBatch:
    """Read the rows of a sorted file whose first column is from `first` to before `end`.

    Args:
        source: a file that `write_buckets` wrote; it is closed afterwards.
        first: 0 or more.
        end: more than `first`, at most 2**64.
    """
    rows = _read(source, first >> 48, ((end - 1) >> 48) + 1).rows
    keys = rows.column(0).to_numpy()
    start = int(np.searchsorted(keys, np.uint64(first)))
    stop = int(np.searchsorted(keys, np.uint64(end - 1), side="right"))
    return rows.slice(start, stop - start)


def _parse_range(partition: str) -> tuple[int, int]:
    """Return first and end of a partition, as the top 16 bits of its hashes."""
    index, num_partitions = map(int, partition.removeprefix("p").split("of"))
    return MAX_BUCKETS * index // num_partitions, MAX_BUCKETS * (
        index + 1
    ) // num_partitions


def _read(source: pa.NativeFile, first: int, end: int) -> FileSlice:
    with source:
        file = pa.ipc.open_file(source)
        width = MAX_BUCKETS // file.num_record_batches
        buckets = range(first // width, math.ceil(end / width))
        batches = [file.get_batch(bucket) for bucket in buckets]
        # Only the outer buckets can reach beyond the range.
        outer = {0, len(batches) - 1} if first % width or end % width else set[int]()
        for index in outer:
            top_bits = _take_top_bits(batches[index])
            is_inside = (top_bits >= first) & (top_bits < end)
            batches[index] = batches[index].filter(pa.array(is_inside))
        bounds = np.append(0, np.cumsum([batch.num_rows for batch in batches]))
        return FileSlice(pa.concat_batches(batches), bounds, width)


def _cut(
    part: FileSlice, edges: NDArray[np.int64]
) -> tuple[pa.RecordBatch, NDArray[np.int64]]:
    """Return a file's rows chunk by chunk, and the start of each chunk's rows; chunks are between edges."""
    if len(edges) == len(part.bounds):  # each bucket is a chunk
        return part.rows, part.bounds
    chunks = np.searchsorted(edges, _take_top_bits(part.rows), side="right") - 1
    order, bounds = _group(chunks, len(edges) - 1)
    return part.rows.take(pa.array(order)), bounds


def _take_top_bits(rows: pa.RecordBatch) -> NDArray[np.uint16]:
    return (rows.column(0).to_numpy() >> np.uint64(48)).astype(np.uint16)


def _group(
    keys: NDArray[Any], num_keys: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the order that groups equal keys and keeps their order, and the start of each key's rows."""
    bounds = np.append(0, np.cumsum(np.bincount(keys, minlength=num_keys)))
    # 16-bit integers: numpy sorts them by radix.
    return np.argsort(keys.astype(np.uint16), kind="stable"), bounds
