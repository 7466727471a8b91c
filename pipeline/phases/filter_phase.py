"""What the phases percentiles and select have in common: they apply filters to the stored scores."""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Generator
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from pipeline.config import RunConfig
from pipeline.config.phases import ClassifiersSelection
from pipeline.errors import TaskFailed
from pipeline.models import registry as model_registry
from pipeline.phases.annotate import Annotate
from pipeline.phases.cuts import (
    Cutoffs,
    compute_cutoffs,
    compute_min_scores,
    has_language_scores,
    make_score_settings,
    set_cuts,
    set_min_scores,
)
from pipeline.phases.dedup.fuzzy_dedup import FuzzyDedup
from pipeline.phases.phase import SplitPhase
from pipeline.phases.signal_percentiles import SignalPercentiles
from pipeline.planning.stage_spec import StageSpec
from pipeline.runs.split_output import DECISIONS, SplitWriter, read_row_groups
from stages.counters import Counters
from stages.dedup.minhash import MinHashFilter
from stages.filters import perplexity
from stages.filters.classifiers import ClassifiersFilter
from stages.filters.decontamination import DecontaminationFilter
from stages.filters.language import LanguageFilter
from stages.filters.perplexity import PerplexityFilter, PerplexityFilterSettings
from stages.filters.quality import QualityFilter
from stages.filters.score import Score
from stages.settings.filters import ClassifiersFilterSettings
from stages.settings.score import ScoreSettings

REPRESENTATIVE = DECISIONS.field("representative")

# Large columns that no filter needs.
NOT_READ = ("text", "kept_lines", "lines_removed")


# The filters of select in their order, which decides the reason of a drop. Classifiers and the
# quality score are last, because their `keep_top` is a share of what the others keep.
FILTERS = (
    LanguageFilter,
    PerplexityFilter,
    QualityFilter,
    DecontaminationFilter,
    MinHashFilter,
    ClassifiersFilter,
    Score,
)


class FilterPhase(SplitPhase):
    """A phase that reads the stored scores and applies the filters of select to them."""

    section = "select"

    depends_on_all_splits = True  # through the percentiles of the run

    reads = (Annotate.documents,)  # without the texts: the cost estimate is an upper bound

    @classmethod
    def plan_stages(cls, config: RunConfig) -> tuple[StageSpec, ...]:
        """Return the filters without what comes from the run itself.

        These are the filter by perplexity, because of its cutoffs, the cuts of classifiers, the
        percentiles and cuts of the quality score, and limits of the language score.
        """
        specs: list[StageSpec] = []
        for spec in super().plan_stages(config):
            if spec.stage is ClassifiersFilter:
                assert config.select.classifiers is not None
                settings = set_cuts(config.select.classifiers, Counters())
                specs.append(replace(spec, settings=settings))
            elif spec.stage is Score:
                score_settings = make_score_settings(config, Counters(), Counters())
                specs.append(replace(spec, settings=score_settings))
            elif spec.stage is LanguageFilter:
                assert config.select.language is not None
                limits = set_min_scores(config.select.language, {})
                specs.append(replace(spec, settings=limits))
            elif spec.stage is not PerplexityFilter:
                specs.append(spec)
        return tuple(specs)

    @classmethod
    def list_model_references(cls, config: RunConfig) -> list[str]:
        """Return the models of the phase, and the files with its perplexity cutoffs."""
        references = super().list_model_references(config)
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
        """Return the filters of select, with the limits that come from the run.

        The perplexity filter is behind the language filter.
        """
        planned = self.plan.phase(self.section).stages
        specs = [self._set_cuts(spec) for spec in planned if spec.stage in FILTERS]
        if self.config.select.perplexity is None or self.config.annotate.perplexity is None:
            return tuple(specs)
        index = 1 if self.config.select.language is not None else 0
        specs.insert(index, StageSpec(PerplexityFilter, self.perplexity_settings))
        return tuple(specs)

    def _set_cuts(self, spec: StageSpec) -> StageSpec:
        if spec.stage is ClassifiersFilter:
            return replace(spec, settings=self.classifiers_settings)
        if spec.stage is Score:
            return replace(spec, settings=self.score_settings)
        if spec.stage is LanguageFilter:
            assert self.config.select.language is not None
            limits = set_min_scores(self.config.select.language, self.min_scores)
            return replace(spec, settings=limits)
        return spec

    @cached_property
    def min_scores(self) -> dict[str, float]:
        """Language -> lowest language score, for the limits that come from the run.

        Raises:
            TaskFailed: the run has not counted the scores.
        """
        selection = self.config.select.language
        if selection is None or not selection.uses_run:
            return {}
        counters = Annotate(self.plan).counters()
        if not has_language_scores(counters):
            raise TaskFailed(
                "select.language.min_score is run, and annotate has counted no language scores: "
                "an older version has run it; run it again, or set a number"
            )
        return compute_min_scores(selection, counters)

    @abstractmethod
    def count_scores(self) -> Counters:
        """Return the scores that the cuts of `keep_top` come from, as histograms."""

    @cached_property
    def score_settings(self) -> ScoreSettings:
        """The signals of the quality score with their percentiles, and its limits."""
        return make_score_settings(
            self.config, SignalPercentiles(self.plan).counters(), self.count_scores()
        )

    @cached_property
    def classifiers_settings(self) -> ClassifiersFilterSettings:
        """The limits of classifiers, with the cuts of `keep_top`."""
        selection = self.config.select.classifiers or ClassifiersSelection()
        return set_cuts(selection, self.count_scores())

    @cached_property
    def perplexity_settings(self) -> PerplexityFilterSettings:
        """The cutoffs of the buckets, and the buckets that are kept."""
        settings = self.config.select.perplexity
        assert settings is not None
        try:
            cutoffs = self._find_cutoffs(settings.cutoffs, settings.percentiles)
            return PerplexityFilterSettings(cutoffs=cutoffs, keep=settings.keep)
        except ValueError as error:
            raise TaskFailed(
                f"select.perplexity.cutoffs is {settings.cutoffs!r}: {error}"
            ) from error

    def find_cutoffs(self) -> Cutoffs:
        """Return the cutoffs of each language; none if no document is judged by its perplexity."""
        stages = [spec.stage for spec in self.stage_specs()]
        return self.perplexity_settings.cutoffs if PerplexityFilter in stages else {}

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
            return compute_cutoffs(Annotate(self.plan).counters(), percentiles)
        return perplexity.read_cutoffs_csv(Path(source), percentiles)

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
