"""The read plan of a rank: which rows of which shards it reads in an epoch.

It is for programs that read shards by other means than `TokenLoader`. The plan divides the epoch's
sequence of rows (see loader/order/row_order.py, step 1) into `world_size` equal parts. A shard is
not owned by a rank: one shard's rows may be read by several ranks, and another number of ranks
divides the same sequence elsewhere.

All ranks get equal numbers of rows, and no row is on two ranks. Fewer than
interleave_depth + world_size rows are on no rank; they differ from epoch to epoch. Inside a range
the rows are in the order of the shard; `TokenLoader` permutes them in windows.

If `world_size` divides `interleave_depth`, these are the rows that `TokenLoader` gives this rank
with `global_batch_rows=interleave_depth`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loader.order.row_order import EpochLayout, RowOrder, choose_interleave_depth
from loader.rank_discovery import Mesh, resolve_rank
from loader.reading.manifest_columns import read_manifest_columns
from loader.row_stream import Source
from loader.storage import ReadSettings
from shardwriter.format import shard_file
from terminal_output import format_count


@dataclass(frozen=True)
class ShardRange:
    """Consecutive rows of one shard.

    shard:       number of the shard
    file:        name of its tar in the dataset's folder
    first_row:   first row of the range
    num_rows:    number of rows
    first_token: token position in the shard at which the first row starts
    last_token:  token position of the last token that the last row reads, inclusive
    """

    shard: int
    file: str
    first_row: int
    num_rows: int
    first_token: int
    last_token: int


def shards_for_rank(
    manifest: Source,
    *,
    seq_len: int,
    rank: int | None = None,
    world_size: int | None = None,
    mesh: Mesh | None = None,
    epoch: int = 0,
    seed: int = 0,
    interleave_depth: int | None = None,
    settings: ReadSettings | None = None,
) -> list[ShardRange]:
    """Return the ranges of rows that this rank reads in this epoch, in reading order.

    The work is O(S) for S shards; no shard is opened.

    Args:
        manifest: path or address of a manifest or of its folder, or a `Manifest`.
        seq_len: tokens per row. A row reads seq_len + 1 tokens.
        rank: data-parallel rank; found by `rank_discovery` if not given.
        world_size: number of ranks; give it together with `rank`.
        mesh: device mesh, in place of rank and world_size.
        epoch: number of the epoch, from 0.
        seed: seed of the order, as for `TokenLoader`.
        interleave_depth: as for `TokenLoader`.
        settings: how a remote manifest is read.

    Raises:
        ReadFailed: the manifest cannot be read.
        FormatError: the file is not a manifest of a supported version.
        ValueError: there are fewer rows than ranks.
    """
    rank, world_size = resolve_rank(rank, world_size, mesh)
    columns = read_manifest_columns(manifest, settings or ReadSettings())
    shard_rows = columns.count_shard_rows(seq_len)
    depth = interleave_depth or choose_interleave_depth(int(shard_rows.sum()))
    order = RowOrder(shard_rows, seed, depth)
    start, stop = _divide_rows(order.epoch_rows, rank, world_size)
    return _cut_layout(order.layout(epoch), start, stop, seq_len)


def _divide_rows(num_rows: int, rank: int, world_size: int) -> tuple[int, int]:
    """Return start and stop of the rows of a rank."""
    rows_per_rank = num_rows // world_size
    if not rows_per_rank:
        raise ValueError(
            f"{format_count(num_rows, 'row')} for {format_count(world_size, 'rank')}; "
            f"use at most {format_count(num_rows, 'rank')}, or a smaller seq_len"
        )
    return rank * rows_per_rank, (rank + 1) * rows_per_rank


def _cut_layout(
    layout: EpochLayout, start: int, stop: int, seq_len: int
) -> list[ShardRange]:
    """Return the ranges of shards that hold rows start..stop - 1 of the layout."""
    bounds = [start, stop - 1]
    # Slots: places in the shuffled list of shards. Empty shards are skipped by `stop_row >
    # first_row`.
    first_slot, last_slot = np.searchsorted(layout.row_starts, bounds, side="right") - 1
    ranges: list[ShardRange] = []
    for slot in range(int(first_slot), int(last_slot) + 1):
        shard = int(layout.shards[slot])
        slot_start, slot_stop = layout.row_starts[slot : slot + 2].tolist()
        first_row = max(start, slot_start) - slot_start
        stop_row = min(stop, slot_stop) - slot_start
        if stop_row > first_row:
            shard_range = ShardRange(
                shard=shard,
                file=shard_file(shard),
                first_row=first_row,
                num_rows=stop_row - first_row,
                first_token=first_row * seq_len,
                # Not minus one: the last row reads one token more, its last label.
                last_token=stop_row * seq_len,
            )
            ranges.append(shard_range)
    return ranges
