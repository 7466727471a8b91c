"""The read plan of a rank."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader import TokenLoader, shards_for_rank
from shardwriter.format import Manifest
from tests.loader.conftest import Dataset, Make


def list_rows(shard_ranges: list[Any]) -> list[tuple[int, int]]:
    """Return every (shard, row) of some ranges."""
    return [
        (shard_range.shard, row)
        for shard_range in shard_ranges
        for row in range(
            shard_range.first_row, shard_range.first_row + shard_range.num_rows
        )
    ]


@given(
    world_size=st.integers(1, 9),
    interleave_depth=st.integers(1, 9),
    epoch=st.integers(0, 3),
)
def test_plans_of_all_ranks_have_each_row_once(
    dataset: Dataset, world_size: int, interleave_depth: int, epoch: int
) -> None:
    """All ranks have equally many rows; no row is on two ranks; few rows are on none."""
    plans = [
        shards_for_rank(
            dataset.folder,
            seq_len=32,
            rank=rank,
            world_size=world_size,
            interleave_depth=interleave_depth,
            epoch=epoch,
            seed=1,
        )
        for rank in range(world_size)
    ]
    found = [list_rows(plan) for plan in plans]
    assert len({len(rows) for rows in found}) == 1
    together = [place for rows in found for place in rows]
    assert len(together) == len(set(together))
    assert len(dataset.rows(32)) - len(together) < interleave_depth + world_size


def test_the_plan_is_what_the_loader_reads(larger: Dataset) -> None:
    """If the ranks divide the interleave depth, the plan has the rows of TokenLoader."""
    for rank in range(2):
        place = {"rank": rank, "world_size": 2}
        shard_ranges = shards_for_rank(
            larger.folder, seq_len=32, interleave_depth=4, seed=3, **place
        )
        planned = {
            tuple(larger.tokens[shard][row * 32 : row * 32 + 32].tolist())
            for shard, row in list_rows(shard_ranges)
        }
        loader = TokenLoader(
            larger.folder,
            seq_len=32,
            global_batch_rows=4,
            interleave_depth=4,
            seed=3,
            epochs=1,
            window_rows=8,
            **place,
        )
        assert {
            tuple(row) for batch in loader for row in batch["input_ids"].tolist()
        } == planned


def test_ranges_name_their_tokens(make: Make) -> None:
    """A range of rows is a range of tokens of one file, with one token more than the rows."""
    made = make([[100]])
    (shard_range,) = shards_for_rank(made.folder, seq_len=32, rank=0, world_size=1)
    assert (shard_range.file, shard_range.first_row, shard_range.num_rows) == (
        "shard-000000.tar",
        0,
        3,
    )
    assert (shard_range.first_token, shard_range.last_token) == (0, 96)


def test_a_manifest_in_memory_gives_the_same_plan(dataset: Dataset) -> None:
    """The plan needs no files besides the manifest."""
    manifest = Manifest.loads((dataset.folder / "manifest.json").read_bytes())
    arguments = {"seq_len": 32, "rank": 1, "world_size": 2}
    assert shards_for_rank(manifest, **arguments) == shards_for_rank(
        dataset.folder, **arguments
    )


def test_more_ranks_than_rows_are_refused(make: Make) -> None:
    """The error names the number of ranks that fits."""
    made = make([[100]])
    with pytest.raises(ValueError, match="3 rows for 4 ranks; use at most 3 ranks"):
        shards_for_rank(made.folder, seq_len=32, rank=0, world_size=4)
