"""The YAML file of a run: every key, its range and its meaning.

Promises: one section per phase, and inside it one section per stage, named as the stage; a section is what its phase is
fingerprinted by. `null` turns an optional stage off. Nothing here decides anything: logic in a config is a fault.
Leaves to others: reading the file and saying all that is wrong with it (config_files/reader.py), finding the input files
and the models (inputs.py, assets.py).

    config = load("configs/ccnet.yaml", ["select.language.min_score=0.65"])
    config.select.language.min_score     # 0.65
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from config_files.reader import KeyPath, read, reread
from pipeline.models import registry as assets
from stages.contract import Settings
from stages.dedup.minhash import MinHashSettings
from stages.filters.classifiers import ClassifiersFilterSettings, ClassifiersSettings
from stages.filters.decontamination import DecontaminationFilterSettings, DecontaminationSettings
from stages.filters.language import LanguageFilterSettings, LanguageSettings
from stages.filters.length import LengthSettings
from stages.filters.lines import LinesSettings
from stages.filters.perplexity import Bucket, PerplexitySettings
from stages.filters.quality import QualityFilterSettings, QualitySettings
from stages.filters.url import Url, UrlSettings
from stages.transform.pii import PiiSettings
from stages.transform.tokenize import TokenizeSettings
from stages.transform.unicode import UnicodeSettings
from stages.warc.settings import WarcSettings
from storage import StorageSettings

Share = Annotated[float, Field(ge=0, le=1)]


class SampleCrawl(Settings):
    """A crawl made on this machine from real texts, with a truth table beside it."""

    documents: int = Field(default=20_000, ge=100, description="Pages in the crawl.")
    seed: int = Field(
        default=1, ge=0, description="Another seed, another crawl; the same seed, the same bytes."
    )
    documents_per_file: int = Field(default=2_500, ge=1, description="Pages per WARC file.")
    format: Literal["wet", "warc"] = Field(
        default="wet", description="Extracted text (wet) or HTML responses (warc)."
    )


class CommonCrawl(Settings):
    """A slice of a Common Crawl snapshot, listed by its own wet.paths.gz or warc.paths.gz."""

    crawl: str = Field(
        pattern=r"^CC-MAIN-\w+(-\w+)*$",
        description="The snapshot's name, as on commoncrawl.org, e.g. CC-MAIN-2026-17.",
    )
    format: Literal["wet", "warc"] = Field(
        default="wet", description="Which of the snapshot's lists to read."
    )
    first: int = Field(
        default=0, ge=0, description="Position in the list of the first file to read."
    )
    count: int | None = Field(
        default=None, ge=1, description="How many files to read; null reads to the end of the list."
    )
    base_url: str = Field(
        default="https://data.commoncrawl.org/",
        pattern=r"^(https?|s3)://",
        description="Where the snapshot lies: Common Crawl's server, s3://commoncrawl/, or a mirror like them.",
    )


class InputConfig(Settings):
    """What is read: exactly one of `sample_crawl`, `files` and `common_crawl`."""

    sample_crawl: SampleCrawl | None = Field(
        default=None, description="A crawl made on this machine from real texts."
    )
    files: tuple[str, ...] | None = Field(
        default=None,
        description="WET, WARC or ARC files: paths or patterns (**, *, ?), relative to where the command is run.",
    )
    common_crawl: CommonCrawl | None = Field(
        default=None, description="A slice of a Common Crawl snapshot."
    )
    files_per_split: Annotated[int, Field(ge=1)] | Literal["auto"] = Field(
        default="auto",
        description="Files that one task reads: raise it when files are many and small. auto: one, and of more than "
        "10,000 files so many that there are at most 10,000 units.",
    )
    max_quarantined_share: Share = Field(
        default=0.01,
        description="Above this share of broken records among all records the run ends with exit code 3.",
    )

    @model_validator(mode="after")
    def _exactly_one_source(self) -> Self:
        given = [name for name in ("sample_crawl", "files", "common_crawl") if getattr(self, name)]
        if len(given) != 1:
            raise ValueError(
                f"give exactly one of sample_crawl, files, common_crawl; found {', '.join(given) or 'none'}"
            )
        return self


class ExtractConfig(Settings):
    """Records to documents, and the hash of every paragraph beside them."""

    warc: WarcSettings = Field(
        default=WarcSettings(), description="Reading of WARC and WET records."
    )
    url: UrlSettings | None = Field(
        default=None,
        description="Block lists, words and patterns that URLs are held against; null: all stay.",
    )
    unicode: UnicodeSettings | None = Field(
        default=None,
        description="Repair of mojibake and entities by ftfy; null: none.",
    )
    length: LengthSettings | None = Field(
        default=LengthSettings(),
        description="Documents dropped before deduplication; CCNet: under 300 characters.",
    )


class ExactDedupConfig(Settings):
    """Exact copies of documents: of each content only the first one stays, whose paragraphs alone are compared then."""

    by: Literal["text", "digest"] = Field(
        default="text",
        description="text: all lines are equal in CCNet's normal form; digest: the record's own WARC-Payload-Digest or "
        "WARC-Block-Digest is.",
    )


class ParagraphDedupConfig(Settings):
    """Which copy of a repeated paragraph survives, and among which documents copies are looked for."""

    keep: Literal["drop_all_copies", "keep_first", "keep_all"] = Field(
        default="drop_all_copies",
        description="drop_all_copies: remove every copy of a paragraph that occurs in two documents (CCNet); "
        "keep_first: keep the first copy; keep_all: do not look for duplicate paragraphs (RefinedWeb, FineWeb).",
    )
    group_splits: int | None = Field(
        default=None,
        ge=1,
        description="Look for copies among so many units at a time (CCNet: 50 of a dump's 1,600); null: the whole run.",
    )


class AnnotateConfig(Settings):
    """Scores, for every document that still has text. Nothing is thrown away here but text."""

    lines: LinesSettings | None = Field(
        default=None,
        description="C4's rules for lines, after deduplication; null: none is judged.",
    )
    length: LengthSettings | None = Field(
        default=LengthSettings(min_chars=1),
        description="Documents dropped for what deduplication left of them.",
    )
    language: LanguageSettings = Field(
        default=LanguageSettings(), description="Language identification."
    )
    perplexity: PerplexitySettings | None = Field(
        default=None, description="Language models; null: no perplexity, one bucket."
    )
    classifiers: ClassifiersSettings | None = Field(
        default=None,
        description="fastText classifiers by name; null: no scores.",
    )
    quality: QualitySettings | None = Field(
        default=None, description="Quality signals; null: none are computed."
    )
    decontamination: DecontaminationSettings | None = Field(
        default=None,
        description="Words shared with evaluation sets; null: none is looked for.",
    )
    minhash: MinHashSettings | None = Field(
        default=None, description="Signatures for fuzzy_dedup; null: none are made."
    )


class FuzzyDedupConfig(Settings):
    """Which of several documents that say nearly the same stays. What counts as nearly: `annotate.minhash`."""

    keep: Literal["best", "first", "longest"] = Field(
        default="best",
        description="best: the one with the lowest perplexity, since it is the likeliest to pass `select`; first: the "
        "first in the order of the input; longest: the one with the most characters. Of several, or without a "
        "perplexity, the first.",
    )


class PerplexitySelection(Settings):
    """Head, middle and tail, and which of them are kept."""

    cutoffs: str = Field(
        default="run",
        description="Where the cutoffs come from: `run` (percentiles of this run's documents), `model` (measured on "
        "held-out text when it was trained), or the path of a file in the form of CCNet's cutoff.csv.",
    )
    percentiles: tuple[int, int] = Field(
        default=(30, 60),
        description="Upper ends of head and middle, in percent of documents of a language (CCNet: 30, 60).",
    )
    keep: tuple[Bucket, ...] = Field(
        default=("head", "middle", "tail", "all"),
        description="Buckets kept. `all` holds the documents of languages without a model.",
    )

    @model_validator(mode="after")
    def _percentiles_rise(self) -> Self:
        head, middle = self.percentiles
        if not 0 < head < middle < 100:
            raise ValueError(f"percentiles must rise between 0 and 100; found {head:g}, {middle:g}")
        return self


class SelectConfig(Settings):
    """Thresholds over the stored scores: each document gets its fate. Changing one renews this and what follows."""

    language: LanguageFilterSettings | None = Field(
        default=LanguageFilterSettings(), description="Language rules."
    )
    perplexity: PerplexitySelection | None = Field(
        default=PerplexitySelection(), description="Perplexity buckets."
    )
    classifiers: ClassifiersFilterSettings | None = Field(
        default=None,
        description="Limits of the classifiers' scores, by name; null: none.",
    )
    quality: QualityFilterSettings | None = Field(
        default=None, description="Quality rules over the stored signals."
    )
    decontamination: DecontaminationFilterSettings | None = Field(
        default=None,
        description="Limits of what is shared with evaluation sets; null: none.",
    )


class TokenizeConfig(TokenizeSettings):
    """Kept texts to token ids."""

    pii: PiiSettings | None = Field(
        default=None,
        description="Placeholders for e-mail, IP, phone and card numbers; null: none.",
    )


class WriteShardsConfig(Settings):
    """The dataset on disk (docs/data-format.md)."""

    shard_tokens: int = Field(
        default=100_000_000,
        ge=1,
        description="Tokens per shard, about (200 MB at two bytes a token).",
    )
    sample_tokens: int = Field(
        default=65_536,
        ge=1,
        description="Tokens per sample of a shard, about: whole documents each.",
    )
    documents_json: bool = Field(
        default=True,
        description="Write url, language and scores of every document into the shards.",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of the global shuffle.")


class Resources(Settings):
    """What a task takes of the machine that runs it; null: as its phase, and that as the engine."""

    num_cpus: float | None = Field(
        default=None, ge=0, description="CPUs; null: as the phase, which takes 1."
    )
    num_gpus: float | None = Field(
        default=None, ge=0, description="GPUs, or a share of one; null: as the phase, 0."
    )
    memory_mb: int | None = Field(
        default=None,
        ge=256,
        description="Memory; null: as the phase, which takes engine.memory_mb.",
    )
    custom: Mapping[str, Annotated[float, Field(ge=0)]] | None = Field(
        default=None,
        description="Resources that the cluster's owner has named, such as {fast_disk: 1}; null: none.",
    )


class PhaseResources(Resources):
    """What a phase's tasks take, and which of its stages have tasks of their own."""

    stages: Mapping[str, Resources] = Field(
        default={},
        description="Stage -> what its own tasks take, such as {classifiers: {num_gpus: 1}}. It costs two passes of "
        "the unit through the memory of the cluster (docs/cluster.md).",
    )


