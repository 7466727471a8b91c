"""The limits of `select` that the page offers as sliders, and the lines that they draw.

limits = list_limits(config, score_names)
limits[0].key, limits[0].value                    # "select.language.min_score", 0.5
list_overrides(limits, {"select.language.min_score": "0.65"})
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from config_files.reader import ConfigError
from pipeline.config import RunConfig
from stages.contract import Stage
from stages.filters.classifiers import ClassifiersFilter, score_column
from stages.filters.language import LanguageFilter
from stages.filters.perplexity import PerplexityFilter
from stages.filters.quality import QualityFilter
from stages.filters.quality.rules import RULES
from stages.filters.score import QUALITY_SCORE, Score
from stages.settings.base import find_limit
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
        value: of the score.
    """

    label: str
    value: float


def list_limits(config: RunConfig, score_names: Collection[str]) -> list[Limit]:
    """Return the limits of the sections of select that are on, of stored scores only."""
    return [limit for limit in _list_limits(config) if limit.score in score_names]


def _list_limits(config: RunConfig) -> Iterator[Limit]:
    select = config.select
    if select.language is not None:
        for suffix, value in _split_by_language(select.language.min_score):
            key = f"select.language.min_score{suffix}"
            yield Limit(key, "language_score", value, (0, 1))
    # Percentiles of models and of files were chosen when these were made.
    if select.perplexity is not None and select.perplexity.cutoffs == "run":
        for place, percent in enumerate(select.perplexity.percentiles):
            key = f"{PERCENTILES}.{place}"
            yield Limit(key, "perplexity", percent, (1, 99), is_whole=True)
    for name, chosen in select.classifiers.limits.items() if select.classifiers else ():
        key, score = f"select.classifiers.{name}", score_column(name)
        yield Limit(f"{key}.keep_top", score, chosen.keep_top, (0.01, 1), True)
        yield Limit(f"{key}.min", score, chosen.min, None, True)
        yield Limit(f"{key}.max", score, chosen.max, None, True)
    yield from _list_quality_limits(config)
    if select.score is not None:
        key, name = "select.score", QUALITY_SCORE.name
        yield Limit(f"{key}.keep_top", name, select.score.keep_top, (0.01, 1), True)
        yield Limit(f"{key}.min", name, select.score.min, (0, 1), True)


def _split_by_language(value: Any) -> Iterator[tuple[str, float | None]]:
    """Yield the end of the key and the limit, for each language that has its own limit."""
    if isinstance(value, Mapping):
        for language, limit in value.items():
            yield f".{language}", limit
    else:
        yield "", value


def _list_quality_limits(config: RunConfig) -> Iterator[Limit]:
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
        for suffix, limit in _split_by_language(value):
            key = f"select.quality.{rule.limit}{suffix}"
            yield Limit(key, rule.signal, limit, bounds, True, is_whole)


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


def list_lines(
    filters: Iterable[Stage[Any]], score: str, language: str | None
) -> list[Line]:
    """Return where the limits of select cut a score in a language.

    Args:
        filters: those of select, opened.
        score: the column.
        language: None: in all languages together; limits that differ by language are left out.
    """
    lines: list[Line] = []
    for stage in filters:
        if isinstance(stage, LanguageFilter) and score == "language_score":
            lines += _draw("min_score", stage.min_scores, language)
        elif isinstance(stage, PerplexityFilter) and score == "perplexity":
            ends = stage.cutoffs.get(language or "", ())
            for label, end in zip(("head below", "middle below"), ends, strict=False):
                lines += _draw(label, end, language)
        elif isinstance(stage, ClassifiersFilter):
            lines += _draw_classifiers(stage, score, language)
        elif isinstance(stage, QualityFilter):
            lines += _draw_quality(stage.settings, score, language)
        elif isinstance(stage, Score) and score == QUALITY_SCORE.name:
            lines += _draw("min", stage.settings.min, language)
            lines += _draw("keep_top from", stage.cuts.get(language or ""), language)
    return lines


def _draw(label: str, limit: Any, language: str | None) -> Iterator[Line]:
    """Yield the line of a limit, which may differ by language, or be off."""
    if isinstance(limit, Mapping) and language is None:
        return
    value = find_limit(limit, language)
    if value is not None:
        yield Line(label, value)


def _draw_classifiers(
    stage: ClassifiersFilter, score: str, language: str | None
) -> Iterator[Line]:
    for name, limits in stage.settings.limits.items():
        if score_column(name) == score:
            yield from _draw("min", limits.min, language)
            yield from _draw("max", limits.max, language)
            cut = stage.cuts[name].get(language or "")
            yield from _draw("keep_top from", cut, language)


def _draw_quality(
    settings: QualityFilterSettings, score: str, language: str | None
) -> Iterator[Line]:
    is_judged = settings.languages is None or language in (None, *settings.languages)
    for rule in RULES:
        if rule.signal != score or not is_judged or not rule.applies_to(language):
            continue
        for line in _draw(rule.limit, getattr(settings, rule.limit), language):
            # The signal counts the other words (`Rule.compute_value`).
            is_rest = rule.limit == "min_alpha_word_share"
            yield Line(line.label, 1 - line.value if is_rest else line.value)
