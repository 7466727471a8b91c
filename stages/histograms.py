"""Limits from the scores of a run: percentiles and ranks, from counts in fixed bins.

Every task counts the scores in bins, and the counts are added. A percentile is then the edge of a
bin: it needs little memory, and the order of tasks does not change it
(docs/decisions/0004-log-spaced-percentiles.md).

    histogram = Histogram("score", "quality_score", of="candidates")
    histogram.count(counters, documents)                    # score.en: {4100: 9, 4200: 1}
    find_top_cuts(counters, histogram.family, 0.1)          # {"en": 0.87}: a tenth reaches it

A stage declares its histograms in `Stage.histograms`; a phase of the pipeline counts them, and the
stage finds their sum over the run in `Stage.run_counters`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.counters import Counters

# One value per row of a batch, shape (n,).
Column: TypeAlias = pa.Array | pa.ChunkedArray

# Stands for the language of documents that have a score, but no language.
NO_LANGUAGE = "unknown"

# The bin of documents without a score, in histograms that count these too.
NO_SCORE = -1

# Between the language and the topic of a group.
_TOPIC_SEPARATOR = "/"

# Ratio of the edges of a bin: finer than CCNet's cutoffs, which are rounded to tens (en
# 340).
BIN_WIDTH = 1.005


def make_log_edges(first: float, last: float) -> NDArray[np.float64]:
    """(n + 1,) float64: `first`, and each next edge BIN_WIDTH times as large, to beyond `last`."""
    # A running product is rounded in the same way on every machine; powers are not.
    num_bins = math.ceil(math.log(last / first) / math.log(BIN_WIDTH)) + 1
    return np.multiply.accumulate(np.concatenate([[first], np.full(num_bins, BIN_WIDTH)]))


class Bins:
    """Bins of scores: bin k holds edges[k] <= score < edges[k + 1], the last one all above it."""

    def __init__(self, edges: NDArray[np.float64]) -> None:
        """Store the edges, (n,) float64, rising."""
        self._edges = edges

    def find(
        self, scores: Sequence[float] | NDArray[np.float64] | Column
    ) -> NDArray[np.int64]:
        """Return the bin of every score. Counts per bin merge by addition.

        Args:
            scores: (n,) without nulls, at least the first edge.

        Returns:
            (n,) int64, at least 0.
        """
        values = np.asarray(scores, np.float64)
        return np.searchsorted(self._edges, values, side="right") - 1

    def find_percentile(self, histogram: Mapping[int, int], percent: float) -> float:
        """Return a limit such that at least `percent` per cent of the scores are below it.

        It is the upper edge of the bin that contains the percentile (numpy's "inverted_cdf"). The
        buckets compare strictly below a cutoff, so they include the percentile itself.

        Args:
            histogram: bin -> number of scores.
            percent: 0..100.

        Raises:
            ValueError: the histogram is empty or percent is outside 0..100.
        """
        total = sum(histogram.values())
        if total == 0 or not 0 <= percent <= 100:
            raise ValueError(
                f"percentile {percent!r} of {total} scores; wanted 0..100 of at least one: is "
                f"there a document of this language with a score?"
            )
        rank = max(1, math.ceil(percent * total / 100))
        return float(self._edges[_find_rank(histogram, rank, sorted(histogram)) + 1])

    def find_top_cut(self, histogram: Mapping[int, int], share: float) -> float:
        """Return the highest edge that at least this share of the scores reaches.

        Scores in one bin get the same decision, and equal scores are in one bin. So more scores than
        the share can reach the cut, at most by those of its bin.

        Args:
            histogram: bin -> number of scores.
            share: above 0, at most 1. The decimal number is meant: 0.1 is a tenth.

        Raises:
            ValueError: the histogram is empty or share is outside this range.
        """
        total = sum(histogram.values())
        if total == 0 or not 0 < share <= 1:
            raise ValueError(
                f"best {share!r} of {total} scores; wanted a share above 0 and at most 1, of at "
                f"least one score"
            )
        rank = math.ceil(Fraction(str(share)) * total)
        return float(
            self._edges[_find_rank(histogram, rank, sorted(histogram, reverse=True))]
        )


class PercentileRanks:
    """Percentile ranks of values, such as those of one signal in one language."""

    def __init__(self, histogram: Mapping[int, int]) -> None:
        """Sum up a histogram: bin -> number of values, not empty."""
        self._bins = np.array(sorted(histogram), np.int64)
        self._counts = np.array([histogram[k] for k in sorted(histogram)], np.int64)
        self._num_below = np.concatenate([[0], np.cumsum(self._counts)])

    def rank(self, bins: NDArray[np.int64]) -> NDArray[np.float64]:
        """(n,) float64: the share of documents in lower bins, and half of those in the same bin."""
        places = np.searchsorted(self._bins, bins)
        last = len(self._bins) - 1
        is_counted = self._bins[np.minimum(places, last)] == bins
        num_equal = np.where(is_counted, self._counts[np.minimum(places, last)], 0)
        num_halves = 2 * self._num_below[places] + num_equal
        return num_halves / (2 * self._num_below[-1])


# Bins of probabilities. Their edges are odds, score / (1 - score), so they are as fine near 0 and 1,
# where fastText puts most scores, as elsewhere. fastText gives no probability below 1e-5.
_ODDS = make_log_edges(1e-6, 1e6)
SCORE_BINS = Bins(np.concatenate([[0.0], _ODDS / (1 + _ODDS)]))

# Bins of other numbers, 0.5 % wide: counts, lengths, perplexities and shares. None is negative.
SIGNAL_BINS = Bins(np.concatenate([[0.0], make_log_edges(1e-6, 1e12)]))


def choose_bins(column: str) -> Bins:
    """Return the bins of a stored number."""
    is_share = column.startswith("classifier_") or column == "quality_score"
    return SCORE_BINS if is_share else SIGNAL_BINS


@dataclass(frozen=True)
class Histogram:
    """A histogram that limits come from: the values of a stored number, by language.

    The counters hold `<family>.<group>`: bin -> documents. The group is the language.

    Attributes:
        family: the start of the names.
        column: the number.
        of: the documents that are counted. scored: all that have scores; candidates: those that all
            filters keep without any `keep_top`; kept: those that all filters keep.
        topics: columns of classifiers; the group is then the language with the highest one.
        amount: column whose sum is counted; None: documents.
        counts_missing: whether documents without a value are counted, in the bin NO_SCORE.
    """

    family: str
    column: str
    of: Literal["scored", "candidates", "kept"]
    topics: tuple[str, ...] = ()
    amount: str | None = None
    counts_missing: bool = False

    def count(self, counters: Counters, documents: pa.Table) -> None:
        """Add the documents to the counters. They have `language` and the columns named above."""
        bins = find_bins(documents, self.column)
        amounts = None if self.amount is None else documents.column(self.amount).to_numpy()
        for group, rows in group_rows(documents, self.topics).items():
            counted = rows if self.counts_missing else rows[bins[rows] != NO_SCORE]
            counters.observe(
                f"{self.family}.{group}",
                bins[counted],
                None if amounts is None else amounts[counted],
            )


@dataclass(frozen=True)
class RunLimit:
    """A limit that comes from the scores of a run, in one language.

    Attributes:
        setting: the part of the config that it comes from.
        limit: the limit of the score.
        num_scored: documents of the language whose scores it comes from.
    """

    setting: str
    language: str
    limit: float
    num_scored: int


def find_bins(documents: pa.Table, column: str) -> NDArray[np.int64]:
    """(n,) int64: the bin of every value of a column, NO_SCORE without one."""
    values = pc.cast(documents.column(column), pa.float64())
    scores = values.to_numpy(zero_copy_only=False)
    has_score = ~np.isnan(scores)
    bins = np.full(len(scores), NO_SCORE, np.int64)
    bins[has_score] = choose_bins(column).find(scores[has_score])
    return bins


def group_rows(
    documents: pa.Table, topics: tuple[str, ...] = ()
) -> dict[str, NDArray[np.int64]]:
    """Return group -> the numbers of its rows: `en`, or `en/classifier_science` with topics."""
    groups = name_languages(documents)
    if topics:
        scores = np.stack(
            [pc.fill_null(documents.column(name), -1.0).to_numpy() for name in topics]
        )
        found = pa.array(topics).take(pa.array(scores.argmax(axis=0)))
        groups = pc.binary_join_element_wise(groups, found, _TOPIC_SEPARATOR)
    rows: dict[str, NDArray[np.int64]] = {}
    for group in pc.unique(groups).to_pylist():
        is_in_group = pc.equal(groups, group).to_numpy(zero_copy_only=False)
        rows[group] = np.flatnonzero(is_in_group)
    return rows


def find_language(group: str) -> str:
    """Return the language of a group."""
    return group.partition(_TOPIC_SEPARATOR)[0]


def name_languages(documents: pa.Table) -> Column:
    """(n,) string: the language of every row, NO_LANGUAGE where it has none."""
    return pc.fill_null(documents.column("language"), NO_LANGUAGE)


def find_top_cuts(counters: Counters, family: str, share: float | None) -> dict[str, float]:
    """Return language -> the score that this share of its documents reaches.

    Args:
        counters: of the run; empty before the scores are counted.
        family: of histograms in SCORE_BINS.
        share: see `Bins.find_top_cut`; None: there are no cuts.
    """
    if share is None:
        return {}
    return {
        language: SCORE_BINS.find_top_cut(bins, share)
        for language, bins in counters.take_histograms(f"{family}.").items()
    }


def list_run_limits(
    setting: str, limits: Mapping[str, float], counters: Counters, family: str
) -> Iterable[RunLimit]:
    """Yield the limit of each language that has one, with the documents that it comes from."""
    for language, bins in counters.take_histograms(f"{family}.").items():
        if language in limits:
            yield RunLimit(setting, language, limits[language], sum(bins.values()))


def _find_rank(histogram: Mapping[int, int], rank: int, bins: Iterable[int]) -> int:
    """Return the bin of the score with this rank, from 1, if the bins are counted in this order."""
    seen = 0
    for k in bins:
        seen += histogram[k]
        if seen >= rank:
            return k
    raise AssertionError(f"counts of a histogram are at least 0, found {dict(histogram)!r}")
