"""What select and the phases that count its histograms have in common: they filter the stored scores."""

from __future__ import annotations

from collections.abc import Generator
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.errors import TaskFailed
from pipeline.phases.annotate import Annotate
from pipeline.phases.dedup.fuzzy_dedup import FuzzyDedup
from pipeline.phases.phase import SplitPhase
from pipeline.phases.stage_spec import StageSpec
from pipeline.runs.split_output import DECISIONS, SplitWriter, read_row_groups
from stages.contract import Stage
from stages.counters import Counters
from stages.dedup.minhash import MinHashFilter
from stages.filters.classifiers import ClassifiersFilter
from stages.filters.decontamination import DecontaminationFilter
from stages.filters.language import LanguageFilter
from stages.filters.perplexity import PerplexityFilter
from stages.filters.quality import QualityFilter
from stages.filters.score import Score
from stages.mixing.mix import Mix

REPRESENTATIVE = DECISIONS.field("representative")

# Large columns that no filter needs.
NOT_READ = ("text", "kept_lines", "lines_removed")

# The filters of select in their order, which decides the reason of a drop. Classifiers and the
# quality score are behind the others, because their `keep_top` is a share of what the others keep.
FILTERS = (
    LanguageFilter,
    PerplexityFilter,
    QualityFilter,
    DecontaminationFilter,
    MinHashFilter,
    ClassifiersFilter,
    Score,
    Mix,
)


class FilterPhase(SplitPhase):
    """A phase that applies filters of select to the stored scores.

    The limits that come from the run are those of the histograms that the parents have counted.
    """

    section = "select"

    depends_on_all_splits = True  # through the histograms of the run

    @cached_property
    def schema(self) -> pa.Schema:  # type: ignore[override]
        """The stored columns without the large ones, and for near-duplicates the document that is kept."""
        stored = Annotate(self.plan).stored
        return pa.schema([*(f for f in stored if f.name not in NOT_READ), REPRESENTATIVE])

    @cached_property
    def run_counters(self) -> Counters:
        """The sum of the parents' counters. Tasks get it with the phase."""
        parents = self.enabled_parents(self.config)
        return Counters.sum(parent(self.plan).counters() for parent in parents)

    def stage_specs(self) -> tuple[StageSpec, ...]:
        """Return the filters with the counters that their limits come from."""
        return tuple(
            StageSpec(spec.stage, spec.settings, self.run_counters)
            for spec in super().stage_specs()
        )

    def prepare_tasks(self) -> None:
        """Check the columns, and compute the limits once. Raises also what `open_filters` raises."""
        super().prepare_tasks()
        self.open_filters()

    def open_filters(self) -> list[Stage[Any]]:
        """Return the filters with their limits. Call it when the parents are complete.

        Raises:
            TaskFailed: the run, or the file of a limit, has not what the limit is computed from.
        """
        filters: list[Stage[Any]] = []
        for spec in self.stage_specs():
            try:
                filters.append(spec.opened(self.model_digests))
            except ValueError as error:
                raise TaskFailed(f"{self.section}.{spec.stage.name}: {error}") from error
        return filters

    def read(self, task_id: str, writer: SplitWriter) -> Generator[pa.Table]:
        """Yield the stored scores, with the findings of fuzzy_dedup."""
        del writer
        found = FuzzyDedup(self.plan).find_near_duplicates(self.split(task_id))
        names = [name for name in self.schema.names if name != REPRESENTATIVE.name]
        documents = self.plan.folder(Annotate.name).open(
            Annotate.documents.file_name(task_id)
        )
        record_mask = pa.scalar(0xFFFF_FFFF, pa.uint64())
        for batch in read_row_groups(
            documents, names, self.config.engine.advanced.batch_mb
        ):
            records = pc.bit_wise_and(batch.column("doc_id"), record_mask).cast(pa.uint32())
            rows = pc.index_in(records, value_set=found["record"]).combine_chunks()
            yield batch.append_column(REPRESENTATIVE, found["representative"].take(rows))
