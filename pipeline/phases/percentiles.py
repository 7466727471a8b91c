"""The phase percentiles: count the scores of the documents that all other rules of select keep.

`select` finds the cuts of `keep_top` in these counts: those of classifiers, and that of the quality
score. The phase is off without one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from pipeline.config import RunConfig
from pipeline.config.phases import ScoreSelection
from pipeline.phases.annotate import Annotate
from pipeline.phases.dedup.fuzzy_dedup import FuzzyDedup
from pipeline.phases.filter_phase import FILTERS, FilterPhase
from pipeline.phases.phase import TaskCost
from pipeline.phases.signal_percentiles import SignalPercentiles
from pipeline.runs.phase_folder import PendingOutput
from pipeline.runs.split_output import SplitWriter
from stages.counters import Counters
from stages.filters import classifiers, score


class Percentiles(FilterPhase):
    """Count the scores of the documents that all rules but `keep_top` keep."""

    name = "percentiles"
    section = "select"
    unused_settings = frozenset({"mix"})
    version = 1
    parents = (Annotate, FuzzyDedup, SignalPercentiles)
    cost = TaskCost(grows_with="scored")

    @classmethod
    def is_enabled(cls, config: RunConfig) -> bool:
        """Return whether a classifier, or the quality score, has `keep_top`."""
        return bool(list_shares(config)) or has_score_share(config)

    @classmethod
    def was_off(cls, recorded: Mapping[str, Any]) -> bool:
        """Return whether nothing had `keep_top` in a run with this stored config."""
        section = recorded.get(cls.section) or {}
        limits = [*(section.get("classifiers") or {}).values(), section.get("score")]
        return all((limit or {}).get("keep_top") is None for limit in limits)

    @classmethod
    def fingerprint_inputs(cls, config: RunConfig, num_files: int) -> dict[str, Any]:
        """Return the versions of the filters."""
        del config, num_files
        return {"filters": [[stage.name, stage.version] for stage in FILTERS]}

    def count_scores(self) -> Counters:
        """Return no scores: this phase counts them, without any cut."""
        return Counters()

    def create_writer(self, task_id: str, output: PendingOutput) -> SplitWriter:
        """Return the writer that counts the scores. The task has no files."""
        return _Counter(output, task_id, self.config)


def list_shares(config: RunConfig) -> dict[str, ScoreSelection]:
    """Return the limits of the classifiers that have `keep_top`, by name."""
    selection = config.select.classifiers
    limits = selection.limits if selection else {}
    return {name: limit for name, limit in limits.items() if limit.keep_top is not None}


def has_score_share(config: RunConfig) -> bool:
    """Return whether the quality score has `keep_top`."""
    return config.select.score is not None and config.select.score.keep_top is not None


def count_scores(counters: Counters, config: RunConfig, documents: pa.Table) -> None:
    """Count the scores that have `keep_top`, by language."""
    for name in list_shares(config):
        classifiers.count_scores(counters, name, documents)
    if has_score_share(config):
        score.count_scores(counters, documents)


class _Counter(SplitWriter):
    """Counts the scores of documents by language."""

    def __init__(self, output: PendingOutput, task_id: str, config: RunConfig) -> None:
        super().__init__(output, task_id)
        self._config = config

    def add_dropped(self, batch: pa.Table, dropped: pa.Table) -> None:
        """Count the documents. `select` writes the decisions on them."""
        del batch
        self.counters.add("documents", dropped.num_rows)

    def write_kept(self, batch: pa.Table) -> None:
        count_scores(self.counters, self._config, batch)

    def close(self) -> None:
        """Write no file."""
