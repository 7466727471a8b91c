"""Identify the language of documents with fastText, and filter by language and score.

The default model is lid.176.ftz, fastText's compressed model of 176 languages.

language = Language(LanguageSettings(), {"lid.176.ftz": path})
language.open()
scored = language.apply(batch).kept                       # language "fr", language_score 0.97
LanguageFilter(LanguageFilterSettings(min_score=0.5)).apply(scored)
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.contract import DOCUMENT, Column, Outcome, Stage, chain, drop_where, keep_all
from stages.counters import Counters
from stages.histograms import RunLimit, list_run_limits
from stages.kernels.fasttext.model import FastTextModel, load_model
from stages.settings.base import DEFAULT, find_limit, list_named_languages
from stages.settings.filters import FROM_RUN, LanguageFilterSettings, LanguageSettings
from stages.settings.languages import LABEL_PREFIX


class Language(Stage[LanguageSettings]):
    """Adds `language` (a code) and `language_score` (probability, two decimals).

    The code is that of the label in the tables of `stages.settings.languages`, or in `labels`.

    The text is read as one line, without its newlines. A text that is empty, or without anything
    that fastText can use, has language null and score 0.
    Source: `Classifier` in cc_net's `split_by_lang.py`, with `top=1` and `rounding=2`.
    """

    name = "language"
    version = 3
    needs = pa.schema([DOCUMENT.field("text")])
    adds = pa.schema(
        [pa.field("language", pa.string()), pa.field("language_score", pa.float64())]
    )
    counters: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "language.": "Documents in the language",
            "language_score.": "Histogram of the scores of documents in the language, in hundredths",
        }
    )

    _model: FastTextModel
    _codes: Mapping[str, str]  # label -> code

    @classmethod
    def required_columns(cls, settings: LanguageSettings) -> pa.Schema:
        """Return the text, and the sample of the page if the settings want it."""
        if settings.read == "text":
            return cls.needs
        return cls.needs.append(DOCUMENT.field("page_sample"))

    @classmethod
    def required_files(cls, settings: LanguageSettings) -> tuple[str, ...]:
        """Return the model."""
        return (settings.model,)

    def open(self) -> None:
        """Load the fastText model.

        Raises:
            ValueError: the file is missing or is not a fastText model.
        """
        self._model = load_model(self.files[self.settings.model])
        self._codes = {
            label: self.settings.find_code(label.removeprefix(LABEL_PREFIX))
            for label in self._model.labels
        }

    def apply(self, batch: pa.Table) -> Outcome:
        """Add the language and its score to each row."""
        text = batch.column("text")
        if self.settings.read == "page_sample":
            text = pc.coalesce(batch.column("page_sample"), text)
        if self.settings.max_chars is not None:
            text = pc.utf8_slice_codeunits(text, 0, self.settings.max_chars)
        languages, scores = self._identify(text)
        counters = Counters()
        counters.add_values("language.", languages)
        _count_scores(counters, languages, scores)
        added = {"language": languages, "language_score": pa.array(scores)}
        return keep_all(batch, added, counters)

    def _identify(self, texts: Column) -> tuple[pa.Array, NDArray[np.float64]]:
        """Return the (n,) languages and the (n,) scores, 0 where the language is null."""
        labels, scores = self._model.predict_best(texts)
        codes = [None if label is None else self._codes[label] for label in labels]
        # fastText identifies an empty text by the end of its line.
        is_empty = pc.equal(pc.fill_null(pc.binary_length(texts), 0), 0)
        languages = pc.if_else(is_empty, None, pa.array(codes, pa.string()))
        scores[is_empty.to_numpy()] = 0.0
        # fastText adds 1e-5 to each probability. Rounding removes it, so the largest score is 1.
        return languages, np.round(scores, 2)


def _count_scores(
    counters: Counters, languages: pa.Array, scores: NDArray[np.float64]
) -> None:
    """Count the scores by language. They have two decimals, so the counts lose nothing."""
    hundredths = np.rint(scores * 100).astype(np.int64)
    for language in pc.unique(languages.drop_null()).to_pylist():
        is_language = pc.fill_null(pc.equal(languages, language), False)
        found = hundredths[is_language.to_numpy(zero_copy_only=False)]
        counters.observe(f"language_score.{language}", found.tolist())


# Limits from the scores of a run, see `compute_min_score`.
LOWEST_MIN_SCORE, HIGHEST_MIN_SCORE = 0.3, 0.9


def compute_min_score(histogram: Mapping[int, int]) -> float:
    """Return the median minus the standard deviation, within 0.3 and 0.9; four decimals.

    Models are less sure of some languages than of others, so a limit for all drops most of these.
    Source: Penedo et al. 2025 (FineWeb2, arXiv:2506.20920), language identification.

    Args:
        histogram: score in hundredths -> number of documents, at least one.
    """
    num_scores = sum(histogram.values())
    # Whole numbers have no rounding, so the order of tasks has no effect.
    total = sum(score * count for score, count in histogram.items())
    squares = sum(score * score * count for score, count in histogram.items())
    deviation = math.sqrt(num_scores * squares - total * total) / num_scores
    limit = (_find_median(histogram, num_scores) - deviation) / 100
    return min(max(round(limit, 4), LOWEST_MIN_SCORE), HIGHEST_MIN_SCORE)


def _find_median(histogram: Mapping[int, int], num_scores: int) -> float:
    """Return the middle score; the mean of the two in the middle of an even number."""
    scores = sorted(histogram)
    num_up_to = list(accumulate(histogram[score] for score in scores))
    low = scores[bisect_right(num_up_to, (num_scores - 1) // 2)]
    high = scores[bisect_right(num_up_to, num_scores // 2)]
    return (low + high) / 2


class LanguageFilter(Stage[LanguageFilterSettings]):
    """Drops documents with a low score, then documents in other languages.

    With `min_score: run`, the limits come from the histograms of the stage `language`.
    Source of the default: `lang_threshold` in cc_net's `mine.py`.
    """

    name = "language"
    version = 1
    needs = Language.adds
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "language.score_too_low": "The probability of the most likely language is below "
            "min_score.",
            "language.not_wanted": "The most likely language is not in the list to keep.",
        }
    )

    def open(self) -> None:
        """Compute the limits.

        Raises:
            ValueError: the run has documents in languages, and has not counted their scores.
        """
        _ = self.min_scores

    @cached_property
    def min_scores(self) -> Mapping[str, float] | float:
        """The lowest score kept: one for all languages, or language -> score, with a default."""
        chosen = self.settings.min_score
        if not isinstance(chosen, Mapping) and chosen != FROM_RUN:
            return chosen
        limits = dict(self._measured)
        # No document of a language without scores is filtered, only those without a language.
        for language in (DEFAULT, *list_named_languages(chosen)):
            limit = find_limit(chosen, language)
            if limit == FROM_RUN:
                limits.setdefault(language, LOWEST_MIN_SCORE)
            else:
                limits[language] = float(limit)
        return limits

    @cached_property
    def _measured(self) -> dict[str, float]:
        """Language -> limit, for those whose limit comes from the run."""
        chosen = self.settings.min_score
        histograms = self.run_counters.take_histograms("language_score.")
        found: dict[str, float] = {}
        for language, bins in histograms.items():
            if find_limit(chosen, language) == FROM_RUN:
                found[language] = compute_min_score(bins)
        counts = self.run_counters.counts
        if not histograms and any(name.startswith("language.") for name in counts):
            raise ValueError(
                "select.language.min_score is run, and annotate has counted no language scores: "
                "an older version has run it; run it again, or set a number"
            )
        return found

    def list_run_limits(self) -> Iterable[RunLimit]:
        """Return the limit of each language whose limit comes from the run."""
        setting = "select.language.min_score: from"
        measured = self._measured if self.settings.uses_run else {}
        return list_run_limits(setting, measured, self.run_counters, "language_score")

    def apply(self, batch: pa.Table) -> Outcome:
        """Keep the rows with a score of at least min_score, in one of the languages to keep."""
        score = batch.column("language_score")
        min_score = self._find_min_scores(batch.column("language"))
        is_low = pc.less(score, min_score)
        low = drop_where(
            batch, is_low, "language.score_too_low", value=score, limit=min_score
        )
        if self.settings.keep is None:
            return low
        language = low.kept.column("language")
        wanted = pa.array(self.settings.keep, pa.string())
        is_unwanted = pc.invert(pc.is_in(language, value_set=wanted))
        unwanted = drop_where(low.kept, is_unwanted, "language.not_wanted", detail=language)
        return chain(low, unwanted)

    def _find_min_scores(self, languages: Column) -> float | Column:
        """Return the limit, or (n,) float64, the limit of every row."""
        min_scores = self.min_scores
        if not isinstance(min_scores, Mapping):
            return min_scores
        rows = pc.index_in(languages, value_set=pa.array(min_scores, pa.string()))
        limits = pa.array(min_scores.values(), pa.float64()).take(rows)
        return pc.fill_null(limits, min_scores[DEFAULT])