class EngineAdvanced(Settings):
    """Limits of a task that hardly any run needs to change."""

    batch_mb: float = Field(
        default=8, gt=0, le=1024, description="Size of the batches of text that stages process."
    )
    max_error_share: Share = Field(
        default=0.01,
        description="A task fails when a stage raises an error on more than this share of its documents.",
    )
    max_attempts: int = Field(
        default=3,
        ge=1,
        description="How often a task is started when its process dies.",
    )


class EngineConfig(Settings):
    """How the work is carried out. Nothing in this section changes a byte of the output."""

    kind: Literal["ray", "inline"] = Field(
        default="ray", description="ray: on Ray Data; inline: in this process, one by one."
    )
    workers: int | None = Field(
        default=None, ge=1, description="Tasks at a time on this machine; null: one per CPU."
    )
    memory_mb: int = Field(
        default=2_000,
        ge=256,
        description="Memory that one task may take; partitions are sized by it.",
    )
    advanced: EngineAdvanced = Field(
        default=EngineAdvanced(), description="Limits that hardly any run needs to change."
    )
    phases: Mapping[str, PhaseResources] = Field(
        default={},
        description="Phase -> what its tasks take of a machine, such as {annotate: {memory_mb: 6000}}.",
    )
    metrics_port: int | None = Field(
        default=None,
        ge=1,
        le=65_535,
        description="Port on which a Ray of this machine tells its metrics to Prometheus (docs/watching.md), the run's "
        "among them; null: any free one. On a cluster the cluster's own is asked.",
    )

    @model_validator(mode="after")
    def _ray_has_the_metrics(self) -> Self:
        if self.metrics_port is not None and self.kind != "ray":
            raise ValueError(
                f"engine.metrics_port is {self.metrics_port}, but engine.kind is {self.kind}: the metrics are Ray's; "
                f"set kind to ray, or metrics_port to null"
            )
        return self


