"""Files of hashes, read by range: equal hashes are in the same chunk."""

from __future__ import annotations

import weakref
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.runs import hash_partitions
from pipeline.runs.hash_partitions import (
    MAX_BUCKETS,
    MAX_PARTITIONS,
    Partition,
    count_buckets,
    count_partitions,
    join_batches,
    name_partitions,
    read_around,
    read_keys,
    read_slice,
    write_buckets,
    write_merged_buckets,
)

ROWS = pa.schema([pa.field("hash", pa.uint64()), pa.field("record", pa.uint32())])
NUM_ROWS = st.lists(st.sampled_from([0, 1, 7, 300, 2_000]), min_size=1, max_size=3)


def write_files(folder: Path, sizes: list[int], seed: int) -> list[pa.RecordBatch]:
    """Write files of random hashes. Many hashes are in several files."""
    rng = np.random.default_rng(seed)
    common = rng.integers(0, 2**64, 500, dtype=np.uint64)
    common[:3] = 0, 2**64 - 1, 2**63
    files: list[pa.RecordBatch] = []
    for i, size in enumerate(sizes):
        hashes = np.where(
            rng.random(size) < 0.5,
            rng.choice(common, size),
            rng.integers(0, 2**64, size, np.uint64),
        )
        records = np.sort(rng.integers(0, size + 1, size)).astype(np.uint32)
        files.append(pa.record_batch([hashes, records], schema=ROWS))
        write_buckets(folder / str(i), files[-1])
    return files


def _open(path: Path) -> pa.NativeFile:
    return pa.OSFile(str(path))


@settings(max_examples=25, deadline=None)
@given(
    sizes=NUM_ROWS,
    rows_per_bucket=st.sampled_from([2, 40, 4096]),  # files of 256 to 1,024 buckets
    num_partitions=st.sampled_from([1, 3, 7, 300]),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_row_is_in_one_chunk_with_all_equal_hashes(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    rows_per_bucket: int,
    num_partitions: int,
    seed: int,
) -> None:
    """For any number of partitions and buckets, the rows of a file keep their order."""
    folder = tmp_path_factory.mktemp("files")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hash_partitions, "ROWS_PER_BUCKET", rows_per_bucket)
        files = write_files(folder, sizes, seed)
    found: list[list[pa.RecordBatch]] = [[] for _ in files]
    last = -1
    for name in name_partitions(num_partitions):
        partition = Partition(
            [read_slice(_open(folder / str(i)), name) for i in range(len(files))], name
        )
        held = sum(rows.num_rows for rows in partition.files)
        for chunk in partition.chunks():
            hashes, ids = partition.gather(chunk)
            assert (np.diff(ids.astype(np.int64)) >= 0).all()
            if len(hashes):
                assert int(hashes.min()) > last  # so no hash is in two chunks
                last = int(hashes.max())
            held -= len(hashes)
            for mine, rows, where in zip(found, partition.files, chunk, strict=True):
                mine.append(rows.slice(where.start, where.stop - where.start))
        assert held == 0  # no row of another partition was read
    for file, mine in zip(files, found, strict=True):
        rows = pa.Table.from_batches(mine)
        order = np.argsort(file["hash"].to_numpy(), kind="stable")
        again = np.argsort(rows["hash"].to_numpy(), kind="stable")
        assert rows.take(again).equals(pa.Table.from_batches([file.take(order)]))


def test_a_partition_frees_each_slice_when_it_is_divided(tmp_path: Path) -> None:
    """The rows are not in memory twice, although the caller has the list of the slices."""
    files = write_files(tmp_path, [300] * 3, seed=1)
    slices = [read_slice(_open(tmp_path / str(i)), "p001of300") for i in range(len(files))]
    alive = [weakref.ref(each) for each in slices]
    partition = Partition(slices, "p001of300")
    assert slices == []
    assert [each() for each in alive] == [None] * 3
    assert len(partition.files) == 3


