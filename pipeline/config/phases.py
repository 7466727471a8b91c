"""One section per phase: the stages it runs, and their settings."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Literal

from pydantic import Field

from stages.settings.base import Settings
from stages.settings.dedup import MinHashSettings
from stages.settings.filters import (
    ClassifiersFilterSettings,
    ClassifiersSettings,
    DecontaminationFilterSettings,
    DecontaminationSettings,
    LanguageFilterSettings,
    LanguageSettings,
    LengthSettings,
    LinesSettings,
    PerplexityFilterSettings,
    PerplexitySettings,
    UrlSettings,
)
from stages.settings.quality import (
    MixSettings,
    QualityFilterSettings,
    QualitySettings,
    ScoreSettings,
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

    def list_signals(self) -> list[str]:
        """Return the stored columns that a quality score can be made of."""
        from stages.kernels.quality import columns  # importing a config stays light

        names = ["num_chars", "num_lines", "language_score"]
        if self.perplexity is not None:
            names.append("perplexity")
        if self.classifiers is not None:
            names += [f"classifier_{name}" for name in self.classifiers.by_name]
        if self.quality is not None:
            names += columns.SIGNALS
            names += ["rps_doc_stop_word_fraction"] if self.quality.stop_words else []
            names += ["rps_doc_ldnoobw_words"] if self.quality.bad_words else []
        return names


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


class SelectConfig(Settings):
    """Thresholds on the stored scores. A change reruns only dependent phases."""

    language: LanguageFilterSettings | None = Field(
        default=LanguageFilterSettings(), description="Language rules."
    )
    perplexity: PerplexityFilterSettings | None = Field(
        default=PerplexityFilterSettings(), description="Perplexity buckets."
    )
    classifiers: ClassifiersFilterSettings | None = Field(
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
    score: ScoreSettings | None = Field(
        default=None,
        description="One quality score from several stored scores; null: no score.",
    )
    mix: MixSettings | None = Field(
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
