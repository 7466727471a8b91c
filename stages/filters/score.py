"""Combine stored scores into one quality score per document, and drop documents by it.

The score is the weighted mean of percentile ranks. The percentile rank of a value is the share of
the run's documents in the same language that are below it, with half of the equal ones. So signals
of any scale can be combined, and no labels are needed.

    settings = ScoreSettings(signals={"num_chars": 1, "perplexity": -1})
    for histogram in Score.histograms(settings):
        histogram.count(counters, documents)                  # of all documents of the run
    score = Score(settings, run_counters=counters)
    score.open()
    score.apply(batch).kept                                   # quality_score 0.725
    score.explain(batch)                                      # the part of each signal

With an `intercept`, the score is that of a logistic model, the probability of a good page:
1 / (1 + exp(-(intercept + sum of |weight| x percentile rank))). `models train quality` fits it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.contract import Column, Outcome, Stage, chain, drop_where, keep_all
from stages.filters.classifiers import find_cuts
from stages.filters.quality.definitions import LIST_FIELDS, SIGNAL_FIELDS
from stages.histograms import (
    NO_SCORE,
    Histogram,
    PercentileRanks,
    RunLimit,
    find_bins,
    find_top_cuts,
    group_rows,
    list_run_limits,
)
from stages.settings.quality import ScoreSettings

QUALITY_SCORE = pa.field("quality_score", pa.float64())

_LANGUAGE = pa.field("language", pa.string())

# Every other column with numbers is float64.
_FIELDS = {field.name: field for field in (*SIGNAL_FIELDS, *LIST_FIELDS.values())} | {
    name: pa.field(name, pa.int64()) for name in ("num_chars", "num_lines")
}

# The percentile rank of a signal without a value, in a logistic model.
NO_RANK = 0.5


def signal_field(name: str) -> pa.Field:
    """Return the stored column of a signal."""
    return _FIELDS.get(name, pa.field(name, pa.float64()))


@dataclass(frozen=True)
class ScorePart:
    """The part of one signal in a document's score.

    Attributes:
        value: of the signal; None: the document has none, and the signal counts for nothing.
        rank: percentile rank, 0..1, high is good: from below for a positive weight, else from above.
        part: what the signal adds to the score; all parts of a document add up to its score. With
            an intercept: what it adds to the log-odds, in comparison with a percentile rank of 0.5.
    """

    signal: str
    weight: float
    value: float | None
    rank: float | None
    part: float


class Score(Stage[ScoreSettings]):
    """Adds `quality_score`, and drops documents whose score is below a limit.

    A signal without a value, or without counts in the document's language, is left out of the mean;
    in a logistic model it has the percentile rank NO_RANK. A document without any signal has a null
    score, and is kept.
    """

    name = "score"
    version = 1
    needs: ClassVar[pa.Schema] = pa.schema([_LANGUAGE])
    adds: ClassVar[pa.Schema] = pa.schema([QUALITY_SCORE])
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "score.too_low": "The quality score is below min.",
            "score.not_in_top": "The quality score is below the best ones, of which keep_top gives "
            "the share, in this language.",
        }
    )

    _weights: Mapping[str, float]  # signal -> weight
    _tables: Mapping[str, Mapping[str, PercentileRanks]]  # signal -> language

    @classmethod
    def required_columns(cls, settings: ScoreSettings) -> pa.Schema:
        """Return the language and the signals."""
        return pa.schema([_LANGUAGE, *map(signal_field, sorted(settings.signals or ()))])

    @classmethod
    def histograms(cls, settings: ScoreSettings) -> tuple[Histogram, ...]:
        """Return the signals, and the score itself if there is `keep_top`."""
        found = [
            Histogram(f"signal.{name}", name, "scored")
            for name in sorted(settings.signals or ())
        ]
        if settings.keep_top is not None:
            found.append(Histogram("score", QUALITY_SCORE.name, "candidates"))
        return tuple(found)

    def open(self) -> None:
        """Sum up the histograms of the signals."""
        self._weights = dict(sorted((self.settings.signals or {}).items()))
        self._tables = {
            name: {
                language: PercentileRanks(histogram)
                for language, histogram in self.run_counters.take_histograms(
                    f"signal.{name}."
                ).items()
            }
            for name in self._weights
        }

    @cached_property
    def cuts(self) -> Mapping[str, float]:
        """Language -> lowest score kept, of `keep_top`. Documents in other languages are kept."""
        return find_top_cuts(self.run_counters, "score", self.settings.keep_top)

    def list_run_limits(self) -> Iterable[RunLimit]:
        """Return the cuts."""
        setting = "select.score.keep_top: from"
        return list_run_limits(setting, self.cuts, self.run_counters, "score")

    def apply(self, batch: pa.Table) -> Outcome:
        """Add the score, and keep the rows whose score reaches the limits, or is null."""
        score = self._compute(batch)
        outcome = keep_all(batch, {QUALITY_SCORE.name: score})
        if self.settings.min is not None:
            outcome = _drop_below(outcome, "score.too_low", self.settings.min)
        if self.cuts:
            cuts = find_cuts(outcome.kept.column("language"), self.cuts)
            outcome = _drop_below(outcome, "score.not_in_top", cuts)
        return outcome

    def explain(self, document: pa.Table) -> list[ScorePart]:
        """Return the parts of the score of one document, the largest first.

        Args:
            document: one row with the columns of `apply`.
        """
        ranks = dict(
            zip(self._tables, self.measure_ranks(document)[0].tolist(), strict=True)
        )
        known = [name for name in ranks if not math.isnan(ranks[name])]
        total = sum(abs(self._weights[name]) for name in known)
        parts: list[ScorePart] = []
        for name, rank in ranks.items():
            weight = self._weights[name]
            value = document.column(name)[0].as_py()
            if name not in known:
                parts.append(ScorePart(name, weight, value, None, 0.0))
            elif self.settings.intercept is None:
                part = abs(weight) * rank / total
                parts.append(ScorePart(name, weight, value, rank, part))
            else:
                part = abs(weight) * (rank - NO_RANK)
                parts.append(ScorePart(name, weight, value, rank, part))
        return sorted(parts, key=lambda each: (-abs(each.part), each.signal))

    def measure_ranks(self, batch: pa.Table) -> NDArray[np.float64]:
        """(n, k) float64: the percentile ranks of the signals, sorted by name; NaN without one."""
        rows = group_rows(batch)
        return np.stack([self._rank(batch, name, rows) for name in self._tables], axis=1)

    def _compute(self, batch: pa.Table) -> pa.Array:
        """(n,) float64: the score of every row, null where no signal counts."""
        total, weights = np.zeros(batch.num_rows), np.zeros(batch.num_rows)
        no_rank = 0.0 if self.settings.intercept is None else NO_RANK
        rows = group_rows(batch)
        for name in self._tables:
            rank = self._rank(batch, name, rows)
            weight = abs(self._weights[name])
            total += weight * np.where(np.isnan(rank), no_rank, rank)
            weights += np.where(np.isnan(rank), 0.0, weight)
        has_score = weights > 0
        if self.settings.intercept is None:
            score = total / np.where(has_score, weights, 1.0)
        else:
            # The last bits of an exponential depend on the mathematical library.
            score = np.round(1 / (1 + np.exp(-(self.settings.intercept + total))), 8)
        return pa.array(score, pa.float64(), mask=~has_score)

    def _rank(
        self, batch: pa.Table, name: str, rows_by_language: Mapping[str, NDArray[np.int64]]
    ) -> NDArray[np.float64]:
        """(n,) float64: the percentile rank, 0..1 and high is good; NaN without one."""
        bins = find_bins(batch, name)
        ranks = np.full(batch.num_rows, np.nan)
        for language, rows in rows_by_language.items():
            table = self._tables[name].get(language)
            if table is not None:
                scored = rows[bins[rows] != NO_SCORE]
                ranks[scored] = table.rank(bins[scored])
        return 1 - ranks if self._weights[name] < 0 else ranks


def _drop_below(outcome: Outcome, reason: str, limit: float | Column) -> Outcome:
    """Drop the kept rows whose score is below a limit. A row without a score or limit is kept."""
    score = outcome.kept.column(QUALITY_SCORE.name)
    is_dropped = pc.fill_null(pc.less(score, limit), False)
    return chain(
        outcome, drop_where(outcome.kept, is_dropped, reason, value=score, limit=limit)
    )
