"""Shares and percentiles of scores come from counts in fixed bins."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.histograms import SCORE_BINS

SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=60)
SHARES = st.decimals("0.01", 1, places=2).map(float)


def count(scores: list[float]) -> Counter[int]:
    return Counter(SCORE_BINS.find(scores).tolist())


@settings(deadline=None)
@given(SCORES, SHARES)
def test_the_cut_keeps_the_share_and_at_most_one_bin_more(
    scores: list[float], share: float
) -> None:
    """The share reaches the cut; above the bin of the cut there is less than the share."""
    wanted = Fraction(str(share)) * len(scores)
    cut = SCORE_BINS.find_top_cut(count(scores), share)
    assert sum(score >= cut for score in scores) >= wanted
    bin_of_cut = SCORE_BINS.find([cut])[0]
    assert sum(SCORE_BINS.find(scores) > bin_of_cut) < wanted


@settings(deadline=None)
@given(SCORES, SCORES, SHARES)
def test_the_order_of_tasks_does_not_change_the_cut(
    some: list[float], others: list[float], share: float
) -> None:
    """Added counts give the cut of all scores, in any order."""
    whole = SCORE_BINS.find_top_cut(count([*others, *some]), share)
    assert SCORE_BINS.find_top_cut(count(some) + count(others), share) == whole


@pytest.mark.parametrize(("share", "num_kept"), [(0.1, 3), (0.7, 21), (1.0, 30), (0.01, 1)])
def test_a_share_is_a_decimal_number(share: float, num_kept: int) -> None:
    """0.7 of 30 scores that differ are 21, although 0.7 * 30 is below 21 as a float."""
    scores = list(np.linspace(0.1, 0.9, 30))
    cut = SCORE_BINS.find_top_cut(count(scores), share)
    assert sum(score >= cut for score in scores) == num_kept


def test_equal_scores_get_the_same_decision() -> None:
    """A tenth of ten equal scores is all of them."""
    assert SCORE_BINS.find_top_cut(count([0.5] * 10), 0.1) <= 0.5


@pytest.mark.parametrize("share", [0, -0.1, 1.1, float("nan")])
def test_a_wrong_share_is_refused(share: float) -> None:
    """So is a share of no scores."""
    for histogram in ({5: 1}, {}):
        with pytest.raises(ValueError, match="wanted a share above 0 and at most 1"):
            SCORE_BINS.find_top_cut(histogram, share)


def test_bins_of_scores_are_pinned() -> None:
    """They are as fine near 0 and 1 as elsewhere, and later versions read stored bins."""
    found = SCORE_BINS.find([0.0, 1e-5, 0.0181, 0.0182, 0.5, 0.9818, 0.9819, 1.0])
    assert found.tolist() == [0, 462, 1970, 1971, 2771, 3570, 3571, 5543]
