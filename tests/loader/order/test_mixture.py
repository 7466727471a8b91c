"""Several datasets in given shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loader.order.mixture import BLOCK_ROWS, Mixture, MixtureOrder, apportion


@given(weights=st.lists(st.floats(0, 100), min_size=1, max_size=8), num=st.integers(0, 10**6))
def test_apportioned_counts_add_up(weights: list[float], num: int) -> None:
    """Whole numbers, none further than one from its share."""
    if sum(weights) <= 0:
        return
    counts = apportion(tuple(weights), num)
    assert counts.sum() == num
    assert (abs(counts - np.array(weights) / sum(weights) * num) < 1.0001).all()


@settings(max_examples=10, deadline=None)
@given(
    weights=st.lists(st.floats(0.01, 1), min_size=2, max_size=4),
    change=st.integers(1, 2 * BLOCK_ROWS),
    seed=st.integers(0, 9),
)
def test_positions_in_a_source_run_without_gap(
    weights: list[float], change: int, seed: int
) -> None:
    """Each source gives its rows 0, 1, 2, ..., each once, over blocks and changes of weights; `count_rows_before` counts them."""
    both = MixtureOrder({0: tuple(weights), change: tuple(reversed(weights))}, seed)
    sources, in_source = both.locate(np.arange(change + 1000))
    for source in range(len(weights)):
        found = np.sort(in_source[sources == source])
        assert (found == np.arange(len(found))).all()
        assert both.count_rows_before(change + 1000)[source] == len(found)
    shares = np.bincount(sources[:BLOCK_ROWS], minlength=len(weights)) / BLOCK_ROWS
    if change >= BLOCK_ROWS:
        assert abs(shares - np.array(weights) / sum(weights)).max() <= 1 / BLOCK_ROWS


def test_looking_up_far_away_is_looking_up_in_order() -> None:
    """A position alone gives what a walk gives: nothing is replayed."""
    segments = {0: (0.7, 0.3), 100_000: (0.1, 0.9)}
    walked = MixtureOrder(segments, 3).locate(np.arange(300_000))
    alone = MixtureOrder(segments, 3).locate(np.array([299_999, 5, 100_000]))
    for found, wanted in zip(alone, walked, strict=True):
        assert found.tolist() == wanted[[299_999, 5, 100_000]].tolist()


def test_a_source_without_weight_gives_nothing() -> None:
    """Weight 0 until the schedule says otherwise."""
    mixture = Mixture({"a": "x", "b": "y"}, {"a": 1}, {50: {"b": 3}})
    assert mixture.segments == {0: (1.0, 0.0), 50: (0.0, 3.0)}
    sources, _ = MixtureOrder(mixture.segments, 0).locate(np.arange(100))
    assert sources.tolist() == [0] * 50 + [1] * 50


def test_the_interleaving_is_pinned() -> None:
    """Golden values, as of the order of rows."""
    sources, in_source = MixtureOrder({0: (0.5, 0.5)}, 1).locate(np.arange(12))
    assert sources.tolist() == GOLDEN_SOURCES
    assert in_source.max() < 12


GOLDEN_SOURCES = [0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({}, {}), "no sources"),
        (({"a": "x"}, {"b": 1}), r"weights are given for \['b'\], which are not sources"),
        (
            ({"a": "x"}, {"a": -1}),
            "weight of 'a' from position 0 is -1.0, must be a finite number of at least 0",
        ),
        (({"a": "x"}, {"a": 0}), "all weights from position 0 are 0"),
        (
            ({"a": "x", "b": "y"}, {"a": 1, "b": 1e-9}),
            "weight of 'b' .* must be 0 or at least 1/65536",
        ),
        (({"a": "x"}, {"a": 1}, {0: {"a": 1}}), "schedule starts at position 0"),
    ],
)
def test_weights_that_make_no_mixture_are_refused(
    arguments: tuple[dict[str, object], ...], message: str
) -> None:
    """Naming source and weight."""
    with pytest.raises(ValueError, match=message):
        Mixture(*arguments)
