"""Settings of the stages in `stages.filters`, except quality."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, ClassVar, Literal, Self, TypeAlias

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)

from stages.settings.base import ByLanguage, Settings, Share
from stages.settings.languages import LanguageCode, convert_label

# Largest number of evaluation sets: the overlap kernel marks each set with one bit of a
# uint64.
MAX_SETS = 64

_WORD = re.compile("[a-z0-9\x80-\U0010ffff]+")


class UrlSettings(Settings):
    """Lists and patterns. A list of words or domains can be the path of a file with one per line.

    Source: Penedo et al. 2023 (RefinedWeb), section 3.1 and appendix G.1. Its word lists are not
    published.
    """

    domains: tuple[str, ...] = Field(
        default=(),
        description="Block lists of domains and URLs: files (one entry per line, or hosts "
        "files; also .gz), or folders, in which the files named domains or urls (UT1's layout) "
        "and all .txt files are read.",
    )
    subwords: str | tuple[str, ...] = Field(
        default=(),
        description="Drop URLs whose letters and digits, joined, contain one of these.",
    )
    hard_words: str | tuple[str, ...] = Field(
        default=(), description="Drop URLs that contain one of these as a word."
    )
    soft_words: str | tuple[str, ...] = Field(
        default=(), description="Words of which a URL can contain up to max_soft_words."
    )
    max_soft_words: int = Field(
        default=1,
        ge=0,
        description="Most different soft words in a URL. RefinedWeb drops URLs with two.",
    )
    patterns: tuple[str, ...] = Field(
        default=(),
        description="Regular expressions (RE2's syntax). A URL in which one is found, in normal "
        "form, is dropped.",
    )
    curated: str | tuple[str, ...] = Field(
        default=(),
        description="Domains (or URLs) of which curated copies are added elsewhere. RefinedWeb "
        "omits Wikipedia, arXiv and others: [wikipedia.org, arxiv.org, github.com].",
    )

    @field_validator("subwords", "hard_words", "soft_words")
    @classmethod
    def _are_words(cls, value: str | tuple[str, ...]) -> str | tuple[str, ...]:
        return value if isinstance(value, str) else normalize_words(value)

    @field_validator("patterns")
    @classmethod
    def _compile(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        import pyarrow as pa
        import pyarrow.compute as pc

        for pattern in value:
            try:
                pc.match_substring_regex(pa.array([""]), pattern)
            except pa.ArrowInvalid as error:
                raise ValueError(
                    f"{pattern!r} is not a regular expression of RE2: {error}"
                ) from error
        return value

    @model_validator(mode="after")
    def _judges_something(self) -> Self:
        rules = (
            self.domains,
            self.subwords,
            self.hard_words,
            self.soft_words,
            self.patterns,
            self.curated,
        )
        if not any(rules):
            raise ValueError(
                "no rule is given: nothing would be dropped; give domains, for example, or set url "
                "to null"
            )
        return self


def normalize_words(words: Iterable[str]) -> tuple[str, ...]:
    """Return the words in lower case, each once, sorted.

    Raises:
        ValueError: an entry is not a single word.
    """
    lower = sorted({word.strip().lower() for word in words})
    if wrong := [word for word in lower if not _WORD.fullmatch(word)]:
        raise ValueError(
            f"{wrong[0]!r} is not a single word of letters and digits, so no URL could contain it; "
            f"split it"
        )
    return tuple(lower)


class LengthSettings(Settings):
    """Limits of the length of a text. Both are inclusive."""

    min_chars: int = Field(
        default=300,
        ge=0,
        description="Shortest text kept, in code points. CCNet drops documents of fewer than 300 "
        "before deduplication.",
    )
    max_chars: int | None = Field(
        default=None,
        ge=1,
        description="Longest text kept, in code points; null sets no limit.",
    )

    @model_validator(mode="after")
    def _limits_in_order(self) -> Self:
        if self.max_chars is not None and self.max_chars < self.min_chars:
            raise ValueError(
                f"max_chars is {self.max_chars}, below min_chars {self.min_chars}: no text could "
                f"be kept"
            )
        return self


# `_POLICY_SUBSTRINGS` of C4's code.
POLICY_PHRASES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)


_Phrase: TypeAlias = Annotated[str, Field(min_length=1)]


class LinesSettings(Settings):
    """The rules for lines, and for documents after lines were removed. The defaults are C4's.

    FineWeb (datatrove's `examples/fineweb.py`, with `C4QualityFilter`) sets end_marks null,
    min_words_per_line 3 and min_sentences 5, and keeps the other defaults.
    """

    max_word_chars: int | None = Field(
        default=1000,
        ge=1,
        description="Remove lines with a longer word; null sets no limit. C4's code: 1000. Not for "
        "scripts without blanks between words.",
    )
    remove_citations: bool = Field(
        default=True,
        description="Remove Wikipedia's [1], [], [edit] and [citation needed] from lines.",
    )
    end_marks: Annotated[tuple[_Phrase, ...], Field(min_length=1)] | None = Field(
        default=(".", "?", "!", '"'),
        description="Remove lines that end with none of these, or with an ellipsis (...); null "
        "turns the rule off, as FineWeb does. Lines of other scripts may also end with their marks "
        "(。 । ؟); Thai, Lao and Tibetan lines need none.",
    )
    min_words_per_line: int = Field(
        default=5,
        ge=0,
        description="Remove lines of fewer words, separated by white space. C4: 5; FineWeb: 3; 0 "
        "turns the rule off. Not for scripts without blanks between words.",
    )
    drop_lorem_ipsum: bool = Field(
        default=True,
        description='Drop documents with "lorem ipsum", in any case, in a line that is left.',
    )
    remove_javascript: bool = Field(
        default=True, description='Remove lines with "javascript", in any case.'
    )
    drop_curly_bracket: bool = Field(
        default=True, description='Drop documents with a "{" in a line that is left.'
    )
    policy_phrases: tuple[_Phrase, ...] = Field(
        default=POLICY_PHRASES,
        description="Remove lines with one of these phrases, in any case; [] turns the rule off.",
    )
    min_sentences: int = Field(
        default=3,
        ge=0,
        description="Fewest sentences in the lines that are left, by the end marks of all scripts. "
        "Thai and Lao have none: a line counts as one. C4: 3; FineWeb: 5; 0 turns the rule off.",
    )


class LanguageSettings(Settings):
    """The model, and how much of a text it reads."""

    model: str = Field(
        default="lid.176.ftz",
        description="fastText model whose labels are languages: lid.176.ftz, lid.176.bin, "
        "glotlid-v3, openlid, or the path of another (docs/stages.md).",
    )
    labels: dict[str, LanguageCode] = Field(
        default={},
        description="Label of the model -> code, for labels whose code in the table of "
        "stages/settings/languages.py is not wanted: {zho_Hant: zh-Hant}.",
    )
    read: Literal["text", "page_sample"] = Field(
        default="text",
        description="text: what extraction has left; page_sample: the beginning of the whole page "
        "(`extract.warc.html.page_sample_chars`), and the text of documents of WET files.",
    )
    max_chars: int | None = Field(
        default=None,
        ge=1,
        description="Read only the first max_chars code points of a text; null reads all of it, as "
        "CCNet does. With 1000 the stage is 2.5 times as fast, and 97.8 % of web pages get the "
        "same label.",
    )

    def find_code(self, label: str) -> str:
        """Return the code of a label of the model."""
        return self.labels.get(label) or convert_label(label)


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


class LanguageFilterSettings(Settings):
    """The languages and scores that are kept."""

    keep: Annotated[tuple[LanguageCode, ...], Field(min_length=1)] | None = Field(
        default=None,
        description="Codes of the languages to keep (en, fr, zh, or 'no' in quotes), which the "
        "language model must have; null keeps every language.",
    )
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


Bucket = Literal["head", "middle", "tail", "all"]


class PerplexitySettings(Settings):
    """The language models."""

    models: Mapping[LanguageCode, str] = Field(
        description="Language code -> folder with <code>.sp.model and <code>.arpa.bin: a name of "
        "the model registry, or a path. Documents in other languages get no perplexity.",
    )


def _find_cutoffs_kind(value: object) -> str:
    return "|by_language" if isinstance(value, Mapping) else "|source"


# Language -> [head below, middle below], or the folder of a model that was trained with its cutoffs.
_Cutoffs: TypeAlias = Annotated[
    Annotated[str, Tag("|source")]
    | Annotated[Mapping[LanguageCode, tuple[float, float] | str], Tag("|by_language")],
    Discriminator(_find_cutoffs_kind),
]


class PerplexityFilterSettings(Settings):
    """Sort documents into head, middle and tail by perplexity, and choose the buckets to keep."""

    cutoffs: _Cutoffs = Field(
        default="run",
        description="Source of the cutoffs: `run` (percentiles of this run's documents), "
        "`model` (measured on held-out text in training), or the path of a file in the format "
        "of CCNet's cutoff.csv. Or the cutoffs: {en: [340, 520]}, below which a perplexity is head and "
        "middle.",
    )
    percentiles: tuple[int, int] = Field(
        default=(30, 60),
        description="Upper ends of head and middle, in percent of a language's documents "
        "(CCNet: 30, 60).",
    )
    keep: tuple[Bucket, ...] = Field(
        default=("head", "middle", "tail", "all"),
        min_length=1,
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

    @model_validator(mode="after")
    def _cutoffs_in_order(self) -> Self:
        by_language = {} if isinstance(self.cutoffs, str) else self.cutoffs
        for language, cutoffs in by_language.items():
            if not isinstance(cutoffs, str) and not 0 <= cutoffs[0] <= cutoffs[1]:
                raise ValueError(
                    f"cutoffs.{language} is {list(cutoffs)}; wanted two numbers, neither below 0: "
                    "the end of the head, then that of the middle, which must not be lower"
                )
        return self


class ClassifierSettings(Settings):
    """One classifier: its model, or its models by language, and the label that is scored."""

    model: str | None = Field(
        default=None,
        description="A fastText model file, or a folder with model.bin: a path, or a name of the "
        "model registry. Give either model or models.",
    )
    models: Mapping[LanguageCode, str] = Field(
        default={},
        description="Language code -> model, if there is one model for each language. Documents "
        "in other languages get no score.",
    )
    label: str = Field(
        min_length=1,
        description="The score is the probability of this label. Spell it as the model does, such "
        "as __label__hq.",
    )
    languages: Annotated[tuple[LanguageCode, ...], Field(min_length=1)] | None = Field(
        default=None,
        description="Languages that `model` scores; null scores all documents.",
    )
    max_chars: int | None = Field(
        default=None,
        ge=1,
        description="Score only the first max_chars code points of a text; null scores all of it.",
    )
    decimals: int | None = Field(
        default=None,
        ge=0,
        le=16,
        description="Round scores to this number of decimals; null stores them as fastText returns "
        "them. RedPajama 1 rounds to 4.",
    )

    @model_validator(mode="after")
    def _has_model_or_models(self) -> Self:
        if (self.model is None) == (not self.models):
            found = "both" if self.models else "neither"
            raise ValueError(f"give either model or models; found {found}")
        if self.models and self.languages is not None:
            raise ValueError(
                "languages applies to model only: the keys of models are the languages; "
                "remove languages"
            )
        return self

    def model_languages(self) -> Iterator[tuple[str, tuple[str, ...] | None]]:
        """Yield each model with the languages that it scores; None means all documents."""
        if self.model is not None:
            yield self.model, self.languages
        for language, model in self.models.items():
            yield model, (language,)


class ScoreLimits(Settings):
    """The scores of one classifier that are kept. All limits are inclusive."""

    min: float | None = Field(
        default=None, ge=0, le=1, description="Lowest score kept; null sets no limit."
    )
    max: float | None = Field(
        default=None, ge=0, le=1, description="Highest score kept; null sets no limit."
    )

    keep_top: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="Share of the best documents of each language, of those that all other rules "
        "of select keep: 0.1 keeps a tenth, by the scores of the run. Documents with equal scores "
        "get the same decision. Documents without a score are kept; null sets no limit.",
    )

    @model_validator(mode="after")
    def _range_is_not_empty(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(
                f"min is {self.min}, above max, which is {self.max}: no document could be kept; "
                f"lower min"
            )
        return self


class NamedSettings(Settings):
    """Settings whose keys are names chosen by the user."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="after")
    def _names_are_usable(self) -> Self:
        for name in self.model_extra or {}:
            # A name becomes an attribute of a pydantic model, so it must not hide one.
            if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or hasattr(BaseModel, name):
                usable = re.sub("[^a-z0-9_]", "_", name.lower())
                raise ValueError(
                    f"{name!r} cannot name a classifier: use lower-case letters, digits and _, and "
                    f"no name of a pydantic attribute; try {usable}_score"
                )
        return self


class ClassifiersSettings(NamedSettings):
    """Name -> classifier. Choose any name; the scores are stored in `classifier_<name>`."""

    each: ClassVar[type[Settings]] = ClassifierSettings
    # pydantic checks the values of free keys against this annotation.
    __pydantic_extra__: dict[  # pyright: ignore[reportIncompatibleVariableOverride]
        str, ClassifierSettings
    ] = Field(init=False)

    @property
    def by_name(self) -> Mapping[str, ClassifierSettings]:
        """The classifiers, sorted by name: the order of keys in a config has no effect."""
        return dict(sorted(self.__pydantic_extra__.items()))


class ClassifiersFilterSettings(NamedSettings):
    """Name -> limits of the score."""

    each: ClassVar[type[Settings]] = ScoreLimits
    # pydantic checks the values of free keys against this annotation.
    __pydantic_extra__: dict[  # pyright: ignore[reportIncompatibleVariableOverride]
        str, ScoreLimits
    ] = Field(init=False)

    @property
    def limits(self) -> Mapping[str, ScoreLimits]:
        """The limits, sorted by name: the first broken one is the reason of a drop."""
        return dict(sorted(self.__pydantic_extra__.items()))


class DecontaminationSettings(Settings):
    """The evaluation sets, and the length of shared n-grams."""

    sets: Annotated[Mapping[str, str], Field(min_length=1, max_length=MAX_SETS)] = Field(
        description="Name of a set -> its file (.jsonl: every string is an example; .txt: every "
        "line is; or .gz of these), or a folder of such files.",
    )
    ngram_words: int = Field(
        default=13,
        ge=1,
        le=1_000,
        description="Words of a shared n-gram. GPT-3: 13; PaLM: 8.",
    )
    min_example_words: int = Field(
        default=8,
        ge=1,
        description="An example shorter than ngram_words is compared as a whole if it has at least "
        "this number of words (GPT-3: 8). Shorter examples are ignored.",
    )

    @model_validator(mode="after")
    def _lengths_in_order(self) -> Self:
        if self.min_example_words > self.ngram_words:
            raise ValueError(
                f"min_example_words is {self.min_example_words}, above ngram_words "
                f"{self.ngram_words}; an example of {self.ngram_words} words would be compared "
                "anyway"
            )
        return self


class DecontaminationFilterSettings(Settings):
    """Limits of the share of words in common with an evaluation set."""

    max_share: Share | Mapping[str, Share] = Field(
        default=0.0,
        description="Highest share of a document's words in n-grams that occur in a set: one "
        "number for all sets, or set -> share (other sets have no limit). 0 drops every "
        "document that shares an n-gram.",
    )
