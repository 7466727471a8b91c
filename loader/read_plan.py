"""Which pieces of which shards a rank reads: a plan for those who read shards by other means than `TokenLoader`.

Promises: equal numbers of rows for all ranks, no row on two of them, and none on none but for fewer than
lanes + world_size left over, other ones in each epoch; O(S) work for S shards. It is a plan under the global order,
never ownership: a shard's rows may be several ranks', and another number of ranks cuts the same order elsewhere.
Leaves to others: reading; order inside a span (as it lies in the shard; TokenLoader shuffles it in windows).

Where world_size divides lanes, these are the rows that TokenLoader deals this rank with global_batch_rows=lanes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from loader.manifest_columns import read_catalogue
from loader.order import RowOrder, default_lanes
from loader.rank_discovery import Mesh, resolve
from loader.storage import ReadSettings
from loader.stream import Source
from shardwriter.format import shard_file


@dataclass(frozen=True)
class Span:
    """Rows first_row .. first_row + num_rows - 1 of a shard: its tokens first_token .. last_token, inclusive."""

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
    lanes: int | None = None,
    settings: ReadSettings | None = None,
) -> list[Span]:
    """The spans that this rank reads in this epoch, in order.

    Args:
        manifest: path or address of a manifest or its folder, or a manifest in memory.
        seq_len: tokens per row (each row reads one more).
        rank: as torch.distributed, torchrun's environment or Ray Train's context say, unless given.
        world_size: given together with rank.
        mesh: given instead of both.
        epoch: from 0 on.
        seed: as of the TokenLoader whose order this is.
        lanes: likewise.
        settings: for remote manifests.

    Raises:
        ReadFailed, FormatError: the manifest cannot be read or is none.
        ValueError: fewer rows than ranks.
    """
    rank, world_size = resolve(rank, world_size, mesh)
    shard_rows = read_catalogue(manifest, settings or ReadSettings()).shard_rows(seq_len)
    order = RowOrder(shard_rows, seed, lanes or default_lanes(int(shard_rows.sum())))
    rows_per_rank = order.epoch_rows // world_size
    if not rows_per_rank:
        raise ValueError(
            f"{order.epoch_rows} rows for {world_size} ranks; give at most {order.epoch_rows} ranks"
        )
    layout = order.layout(epoch)
    start, stop = rank * rows_per_rank, (rank + 1) * rows_per_rank
    first, last = np.searchsorted(layout.row_starts, [start, stop - 1], side="right") - 1
    spans: list[Span] = []
    for slot in range(int(first), int(last) + 1):
        shard, begin = int(layout.shards[slot]), int(layout.row_starts[slot])
        first_row, stop_row = (
            max(start, begin) - begin,
            min(stop, int(layout.row_starts[slot + 1])) - begin,
        )
        if stop_row > first_row:
            tokens = first_row * seq_len, stop_row * seq_len
            spans.append(Span(shard, shard_file(shard), first_row, stop_row - first_row, *tokens))
    return spans
