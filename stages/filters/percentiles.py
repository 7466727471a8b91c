"""Percentiles of the scores of a run, from counts in fixed bins.

Every task counts its scores in bins, and the counts are added. A percentile is then the edge of a
bin: it needs little memory, and the order of tasks does not change it
(docs/decisions/0004-log-spaced-percentiles.md).

    bins = Bins(make_log_edges(1.0, 1000.0))
    counts = Counter(bins.find(scores).tolist())
    bins.find_percentile(counts, 30)    # at least 30 % of the scores are below it
    bins.find_top_cut(counts, 0.1)      # at least a tenth of the scores reaches it
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.contract import Column
from stages.counters import Counters

# Stands for the language of documents that have a score, but no language.
NO_LANGUAGE = "unknown"

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


def name_languages(documents: pa.Table) -> Column:
    """(n,) string: the language of every row, NO_LANGUAGE where it has none."""
    return pc.fill_null(documents.column("language"), NO_LANGUAGE)


def count_by_language(
    counters: Counters, family: str, column: str, documents: pa.Table, bins: Bins
) -> None:
    """Count the values of a column by language.

    Args:
        counters: the histograms `<family>.<language>` are added to them.
        family: the start of their names.
        column: name of the column.
        documents: with `language` and the column. Documents without a value do not count.
        bins: of the values.
    """
    scored = documents.filter(pc.is_valid(documents.column(column)))
    found = bins.find(scored.column(column))
    languages = name_languages(scored)
    for language in pc.unique(languages).to_pylist():
        is_language = pc.equal(languages, language).to_numpy()
        counters.observe(f"{family}.{language}", found[is_language])


def _find_rank(histogram: Mapping[int, int], rank: int, bins: Iterable[int]) -> int:
    """Return the bin of the score with this rank, from 1, if the bins are counted in this order."""
    seen = 0
    for k in bins:
        seen += histogram[k]
        if seen >= rank:
            return k
    raise AssertionError(f"counts of a histogram are at least 0, found {dict(histogram)!r}")
