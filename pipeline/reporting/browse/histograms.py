"""Histograms of a stored score, per language, with the documents kept before and after."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pipeline.reporting.browse.index import Index
from pipeline.reporting.browse.limits import list_lines
from pipeline.reporting.browse.search import UNKNOWN, check_score
from stages.contract import Stage

NUM_BINS = 60

# Place of a document in histograms: 2 if it was kept before, plus 1 if it is kept after.
SIDES = ("dropped", "newly_kept", "newly_dropped", "kept")

# Languages with a histogram of their own: those with most documents.
MAX_LANGUAGES = 12

# Quantiles at which the axis ends. Values beyond are counted in the first and last bin.
AXIS_QUANTILES = (0.002, 0.998)

# Values from which the axis is made; quantiles of all of them would cost most of a request.
NUM_AXIS_VALUES = 50_000

# The axis is logarithmic if the upper end is so many times the median.
LOG_RATIO = 8.0


class Decided(NamedTuple):
    """What select has decided.

    Attributes:
        filters: its filters, whose limits are drawn.
        is_kept: (num_scored,) whether each document is kept.
    """

    filters: Sequence[Stage[Any]]
    is_kept: NDArray[np.bool_]


def describe_histograms(
    index: Index, score: str, before: Decided, after: Decided
) -> dict[str, Any]:
    """Return the histograms of a score in all languages together and in the largest ones.

    Returns:
        "edges" (NUM_BINS + 1,), "is_log", and "histograms": for each language its documents, by
        bin and side: dropped, newly kept, newly dropped, kept; and the lines of the limits.

    Raises:
        ConfigError: there is no such score.
    """
    check_score(index, score)
    values = index.read_numbers(score)[: index.num_scored].astype(np.float64)
    edges, is_log = find_edges(values, _list_limits(index, score, before, after))
    sides = before.is_kept * 2 + after.is_kept
    by_language = count_bins(index, score, edges, is_log, sides, len(SIDES))
    histograms: list[dict[str, Any]] = []
    for language, counts in pick_languages(by_language, MAX_LANGUAGES):
        old_lines = list_lines(before.filters, score, language)
        old = {line.label: line.value for line in old_lines}
        lines = [
            {**asdict(line), "before": old.get(line.label)}
            for line in list_lines(after.filters, score, language)
        ]
        histograms.append(
            {
                "language": language,
                "num_docs": int(counts.sum()),
                **dict(zip(SIDES, counts.T.tolist(), strict=True)),
                "lines": lines,
            }
        )
    return {
        "score": score,
        "edges": edges.tolist(),
        "is_log": is_log,
        "histograms": histograms,
    }


def count_bins(
    index: Index,
    score: str,
    edges: NDArray[np.float64],
    is_log: bool,
    sides: NDArray[np.int64],
    num_sides: int,
) -> dict[str, NDArray[np.int64]]:
    """Return language -> scored documents by bin and side, (NUM_BINS, num_sides).

    Args:
        index: the index.
        score: the column. Documents without it are not counted.
        edges: (NUM_BINS + 1,) of the bins.
        is_log: whether the edges are logarithmic.
        sides: (num_scored,) a number for each document, such as 1 for those that are kept.
        num_sides: the number of sides.
    """
    values = index.read_numbers(score)[: index.num_scored].astype(np.float64)
    is_valid = ~np.isnan(values)
    bins = _find_bins(values[is_valid], edges, is_log)
    languages = index.read_numbers("language")[: index.num_scored][is_valid]
    places = (languages.astype(np.int64) * NUM_BINS + bins) * num_sides + sides[is_valid]
    names = [name or UNKNOWN for name in index.names["language"].values]
    counts = np.bincount(places, minlength=len(names) * NUM_BINS * num_sides)
    counts = counts.reshape(len(names), NUM_BINS, num_sides)
    return dict(zip(names, counts, strict=True))


def pick_languages(
    counts: Mapping[str, NDArray[np.int64]], max_languages: int
) -> Iterator[tuple[str | None, NDArray[np.int64]]]:
    """Yield the counts of all languages together (None) and of the largest ones."""
    if counts:
        yield None, np.sum(list(counts.values()), axis=0)
    largest = sorted(counts, key=lambda name: -counts[name].sum())
    for name in largest[:max_languages]:
        if counts[name].any():
            yield name, counts[name]


def _list_limits(index: Index, score: str, before: Decided, after: Decided) -> list[float]:
    """Return the limits of a score in all languages."""
    limits: list[float] = []
    for language in (None, *index.names["language"].values):
        for effect in (before, after):
            limits += [line.value for line in list_lines(effect.filters, score, language)]
    return limits


def find_edges(
    values: NDArray[np.float64], limits: Sequence[float] = ()
) -> tuple[NDArray[np.float64], bool]:
    """Return the edges of the bins, (NUM_BINS + 1,), and whether they are logarithmic.

    Args:
        values: (n,) the scores; NaN: none.
        limits: values that the axis includes.
    """
    drawn = values[:: max(1, len(values) // NUM_AXIS_VALUES)]
    drawn = drawn[~np.isnan(drawn)]
    if not len(drawn):
        return np.linspace(0.0, 1.0, NUM_BINS + 1), False
    low, middle, high = np.quantile(drawn, [AXIS_QUANTILES[0], 0.5, AXIS_QUANTILES[1]])
    for limit in limits:
        # A limit that is far away does not squeeze the bars; its line is at the end of the axis.
        if low - (high - low) < limit < high + (high - low):
            low, high = min(low, limit), max(high, limit)
    if low == high:
        low, high = low - 0.5, high + 0.5
    is_log = bool(low > 0 and high > LOG_RATIO * middle)
    space = np.geomspace if is_log else np.linspace
    return space(low, high, NUM_BINS + 1), is_log


def _find_bins(
    values: NDArray[np.float64], edges: NDArray[np.float64], is_log: bool
) -> NDArray[np.int64]:
    """Return the bin of each value, (n,); the first and the last bin take what is beyond."""
    low, high = edges[0], edges[-1]
    clipped = np.clip(values, low, high)
    if is_log:
        low, high, clipped = np.log(low), np.log(high), np.log(clipped)
    places = ((clipped - low) * (NUM_BINS / (high - low))).astype(np.int64)
    return np.minimum(places, NUM_BINS - 1)
