"""Rows that are read ahead are those of single reads, and their faults are raised in time."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from loader import TokenDataset
from loader.batches.rows_ahead import RowsAhead
from loader.row_reader import RowReader
from loader.row_stream import RowStream, open_row_stream
from loader.storage import ReadSettings
from shardwriter.format import ShardCorrupt, read_index
from tests.loader.conftest import Dataset

T = 32


def open_stream(folder: Path) -> RowStream:
    """Return the row stream of a dataset."""
    return open_row_stream(folder, seq_len=T, seed=2, settings=ReadSettings())


@settings(max_examples=15, deadline=None)
@given(
    runs=st.lists(
        st.tuples(
            st.integers(0, 500),  # first position
            st.integers(1, 9),  # rows of a request
            st.integers(-9, 40),  # distance of the requests
            st.integers(1, 12),  # number of requests
        ),
        min_size=1,
        max_size=4,
    )
)
def test_rows_are_those_of_single_reads(
    larger: Dataset, runs: list[tuple[int, int, int, int]]
) -> None:
    """For any order of requests, also where the next one is not the expected one."""
    stream = open_stream(larger.folder)
    stop = 2 * stream.num_rows
    rows = RowReader(stream, ReadSettings())
    ahead = RowsAhead(RowReader(stream, ReadSettings()), stop)
    for first, num_rows, distance, num_requests in runs:
        for request in range(num_requests):
            start = (first + request * distance) % (stop - num_rows)
            positions = np.arange(start, start + num_rows)
            stored, _ = rows.load_positions(positions)
            wanted = stored.join(slice(0, num_rows))
            found, marks = ahead.read(positions.tolist())
            assert (found == wanted).all()
            assert marks.is_whole.shape == (num_rows,)


def test_few_reads_serve_many_requests(larger: Dataset) -> None:
    """Consecutive batches, and each third batch as for a worker, are read together."""
    for distance in (4, 12):
        rows = RowReader(open_stream(larger.folder), ReadSettings())
        reads: list[int] = []
        load_positions = rows.load_positions

        def count(positions: np.ndarray) -> object:
            reads.append(len(positions))  # noqa: B023 - called in this round of the loop
            return load_positions(positions)  # noqa: B023

        rows.load_positions = count  # type: ignore[method-assign,assignment]
        ahead = RowsAhead(rows, 10**6)
        for request in range(50):
            ahead.read(list(range(request * distance, request * distance + 4)))
        assert reads == [4, 8, 16, 32, 64, 128]


def test_a_fault_is_raised_at_the_batch_that_has_it(
    larger: Dataset, tmp_path: Path
) -> None:
    """The batches before it are read, although the damaged row was to be read ahead with them."""
    folder = shutil.copytree(larger.folder, tmp_path / "copy")
    index = read_index(folder / "shard-000003.idx")
    path = folder / "shard-000003.tar"
    data = bytearray(path.read_bytes())
    data[int(index.sample_offsets[4])] ^= 1
    path.write_bytes(data)
    whole = TokenDataset(larger.folder, seq_len=T, seed=2)
    blank = TokenDataset(
        folder, seq_len=T, seed=2, settings=ReadSettings(on_corrupt="skip_and_count")
    )
    items = blank.__getitems__(list(range(len(blank))))
    is_damaged = [bool((item["labels"] == -100).all()) for item in items]
    first_fault = is_damaged.index(True)
    assert first_fault > 8
    damaged = TokenDataset(folder, seq_len=T, seed=2)
    for position in range(first_fault):
        item = damaged[position]
        assert torch.equal(item["input_ids"], whole[position]["input_ids"])
    with pytest.raises(ShardCorrupt, match=r"shard-000003\.tar"):
        damaged[first_fault]


def test_batches_do_not_share_memory(larger: Dataset) -> None:
    """A batch that is changed in place leaves inputs, labels and later batches as they are."""
    dataset = TokenDataset(larger.folder, seq_len=T, seed=2)
    first = dataset.__getitems__([0, 1])
    wanted = [item["labels"].clone() for item in first]
    for item in first:
        item["input_ids"].zero_()
    assert all(
        torch.equal(item["labels"], labels)
        for item, labels in zip(first, wanted, strict=True)
    )
    sampler = dataset.sampler(global_batch_rows=4, rank=0, world_size=1)
    requests = list(sampler)
    batches: Any = DataLoader(dataset, batch_sampler=sampler)  # pyright: ignore[reportArgumentType]
    for batch, positions in zip(batches, requests, strict=True):
        again = torch.stack([dataset[position]["input_ids"] for position in positions])
        assert torch.equal(batch["input_ids"], again)
        batch["input_ids"].zero_()
