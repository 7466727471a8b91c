"""The row order: permutations, interleave_depth, windows, golden values."""

from __future__ import annotations

import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from loader.order.permutation import derive_keys, permute
from loader.order.row_order import RowOrder, choose_interleave_depth, count_rows


@given(num=st.integers(1, 3000), key=st.integers(0, 2**64 - 1))
def test_permute_maps_each_index_once(num: int, key: int) -> None:
    """For any domain and key, the results are a permutation of the domain."""
    assert sorted(permute(np.arange(num), num, derive_keys(key)).tolist()) == list(
        range(num)
    )


def test_permute_needs_no_table_for_a_huge_domain() -> None:
    """Single indices of a domain of 10**12 are permuted."""
    found = permute(np.arange(1000), 10**12, derive_keys(3))
    assert len(set(found.tolist())) == 1000
    assert found.min() >= 0
    assert found.max() < 10**12


def test_permute_is_uniform_over_keys() -> None:
    """Over 20,000 keys, a chi-square test on 5 indices stays below its 99.9 % point."""
    keys = derive_keys(np.arange(20_000))
    counts = np.stack(
        [np.bincount(permute(np.full(20_000, i), 5, keys), minlength=5) for i in range(5)]
    )
    chi_square = ((counts - 4000.0) ** 2 / 4000).sum()
    assert chi_square < 39.3  # 16 degrees of freedom


def test_derive_keys_broadcasts() -> None:
    """Arrays of numbers give the same keys as each tuple alone."""
    together = derive_keys(7, 2, np.array([4, 5, 6]), np.array([0, 1, 2]))
    alone = [
        int(derive_keys(7, 2, section, window)[0])
        for section, window in ((4, 0), (5, 1), (6, 2))
    ]
    assert together.tolist() == alone


@given(
    shard_rows=st.lists(st.integers(0, 60), min_size=1, max_size=12),
    seed=st.integers(0, 2**63 - 1),
    interleave_depth=st.integers(1, 20),
    window_rows=st.integers(1, 40),
    epoch=st.integers(0, 5),
)
def test_an_epoch_has_each_row_once(
    shard_rows: list[int], seed: int, interleave_depth: int, window_rows: int, epoch: int
) -> None:
    """Positions and left-over rows are all rows, once each; few rows are left over."""
    total = sum(shard_rows)
    if interleave_depth > total:
        with pytest.raises(
            ValueError, match=f"interleave_depth is {interleave_depth}, but .* {total} rows"
        ):
            RowOrder(np.array(shard_rows), seed, interleave_depth, window_rows)
        return
    order = RowOrder(np.array(shard_rows), seed, interleave_depth, window_rows)
    shards, rows = order.locate(
        np.arange(epoch * order.epoch_rows, (epoch + 1) * order.epoch_rows)
    )
    left_shards, left_rows = order.locate_left_over(epoch)
    assert len(left_rows) < interleave_depth
    found = sorted(zip([*shards, *left_shards], [*rows, *left_rows], strict=True))
    assert found == [
        (shard, row) for shard, num in enumerate(shard_rows) for row in range(num)
    ]


def test_positions_of_several_epochs_are_located_together() -> None:
    """Locating many positions of several epochs equals locating each of them alone."""
    order = RowOrder(np.array([5, 0, 9, 3]), seed=1, interleave_depth=3, window_rows=4)
    positions = np.random.default_rng(0).permutation(4 * order.epoch_rows)
    shards, rows = order.locate(positions)
    for position, shard, row in zip(
        positions.tolist(), shards.tolist(), rows.tolist(), strict=True
    ):
        assert [int(found[0]) for found in order.locate(np.array([position]))] == [
            shard,
            row,
        ]


def test_epochs_and_seeds_differ() -> None:
    """Another epoch or another seed gives another order."""
    orders = [RowOrder(np.full(40, 30), seed, 8, 16) for seed in (1, 2)]
    first, second = (order.locate(np.arange(1200)) for order in orders)
    later = orders[0].locate(np.arange(1200, 2400))
    assert (first[0] != second[0]).mean() > 0.8
    assert (first[0] != later[0]).mean() > 0.8


def test_rows_are_permuted_within_their_window() -> None:
    """Row i of a section comes from the same window of that section."""
    order = RowOrder(np.array([1000]), seed=4, interleave_depth=2, window_rows=50)
    _, rows = order.locate(np.arange(1000))
    section = rows[1::2]
    assert ((section - 500) // 50 == np.arange(500) // 50).all()
    assert (section != 500 + np.arange(500)).mean() > 0.8


def test_the_row_order_is_pinned() -> None:
    """Golden values. A change needs a new ORDER_VERSION and a marked changelog line."""
    assert permute(np.arange(10), 10, derive_keys(0)).tolist() == GOLDEN_PERMUTATION
    order = RowOrder(np.array([7, 3, 0, 12]), seed=11, interleave_depth=2, window_rows=4)
    shards, rows = order.locate(np.arange(8))
    assert list(zip(shards.tolist(), rows.tolist(), strict=True)) == GOLDEN_ROWS
    later = order.locate(np.array([order.epoch_rows * 3 + 5]))
    assert (int(later[0][0]), int(later[1][0])) == GOLDEN_LATER


GOLDEN_PERMUTATION = [7, 9, 8, 3, 4, 2, 1, 0, 6, 5]
GOLDEN_ROWS = [(3, 0), (3, 11), (3, 1), (0, 0), (3, 2), (0, 2), (3, 3), (0, 1)]
GOLDEN_LATER = (3, 4)


@given(num_tokens=st.integers(0, 10**6), seq_len=st.integers(1, 5000))
def test_a_row_reads_one_token_more_than_seq_len(num_tokens: int, seq_len: int) -> None:
    """The last row ends inside the shard, and one more row would not."""
    rows = int(count_rows(np.array([num_tokens]), seq_len)[0])
    assert rows == 0 or rows * seq_len + 1 <= num_tokens
    assert (rows + 1) * seq_len + 1 > num_tokens


def test_the_default_interleave_depth_leaves_few_rows_over() -> None:
    """The depth grows with the rows up to 64; at most one row in 64 is left over."""
    assert [choose_interleave_depth(rows) for rows in (1, 63, 128, 300, 4096, 10**9)] == [
        1,
        1,
        2,
        4,
        64,
        64,
    ]


def test_a_hundred_thousand_shards_need_little_cpu_time_and_memory() -> None:
    """Locating a batch at 90 % of an epoch of 10**13 tokens needs no work per row."""
    tracemalloc.start()
    began = time.process_time()
    order = RowOrder(count_rows(np.full(100_000, 10**8), 2048), seed=1, interleave_depth=64)
    order.locate(np.arange(512) + order.epoch_rows * 9 // 10)
    assert time.process_time() - began < 2.0
    assert tracemalloc.get_traced_memory()[1] < 50e6
    tracemalloc.stop()


@pytest.mark.parametrize(
    ("name", "value"),
    [("seed", -1), ("interleave_depth", 0), ("window_rows", 0), ("seed", 2**63)],
)
def test_arguments_out_of_range_are_refused(name: str, value: int) -> None:
    """The error names the argument, its value and the allowed range."""
    settings = {"seed": 0, "interleave_depth": 1, "window_rows": 1, name: value}
    with pytest.raises(ValueError, match=f"{name} is {value}, must be in"):
        RowOrder(np.array([10]), **settings)
