"""One section per phase: the stages it runs, and their settings."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import Discriminator, Field, Tag, model_validator

from stages.settings.base import ByLanguage, Settings, Share
from stages.settings.dedup import MinHashSettings
from stages.settings.filters import (
    Bucket,
    ClassifiersSettings,
    DecontaminationFilterSettings,
    DecontaminationSettings,
    KeptLanguages,
    LanguageSettings,
    LengthSettings,
    LinesSettings,
    NamedSettings,
    PerplexitySettings,
    ScoreRange,
    UrlSettings,
)
from stages.settings.quality import (
    QualityBin,
    QualityFilterSettings,
    QualitySettings,
    check_bins,
)
from stages.settings.transform import PiiSettings, TokenizeSettings, UnicodeSettings
from stages.settings.warc import WarcSettings

# Without labels: long texts in long lines, in the words of an encyclopedia. The share of unique
# words falls with the length of a text, and is high for lists of names and products. From Gopher's
# rules: prose has stop words, and lists and menus repeat words and n-grams. RedPajama-V2's share of
# upper case is high for headings and names.
# benchmarks/quality/document_scores.py measures the combination and its parts.
DEFAULT_WEIGHTS: Mapping[str, float] = MappingProxyType(
    {
        "classifier_wikipedia_reference": 1,
        "perplexity": -1,
        "num_chars": 1,
        "rps_doc_frac_unique_words": -1,
        "rps_lines_num_words_mean": 1,
        "num_stop_words": 1,
        "frac_chars_top_3gram": -1,
        "frac_chars_dupe_10grams": -1,
        "rps_lines_uppercase_letter_fraction_mean": -1,
    }
)

_Weight = Annotated[float, Field(allow_inf_nan=False)]


class ExtractConfig(Settings):
    """Turn records into documents, and hash every paragraph."""

    warc: WarcSettings = Field(
        default=WarcSettings(), description="Reading of WARC and WET records."
    )
    url: UrlSettings | None = Field(
        default=None,
        description="Block lists, words and patterns for URLs; null keeps all URLs.",
    )
    unicode: UnicodeSettings | None = Field(
        default=None,
        description="Repair of mojibake and entities by ftfy; null: no repair.",
    )
    length: LengthSettings | None = Field(
        default=LengthSettings(),
        description="Length of documents before deduplication; CCNet drops those under 300 "
        "characters.",
    )


class ExactDedupConfig(Settings):
    """Keep the first of documents with equal content; only its paragraphs are compared later."""

    by: Literal["text", "digest"] = Field(
        default="text",
        description="text: all lines are equal in CCNet's normal form; digest: "
        "WARC-Payload-Digest or WARC-Block-Digest of the records are equal.",
    )


class ParagraphDedupConfig(Settings):
    """Find paragraphs that occur in more than one document, and decide which copy is kept."""

    keep: Literal["drop_all_copies", "keep_first", "keep_all"] = Field(
        default="drop_all_copies",
        description="drop_all_copies: remove every copy of a paragraph that occurs in two "
        "documents (CCNet); keep_first: keep the first copy; keep_all: do not look for "
        "duplicate paragraphs (RefinedWeb, FineWeb).",
    )
    group_splits: int | None = Field(
        default=None,
        ge=1,
        description="Number of input splits that are compared with each other (CCNet: 50 of a "
        "dump's 1,600); null: all of the run.",
    )


class SubstringDedupConfig(Settings):
    """Find spans of words that an earlier document has; the first document keeps them."""

    min_words: int = Field(
        default=50,
        ge=5,
        le=10_000,
        description="Fewest words of a repeated span, counted as for `annotate.minhash.ngram_words` "
        "(Lee et al. 2022, RefinedWeb: 50 tokens).",
    )
    action: Literal["cut", "drop"] = Field(
        default="cut",
        description="cut: remove the spans from the texts (RefinedWeb); drop: drop the documents "
        "that have any.",
    )


class AnnotateConfig(Settings):
    """Remove duplicate lines and score the documents that still have text.

    No score drops a document here: `select` decides, so thresholds can change without new scores.
    """

    lines: LinesSettings | None = Field(
        default=None, description="C4's line rules, after deduplication; null: no rules."
    )
    length: LengthSettings | None = Field(
        default=LengthSettings(min_chars=1),
        description="Length of documents after duplicate lines are removed.",
    )
    language: LanguageSettings = Field(
        default=LanguageSettings(), description="Language identification."
    )
    perplexity: PerplexitySettings | None = Field(
        default=None, description="Language models; null: no perplexity, one bucket."
    )
    classifiers: ClassifiersSettings | None = Field(
        default=None, description="fastText classifiers by name; null: no scores."
    )
    quality: QualitySettings | None = Field(
        default=None, description="Quality signals; null: no signals."
    )
    decontamination: DecontaminationSettings | None = Field(
        default=None, description="Overlap with evaluation sets; null: not computed."
    )
    minhash: MinHashSettings | None = Field(
        default=None, description="Signatures for fuzzy_dedup; null: no signatures."
    )


class FuzzyDedupConfig(Settings):
    """Drop near-duplicates, which `annotate.minhash` finds; choose representatives.

    A document is dropped only if it is similar to its own representative, which is kept.
    """

    rule: Literal["jaccard", "contained", "both"] | None = Field(
        default="jaccard",
        description="When two candidates, documents with a band in common, are similar. jaccard: "
        "the Jaccard similarity of their n-grams reaches the threshold; contained: the "
        "representative contains every n-gram of the dropped document; both: both; null: always, "
        "and also through a chain of candidates (RefinedWeb, FineWeb).",
    )
    threshold: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Jaccard similarity for `rule`, at least `annotate.minhash.threshold`; null: "
        "the same. Changing it does not compute the scores again.",
    )
    keep: Literal["best", "first", "longest"] = Field(
        default="best",
        description="The preferred document of a cluster. best: the one with the lowest "
        "perplexity, which is the most likely to pass `select`; first: the first one of the "
        "input; longest: the one with the most characters. Ties, and documents without a "
        "perplexity, are decided by input order.",
    )


FROM_RUN = "run"


def _find_kind(value: object) -> str | None:
    if value == FROM_RUN:
        return "|run"
    return "|score" if isinstance(value, int | float) else None


_MinScore: TypeAlias = Annotated[
    Annotated[Share, Tag("|score")] | Annotated[Literal["run"], Tag("|run")],
    Discriminator(
        _find_kind,
        custom_error_type="min_score",
        custom_error_message="should be a number from 0 to 1, or 'run'",
    ),
]


class LanguageSelection(KeptLanguages):
    """The languages and scores that are kept."""

    min_score: ByLanguage[_MinScore] = Field(
        default=0.5,
        description="Lowest language_score kept. CCNet keeps 0.5 and more. `run`: the median of "
        "the language's scores in this run minus their standard deviation, within 0.3 and 0.9 "
        "(FineWeb2). {default: run, en: 0.65} has another limit for English.",
    )

    @property
    def uses_run(self) -> bool:
        """Whether a limit comes from the scores of the run."""
        limits = self.min_score
        values = limits.values() if isinstance(limits, Mapping) else (limits,)
        return FROM_RUN in values


class PerplexitySelection(Settings):
    """Sort documents into head, middle and tail by perplexity, and choose the buckets to keep."""

    cutoffs: str = Field(
        default="run",
        description="Source of the cutoffs: `run` (percentiles of this run's documents), "
        "`model` (measured on held-out text in training), or the path of a file in the format "
        "of CCNet's cutoff.csv.",
    )
    percentiles: tuple[int, int] = Field(
        default=(30, 60),
        description="Upper ends of head and middle, in percent of a language's documents "
        "(CCNet: 30, 60).",
    )
    keep: tuple[Bucket, ...] = Field(
        default=("head", "middle", "tail", "all"),
        description="Buckets to keep. `all` contains the documents of languages without a model.",
    )

    @model_validator(mode="after")
    def _percentiles_rise(self) -> Self:
        head, middle = self.percentiles
        if not 0 < head < middle < 100:
            raise ValueError(
                f"percentiles must rise between 0 and 100; found {head:g}, {middle:g}"
            )
        return self


class ScoreSelection(ScoreRange):
    """The scores of one classifier that are kept. All limits are inclusive."""

    keep_top: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of the best documents of each language, of those that all other rules "
        "of select keep: 0.1 keeps a tenth, by the scores of the run. Documents with equal scores "
        "get the same decision. Documents without a score are kept; null sets no limit.",
    )


class ClassifiersSelection(NamedSettings):
    """Name -> limits of the score."""

    each: ClassVar[type[Settings]] = ScoreSelection
    # pydantic checks the values of free keys against this annotation.
    __pydantic_extra__: dict[  # pyright: ignore[reportIncompatibleVariableOverride]
        str, ScoreSelection
    ] = Field(init=False)

    @property
    def limits(self) -> Mapping[str, ScoreSelection]:
        """The limits, sorted by name: the first broken one is the reason of a drop."""
        return dict(sorted(self.__pydantic_extra__.items()))


class CombinedScoreConfig(Settings):
    """One quality score per document, from stored scores; it is stored as `quality_score`.

    The score is the weighted mean of the signals' percentile ranks in the document's language.
    """

    signals: Annotated[Mapping[str, _Weight], Field(min_length=1)] | None = Field(
        default=None,
        description="Stored column -> weight of its percentile rank; negative: lower values are better. Null: "
        "those of nine signals that the run stores, with equal weights (docs/recipes.md).",
    )
    intercept: float | None = Field(
        default=None,
        allow_inf_nan=False,
        description="Intercept of a logistic model, which `models train quality` writes with its "
        "`signals`. The score is then the probability of a good page. Null: the weighted mean.",
    )
    min: Share | None = Field(
        default=None, description="Lowest score kept, 0..1; null sets no limit."
    )
    keep_top: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of the best documents of each language, of those that all other rules "
        "of select keep. Documents with equal scores get the same decision. Documents without a "
        "score are kept; null sets no limit.",
    )

    @model_validator(mode="after")
    def _weights_are_not_zero(self) -> Self:
        for name, weight in (self.signals or {}).items():
            if weight == 0:
                raise ValueError(
                    f"signals.{name} is 0, which leaves the signal out; remove it, or give a "
                    "positive or negative weight"
                )
        return self

    @model_validator(mode="after")
    def _intercept_has_signals(self) -> Self:
        if self.intercept is not None and self.signals is None:
            raise ValueError(
                f"intercept is {self.intercept}, and signals is null: an intercept belongs to the "
                "weights of a model; give both as `models train quality` has written them"
            )
        return self


class MixBudget(Settings):
    """The tokens that are kept, best documents first."""

    num_tokens: int = Field(
        ge=1,
        description="Tokens of the dataset, with all copies. They are estimated before texts are "
        "tokenized (docs/recipes.md); the report compares the result with the budget.",
    )
    max_language_share: ByLanguage[Share] = Field(
        default=1.0,
        description="Largest share of `num_tokens` that one language gets. {default: 1, en: 0.4} "
        "limits English alone.",
    )


class MixConfig(Settings):
    """Copies of documents by quality bin, and a budget of tokens. All from stored scores."""

    by: str = Field(
        default="quality_score",
        description="The stored score that ranks the documents of a language: `quality_score` "
        "(from `select.score`), `perplexity`, `classifier_<name>`, `num_chars` or a quality "
        "signal. A document without a score counts as one in the middle.",
    )
    best: Literal["high", "low"] | None = Field(
        default=None,
        description="Which scores are the best; null: low for `perplexity`, high for others.",
    )
    topics: tuple[str, ...] = Field(
        default=(),
        description="Names of `annotate.classifiers`, one per topic. The topic of a document is the "
        "one whose classifier gives the highest score. Percentiles are then counted within a "
        "language and a topic.",
    )
    bins: Annotated[tuple[QualityBin, ...], Field(min_length=1)] = Field(
        default=(QualityBin(from_percentile=0, num_copies=1),),
        description="Where each bin begins, from the worst documents (0) to the best (100), and "
        "how often its documents are stored: 0 to 7 times, also 2.5. The default stores each once.",
    )
    budget: MixBudget | None = Field(
        default=None, description="Tokens to keep; null: all of them."
    )

    @model_validator(mode="after")
    def _bins_rise(self) -> Self:
        check_bins(self.bins)
        return self

    @property
    def is_low_best(self) -> bool:
        """Whether low scores are better."""
        return self.best == "low" if self.best else self.by == "perplexity"


class SelectConfig(Settings):
    """Thresholds on the stored scores. A change reruns only dependent phases."""

    language: LanguageSelection | None = Field(
        default=LanguageSelection(), description="Language rules."
    )
    perplexity: PerplexitySelection | None = Field(
        default=PerplexitySelection(), description="Perplexity buckets."
    )
    classifiers: ClassifiersSelection | None = Field(
        default=None,
        description="Limits of the classifiers' scores, by name; null: no limits.",
    )
    quality: QualityFilterSettings | None = Field(
        default=None, description="Rules on the quality signals; null: no rules."
    )
    decontamination: DecontaminationFilterSettings | None = Field(
        default=None,
        description="Limits of the overlap with evaluation sets; null: no limits.",
    )
    score: CombinedScoreConfig | None = Field(
        default=None,
        description="One quality score from several stored scores; null: no score.",
    )
    mix: MixConfig | None = Field(
        default=None,
        description="Copies by quality bin, and a budget of tokens; null: each kept document "
        "once.",
    )


class TokenizeConfig(TokenizeSettings):
    """Turn the texts of kept documents into token ids."""

    pii: PiiSettings | None = Field(
        default=None,
        description="Placeholders for e-mail and IP addresses, and for phone, card and account numbers; "
        "null: no replacement.",
    )


class WriteShardsConfig(Settings):
    """The dataset on disk (docs/data-format.md)."""

    shard_tokens: int = Field(
        default=100_000_000,
        ge=1,
        description="Approximate number of tokens per shard (200 MB at two bytes per token).",
    )
    sample_tokens: int = Field(
        default=65_536,
        ge=1,
        description="Approximate number of tokens per sample; a sample holds whole documents.",
    )
    documents_json: bool = Field(
        default=True,
        description="Whether shards contain url, language and scores of every document.",
    )
    seed: int = Field(default=0, ge=0, lt=2**63, description="Seed of the global shuffle.")
