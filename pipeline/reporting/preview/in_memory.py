"""Apply `select` to stored scores in memory, in less than a second for a million documents.

    phase = SelectInMemory(change_plan(load_plan(run), config), documents)
    kept, dropped = phase.decide_all()      # dropped: doc_id, reason, value, limit, detail

This is the phase with the same stages, on a table that a program holds already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
import pyarrow as pa

from pipeline.config import RunConfig
from pipeline.phases.annotate import Annotate
from pipeline.phases.histograms import HistogramPhase, Percentiles, SignalPercentiles
from pipeline.phases.mix_percentiles import SAMPLE_DOCUMENTS, MixPercentiles
from pipeline.phases.run_plan import RunPlan
from pipeline.phases.select import Select
from pipeline.phases.stage_spec import StageSpec
from stages.contract import DROPPED
from stages.counters import Counters
from stages.mixing.mix import Mix


class SelectInMemory(Select):
    """The phase select, whose limits come from the scores of a table."""

    def __init__(
        self, plan: RunPlan, documents: pa.Table, *, counts_all: bool = False
    ) -> None:
        """Prepare the phase.

        Args:
            plan: with the thresholds.
            documents: all documents that annotate has stored, with the columns that the filters
                need.
            counts_all: count also what the weights of `select.score` and the budget of
                `select.mix` need. Otherwise, what the run has counted for its own is used.
        """
        super().__init__(plan)
        self._documents = documents
        self._counts_all = counts_all

    @cached_property
    def run_counters(self) -> Counters:  # type: ignore[override]
        """The counters of annotate and the signals, and what the other phases count, from the table."""
        counters = self._stored_counters
        if MixPercentiles.is_enabled(self.config) and not self._counts_all:
            # The tokens of a sample are those that the run has counted.
            counters = counters + Counters(MixPercentiles(self.plan).counters().counts)
        for phase in (Percentiles, MixPercentiles):
            if phase.is_enabled(self.config):
                counters = counters + self._count(phase, counters)
        return counters

    @cached_property
    def _stored_counters(self) -> Counters:
        counters = Annotate(self.plan).counters()
        if SignalPercentiles.is_enabled(self.config):
            if self._counts_all:
                for histogram in SignalPercentiles.list_histograms(self.config):
                    histogram.count(counters, self._documents)
            else:
                counters = counters + SignalPercentiles(self.plan).counters()
        return counters

    def _count(self, phase: type[HistogramPhase], counters: Counters) -> Counters:
        """Return what a phase counts after it has filtered by limits from these counters."""
        specs = [spec for spec in self._specs(counters) if spec.stage is not Mix]
        kept, _ = _apply(specs[self._num_first :], self._filtered[0])
        counted = Counters()
        for histogram in phase.list_histograms(self.config):
            histogram.count(counted, kept)
        if phase is MixPercentiles and self._counts_all:
            counted = counted + self._count_tokens(kept)
        return counted

    def _count_tokens(self, kept: pa.Table) -> Counters:
        """Return the tokens of the sample that the phase tokenizes for a budget."""
        phase = MixPercentiles(self.plan)
        splits = kept.column("doc_id").to_numpy() >> np.uint64(32)
        counters = Counters()
        for split in self.plan.splits:
            if phase.is_sampled(split.key):
                first, stop = np.searchsorted(splits, [split.index, split.index + 1])
                documents = kept.slice(first, min(stop - first, SAMPLE_DOCUMENTS))
                counters = counters + phase.count_tokens(split.key, documents)
        return counters

    def _specs(self, counters: Counters) -> list[StageSpec]:
        planned = self.plan.phase(Select.name).stages
        return [StageSpec(spec.stage, spec.settings, counters) for spec in planned]

    @cached_property
    def _num_first(self) -> int:
        """The number of filters before the first one whose limits come from what others keep."""
        planned = self.plan.phase(Select.name).stages
        for number, spec in enumerate(planned):
            if any(each.of != "scored" for each in spec.stage.histograms(spec.settings)):
                return number
        return len(planned)

    @cached_property
    def _filtered(self) -> tuple[pa.Table, pa.Table]:
        """The documents that these first filters keep, and those that they drop."""
        specs = self._specs(self._stored_counters)
        needed = {"doc_id", "language", "num_chars"}
        for spec in specs:
            needed.update(spec.stage.required_columns(spec.settings).names)
        columns = [name for name in self._documents.column_names if name in needed]
        return _apply(specs[: self._num_first], self._documents.select(columns))

    def decide_all(self) -> tuple[pa.Table, pa.Table]:
        """Return the documents that the filters keep, and those that they drop, as DROPPED."""
        kept, dropped = self._filtered
        kept, others = _apply(self.stage_specs()[self._num_first :], kept)
        return kept, pa.concat_tables([dropped, others])

    def decide(self, documents: pa.Table) -> pa.Table:
        """Return those of some documents that the filters drop, as DROPPED."""
        return _apply(self.stage_specs(), documents)[1]


def change_plan(plan: RunPlan, config: RunConfig) -> RunPlan:
    """Return a plan with other thresholds of select.

    `load_plan` does the same, and looks at the models as well, which takes a tenth of a second.
    """
    stored = {"run_dir": plan.config.run_dir, "storage": plan.config.storage}
    config = config.model_copy(update=stored)
    phases = [
        replace(phase, stages=Select.plan_stages(config))
        if phase.name == Select.name
        else phase
        for phase in plan.phases
    ]
    return replace(plan, config=config, phases=tuple(phases))


def _apply(specs: Sequence[StageSpec], documents: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the documents that all filters keep, and those that they drop, as DROPPED."""
    dropped = [DROPPED.empty_table()]
    for spec in specs:
        outcome = spec.opened().apply(documents)
        documents = outcome.kept
        dropped.append(outcome.dropped)
    return documents, pa.concat_tables(dropped)
