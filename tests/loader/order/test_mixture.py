"""Mixtures: shares of the sources, and the positions in them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import loader.order.mixture
from loader.order.mixture import BLOCK_ROWS, Mixture, MixtureOrder, apportion


@given(
    weights=st.lists(st.floats(0, 100), min_size=1, max_size=8), num=st.integers(0, 10**6)
)
def test_apportion_rounds_shares_to_whole_rows(weights: list[float], num: int) -> None:
    """The counts add up, and each differs from its share by at most one."""
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
def test_each_source_gives_its_rows_in_order_without_a_gap(
    weights: list[float], change: int, seed: int
) -> None:
    """Over blocks and changes of weights, each row comes once; `count_rows_before` counts them."""
    both = MixtureOrder({0: tuple(weights), change: tuple(reversed(weights))}, seed)
    sources, in_source = both.locate(np.arange(change + 1000))
    for source in range(len(weights)):
        found = np.sort(in_source[sources == source])
        assert (found == np.arange(len(found))).all()
        assert both.count_rows_before(change + 1000)[source] == len(found)
    shares = np.bincount(sources[:BLOCK_ROWS], minlength=len(weights)) / BLOCK_ROWS
    if change >= BLOCK_ROWS:
        assert abs(shares - np.array(weights) / sum(weights)).max() <= 1 / BLOCK_ROWS


def test_a_position_is_located_without_replay() -> None:
    """Locating some positions gives the same as locating all positions."""
    segments = {0: (0.7, 0.3), 100_000: (0.1, 0.9)}
    walked = MixtureOrder(segments, 3).locate(np.arange(300_000))
    alone = MixtureOrder(segments, 3).locate(np.array([299_999, 5, 100_000]))
    for found, wanted in zip(alone, walked, strict=True):
        assert found.tolist() == wanted[[299_999, 5, 100_000]].tolist()


def test_a_source_with_weight_0_gives_no_rows() -> None:
    """It gives rows from the position on at which the schedule changes its weight."""
    mixture = Mixture({"a": "x", "b": "y"}, {"a": 1}, {50: {"b": 3}})
    assert mixture.segments == {0: (1.0, 0.0), 50: (0.0, 3.0)}
    sources, _ = MixtureOrder(mixture.segments, 0).locate(np.arange(100))
    assert sources.tolist() == [0] * 50 + [1] * 50


def test_the_order_of_sources_is_pinned() -> None:
    """Golden values: another order would break every checkpoint of a mixture."""
    sources, in_source = MixtureOrder({0: (0.5, 0.5)}, 1).locate(np.arange(12))
    assert sources.tolist() == GOLDEN_SOURCES
    assert in_source.max() < 12


def test_the_example_of_the_docstring_is_correct(monkeypatch: pytest.MonkeyPatch) -> None:
    """The docstring of mixture.py shows the computed order."""
    monkeypatch.setattr(loader.order.mixture, "BLOCK_ROWS", 8)
    sources, in_source = MixtureOrder({0: (3.0, 1.0)}, seed=4).locate(np.arange(12))
    names = ["AB"[source] for source in sources]
    assert names == list("AABAAABA" + "AABA")
    assert in_source.tolist() == [0, 1, 0, 2, 3, 4, 1, 5, 6, 7, 2, 8]
    shown = "  ".join(names[:8]) + " | " + "  ".join(names[8:])
    assert f"source               {shown}\n" in (loader.order.mixture.__doc__ or "")


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
def test_unusable_weights_are_refused(
    arguments: tuple[dict[str, object], ...], message: str
) -> None:
    """The error names the source and its weight."""
    with pytest.raises(ValueError, match=message):
        Mixture(*arguments)
