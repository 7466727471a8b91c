"""All sections of a run's config, and the rules between sections."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from pydantic import Field, model_validator

from config_files.reader import suggest
from pipeline.config.engine import EngineConfig
from pipeline.config.input import InputConfig
from pipeline.config.phases import (
    DEFAULT_WEIGHTS,
    AnnotateConfig,
    ExactDedupConfig,
    ExtractConfig,
    FuzzyDedupConfig,
    ParagraphDedupConfig,
    SelectConfig,
    SubstringDedupConfig,
    TokenizeConfig,
    WriteShardsConfig,
)
from pipeline.config.storage import StorageConfig
from stages.settings.base import Settings, Share
from stages.settings.filters import PerplexityFilterSettings
from stages.settings.quality import ScoreSettings

# The keys of RunConfig that are not sections of phases.
NOT_PHASES = frozenset({"run_dir", "previous_runs", "input", "engine", "report", "storage"})

# Phases that have the section of another phase.
PHASES_WITHOUT_SECTION = frozenset(
    {
        "exact_hashes",
        "substring_hashes",
        "fuzzy_candidates",
        "fuzzy_ngrams",
        "fuzzy_clusters",
        "fuzzy_ranges",
        "fuzzy_merge",
        "fuzzy_members",
        "fuzzy_member_ngrams",
        "signal_percentiles",
        "percentiles",
        "mix_percentiles",
    }
)

# Filters that drop what another phase has found, by section: they are off where that phase is.
_FOUND_BY = {
    ("annotate", "exact_dedup"): "exact_dedup",
    ("annotate", "substring_dedup"): "substring_dedup",
    ("select", "minhash"): "fuzzy_dedup",
}


class ReportConfig(Settings):
    """When the report warns of a lost domain, language or input split.

    No key changes an output of a phase.
    """

    alarm_lost_share: Share | None = Field(
        default=0.95,
        description="Warn of a domain, language or input split if one phase drops at least this "
        "share of its documents (docs/watching.md); null: no warnings.",
    )
    alarm_min_documents: int = Field(
        default=100,
        ge=1,
        description="Documents that a domain, language or input split must have for a warning.",
    )


class RunConfig(Settings):
    """A whole run, from crawl to shards."""

    run_dir: str = Field(
        default="runs/{config}",
        description="Folder of the run, or s3://bucket/folder; {config} is the name of the "
        "config file without .yaml.",
    )
    previous_runs: tuple[str, ...] = Field(
        default=(),
        description="Folders of finished runs. Documents, paragraphs and near-duplicates that "
        "they have read are dropped from this run (docs/incremental.md).",
    )
    input: InputConfig = Field(description="The crawl to read.")
    extract: ExtractConfig = Field(
        default=ExtractConfig(), description="Records to documents."
    )
    exact_dedup: ExactDedupConfig | None = Field(
        default=None, description="Deduplication of whole documents; null: off."
    )
    paragraph_dedup: ParagraphDedupConfig = Field(
        default=ParagraphDedupConfig(), description="Deduplication of paragraphs."
    )
    substring_dedup: SubstringDedupConfig | None = Field(
        default=None, description="Deduplication of spans of words; null: off."
    )
    annotate: AnnotateConfig = Field(
        default=AnnotateConfig(), description="Scores of every document."
    )
    fuzzy_dedup: FuzzyDedupConfig | None = Field(
        default=None, description="Deduplication of near-duplicates; null: off."
    )
    select: SelectConfig = Field(
        default=SelectConfig(), description="Thresholds on the scores."
    )
    tokenize: TokenizeConfig = Field(description="Texts to token ids.")
    write_shards: WriteShardsConfig = Field(
        default=WriteShardsConfig(), description="The dataset on disk."
    )
    engine: EngineConfig = Field(default=EngineConfig(), description="How tasks run.")
    report: ReportConfig = Field(
        default=ReportConfig(), description="When the report of a run warns."
    )
    storage: StorageConfig = Field(
        default=StorageConfig(),
        description="Access to object storage, for inputs and run folders at s3://.",
    )

    @model_validator(mode="after")
    def _resources_name_phases(self) -> Self:
        phases = type(self).model_fields.keys() - NOT_PHASES | PHASES_WITHOUT_SECTION
        unknown = sorted(self.engine.phases.keys() - phases)
        if unknown:
            faults: list[str] = []
            for name in unknown:
                hint = suggest(name, phases)
                faults.append(f"engine.phases.{name} is no phase; {hint}")
            raise ValueError("; ".join(faults))
        return self

    @model_validator(mode="after")
    def _limits_have_classifiers(self) -> Self:
        limits = self.select.classifiers.limits if self.select.classifiers else {}
        models = self.annotate.classifiers.by_name if self.annotate.classifiers else {}
        unknown = sorted(limits.keys() - models.keys())
        if unknown:
            raise ValueError(
                f"select.classifiers names {', '.join(unknown)}; "
                f"annotate.classifiers has {', '.join(models) or 'none'}"
            )
        return self

    @model_validator(mode="after")
    def _language_has_samples(self) -> Self:
        is_read = self.annotate.language.read == "page_sample"
        if is_read != (self.extract.warc.html.page_sample_chars > 0):
            raise ValueError(
                f"annotate.language.read is {self.annotate.language.read}, and "
                "extract.warc.html.page_sample_chars is "
                f"{self.extract.warc.html.page_sample_chars}: the sample is stored for this stage "
                "alone; set read to page_sample and page_sample_chars to 2000, or to text and 0"
            )
        return self

    @model_validator(mode="after")
    def _fuzzy_dedup_has_signatures(self) -> Self:
        dedup, minhash = self.fuzzy_dedup, self.annotate.minhash
        if dedup is None:
            return self
        if minhash is None:
            raise ValueError(
                "fuzzy_dedup is on, but annotate.minhash is null: there are no signatures to "
                "compare; set annotate.minhash to {}, or fuzzy_dedup to null"
            )
        if dedup.rule is not None and not minhash.store_ngrams:
            raise ValueError(
                f"fuzzy_dedup.rule is {dedup.rule}, but annotate.minhash.store_ngrams is false: "
                "there are no n-grams to compare; set store_ngrams to true, or rule to null"
            )
        if dedup.threshold is not None and dedup.threshold < minhash.threshold:
            raise ValueError(
                f"fuzzy_dedup.threshold is {dedup.threshold}, below annotate.minhash.threshold "
                f"({minhash.threshold}), for which candidates are found; lower that one"
            )
        if dedup.rule in ("contained", "both") and dedup.keep != "longest":
            raise ValueError(
                f"fuzzy_dedup.rule is {dedup.rule} and keep is {dedup.keep}: a document that is "
                "preferred to a longer one cannot contain it; set keep to longest"
            )
        return self

    @model_validator(mode="after")
    def _decontamination_has_sets(self) -> Self:
        wanted, scored = self.select.decontamination, self.annotate.decontamination
        if wanted is None:
            return self
        if scored is None:
            raise ValueError(
                "select.decontamination is on, but annotate.decontamination is null: there are "
                "no scores; name the sets there, or set select.decontamination to null"
            )
        limits = wanted.max_share
        unknown = (
            sorted(set(limits) - set(scored.sets)) if isinstance(limits, Mapping) else []
        )
        if unknown:
            raise ValueError(
                f"select.decontamination.max_share names {', '.join(unknown)}; "
                f"the sets of annotate.decontamination are {', '.join(sorted(scored.sets))}"
            )
        return self

    @model_validator(mode="after")
    def _score_has_signals(self) -> Self:
        if self.select.score is None:
            return self
        stored = self.annotate.list_signals()
        for name in self.select.score.signals or {}:
            if name not in stored:
                raise ValueError(
                    f"select.score.signals names {name}, which annotate does not store; "
                    f"{suggest(name, stored)}"
                )
        if self.select.score.signals is None and self.annotate.quality is None:
            raise ValueError(
                "select.score.signals is null, and annotate.quality too, which stores six of the "
                "nine default signals; set annotate.quality to {}, or name signals"
            )
        return self

    @model_validator(mode="after")
    def _mix_has_scores(self) -> Self:
        mix = self.select.mix
        if mix is None:
            return self
        stored = self.annotate.list_signals()
        if self.select.score is not None:
            stored.append("quality_score")
        elif mix.by == "quality_score":
            raise ValueError(
                "select.mix.by is quality_score, and select.score is null: there is no such "
                "score; set select.score to {}, or by to another stored score"
            )
        if mix.by not in stored:
            raise ValueError(
                f"select.mix.by names {mix.by}, which is not stored; "
                f"{suggest(mix.by, stored)}"
            )
        models = self.annotate.classifiers.by_name if self.annotate.classifiers else {}
        unknown = sorted(set(mix.topics) - models.keys())
        if unknown:
            raise ValueError(
                f"select.mix.topics names {', '.join(unknown)}; "
                f"annotate.classifiers has {', '.join(models) or 'none'}"
            )
        return self

    def find_stage_settings(self, section: str, stage: str) -> Settings | None:
        """Return the settings of a stage, with defaults that depend on other sections.

        Args:
            section: of its phase.
            stage: its name, which is the name of its part of the section.

        Returns:
            None if the stage is off; an empty object for a stage without keys.
        """
        of_phase = getattr(self, section)
        finder = _FOUND_BY.get((section, stage))
        if of_phase is None or (finder is not None and getattr(self, finder) is None):
            return None
        settings = of_phase if stage == section else getattr(of_phase, stage, Settings())
        if isinstance(settings, ScoreSettings):
            return settings.model_copy(update={"signals": self.score_weights})
        if isinstance(settings, PerplexityFilterSettings):
            if self.annotate.perplexity is None:
                return None
            if settings.cutoffs == "model":
                models = self.annotate.perplexity.models
                return settings.model_copy(update={"cutoffs": models})
        return settings

    @property
    def score_weights(self) -> Mapping[str, float]:
        """Signal of the quality score -> weight; empty without `select.score`."""
        if self.select.score is None:
            return {}
        if self.select.score.signals is not None:
            return self.select.score.signals
        stored = self.annotate.list_signals()
        return {name: weight for name, weight in DEFAULT_WEIGHTS.items() if name in stored}
