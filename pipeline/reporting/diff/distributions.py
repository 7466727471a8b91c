"""Scores and domains of the documents that two runs have kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pipeline.reporting.browse.domains import count_domains
from pipeline.reporting.browse.histograms import (
    NUM_BINS,
    count_bins,
    find_edges,
    pick_languages,
)
from pipeline.reporting.browse.index import Index, build_index, get_sampling_step
from pipeline.reporting.diff.pairing import Pairing
from pipeline.reporting.explain.trace import KEPT
from pipeline.runs.run_folder import RunFolder, RunSplit

# Documents that are read of each run: of larger runs, every n-th input split, the same in both.
MAX_DOCS = 2**20

# Languages with a histogram of their own: those with most documents.
MAX_LANGUAGES = 6

NUM_DOMAINS = 25


@dataclass(frozen=True)
class ScoreChange:
    """A stored score of the documents that each run has kept.

    Attributes:
        medians: before and after; None: no kept document has the score.
        moved_share: the share of documents that would have to move to another bin to make the
            histograms equal, 0..1 (total variation distance).
        edges: of the bins.
        histograms: in all languages together (None) and in the largest ones: `language`,
            `num_docs` after, and the counts `before` and `after` by bin.
    """

    score: str
    medians: tuple[float | None, float | None]
    moved_share: float
    edges: Sequence[float]
    is_log: bool
    histograms: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class DomainChange:
    """The documents of a domain: read and kept, before and after."""

    name: str
    read: tuple[int, int]
    kept: tuple[int, int]


@dataclass(frozen=True)
class Distributions:
    """Scores and domains of two runs.

    Attributes:
        num_docs: documents that were read of each run, for these figures only.
        scores: that both runs store; those that moved most first.
        domains: those with the largest change of kept documents.
        num_domains: all domains with a change.
    """

    num_docs: tuple[int, int]
    scores: tuple[ScoreChange, ...]
    domains: tuple[DomainChange, ...]
    num_domains: int


def compare_distributions(
    before: RunFolder, after: RunFolder, pairing: Pairing
) -> Distributions:
    """Compare scores and domains of the kept documents, in a sample of the input splits."""
    splits_before, splits_after = _sample(before, after, pairing)
    with (
        build_index(before, splits_before) as index_before,
        build_index(after, splits_after) as index_after,
    ):
        both = (index_before, index_after)
        names = [name for name in both[1].score_names if name in both[0].score_names]
        scores = [_compare_score(both, name) for name in names]
        domains = _compare_domains(both)
        return Distributions(
            num_docs=(both[0].num_docs, both[1].num_docs),
            scores=tuple(sorted(scores, key=lambda one: (-one.moved_share, one.score))),
            domains=tuple(domains[:NUM_DOMAINS]),
            num_domains=len(domains),
        )


def _sample(
    before: RunFolder, after: RunFolder, pairing: Pairing
) -> tuple[list[RunSplit], list[RunSplit]]:
    """Return input splits of both runs; those of the same files are in both or in none."""
    step = max(get_sampling_step(run, MAX_DOCS) for run in (before, after))
    same = pairing.same[::step]
    chosen = (
        {pair[0] for pair in same} | set(pairing.only_before[::step]),
        {pair[1] for pair in same} | set(pairing.only_after[::step]),
    )
    return (
        [split for split in before.splits if split in chosen[0]],
        [split for split in after.splits if split in chosen[1]],
    )


def _compare_score(both: Sequence[Index], score: str) -> ScoreChange:
    kept = [index.is_named("decision", KEPT)[: index.num_scored] for index in both]
    values = [
        index.read_numbers(score)[: index.num_scored].astype(np.float64)[is_kept]
        for index, is_kept in zip(both, kept, strict=True)
    ]
    edges, is_log = find_edges(np.concatenate(values))
    counts = [
        count_bins(index, score, edges, is_log, is_kept.astype(np.int64), 2)
        for index, is_kept in zip(both, kept, strict=True)
    ]
    empty = np.zeros((NUM_BINS, 2), np.int64)
    by_language: dict[str, NDArray[np.int64]] = {}
    for name in dict.fromkeys([*counts[1], *counts[0]]):
        sides = [numbers.get(name, empty)[:, 1] for numbers in counts]
        by_language[name] = np.stack(sides, axis=1)
    moved = 0.0
    histograms: list[dict[str, Any]] = []
    for language, numbers in pick_languages(by_language, MAX_LANGUAGES):
        if language is None:
            shares = numbers / np.maximum(1, numbers.sum(axis=0))
            moved = float(np.abs(shares[:, 0] - shares[:, 1]).sum() / 2)
        before, after = numbers.T.tolist()
        both_sides = {"before": before, "after": after, "lines": []}
        histograms.append({"language": language, "num_docs": sum(after), **both_sides})
    medians = (_find_median(values[0]), _find_median(values[1]))
    return ScoreChange(score, medians, moved, edges.tolist(), is_log, histograms)


def _find_median(values: NDArray[np.float64]) -> float | None:
    valid = values[~np.isnan(values)]
    return float(np.median(valid)) if len(valid) else None


def _compare_domains(both: Sequence[Index]) -> list[DomainChange]:
    """Return the domains with another number of kept documents, the largest changes first."""
    numbers: dict[str, list[tuple[int, int]]] = {}
    for place, index in enumerate(both):
        names, num_docs, num_kept = count_domains(index)
        counts = zip(num_docs.tolist(), num_kept.tolist(), strict=True)
        for name, pair in zip(names, counts, strict=True):
            numbers.setdefault(name, [(0, 0), (0, 0)])[place] = pair
    changes: list[DomainChange] = []
    for name, (old, new) in numbers.items():
        if old[1] != new[1]:
            changes.append(DomainChange(name, (old[0], new[0]), (old[1], new[1])))
    changes.sort(key=lambda one: (-abs(one.kept[1] - one.kept[0]), one.name))
    return changes