@settings(max_examples=10, deadline=None)
@given(sizes=st.lists(st.sampled_from([0, 1, 300]), max_size=4), seed=st.integers(0, 9))
def test_merged_parts_have_the_bytes_of_one_file(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], seed: int
) -> None:
    """The file does not show where its rows were divided, and no other file is left."""
    folder = tmp_path_factory.mktemp("parts")
    parts = write_files(folder, sizes, seed)
    all_rows = join_batches(ROWS, parts)
    write_merged_buckets(folder / "one", ROWS, [all_rows], 256)
    before = set(folder.iterdir())
    num_rows = write_merged_buckets(folder / "many", ROWS, parts, 256)
    assert num_rows == all_rows.num_rows
    assert (folder / "many").read_bytes() == (folder / "one").read_bytes()
    assert set(folder.iterdir()) - before == {folder / "many"}
    write_buckets(folder / "whole", all_rows, 256)
    partition = name_partitions(1)[0]
    merged, whole = (
        read_slice(_open(folder / name), partition) for name in ("many", "whole")
    )
    assert merged.rows.equals(whole.rows)


def test_rows_around_a_hash_include_all_rows_with_it(tmp_path: Path) -> None:
    """Few other rows are read."""
    (file,) = write_files(tmp_path, [2_000], seed=1)
    for number in {0, 2**64 - 1, *map(int, file["hash"].to_numpy()[:50])}:
        near = read_around(_open(tmp_path / "0"), number)["hash"].to_numpy()
        assert (near == number).sum() == (
            file["hash"].to_numpy() == np.uint64(number)
        ).sum()
        assert len(near) < 400


def test_more_rows_have_more_buckets_and_partitions() -> None:
    """Small files have 256 buckets; a partition fits into half the memory of a task."""
    assert [count_buckets(n) for n in (0, 1, 2**20, 2**20 + 1, 30_600_000, 2**40)] == [
        256,
        256,
        256,
        512,
        8192,
        65536,
    ]
    assert {count_buckets(n) & (count_buckets(n) - 1) for n in range(0, 2**24, 99_991)} == {
        0
    }
    for num_rows, memory_mb in [(10**6, 100), (10**9, 1000), (6 * 10**10, 1000)]:
        in_each = num_rows / count_partitions(num_rows, 32, memory_mb)
        assert in_each * 32 <= memory_mb * 2**19
    assert count_partitions(10**13, 32, 1000) == MAX_PARTITIONS


@pytest.mark.parametrize("num_partitions", [1, 3, MAX_PARTITIONS])
def test_partitions_cover_hash_space_once(num_partitions: int) -> None:
    """Each partition starts where the one before ends, and has room for its chunks."""
    bounds = [
        hash_partitions._parse_range(name) for name in name_partitions(num_partitions)
    ]
    assert bounds[0][0] == 0
    assert bounds[-1][1] == MAX_BUCKETS
    assert all(a[1] == b[0] for a, b in pairwise(bounds))
    assert min(end - first for first, end in bounds) >= hash_partitions.MIN_CHUNKS


@settings(max_examples=25, deadline=None)
@given(
    num_rows=st.integers(0, 500),
    num_buckets=st.sampled_from([2, 8, 1024]),
    num_ranges=st.integers(1, 9),
    seed=st.integers(0, 2**32 - 1),
)
def test_a_sorted_file_is_read_by_exact_ranges(
    tmp_path_factory: pytest.TempPathFactory,
    num_rows: int,
    num_buckets: int,
    num_ranges: int,
    seed: int,
) -> None:
    """The ranges of all shards together give every row once, in order."""
    keys = np.random.default_rng(seed).integers(0, 2**64, num_rows, dtype=np.uint64)
    keys[: min(2, num_rows)] = [0, 2**64 - 1][:num_rows]
    keys.sort()
    numbers = np.arange(num_rows, dtype=np.uint32)
    path = tmp_path_factory.mktemp("keys") / "keys"
    write_buckets(path, pa.record_batch([keys, numbers], schema=ROWS), num_buckets)
    found: list[int] = []
    for i in range(num_ranges):
        first, end = 2**64 * i // num_ranges, 2**64 * (i + 1) // num_ranges
        rows = read_keys(_open(path), first, end)
        assert all(first <= key < end for key in rows["hash"].to_pylist())
        found += rows["record"].to_pylist()
    assert found == numbers.tolist()
