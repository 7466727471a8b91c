"""The documents behind the numbers of a report: scores, domains, samples and clusters.

The page of `browse` answers the same questions with the same code.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow.compute as pc

from pipeline.errors import TaskFailed
from pipeline.phases.select import Select
from pipeline.planning.recorded_plan import load_plan
from pipeline.reporting.browse.domains import list_domains
from pipeline.reporting.browse.histograms import Decided, describe_histograms
from pipeline.reporting.browse.index import Index, build_index, sample_splits
from pipeline.reporting.browse.limits import list_limits
from pipeline.reporting.browse.search import (
    Order,
    count_names,
    describe_rows,
    list_page,
)
from pipeline.reporting.browse.texts import describe_documents
from pipeline.reporting.explain.find import describe_other
from pipeline.reporting.explain.trace import KEPT
from pipeline.runs.run_folder import RunFolder

log = logging.getLogger(__name__)

# Documents that are read: of a larger run, every n-th input split. A million take 6 seconds.
MAX_DOCS = 2**20

NUM_DOMAINS = 25
NUM_DECISIONS = 25
NUM_SAMPLES = 3
NUM_CLUSTERS = 10
NUM_MEMBERS = 3

# Of the choice of samples.
SEED = 0


@dataclass(frozen=True)
class Cluster:
    """Documents that are equal or near-duplicates, of which one is kept.

    Attributes:
        url, decision: of the representative, which was preferred to the others.
        members: URLs of some of the others.
    """

    url: str
    decision: str
    num_docs: int
    members: tuple[str, ...]


@dataclass(frozen=True)
class Details:
    """The documents behind the numbers of a report.

    Attributes:
        num_docs: documents that were read; 0: select is not done yet.
        num_splits: input splits that were read.
        num_all_splits: input splits of the run.
        histograms: of each stored score (`describe_histograms`); those with a limit first.
        limited: the scores that have a limit.
        domains: those with most documents (`list_domains`).
        num_domains: all domains.
        samples: decision -> random documents with it, the most frequent decisions first.
        clusters: the largest ones first.
    """

    num_docs: int = 0
    num_splits: int = 0
    num_all_splits: int = 0
    histograms: Sequence[Mapping[str, Any]] = ()
    limited: frozenset[str] = frozenset()
    domains: Sequence[Mapping[str, Any]] = ()
    num_domains: int = 0
    samples: Mapping[str, Sequence[Mapping[str, Any]]] = field(
        default_factory=dict[str, Sequence[Mapping[str, Any]]]
    )
    clusters: Sequence[Cluster] = ()


def read_details(run: RunFolder) -> Details:
    """Read the details of a run. They are empty before `select` is complete.

    A file that cannot be read leaves the details empty, with a warning: the numbers of the report
    do not depend on it.
    """
    if not run.has_finished(Select.name):
        return Details()
    try:
        with build_index(run, sample_splits(run, MAX_DOCS)) as index:
            return _describe(index)
    except (OSError, TaskFailed) as error:
        log.warning("the report has no scores, domains and samples: %s", error)
        return Details()


def _describe(index: Index) -> Details:
    domains = list_domains(index, "", "num_docs", 0, NUM_DOMAINS)
    limits = list_limits(index.run.config, index.score_names)
    limited = frozenset(limit.score for limit in limits)
    return Details(
        num_docs=index.num_docs,
        num_splits=index.num_splits,
        num_all_splits=len(index.run.splits),
        histograms=_list_histograms(index, limited),
        limited=limited,
        domains=domains["domains"],
        num_domains=domains["num_domains"],
        samples=_draw_samples(index),
        clusters=_list_clusters(index),
    )


def _list_histograms(index: Index, limited: frozenset[str]) -> list[Mapping[str, Any]]:
    is_kept = index.is_named("decision", KEPT)[: index.num_scored]
    decided = Decided(Select(load_plan(index.run)).open_filters(), is_kept)
    names = sorted(index.score_names, key=lambda name: name not in limited)
    return [describe_histograms(index, name, decided, decided) for name in names]


def _draw_samples(index: Index) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Return random documents with each decision. The same run gives the same ones."""
    decisions = list(count_names(index, "decision", np.ones(index.num_docs, np.bool_)))
    samples: dict[str, Sequence[Mapping[str, Any]]] = {}
    for decision in decisions[:NUM_DECISIONS]:
        found = index.is_named("decision", decision)
        rows = list_page(index, found, Order("random", SEED), 0, NUM_SAMPLES)
        samples[decision] = describe_documents(index, rows)
    return samples


def _list_clusters(index: Index) -> list[Cluster]:
    """Return the representatives that stand for most documents, with some of these."""
    counts = pc.value_counts(index.documents.column("representative").drop_null())
    pairs = zip(*(counts.field(i).to_pylist() for i in (0, 1)), strict=True)
    largest = sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:NUM_CLUSTERS]
    clusters: list[Cluster] = []
    for representative, num_others in largest:
        other = describe_other(index.run, representative)
        rows = index.find_represented(representative)[:NUM_MEMBERS]
        members = tuple(row["url"] for row in describe_rows(index, rows))
        clusters.append(
            Cluster(other.url or "", other.decision or "", num_others + 1, members)
        )
    return clusters
