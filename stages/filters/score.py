"""Combine stored scores into one quality score per document, and drop documents by it.

The score is the weighted mean of percentile ranks. The percentile rank of a value is the share of
the run's documents in the same language that are below it, with half of the equal ones. So signals
of any scale can be combined, and no labels are needed.

    signals = {
        "num_chars": {"weight": 1, "histograms": {"en": {4100: 9, 4200: 1}}},
        "perplexity": {"weight": -1, "histograms": {"en": {3900: 5, 4000: 5}}},
    }
    score = Score(ScoreSettings(signals=signals))
    score.open()
    score.apply(batch).kept                                   # quality_score 0.725
    score.explain(batch)                                      # the part of each signal

With an `intercept`, the score is that of a logistic model, the probability of a good page:
1 / (1 + exp(-(intercept + sum of |weight| x percentile rank))). `models train quality` fits it.

`count_signal` measures the histograms.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.contract import Column, Outcome, Stage, chain, drop_where, keep_all
from stages.counters import Counters
from stages.filters.classifiers import SCORE_BINS, find_cuts, score_column
from stages.filters.percentiles import (
    Bins,
    PercentileRanks,
    count_by_language,
    make_log_edges,
    name_languages,
)
from stages.filters.quality.definitions import LIST_FIELDS, SIGNAL_FIELDS
from stages.settings.score import ScoreSettings, WeightedSignal

QUALITY_SCORE = pa.field("quality_score", pa.float64())

_LANGUAGE = pa.field("language", pa.string())

# Every other column with numbers is float64.
_FIELDS = {field.name: field for field in (*SIGNAL_FIELDS, *LIST_FIELDS.values())} | {
    name: pa.field(name, pa.int64()) for name in ("num_chars", "num_lines")
}

# The percentile rank of a signal without a value, in a logistic model.
NO_RANK = 0.5

# Bins of signals, 0.5 % wide: counts, lengths, perplexities and shares. None is negative.
SIGNAL_BINS = Bins(np.concatenate([[0.0], make_log_edges(1e-6, 1e12)]))


def signal_field(name: str) -> pa.Field:
    """Return the stored column of a signal."""
    return _FIELDS.get(name, pa.field(name, pa.float64()))


def count_signal(counters: Counters, name: str, documents: pa.Table) -> None:
    """Count the values of a signal by language.

    Args:
        counters: the histograms `signal.<name>.<language>` are added to them.
        name: of the column.
        documents: with `language` and the signal. Documents without a value do not count.
    """
    count_by_language(counters, f"signal.{name}", name, documents, choose_bins(name))


def count_scores(counters: Counters, documents: pa.Table) -> None:
    """Count the quality scores by language, as the histograms `score.<language>`, in SCORE_BINS."""
    count_by_language(counters, "score", QUALITY_SCORE.name, documents, SCORE_BINS)


def choose_bins(name: str) -> Bins:
    """Return the bins of a stored number. Those of probabilities are as fine near 1 as near 0."""
    is_share = name.startswith(score_column("")) or name == QUALITY_SCORE.name
    return SCORE_BINS if is_share else SIGNAL_BINS


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

    _tables: Mapping[str, Mapping[str, PercentileRanks]]  # signal -> language

    @classmethod
    def required_columns(cls, settings: ScoreSettings) -> pa.Schema:
        """Return the language and the signals."""
        return pa.schema([_LANGUAGE, *map(signal_field, sorted(settings.signals))])

    def open(self) -> None:
        """Sum up the histograms."""
        self._tables = {
            name: {
                language: PercentileRanks(histogram)
                for language, histogram in signal.histograms.items()
            }
            for name, signal in sorted(self.settings.signals.items())
        }

    def apply(self, batch: pa.Table) -> Outcome:
        """Add the score, and keep the rows whose score reaches the limits, or is null."""
        score = self._compute(batch)
        outcome = keep_all(batch, {QUALITY_SCORE.name: score})
        if self.settings.min is not None:
            outcome = _drop_below(outcome, "score.too_low", self.settings.min)
        if self.settings.cuts:
            cuts = find_cuts(outcome.kept.column("language"), self.settings.cuts)
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
        total = sum(abs(self.settings.signals[name].weight) for name in known)
        parts: list[ScorePart] = []
        for name, rank in ranks.items():
            weight = self.settings.signals[name].weight
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
        rows = _group_by_language(batch)
        return np.stack([self._rank(batch, name, rows) for name in self._tables], axis=1)

    def _compute(self, batch: pa.Table) -> pa.Array:
        """(n,) float64: the score of every row, null where no signal counts."""
        total, weights = np.zeros(batch.num_rows), np.zeros(batch.num_rows)
        no_rank = 0.0 if self.settings.intercept is None else NO_RANK
        rows = _group_by_language(batch)
        for name in self._tables:
            rank = self._rank(batch, name, rows)
            weight = abs(self.settings.signals[name].weight)
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
        values = pc.cast(batch.column(name), pa.float64()).to_numpy(zero_copy_only=False)
        ranks = np.full(batch.num_rows, np.nan)
        for language, rows in rows_by_language.items():
            table = self._tables[name].get(language)
            if table is not None:
                scored = rows[~np.isnan(values[rows])]
                ranks[scored] = table.rank(choose_bins(name).find(values[scored]))
        return 1 - ranks if self.settings.signals[name].weight < 0 else ranks


def _group_by_language(batch: pa.Table) -> dict[str, NDArray[np.int64]]:
    """Return language -> the numbers of its rows."""
    languages = name_languages(batch)
    groups: dict[str, NDArray[np.int64]] = {}
    for language in pc.unique(languages).to_pylist():
        is_language = pc.equal(languages, language).to_numpy(zero_copy_only=False)
        groups[language] = np.flatnonzero(is_language)
    return groups


def _drop_below(outcome: Outcome, reason: str, limit: float | Column) -> Outcome:
    """Drop the kept rows whose score is below a limit. A row without a score or limit is kept."""
    score = outcome.kept.column(QUALITY_SCORE.name)
    is_dropped = pc.fill_null(pc.less(score, limit), False)
    return chain(
        outcome, drop_where(outcome.kept, is_dropped, reason, value=score, limit=limit)
    )


def make_signals(
    weights: Mapping[str, float], counters: Counters
) -> dict[str, WeightedSignal]:
    """Return the signals with the histograms that `count_signal` has counted.

    Args:
        weights: signal -> weight.
        counters: with these histograms.
    """
    signals: dict[str, WeightedSignal] = {}
    for name, weight in sorted(weights.items()):
        by_language = counters.take_histograms(f"signal.{name}.")
        signals[name] = WeightedSignal(weight=weight, histograms=by_language)
    return signals
