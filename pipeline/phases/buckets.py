"""Files of hashes that are read by range of hash space, and into how many ranges a phase across units is cut.

Promises: a file has one Arrow record batch per bucket, rows in the order they came, so that any run of buckets of any
unit is read without the rest.
Leaves to others: what the rows are.

    write_buckets(path, pa.record_batch([hashes, records], schema))      # by the first column
    read_buckets(folder.open(name), *bucket_range("p000of004"))          # 64 record batches
    gather([first of one unit's, first of another's, ...])               # the hashes of one bucket, and whose they are
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

NUM_BUCKETS = 256
"""Ranges of hash space in a file. A partition is a run of whole buckets, so this is the most there can be."""


def partitions_for(num_rows: int, bytes_per_row: int, memory_mb: int) -> int:
    """Partitions that let a task work in half its memory; the process and its libraries have the other half."""
    return min(NUM_BUCKETS, max(1, math.ceil(num_rows * bytes_per_row / (memory_mb * 2**19))))


def partition_names(num_partitions: int) -> list[str]:
    """Names that say which of how many: a record of one cut of the space never stands for a piece of another."""
    return [f"p{partition:03d}of{num_partitions:03d}" for partition in range(num_partitions)]


def bucket_range(name: str) -> tuple[int, int]:
    """First and end of the buckets of the partition of that name."""
    partition, num_partitions = map(int, name.removeprefix("p").split("of"))
    return NUM_BUCKETS * partition // num_partitions, NUM_BUCKETS * (partition + 1) // num_partitions


def write_buckets(path: Path, rows: pa.RecordBatch) -> None:
    """One record batch per bucket, by the top 8 bits of the first column (uint64), each in the order of `rows`."""
    buckets = (rows.column(0).to_numpy() >> np.uint64(56)).astype(np.uint8)
    order = np.argsort(buckets, kind="stable")
    ends = np.cumsum(np.bincount(buckets, minlength=NUM_BUCKETS))
    with pa.ipc.new_file(path, rows.schema) as file:
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            file.write_batch(rows.take(pa.array(order[start:end])))


def read_buckets(source: pa.NativeFile, first: int, end: int) -> list[pa.RecordBatch]:
    """The record batches of a range of buckets."""
    with source:
        file = pa.ipc.open_file(source)
        return [file.get_batch(bucket) for bucket in range(first, end)]


def gather(bucket: Sequence[pa.RecordBatch]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """One bucket of several files, whose columns `hash` and `record` are laid end to end.

    Returns:
        hashes: (n,).
        ids: (n,) place of the file << 32 | record: never decreasing where no file's records do.
    """
    places = np.repeat(np.arange(len(bucket), dtype=np.uint64) << np.uint64(32), [batch.num_rows for batch in bucket])
    hashes = np.concatenate([batch["hash"].to_numpy() for batch in bucket])
    return hashes, places | np.concatenate([batch["record"].to_numpy() for batch in bucket])