class StorageConfig(Settings):
    """How object storage is reached. Credentials come from AWS_ACCESS_KEY_ID and its kin, a profile, or a role."""

    endpoint: str | None = Field(
        default=None,
        description="Address of the server; null: AWS_ENDPOINT_URL, or else Amazon's own.",
    )
    region: str | None = Field(
        default=None, description="Region of the buckets; null: AWS_REGION, or us-east-1."
    )
    allow_http: bool = Field(
        default=False,
        description="Whether an endpoint of another machine may be http, as within a private network: whoever is on "
        "the way can read and change the data then.",
    )
    request_timeout_s: float = Field(
        default=60.0,
        gt=0,
        le=3600,
        description="How long a request may take for each 16 MiB that it brings or takes.",
    )
    retry_timeout_s: float = Field(
        default=180.0,
        ge=0,
        description="How long after its first failure a request is still tried again.",
    )
    spool: str | None = Field(
        default=None,
        description="Folder of each machine for input and outputs on their way; null: the system's for temporary "
        "files. It holds what the tasks of a machine are reading and writing.",
    )

    def to_settings(self) -> StorageSettings:
        """Return the settings for `storage.open_store`."""
        values = self.model_dump()
        return StorageSettings(scratch_dir=values.pop("spool"), **values)

    @classmethod
    def from_settings(cls, settings: StorageSettings) -> Self:
        """Return the section of a config that gives these settings."""
        values = {name: getattr(settings, name) for name in cls.model_fields if name != "spool"}
        return cls(spool=settings.scratch_dir, **values)


