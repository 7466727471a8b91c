"""select: thresholds over stored scores; each document gets its fate.

Promises: one fate per document that annotate stored, "kept" or the first rule that it failed, in the ledger.
Leaves to others: the rules themselves (the filters in stages/), which documents are near-duplicates of which.
"""

from __future__ import annotations

import json
from collections.abc import Generator
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
from pipeline.phases.split_output import DECISIONS, SplitWriter, make_decisions, row_groups
from pipeline.planning.stage_spec import StageSpec
from pipeline.runs.phase_folder import PendingOutput
from stages.dedup.minhash import MinHashFilter
from stages.filters import perplexity
from stages.filters.classifiers import ClassifiersFilter
from stages.filters.decontamination import DecontaminationFilter
from stages.filters.language import LanguageFilter
from stages.filters.perplexity import PerplexityFilter, PerplexityFilterSettings
from stages.filters.quality import QualityFilter

REPRESENTATIVE = DECISIONS.field("representative")


class Select(SplitPhase):
    """Thresholds over stored scores: each document gets its fate."""

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
        """All that annotate stored, but for what is large, and who stands in for a near-duplicate."""
        small = [
            f
            for f in Annotate(self.plan).stored
            if f.name not in ("text", "kept_lines", "lines_removed")
        ]
        return pa.schema([*small, REPRESENTATIVE])

    def stage_specs(self) -> tuple[StageSpec, ...]:
        """The plan's filters, with the perplexity filter in its place, after the language filter."""
        filters = self.plan.phase(self.name).stages
        if self.config.select.perplexity is None or self.config.annotate.perplexity is None:
            return filters
        at = 1 if self.config.select.language is not None else 0
        return (*filters[:at], StageSpec(PerplexityFilter, self._buckets), *filters[at:])

    @cached_property
    def _buckets(self) -> PerplexityFilterSettings:
        wanted = self.config.select.perplexity
        assert wanted is not None
        try:
            cutoffs = {
                "model": self._cutoffs_of_models,
                "run": self._cutoffs_of_run,
            }.get(
                wanted.cutoffs,
                lambda _: perplexity.read_cutoffs_csv(Path(wanted.cutoffs), wanted.percentiles),
            )(wanted.percentiles)
            return PerplexityFilterSettings(cutoffs=cutoffs, keep=wanted.keep)
        except ValueError as error:
            raise TaskFailed(f"select.perplexity.cutoffs is {wanted.cutoffs!r}: {error}") from error

    def _cutoffs_of_models(self, percentiles: tuple[int, int]) -> dict[str, tuple[float, float]]:
        assert self.config.annotate.perplexity is not None
        return {
            language: _recorded_cutoffs(model_registry.resolve(reference), percentiles)
            for language, reference in self.config.annotate.perplexity.models.items()
        }

    def _cutoffs_of_run(self, percentiles: tuple[int, int]) -> dict[str, tuple[float, float]]:
        histograms = Annotate(self.plan).counters().histograms
        head, middle = percentiles
        return {
            name.removeprefix("perplexity."): (
                perplexity.percentile(bins, head),
                perplexity.percentile(bins, middle),
            )
            for name, bins in sorted(histograms.items())
            if name.startswith("perplexity.")
        }

    def read(self, task_id: str, writer: SplitWriter) -> Generator[pa.Table]:
        """Yield the stored scores, with the findings of fuzzy_dedup."""
        del writer
        found = FuzzyDedup(self.plan).find_near_duplicates(self.split(task_id))
        names = [name for name in self.schema.names if name != REPRESENTATIVE.name]
        documents = self.plan.folder("annotate").open(Annotate.documents.file_name(task_id))
        for table in row_groups(documents, names, self.config.engine.advanced.batch_mb):
            records = pc.cast(
                pc.bit_wise_and(table.column("doc_id"), pa.scalar(0xFFFF_FFFF, pa.uint64())),
                pa.uint32(),
            )
            place = pc.index_in(records, value_set=found["record"])
            yield table.append_column(
                REPRESENTATIVE, found["representative"].take(place.combine_chunks())
            )

    def create_writer(self, task_id: str, output: PendingOutput) -> SplitWriter:
        """Return the writer of the decision on every document that reached this phase."""
        return _SelectWriter(output, task_id)


def _recorded_cutoffs(folder: Path, percentiles: tuple[int, int]) -> tuple[float, float]:
    """The cutoffs that were measured when the model was trained.

    Raises:
        UnitFailed: the model has no record, or not of these percentiles.
    """
    try:
        measured = json.loads((folder / "record.json").read_text(encoding="utf-8"))["cutoffs"]
        head, middle = (float(measured[str(percentile)]) for percentile in percentiles)
    except (FileNotFoundError, KeyError) as error:
        raise TaskFailed(
            f"{folder} records no cutoffs for percentiles {percentiles}: {error!r}; set select.perplexity.cutoffs to "
            f"run, or to the path of a cutoff.csv (CCNet publishes one beside its models)"
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
