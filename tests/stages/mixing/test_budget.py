"""The end of a budget, for random numbers of tokens per language and percentile."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.mixing.budget import BudgetCut, Level, find_budget_cuts

LEVELS = st.lists(
    st.builds(
        Level,
        language=st.sampled_from(["de", "en", "fr"]),
        percentile=st.integers(0, 20).map(lambda twentieth: 5.0 * twentieth),
        num_tokens=st.integers(0, 1000).map(float),
    ),
    max_size=40,
)
BUDGETS = st.integers(1, 20_000)
SHARES = st.fixed_dictionaries(
    {name: st.floats(0, 1, allow_nan=False) for name in ("de", "en", "fr")}
)


def sum_kept(levels: list[Level], cuts: dict[str, BudgetCut]) -> dict[str, float]:
    """Return language -> tokens that the cuts keep."""
    kept: dict[str, float] = dict.fromkeys(("de", "en", "fr"), 0.0)
    for level in levels:
        cut = cuts.get(level.language, BudgetCut(percentile=-1, share=1))
        if level.percentile > cut.percentile:
            kept[level.language] += level.num_tokens
        elif level.percentile == cut.percentile:
            kept[level.language] += cut.share * level.num_tokens
    return kept


@given(LEVELS, BUDGETS, SHARES)
def test_budget_and_shares_are_never_exceeded(
    levels: list[Level], budget: int, shares: dict[str, float]
) -> None:
    """Nor is less kept than they allow, as far as there are documents."""
    kept = sum_kept(levels, find_budget_cuts(levels, budget, shares.__getitem__))
    assert sum(kept.values()) <= budget + 1e-6
    most = 0.0
    for language, share in shares.items():
        assert kept[language] <= share * budget + 1e-6
        there = sum(each.num_tokens for each in levels if each.language == language)
        most += min(there, share * budget)
    assert sum(kept.values()) == pytest.approx(min(budget, most))


@given(LEVELS, BUDGETS, BUDGETS)
def test_a_larger_budget_keeps_what_a_smaller_one_keeps(
    levels: list[Level], one: int, other: int
) -> None:
    """Cuts only fall."""
    small, large = (
        find_budget_cuts(levels, budget, lambda _: 1.0) for budget in sorted((one, other))
    )
    for language, cut in large.items():
        before = small[language]
        assert (before.percentile, -before.share) >= (cut.percentile, -cut.share - 1e-9)


@given(LEVELS, BUDGETS, SHARES)
def test_the_order_of_levels_changes_nothing(
    levels: list[Level], budget: int, shares: dict[str, float]
) -> None:
    """The cuts are equal for any order."""
    shuffled = sorted(levels, key=lambda level: (level.num_tokens, level.language))
    cuts = find_budget_cuts(levels, budget, shares.__getitem__)
    assert find_budget_cuts(shuffled, budget, shares.__getitem__) == cuts


def test_a_limited_language_leaves_its_room_to_the_others() -> None:
    """English ends at its share; French gets the rest, best documents first."""
    levels = [
        Level("en", 95.0, 60.0),
        Level("fr", 90.0, 30.0),
        Level("fr", 40.0, 60.0),
        Level("en", 30.0, 50.0),
    ]
    cuts = find_budget_cuts(levels, 100, lambda language: 0.4 if language == "en" else 1)
    assert cuts == {
        "en": BudgetCut(percentile=95.0, share=40 / 60),
        "fr": BudgetCut(percentile=40.0, share=0.5),
    }


def test_a_budget_that_is_not_used_up_ends_nowhere() -> None:
    """All documents are kept."""
    assert find_budget_cuts([Level("en", 50.0, 10.0)], 10, lambda _: 1.0) == {}