class RunConfig(Settings):
    """A whole run, from crawl to shards."""

    run_dir: str = Field(
        default="runs/{config}",
        description="Folder of the run, or s3://bucket/folder; {config} is this file's name without .yaml.",
    )
    previous_runs: tuple[str, ...] = Field(
        default=(),
        description="Folders of finished runs whose documents came before all of this run's: copies, paragraphs and "
        "near-duplicates of theirs are dropped here. Nothing is computed or written there (docs/incremental.md).",
    )
    input: InputConfig = Field(description="What is read.")
    extract: ExtractConfig = Field(default=ExtractConfig(), description="Records to documents.")
    exact_dedup: ExactDedupConfig | None = Field(
        default=None, description="Exact copies of documents; null: they all stay."
    )
    paragraph_dedup: ParagraphDedupConfig = Field(
        default=ParagraphDedupConfig(), description="Global paragraph deduplication."
    )
    annotate: AnnotateConfig = Field(
        default=AnnotateConfig(), description="Scores of every document."
    )
    fuzzy_dedup: FuzzyDedupConfig | None = Field(
        default=None, description="Global near-deduplication of documents; null: they all stay."
    )
    select: SelectConfig = Field(default=SelectConfig(), description="Thresholds over the scores.")
    tokenize: TokenizeConfig = Field(description="Text to token ids.")
    write_shards: WriteShardsConfig = Field(
        default=WriteShardsConfig(), description="The dataset on disk."
    )
    engine: EngineConfig = Field(default=EngineConfig(), description="How the work is carried out.")
    storage: StorageConfig = Field(
        default=StorageConfig(),
        description="How object storage is reached, where the input or the run folder lies on one.",
    )

    @model_validator(mode="after")
    def _resources_are_of_phases_and_stages(self) -> Self:
        faults: list[str] = []
        for phase, resources in self.engine.phases.items():
            if phase not in (
                phases := type(self).model_fields.keys() - {"run_dir", "input", "engine", "storage"}
            ):
                faults.append(f"engine.phases.{phase} is no phase; {_nearest(phase, phases)}")
                continue
            stages = _stages_with_settings(type(self).model_fields[phase].annotation)
            for stage in resources.stages.keys() - stages:
                wanted = (
                    _nearest(stage, stages) if stages else "it works across units, without stages"
                )
                faults.append(
                    f"engine.phases.{phase}.stages.{stage} is no stage of {phase}; {wanted}"
                )
        if faults:
            raise ValueError("; ".join(sorted(faults)))
        return self

    @model_validator(mode="after")
    def _limits_are_of_classifiers(self) -> Self:
        limits = self.select.classifiers.limits if self.select.classifiers else {}
        models = self.annotate.classifiers.by_name if self.annotate.classifiers else {}
        if unknown := sorted(limits.keys() - models.keys()):
            raise ValueError(
                f"select.classifiers names {', '.join(unknown)}; annotate.classifiers has {', '.join(models) or 'none'}"
            )
        return self

    @model_validator(mode="after")
    def _near_deduplicate_has_signatures(self) -> Self:
        if self.fuzzy_dedup is not None and self.annotate.minhash is None:
            raise ValueError(
                "fuzzy_dedup is on, but annotate.minhash is null: there would be nothing to compare; "
                "set annotate.minhash to {}, or fuzzy_dedup to null"
            )
        return self

    @model_validator(mode="after")
    def _decontamination_knows_its_sets(self) -> Self:
        wanted, scored = self.select.decontamination, self.annotate.decontamination
        if wanted is not None and scored is None:
            raise ValueError(
                "select.decontamination is on, but annotate.decontamination is null: there would be nothing to judge; "
                "name the sets there, or set select.decontamination to null"
            )
        limits = wanted.max_share if wanted is not None else 0.0
        if (
            isinstance(limits, Mapping)
            and scored
            and (unknown := sorted(set(limits) - set(scored.sets)))
        ):
            raise ValueError(
                f"select.decontamination.max_share names {', '.join(unknown)}; the sets of annotate.decontamination "
                f"are {', '.join(sorted(scored.sets))}"
            )
        return self


