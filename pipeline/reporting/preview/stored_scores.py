"""Apply `select` to stored scores in memory, in less than a second for a million documents.

    phase = SelectInMemory(change_plan(load_plan(run), config), documents)
    dropped = phase.decide_all()            # doc_id, reason, value, limit, detail

`preview` runs the tasks of the phase on the files of the run. This is the same phase with the same
stages on a table that a program holds already.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

import pyarrow as pa

from pipeline.config import RunConfig
from pipeline.phases.filter_phase import FilterPhase
from pipeline.phases.mixing.settings import list_topics
from pipeline.phases.percentiles import Percentiles, count_scores
from pipeline.phases.select import Select
from pipeline.planning.run_plan import RunPlan
from pipeline.planning.stage_spec import StageSpec
from stages.contract import DROPPED
from stages.counters import Counters
from stages.filters.classifiers import ClassifiersFilter
from stages.filters.score import Score
from stages.mixing.mix import Mix, count_groups
from stages.settings.filters import PerplexityFilterSettings


class SelectInMemory(Select):
    """The phase select, whose limits come from the scores of a table."""

    def __init__(self, plan: RunPlan, documents: pa.Table) -> None:
        """Prepare the phase.

        Args:
            plan: with the thresholds.
            documents: all documents that annotate has stored, with the columns that the filters
                need.
        """
        super().__init__(plan)
        self._documents = documents
        self._percentiles = Percentiles(plan)

    @property
    def perplexity_settings(self) -> PerplexityFilterSettings:  # type: ignore[override]
        """The cutoffs of the buckets, which both phases find in the counters of annotate."""
        return self._percentiles.perplexity_settings

    def count_scores(self) -> Counters:
        """Return the scores that the cuts of `keep_top` come from, as percentiles counts them."""
        counters = Counters()
        if Percentiles.is_enabled(self.config):
            specs = [spec for spec in self._percentiles.stage_specs() if _is_last(spec)]
            kept, _ = _apply(specs, self._filtered[0])
            count_scores(counters, self.config, kept)
        return counters

    def count_mix(self) -> Counters:
        """Return the scores that `mix` takes its percentiles from, as mix_percentiles counts them.

        The tokens of a sample are those that the run has counted.
        """
        mix = self.config.select.mix
        assert mix is not None
        counters = Counters(super().count_mix().counts) if mix.budget else Counters()
        specs = [spec for spec in FilterPhase.stage_specs(self) if _is_last(spec)]
        kept, _ = _apply(specs, self._filtered[0])
        count_groups(counters, mix.by, list_topics(self.config), kept)
        return counters

    @cached_property
    def _filtered(self) -> tuple[pa.Table, pa.Table]:
        """The documents that the filters without `keep_top` keep, and those that they drop."""
        specs = self._percentiles.stage_specs()
        needed = {"doc_id", "language", "num_chars"}
        for spec in (*specs, *self.plan.phase(Select.name).stages):
            needed.update(spec.stage.required_columns(spec.settings).names)
        columns = [name for name in self._documents.column_names if name in needed]
        others = [spec for spec in specs if not _is_last(spec)]
        return _apply(others, self._documents.select(columns))

    def decide_all(self) -> pa.Table:
        """Return the documents that the filters drop, with their reasons, as DROPPED."""
        kept, dropped = self._filtered
        specs = [spec for spec in self.stage_specs() if _is_last(spec)]
        return pa.concat_tables([dropped, _apply(specs, kept)[1]])

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


def _is_last(spec: StageSpec) -> bool:
    """Return whether the limits of a filter come from what the other filters keep."""
    return spec.stage in (ClassifiersFilter, Score, Mix)


def _apply(specs: Sequence[StageSpec], documents: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the documents that all filters keep, and those that they drop, as DROPPED."""
    dropped = [DROPPED.empty_table()]
    for spec in specs:
        outcome = spec.opened().apply(documents)
        documents = outcome.kept
        dropped.append(outcome.dropped)
    return documents, pa.concat_tables(dropped)
