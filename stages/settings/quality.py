"""Settings of the quality signals, the rules on them, the quality score, and quality bins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self, TypeAlias

from pydantic import Field, field_validator, model_validator

from stages.settings.base import (
    DEFAULT,
    ByLanguage,
    Settings,
    Share,
    find_limit,
    list_named_languages,
)
from stages.settings.languages import LanguageCode, has_blanks

# Dolma 3 repeats documents up to seven times (Olmo 3, arXiv:2512.13961).
MAX_COPIES = 7

_Count: TypeAlias = ByLanguage[Annotated[int | None, Field(ge=0)]]
_StopWords: TypeAlias = ByLanguage[Annotated[int | None, Field(ge=0, le=8)]]
_Limit: TypeAlias = ByLanguage[Annotated[float | None, Field(ge=0)]]
_Weight = Annotated[float, Field(allow_inf_nan=False)]
_Share: TypeAlias = ByLanguage[Annotated[float | None, Field(ge=0, le=1)]]


class QualitySettings(Settings):
    """Lists of words. There is nothing else to set, because every signal is computed and stored."""

    stop_words: Mapping[LanguageCode, str] = Field(
        default={},
        description="Language -> file of stop words, one per line. Adds "
        "rps_doc_stop_word_fraction, the share of pieces that are in the list, case included "
        "(RedPajama-V2, with the lists of stopwords-json); null in other languages.",
    )
    bad_words: Mapping[LanguageCode, str] = Field(
        default={},
        description="Language -> file of words and phrases, one per line. Adds "
        "rps_doc_ldnoobw_words, the number of their occurrences (RedPajama-V2, with the list "
        "LDNOOBW); null in other languages. An entry with ASCII punctuation matches nothing. In "
        "languages without blanks between words, an entry is found anywhere.",
    )

    @field_validator("stop_words")
    @classmethod
    def _languages_have_words(cls, lists: Mapping[str, str]) -> Mapping[str, str]:
        for language in lists:
            if not has_blanks(language):
                raise ValueError(
                    f"{language} has no blanks between words, so the pieces of a text are no words "
                    f"of a list; remove {language}"
                )
        return lists


class QualityFilterSettings(Settings):
    """Inclusive limits of the quality signals, or {default: 50, de: 40}; null turns a rule off.

    Source of the defaults: Rae et al. 2021 (Gopher), appendix A.1.1: the text for the
    quality rules, table A1 for repetition.
    """

    languages: Annotated[tuple[LanguageCode, ...], Field(min_length=1)] | None = Field(
        default=("en",),
        description="Languages to which the rules apply; documents in other languages are kept. "
        "null applies them to all. The limits are Gopher's, for English. Rules that measure "
        "nothing in a language are off for it (docs/signals.md).",
    )
    min_words: _Count = Field(default=50, description="Fewest words.")
    max_words: _Count = Field(default=100_000, description="Most words.")
    min_mean_word_length: _Limit = Field(
        default=3, description="Lowest mean length of a word in characters."
    )
    max_mean_word_length: _Limit = Field(
        default=10, description="Highest mean length of a word in characters."
    )
    max_symbol_share: _Limit = Field(
        default=0.1,
        description='Most "#" per word (separated by white space), and most ellipses per word.',
    )
    max_bullet_line_share: _Share = Field(
        default=0.9, description="Highest share of lines that start with a bullet."
    )
    max_ellipsis_line_share: _Share = Field(
        default=0.3, description="Highest share of lines that end with an ellipsis."
    )
    min_alpha_word_share: _Share = Field(
        default=0.8,
        description="Lowest share of words (separated by white space) with a letter.",
    )
    min_stop_words: _StopWords = Field(
        default=2,
        description="Fewest different stop words of Gopher's eight; English only.",
    )
    max_duplicate_line_share: _Share = Field(
        default=0.3, description="Highest share of lines that repeat an earlier one."
    )
    max_duplicate_paragraph_share: _Share = Field(
        default=0.3, description="Highest share of paragraphs that repeat an earlier one."
    )
    max_duplicate_line_char_share: _Share = Field(
        default=0.2,
        description="Highest share of characters in repeated lines; FineWeb: 0.1.",
    )
    max_duplicate_paragraph_char_share: _Share = Field(
        default=0.2, description="Highest share of characters in repeated paragraphs."
    )
    max_top_2gram_char_share: _Share = Field(
        default=0.20,
        description="Highest share of characters in the most frequent word 2-gram.",
    )
    max_top_3gram_char_share: _Share = Field(
        default=0.18,
        description="Highest share of characters in the most frequent word 3-gram.",
    )
    max_top_4gram_char_share: _Share = Field(
        default=0.16,
        description="Highest share of characters in the most frequent word 4-gram.",
    )
    max_duplicate_5gram_char_share: _Share = Field(
        default=0.15, description="Highest share of characters in repeats of word 5-grams."
    )
    max_duplicate_6gram_char_share: _Share = Field(
        default=0.14, description="Highest share of characters in repeats of word 6-grams."
    )
    max_duplicate_7gram_char_share: _Share = Field(
        default=0.13, description="Highest share of characters in repeats of word 7-grams."
    )
    max_duplicate_8gram_char_share: _Share = Field(
        default=0.12, description="Highest share of characters in repeats of word 8-grams."
    )
    max_duplicate_9gram_char_share: _Share = Field(
        default=0.11, description="Highest share of characters in repeats of word 9-grams."
    )
    max_duplicate_10gram_char_share: _Share = Field(
        default=0.10, description="Highest share of characters in repeats of word 10-grams."
    )
    min_terminal_line_share: _Share = Field(
        default=None,
        description="Lowest share of lines that end with a mark of C4's, or one of another script; "
        "FineWeb: 0.12.",
    )
    max_short_line_share: _Share = Field(
        default=None,
        description="Highest share of lines of at most 30 characters; FineWeb: 0.67.",
    )
    max_newlines_per_word: _Limit = Field(
        default=None,
        description="Most line feeds per piece (a word or a sequence of punctuation); FineWeb's "
        "code: 0.3.",
    )
    min_sentences: _Count = Field(
        default=None,
        description="Fewest sentences, by the end marks of all scripts; C4: 3, after its rules for "
        "lines.",
    )
    max_lorem_ipsum_share: _Share = Field(
        default=None, description='Most "lorem ipsum" per character of the words; C4: 0.'
    )
    max_curly_bracket_share: _Share = Field(
        default=None,
        description='Highest share of characters that are "{" or "}"; C4: 0, of "{".',
    )
    max_bad_words: _Count = Field(
        default=None,
        description="Most words and phrases from the lists of annotate.quality.bad_words; C4: 0. "
        "Documents in a language without a list are kept.",
    )

    @model_validator(mode="after")
    def _ranges_are_not_empty(self) -> Self:
        for low, high in (
            ("min_words", "max_words"),
            ("min_mean_word_length", "max_mean_word_length"),
        ):
            lower, upper = getattr(self, low), getattr(self, high)
            named = (*list_named_languages(lower), *list_named_languages(upper))
            for language in (DEFAULT, *named):
                _check_range(
                    (low, find_limit(lower, language)),
                    (high, find_limit(upper, language)),
                    language,
                )
        return self


def _check_range(
    low: tuple[str, float | None], high: tuple[str, float | None], language: str
) -> None:
    """Raise ValueError if the lower limit is above the upper limit; each is a name and a value."""
    (low_name, least), (high_name, most) = low, high
    if least is not None and most is not None and least > most:
        where = "" if language == DEFAULT else f" in {language}"
        raise ValueError(
            f"{low_name} is {least}{where}, above {high_name}, which is {most}: no document could "
            f"be kept; lower {low_name}"
        )


class QualityBin(Settings):
    """The documents from one percentile to the next bin, and how often each is stored."""

    from_percentile: float = Field(
        ge=0,
        lt=100,
        description="Where the bin begins, in percent of the documents of a language: 0 is the "
        "worst document, 90 the beginning of the best tenth.",
    )
    num_copies: float = Field(
        ge=0,
        le=MAX_COPIES,
        allow_inf_nan=False,
        description="How often the dataset contains each document of the bin; 0 drops them. With "
        "2.5, each has two copies, and half of them, chosen by a hash of doc_id, a third one.",
    )


def check_bins(bins: tuple[QualityBin, ...]) -> None:
    """Raise ValueError unless the bins begin at 0 and rise."""
    starts = [each.from_percentile for each in bins]
    if starts[0] != 0 or starts != sorted(set(starts)):
        found = ", ".join(f"{start:g}" for start in starts)
        raise ValueError(
            f"bins begin at the percentiles {found}; they must rise from 0, so that every "
            "document is in one bin"
        )


class ScoreSettings(Settings):
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


class MixSettings(Settings):
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
