"""The settings of the stage `mix`, from the config and the counts of mix_percentiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from pipeline.config import RunConfig
from stages.counters import Counters
from stages.filters.classifiers import score_column
from stages.mixing.budget import Level, find_budget_cuts
from stages.mixing.mix import (
    NO_SCORE,
    NO_SCORE_PERCENTILE,
    find_language,
    rank_groups,
    to_percentiles,
)
from stages.settings.base import find_limit
from stages.settings.mixing import BudgetCut, MixSettings


def list_topics(config: RunConfig) -> tuple[str, ...]:
    """Return the columns of the classifiers that choose a document's topic."""
    assert config.select.mix is not None
    return tuple(map(score_column, config.select.mix.topics))


def make_mix_settings(config: RunConfig, counters: Counters) -> MixSettings:
    """Return the settings of the stage `mix`.

    Args:
        config: the run's config, with `select.mix`.
        counters: of mix_percentiles; without histograms, every document is at the percentile 50.
    """
    mix = config.select.mix
    assert mix is not None
    settings = MixSettings(
        column=mix.by,
        is_low_best=mix.is_low_best,
        topics=list_topics(config),
        bins=mix.bins,
        histograms=counters.take_histograms("mix_documents."),
    )
    return settings.model_copy(update={"cuts": _find_cuts(config, settings, counters)})


def _find_cuts(
    config: RunConfig, settings: MixSettings, counters: Counters
) -> dict[str, BudgetCut]:
    """Return language -> where its budget ends; empty without a budget."""
    assert config.select.mix is not None
    budget = config.select.mix.budget
    if budget is None:
        return {}
    return find_budget_cuts(
        _list_levels(settings, counters),
        budget.num_tokens,
        lambda language: find_limit(budget.max_language_share, language),
    )


def _list_levels(settings: MixSettings, counters: Counters) -> Iterator[Level]:
    """Yield the estimated tokens of all documents, with their copies, by percentile."""
    rates = TokenRates(counters)
    ranks = rank_groups(settings.histograms)
    starts = np.array([each.from_percentile for each in settings.bins])
    copies = [each.num_copies for each in settings.bins]
    for group, chars in counters.take_histograms("mix_chars.").items():
        language = find_language(group)
        for bin_ in sorted(chars):
            percentile = NO_SCORE_PERCENTILE
            if bin_ != NO_SCORE:
                rank = ranks[group].rank(np.array([bin_]))
                found = to_percentiles(rank, is_low_best=settings.is_low_best)
                percentile = float(found[0])
            place = int(np.searchsorted(starts, percentile, side="right")) - 1
            num_tokens = rates.estimate(language, copies[place] * chars[bin_])
            yield Level(language, percentile, num_tokens)


class TokenRates:
    """Tokens per character, by language, from the sample that mix_percentiles has tokenized."""

    def __init__(self, counters: Counters) -> None:
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
