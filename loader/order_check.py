"""Check that the rows of an epoch are read exactly once, and that each of them can be read."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from loader.order.rank_batches import RankBatches, list_positions
from loader.reading.rows import LoadedRows
from loader.row_reader import open_datasets
from loader.row_stream import RowStream
from loader.storage import ReadSettings

_ROWS_PER_READ = 256


class OrderCheck(NamedTuple):
    """How the rows of one epoch are divided among the ranks.

    rows_per_rank:    rows that each rank reads
    num_left_over:    rows without a position in this epoch
    num_without_step: rows at the end of the epoch that are in no step
    num_repeated:     rows that are read more than once; an error
    num_missing:      rows that are not read and are not counted above; an error
    """

    rows_per_rank: list[int]
    num_left_over: int
    num_without_step: int
    num_repeated: int
    num_missing: int

    @property
    def is_exact(self) -> bool:
        """Whether all ranks read equally many rows, and no row is repeated or missing."""
        return (
            not self.num_repeated
            and not self.num_missing
            and len(set(self.rows_per_rank)) == 1
        )


def check_order(
    stream: RowStream, world_size: int, global_batch_rows: int, epoch: int
) -> OrderCheck:
    """Enumerate the rows that each of `world_size` ranks reads in an epoch of a single dataset."""
    order = stream.sources[0].order
    # (S,) rows of the dataset before each shard
    rows_before_shard = np.cumsum(order.shard_rows) - order.shard_rows
    # (rows,) how many ranks read each row of the dataset; 8 bytes per row
    num_reads = np.zeros(order.num_rows, np.int64)
    rows_per_rank: list[int] = []
    num_without_step = 0
    start = epoch * order.epoch_rows
    for rank in range(world_size):
        batches = RankBatches(
            global_batch_rows, rank, world_size, "carry", start + order.epoch_rows
        )
        steps = list(batches.iterate(start))
        positions = list_positions(steps)
        _, shards, rows = stream.locate(positions)
        # add.at counts a row twice if it occurs twice in the index; `num_reads[rows] += 1` would
        # not.
        np.add.at(num_reads, rows_before_shard[shards] + rows, 1)
        rows_per_rank.append(len(positions))
        stop = steps[-1].next_position if steps else start
        num_without_step = batches.count_rows_left(stop)
    num_left_over = order.num_rows - order.epoch_rows
    num_unread = int((num_reads == 0).sum())
    return OrderCheck(
        rows_per_rank=rows_per_rank,
        num_left_over=num_left_over,
        num_without_step=num_without_step,
        num_repeated=int((num_reads > 1).sum()),
        num_missing=num_unread - num_left_over - num_without_step,
    )


class ReadCheck(NamedTuple):
    """Damage that was found by reading every row of a dataset."""

    num_damaged_rows: int
    num_damaged_samples: int


def check_rows(stream: RowStream) -> ReadCheck:
    """Read every row of a single dataset and compare the checksums.

    Raises:
        ReadFailed, FormatError: see `Dataset`.
    """
    settings = ReadSettings(on_corrupt="skip_and_count")
    (dataset,) = open_datasets(stream, settings)
    num_damaged_rows = 0
    for shard, num_rows in enumerate(stream.sources[0].order.shard_rows.tolist()):
        for first in range(0, num_rows, _ROWS_PER_READ):
            rows = np.arange(first, min(first + _ROWS_PER_READ, num_rows))
            loaded = LoadedRows(len(rows), stream.seq_len, with_marks=False)
            dataset.load(np.full(len(rows), shard), rows, np.arange(len(rows)), loaded)
            num_damaged_rows += int((~loaded.is_whole).sum())
    return ReadCheck(num_damaged_rows, dataset.counters["damaged_samples"])
