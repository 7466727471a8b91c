"""The limits of `select` that the page offers as sliders, and the lines that they draw.

limits = list_limits(config, score_names)
limits[0].key, limits[0].value                    # "select.language.min_score", 0.5
list_overrides(limits, {"select.language.min_score": "0.65"})
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from config_files.reader import ConfigError
from pipeline.config import RunConfig
from pipeline.phases.filter_phase import FilterPhase
from stages.filters.classifiers import score_column
from stages.filters.quality.rules import RULES
from stages.settings.filters import (
    ClassifiersFilterSettings,
    LanguageFilterSettings,
    PerplexityFilterSettings,
)
from stages.settings.quality import QualityFilterSettings

PERCENTILES = "select.perplexity.percentiles"

# In an override, a limit that is turned off.
OFF = "null"


@dataclass(frozen=True)
class Limit:
    """A threshold of the config.

    Attributes:
        key: of the config; those of the two percentiles end in .0 and .1.
        score: the column that it limits.
        value: as the run had it; None: it is off.
        bounds: lowest and highest value that is allowed or makes sense; None: those of the score.
        is_optional: whether it can be turned off.
        is_whole: whether it is a whole number.
    """

    key: str
    score: str
    value: float | None
    bounds: tuple[float, float] | None = None
    is_optional: bool = False
    is_whole: bool = False


@dataclass(frozen=True)
class Line:
    """Where a limit cuts a score.

    Attributes:
        label: the limit.
        language: the only language in which it applies; None: all.
        value: of the score.
    """

    label: str
    language: str | None
    value: float


def list_limits(config: RunConfig, score_names: Collection[str]) -> list[Limit]:
    """Return the limits of the sections of select that are on, of stored scores only."""
    limits = [*_of_language(config), *_of_perplexity(config), *_of_classifiers(config)]
    limits += _of_quality(config)
    return [limit for limit in limits if limit.score in score_names]


def _of_language(config: RunConfig) -> Iterator[Limit]:
    if config.select.language is not None:
        value = config.select.language.min_score
        yield Limit("select.language.min_score", "language_score", value, (0, 1))


def _of_perplexity(config: RunConfig) -> Iterator[Limit]:
    settings = config.select.perplexity
    # Percentiles of models and of files were chosen when these were made.
    if settings is not None and settings.cutoffs == "run":
        for place, percent in enumerate(settings.percentiles):
            key = f"{PERCENTILES}.{place}"
            yield Limit(key, "perplexity", percent, (1, 99), is_whole=True)


def _of_classifiers(config: RunConfig) -> Iterator[Limit]:
    if config.select.classifiers is None:
        return
    for name, chosen in config.select.classifiers.limits.items():
        key, score = f"select.classifiers.{name}", score_column(name)
        yield Limit(f"{key}.keep_top", score, chosen.keep_top, (0.01, 1), True)
        yield Limit(f"{key}.min", score, chosen.min, None, True)
        yield Limit(f"{key}.max", score, chosen.max, None, True)


def _of_quality(config: RunConfig) -> Iterator[Limit]:
    if config.select.quality is None:
        return
    fields = QualityFilterSettings.model_fields
    seen: set[str] = set()
    for rule in RULES:
        if rule.limit in seen:  # one limit of two signals
            continue
        seen.add(rule.limit)
        value = getattr(config.select.quality, rule.limit)
        is_whole = "int" in str(fields[rule.limit].annotation)
        bounds = (0.0, 1.0) if rule.limit.endswith("_share") else None
        if rule.limit == "min_stop_words":
            bounds = (0, 8)
        key = f"select.quality.{rule.limit}"
        yield Limit(key, rule.signal, value, bounds, True, is_whole)


def list_overrides(limits: Sequence[Limit], changes: Mapping[str, str]) -> list[str]:
    """Return changed limits as overrides of the config, `key.of.key=value`.

    Raises:
        ConfigError: a key is no limit, or a value is no number.
    """
    by_key = {limit.key: limit for limit in limits}
    overrides: list[str] = []
    percentiles = [limit.value for limit in limits if limit.key.startswith(PERCENTILES)]
    for key, text in sorted(changes.items()):
        if key not in by_key:
            raise ConfigError([f"{key}: no such limit; wanted one of {', '.join(by_key)}"])
        value = _parse_value(by_key[key], text)
        if key.startswith(PERCENTILES):
            percentiles[int(key[-1])] = value
        else:
            overrides.append(f"{key}={OFF if value is None else value}")
    if any(key.startswith(PERCENTILES) for key in changes):
        overrides.append(f"{PERCENTILES}={percentiles}")
    return overrides


def _parse_value(limit: Limit, text: str) -> float | None:
    if text == OFF and limit.is_optional:
        return None
    try:
        return int(text) if limit.is_whole else float(text)
    except ValueError:
        raise ConfigError([f"{limit.key}: {text!r} is not a number"]) from None


def list_lines(phase: FilterPhase, score: str) -> list[Line]:
    """Return where the limits of select cut a score."""
    lines: list[Line] = []
    for spec in phase.stage_specs():
        settings = spec.settings
        if isinstance(settings, LanguageFilterSettings) and score == "language_score":
            lines.append(Line("min_score", None, settings.min_score))
        elif isinstance(settings, PerplexityFilterSettings) and score == "perplexity":
            for language, (head, middle) in settings.cutoffs.items():
                lines.append(Line("head below", language, head))
                lines.append(Line("middle below", language, middle))
        elif isinstance(settings, ClassifiersFilterSettings):
            lines += _draw_classifiers(settings, score)
        elif isinstance(settings, QualityFilterSettings):
            lines += _draw_quality(settings, score)
    return lines


def _draw_classifiers(settings: ClassifiersFilterSettings, score: str) -> Iterator[Line]:
    for name, limits in settings.limits.items():
        if score_column(name) != score:
            continue
        if limits.min is not None:
            yield Line("min", None, limits.min)
        if limits.max is not None:
            yield Line("max", None, limits.max)
        for language, cut in limits.cuts.items():
            yield Line("keep_top from", language, cut)


def _draw_quality(settings: QualityFilterSettings, score: str) -> Iterator[Line]:
    for rule in RULES:
        limit: float | None = getattr(settings, rule.limit)
        if rule.signal != score or limit is None:
            continue
        # The signal counts the other words (`Rule.compute_value`).
        value = 1 - limit if rule.limit == "min_alpha_word_share" else limit
        for language in settings.languages or (None,):
            yield Line(rule.limit, language, value)
