"""The phase select: apply thresholds to the stored scores, and decide on each document.

Every document that annotate stored gets one decision: "kept", or the reason of the first filter that drops it.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import RunConfig
from pipeline.errors import TaskFailed
from pipeline.models import registry as model_registry
from pipeline.phases.annotate import Annotate
from pipeline.phases.fuzzy_dedup import FuzzyDedup
from pipeline.phases.phase import Artifact, SplitPhase, TaskCost
from pipeline.planning.stage_spec import StageSpec
from pipeline.runs.phase_folder import PendingOutput
from pipeline.runs.split_output import (
    DECISIONS,
    SplitWriter,
    make_decisions,
    read_row_groups,
)
from stages.dedup.minhash import MinHashFilter
from stages.filters import perplexity
from stages.filters.classifiers import ClassifiersFilter
from stages.filters.decontamination import DecontaminationFilter
from stages.filters.language import LanguageFilter
from stages.filters.perplexity import PerplexityFilter, PerplexityFilterSettings
from stages.filters.quality import QualityFilter

REPRESENTATIVE = DECISIONS.field("representative")

# Large columns that no filter needs.
NOT_READ = ("text", "kept_lines", "lines_removed")

# Language -> the perplexity at which head and middle end.
Cutoffs = Mapping[str, tuple[float, float]]


class Select(SplitPhase):
    """Apply thresholds to the stored scores, and decide on each document."""

    name = "select"
    version = 1
    parents = (Annotate, FuzzyDedup)
    stages = (
        LanguageFilter,
        PerplexityFilter,
        ClassifiersFilter,
        QualityFilter,
        DecontaminationFilter,
        MinHashFilter,
    )
    filters = {MinHashFilter: FuzzyDedup}
    depends_on_all_splits = True  # through the percentiles of the run

    decisions = Artifact("decisions.parquet", DECISIONS)

    reads = (Annotate.documents,)  # without the texts: the cost estimate is an upper bound
    cost = TaskCost(grows_with="scored", held_bytes=100)

    @classmethod
    def plan_stages(cls, config: RunConfig) -> tuple[StageSpec, ...]:
        """Return the filters without the one by perplexity: its cutoffs may come from the run itself."""
        specs = super().plan_stages(config)
        return tuple(spec for spec in specs if spec.stage is not PerplexityFilter)

    @classmethod
    def model_references(cls, config: RunConfig) -> list[str]:
        """Return also the files that the perplexity cutoffs come from."""
        references = super().model_references(config)
        if config.select.perplexity is None or config.select.perplexity.cutoffs == "run":
            return references
        if config.select.perplexity.cutoffs != "model":
            return [*references, config.select.perplexity.cutoffs]
        models = config.annotate.perplexity.models if config.annotate.perplexity else {}
        return [*references, *models.values()]

    @cached_property
    def schema(self) -> pa.Schema:  # type: ignore[override]
        """The stored columns without the large ones, and for near-duplicates the document that is kept."""
        stored = Annotate(self.plan).stored
        return pa.schema([*(f for f in stored if f.name not in NOT_READ), REPRESENTATIVE])

    def stage_specs(self) -> tuple[StageSpec, ...]:
        """Return the planned filters, with the perplexity filter behind the language filter."""
        filters = self.plan.phase(self.name).stages
        if self.config.select.perplexity is None or self.config.annotate.perplexity is None:
            return filters
        index = 1 if self.config.select.language is not None else 0
        spec = StageSpec(PerplexityFilter, self._perplexity_settings)
        return (*filters[:index], spec, *filters[index:])

    @cached_property
    def _perplexity_settings(self) -> PerplexityFilterSettings:
        settings = self.config.select.perplexity
        assert settings is not None
        try:
            cutoffs = self._find_cutoffs(settings.cutoffs, settings.percentiles)
            return PerplexityFilterSettings(cutoffs=cutoffs, keep=settings.keep)
        except ValueError as error:
            raise TaskFailed(
                f"select.perplexity.cutoffs is {settings.cutoffs!r}: {error}"
            ) from error

    def _find_cutoffs(self, source: str, percentiles: tuple[int, int]) -> Cutoffs:
        """Return the cutoffs of each language from the models, from this run, or from a cutoff.csv."""
        if source == "model":
            assert self.config.annotate.perplexity is not None
            models = self.config.annotate.perplexity.models
            return {
                language: _read_recorded_cutoffs(
                    model_registry.resolve(reference), percentiles
                )
                for language, reference in models.items()
            }
        if source == "run":
            return self._compute_cutoffs(percentiles)
        return perplexity.read_cutoffs_csv(Path(source), percentiles)

    def _compute_cutoffs(self, percentiles: tuple[int, int]) -> Cutoffs:
        """Return percentiles of the perplexity histograms that annotate has counted."""
        head, middle = percentiles
        cutoffs: dict[str, tuple[float, float]] = {}
        for name, bins in sorted(Annotate(self.plan).counters().histograms.items()):
            family, _, language = name.partition(".")
            if family == "perplexity":
                cutoffs[language] = (
                    perplexity.percentile(bins, head),
                    perplexity.percentile(bins, middle),
                )
        return cutoffs

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

    def create_writer(self, task_id: str, output: PendingOutput) -> SplitWriter:
        """Return the writer of the decision on every document that reached this phase."""
        return _SelectWriter(output, task_id)


def _read_recorded_cutoffs(
    folder: Path, percentiles: tuple[int, int]
) -> tuple[float, float]:
    """Return the cutoffs that were measured when a model was trained.

    Raises:
        TaskFailed: the model has no record, or none of these percentiles.
    """
    try:
        measured = json.loads((folder / "record.json").read_text(encoding="utf-8"))[
            "cutoffs"
        ]
        head, middle = (float(measured[str(percentile)]) for percentile in percentiles)
    except (FileNotFoundError, KeyError) as error:
        raise TaskFailed(
            f"{folder} records no cutoffs for percentiles {percentiles}: {error!r}; "
            f"set select.perplexity.cutoffs to run, or to the path of a cutoff.csv "
            f"(CCNet publishes one with its models)"
        ) from error
    return head, middle


class _SelectWriter(SplitWriter):
    def write_kept(self, batch: pa.Table) -> None:
        self.counters.add("chars", pc.sum(batch.column("num_chars")).as_py())
        for name in ("language", "bucket"):
            if name in batch.column_names:
                self.counters.add_values(f"{name}.", batch.column(name))
        kept = pa.repeat("kept", batch.num_rows)
        self._decisions.append(make_decisions(batch, kept, batch.column("num_chars")))
