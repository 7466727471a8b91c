"""Find where a budget of tokens ends, if the best documents of all languages come first.

levels = [Level("en", 95.0, 60.0), Level("fr", 90.0, 30.0), Level("en", 50.0, 50.0)]
find_budget_cuts(levels, 100, lambda language: 0.8)
# {"en": BudgetCut(percentile=50.0, share=0.2), "fr": BudgetCut(percentile=50.0, share=0.0)}
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from stages.counters import Counters


@dataclass(frozen=True)
class BudgetCut:
    """Where the budget ends in one language.

    Documents above the percentile are kept, and of those at the percentile this share, 0..1.
    """

    percentile: float
    share: float


@dataclass(frozen=True)
class Level:
    """The documents of one language at one percentile."""

    language: str
    percentile: float
    num_tokens: float  # estimated, with all copies


def find_budget_cuts(
    levels: Iterable[Level], num_tokens: float, max_share: Callable[[str], float]
) -> dict[str, BudgetCut]:
    """Return where the budget ends in each language; no entry where it does not end.

    Documents are taken from the highest percentile down. A language ends when it has its largest
    share of the budget, all languages end when the budget is spent. At the last percentile, each
    language gets the same share of its documents.

    Args:
        levels: of all languages, in any order.
        num_tokens: the budget.
        max_share: language -> its largest share of the budget, 0..1.
    """
    in_order = sorted(levels, key=lambda level: (-level.percentile, level.language))
    room = float(num_tokens)
    languages = sorted({level.language for level in in_order})
    room_of = {language: num_tokens * max_share(language) for language in languages}
    cuts: dict[str, BudgetCut] = {}
    for percentile, group in itertools.groupby(in_order, lambda level: level.percentile):
        wanted: dict[str, float] = {}
        for level in group:
            if level.language not in cuts:
                before = wanted.get(level.language, 0.0)
                wanted[level.language] = before + level.num_tokens
        taken = {name: min(wanted[name], room_of[name]) for name in wanted}
        total = sum(taken.values())
        scale = 1.0 if total <= room else room / total
        for name, number in taken.items():
            share = scale * number / wanted[name] if wanted[name] else 1.0
            room_of[name] -= scale * number
            if share < 1:
                cuts[name] = BudgetCut(percentile=percentile, share=share)
        room -= scale * total
        if scale < 1:
            spent = BudgetCut(percentile=percentile, share=0.0)
            return {name: cuts.get(name, spent) for name in languages}
    return cuts


class TokenRates:
    """Tokens per character, by language, from a sample of documents that was tokenized."""

    def __init__(self, counters: Counters) -> None:
        """Read the counters `sampled_chars.<language>` and `sampled_tokens.<language>`."""
        self._chars = _take_counts(counters, "sampled_chars.")
        self._tokens = _take_counts(counters, "sampled_tokens.")

    def estimate(self, language: str, num_chars: float) -> float:
        """Return the tokens of so many characters; by all languages if this one has no sample."""
        chars, tokens = self._chars.get(language, 0), self._tokens.get(language, 0)
        if not chars:
            chars, tokens = sum(self._chars.values()), sum(self._tokens.values())
        return num_chars * tokens / max(1, chars)


def _take_counts(counters: Counters, family: str) -> Mapping[str, int]:
    return {
        name.removeprefix(family): number
        for name, number in counters.counts.items()
        if name.startswith(family)
    }