def _stages_with_settings(section: Any) -> frozenset[str]:
    """The names of the stages in a phase's section, given its annotation."""
    options = [section, *typing.get_args(section)]
    (model,) = (
        option for option in options if isinstance(option, type) and issubclass(option, Settings)
    )
    fields = (
        (name, typing.get_args(info.annotation) or [info.annotation])
        for name, info in model.model_fields.items()
    )
    nested = {
        name
        for name, kinds in fields
        if any(isinstance(k, type) and issubclass(k, Settings) for k in kinds)
    }
    return frozenset(nested - {"warc"})  # the reader: what its phase begins with, no stage


def _nearest(name: str, known: Collection[str]) -> str:
    nearest = difflib.get_close_matches(name, known, 1, cutoff=0.5)
    return f"did you mean {nearest[0]}?" if nearest else f"known here: {', '.join(sorted(known))}"


def load(path_or_name: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The config of that file or name, checked; overrides are `key.of.key=value`.

    Raises:
        ConfigError: with every fault there is.
    """
    return read(RunConfig, path_or_name, overrides, _missing_files)


def change(tree: Mapping[str, Any], where: str, overrides: Sequence[str] = ()) -> RunConfig:
    """The config that a run has kept, changed and checked. Models may be gone: what they gave is stored.

    Raises:
        ConfigError: with every fault there is.
    """
    return reread(RunConfig, tree, where, overrides, _missing_cutoffs)


def _missing_files(config: RunConfig) -> Iterator[tuple[KeyPath, str]]:
    """Faults for references to models and files that are neither in the registry nor on this disk."""
    annotate = config.annotate
    references: list[tuple[KeyPath, str]] = [
        (("annotate", "language", "model"), annotate.language.model),
        (("tokenize", "tokenizer"), config.tokenize.tokenizer),
    ]
    if annotate.perplexity:
        models = annotate.perplexity.models
        references += [
            (("annotate", "perplexity", "models", language), name)
            for language, name in models.items()
        ]
    if annotate.classifiers:
        references += _classifier_models(annotate.classifiers)
    if config.extract.url:
        references += [
            (("extract", "url"), reference) for reference in Url.required_files(config.extract.url)
        ]
    if annotate.decontamination:
        sets = annotate.decontamination.sets
        references += [
            (("annotate", "decontamination", "sets", name), file) for name, file in sets.items()
        ]
    for key, reference in references:
        try:
            assets.check(reference)
        except assets.AssetError as error:
            yield key, str(error)
    yield from _missing_cutoffs(config)


def _classifier_models(settings: ClassifiersSettings) -> Iterator[tuple[KeyPath, str]]:
    """Key and reference of each model of each classifier."""
    for name, classifier in settings.by_name.items():
        key: KeyPath = ("annotate", "classifiers", name)
        if classifier.model is not None:
            yield (*key, "model"), classifier.model
        for language, model in classifier.models.items():
            yield (*key, "models", language), model


def _missing_cutoffs(config: RunConfig) -> Iterator[tuple[KeyPath, str]]:
    perplexity = config.select.perplexity
    if (
        perplexity
        and perplexity.cutoffs not in ("model", "run")
        and not Path(perplexity.cutoffs).is_file()
    ):
        yield (
            ("select", "perplexity", "cutoffs"),
            "no such file; wanted model, run, or the path of a cutoff.csv",
        )
