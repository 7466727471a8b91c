"""The limits that select computes from the scores of the run: cutoffs and cuts per language."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from pipeline.config import RunConfig
from pipeline.config.phases import FROM_RUN, ClassifiersSelection, LanguageSelection
from stages.counters import Counters
from stages.filters import classifiers, perplexity, score
from stages.filters.language import LOWEST_MIN_SCORE, compute_min_score
from stages.mixing.mix import find_language
from stages.settings.base import DEFAULT, find_limit, list_named_languages
from stages.settings.filters import (
    ClassifiersFilterSettings,
    LanguageFilterSettings,
    ScoreLimits,
)
from stages.settings.mixing import MixSettings
from stages.settings.score import ScoreSettings

# Language -> the perplexity at which head and middle end.
Cutoffs = Mapping[str, tuple[float, float]]


@dataclass(frozen=True)
class Cut:
    """A limit that select has set for one language.

    Attributes:
        setting: the part of the config that it comes from.
        limit: the limit of the score.
        num_scored: documents of the language whose scores it comes from.
    """

    setting: str
    language: str
    limit: float
    num_scored: int


def list_cuts(
    min_scores: Mapping[str, float],
    cutoffs: Cutoffs,
    limits: Mapping[str, ScoreLimits],
    score_cuts: Mapping[str, float],
    counters: Counters,
) -> list[Cut]:
    """Return the limits of each language that has scores.

    Args:
        min_scores: language -> limit of the language score, if it comes from the run.
        cutoffs: of the perplexity.
        limits: of the classifiers, by name.
        score_cuts: of the quality score, by language.
        counters: of annotate and percentiles.
    """
    cuts: list[Cut] = []
    scores = counters.take_histograms("language_score.")
    for language, limit in min_scores.items():
        setting = "select.language.min_score: from"
        cuts.append(Cut(setting, language, limit, sum(scores[language].values())))
    for language, bins in counters.take_histograms("perplexity.").items():
        for bucket, limit in zip(
            ("head", "middle"), cutoffs.get(language, ()), strict=False
        ):
            setting = f"select.perplexity: {bucket} below"
            cuts.append(Cut(setting, language, limit, sum(bins.values())))
    for name, limit in limits.items():
        for language, bins in counters.take_histograms(f"classifier.{name}.").items():
            if language in limit.cuts:
                setting = f"select.classifiers.{name}.keep_top: from"
                cuts.append(
                    Cut(setting, language, limit.cuts[language], sum(bins.values()))
                )
    for language, bins in counters.take_histograms("score.").items():
        if language in score_cuts:
            setting = "select.score.keep_top: from"
            cuts.append(Cut(setting, language, score_cuts[language], sum(bins.values())))
    return cuts


def list_budget_cuts(mix: MixSettings) -> list[Cut]:
    """Return the percentile at which the budget of each language ends."""
    num_scored: Counter[str] = Counter()
    for group, bins in mix.histograms.items():
        num_scored[find_language(group)] += sum(bins.values())
    setting = "select.mix.budget: from percentile"
    return [
        Cut(setting, language, cut.percentile, num_scored[language])
        for language, cut in sorted(mix.cuts.items())
    ]


def dump_cuts(cuts: Iterable[Cut]) -> bytes:
    """Return the cuts as JSON."""
    return (json.dumps([asdict(cut) for cut in cuts], indent=1) + "\n").encode()


def parse_cuts(content: bytes) -> tuple[Cut, ...]:
    """Return the cuts that `dump_cuts` wrote."""
    return tuple(Cut(**cut) for cut in json.loads(content))


def compute_cutoffs(counters: Counters, percentiles: tuple[int, int]) -> Cutoffs:
    """Return percentiles of the perplexities that annotate has counted, per language."""
    head, middle = percentiles
    find = perplexity.BINS.find_percentile
    return {
        language: (find(bins, head), find(bins, middle))
        for language, bins in counters.take_histograms("perplexity.").items()
    }


def has_language_scores(counters: Counters) -> bool:
    """Return whether annotate has counted language scores, or has no document with a language."""
    if counters.take_histograms("language_score."):
        return True
    return not any(name.startswith("language.") for name in counters.counts)


def compute_min_scores(
    selection: LanguageSelection, counters: Counters
) -> dict[str, float]:
    """Return the limit of each language whose limit comes from the scores of the run."""
    found: dict[str, float] = {}
    for language, bins in counters.take_histograms("language_score.").items():
        if find_limit(selection.min_score, language) == FROM_RUN:
            found[language] = compute_min_score(bins)
    return found


def set_min_scores(
    selection: LanguageSelection, min_scores: Mapping[str, float]
) -> LanguageFilterSettings:
    """Return the settings of the filter.

    Args:
        selection: the section of the config.
        min_scores: the limits that come from the run.
    """
    if not selection.uses_run:
        return LanguageFilterSettings.model_validate(selection.model_dump())
    limits: dict[str, float] = dict(min_scores)
    # No document of a language without scores reaches the filter, only those without a language.
    for language in (DEFAULT, *list_named_languages(selection.min_score)):
        limit = find_limit(selection.min_score, language)
        if limit == FROM_RUN:
            limits.setdefault(language, LOWEST_MIN_SCORE)
        else:
            limits[language] = float(limit)
    return LanguageFilterSettings(min_score=limits, keep=selection.keep)


def set_cuts(
    selection: ClassifiersSelection, counters: Counters
) -> ClassifiersFilterSettings:
    """Return the settings of the filter, with a cut per language for each `keep_top`.

    Args:
        selection: the section of the config.
        counters: of percentiles; without histograms, there are no cuts.
    """
    limits: dict[str, ScoreLimits] = {}
    for name, chosen in selection.limits.items():
        cuts: dict[str, float] = {}
        if chosen.keep_top is not None:
            for language, bins in counters.take_histograms(f"classifier.{name}.").items():
                cuts[language] = classifiers.SCORE_BINS.find_top_cut(bins, chosen.keep_top)
        limits[name] = ScoreLimits(min=chosen.min, max=chosen.max, cuts=cuts)
    return ClassifiersFilterSettings.model_validate(limits)


def make_score_settings(
    config: RunConfig, signals: Counters, counters: Counters
) -> ScoreSettings:
    """Return the settings of the stage `score`, with a cut per language for `keep_top`.

    Args:
        config: the run's config, with `select.score`.
        signals: of the phase signal_percentiles; without histograms, no document has a score.
        counters: of percentiles; without histograms, there are no cuts.
    """
    chosen = config.select.score
    assert chosen is not None
    cuts: dict[str, float] = {}
    if chosen.keep_top is not None:
        for language, bins in counters.take_histograms("score.").items():
            cuts[language] = classifiers.SCORE_BINS.find_top_cut(bins, chosen.keep_top)
    weighted = score.make_signals(config.score_weights, signals)
    return ScoreSettings(
        signals=weighted, intercept=chosen.intercept, min=chosen.min, cuts=cuts
    )
