"""Quality signals of a document's text, and the rules of Gopher, C4 and FineWeb on them.

Promises: `Quality` adds every signal of `DEFINITIONS`, under RedPajama-V2's name where it has one, and drops nothing;
`QualityFilter` drops what breaks a rule, the first in the order of the settings being the reason. One thread.
Leaves to others: the language (Gopher's rules were made for English: see `QualityFilterSettings.languages`), lists of
words, and those signals of RedPajama-V2 that are a model's or an address's (docs/signals.md).

What is counted: a *raw word* is a run of characters that are not white space; a *word* is a raw word without its ASCII
punctuation, in lower case, if anything is left (RedPajama-V2's normalised word, but not in NFD form: an accented letter
is one character); a *piece* is a run of letters, digits and underscores, or of other characters that are not white
space (RedPajama-V2's raw word); a *line* ends at a line feed, blank ones do not count, nor does white space around one;
a *paragraph* is a run of lines between blank ones. Lengths are in code points. A share of nothing is 0.

    scored = Quality(QualitySettings()).apply(batch).kept
    outcome = QualityFilter(QualityFilterSettings()).apply(scored)
    outcome.dropped       # doc_id, reason "quality.words_too_few", value 12, limit 50
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Annotated, ClassVar, NamedTuple, Self, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field, model_validator

from stages.contract import DOC_ID, Outcome, Settings, Stage, chain, drop_where, keep_all
from stages.kernels.quality import columns
from stages.kernels.quality import signals as kernel
from stages.kernels.quality.alphabet import Phrases, build_alphabet

DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "rps_doc_word_count": "Number of words.",
        "rps_doc_mean_word_length": "Mean length of a word in characters.",
        "rps_doc_frac_unique_words": "Number of different words over that of words.",
        "rps_doc_unigram_entropy": "Entropy of the distribution of words, in nats, to 8 decimals.",
        "rps_doc_num_sentences": r"Number of matches of \b[^.!?]+[.!?]*.",
        "rps_doc_symbol_to_word_ratio": 'Number of "#", "..." and "…" over that of pieces.',
        "rps_doc_frac_no_alph_words": "Share of pieces without a letter of a to z, in either case.",
        "rps_doc_frac_all_caps_words": "Share of pieces whose letters are all in upper case, if they have any.",
        "rps_doc_frac_lines_end_with_ellipsis": 'Share of lines that end with "..." or "…".',
        "rps_doc_curly_bracket": 'Number of "{" and "}" over that of characters.',
        "rps_doc_lorem_ipsum": 'Number of "lorem ipsum" in the words joined by blanks over their characters.',
        "rps_lines_ending_with_terminal_punctution_mark_mean": "Share of lines that end with . ! ? or ”.",
        "rps_lines_javascript_counts_mean": 'Number of words "javascript" over that of lines.',
        "rps_lines_num_words_mean": "Number of words over that of lines.",
        "rps_lines_numerical_chars_fraction_mean": "Mean over the lines of the share of characters that are numeric, "
        "in its words joined by blanks.",
        "rps_lines_start_with_bulletpoint_mean": "Share of lines that start with a bullet point or an en dash.",
        "rps_lines_uppercase_letter_fraction_mean": "Mean over the lines of the share of characters in upper case.",
        "hash_to_word_ratio": 'Number of "#" over that of raw words.',
        "ellipsis_to_word_ratio": 'Number of "..." and "…" over that of raw words.',
        "newline_to_word_ratio": "Number of line feeds over that of pieces.",
        "frac_words_without_letter": "Share of raw words without an alphabetic character of any script.",
        "num_stop_words": "How many of Gopher's English stop words occur: the, be, to, of, and, that, have, with.",
        "frac_lines_start_with_bulletpoint": "Share of lines that start with a bullet point, an en dash or a hyphen.",
        "frac_lines_end_with_terminal_punctuation": "Share of lines that end with a mark of C4's: . ! ? \" or ”.",
        "frac_short_lines": "Share of lines of at most 30 characters.",
        "frac_dupe_lines": "Share of lines that occurred before in the document.",
        "frac_chars_dupe_lines": "Share of the lines' characters that lie in lines that occurred before.",
        "frac_dupe_paragraphs": "Share of paragraphs that occurred before in the document.",
        "frac_chars_dupe_paragraphs": "Share of the lines' characters in paragraphs that occurred before.",
    }
    | {
        f"rps_doc_frac_chars_top_{n}gram": f"Characters of the most frequent run of {n} words times its count, over "
        "those of all words; 0 if it occurs once; of several equally frequent, the first in the text."
        for n in columns.TOP_NGRAMS
    }
    | {
        f"rps_doc_frac_chars_dupe_{n}grams": f"Share of the words' characters in runs of {n} words that occur twice "
        "or more, none counted twice."
        for n in columns.DUPE_NGRAMS
    }
)
"""Signal -> what it is. The rps_ names and what they count: RedPajama-V2, core/quality_signals; of its rps_lines_
signals, which are lists of one number a line, the means."""

_COUNTS = ("rps_doc_word_count", "rps_doc_num_sentences", "num_stop_words")
_STOP_WORDS, _BAD_WORDS = "rps_doc_stop_word_fraction", "rps_doc_ldnoobw_words"
_SIGNAL_FIELDS = [
    pa.field(name, pa.int64() if name in _COUNTS else pa.float64()) for name in columns.SIGNALS
]
_LISTED_FIELDS = {
    _STOP_WORDS: pa.field(_STOP_WORDS, pa.float64()),
    _BAD_WORDS: pa.field(_BAD_WORDS, pa.int64()),
}
_LANGUAGE = pa.field("language", pa.string())


class QualitySettings(Settings):
    """Lists of words; nothing else is to be set: every signal is stored, so that thresholds can change freely."""

    stop_words: Mapping[str, str] = Field(
        default={},
        description="Language -> file of stop words, one a line: adds rps_doc_stop_word_fraction, the share of pieces "
        "that are on the list as they stand, case and all (RedPajama-V2; its lists are stopwords-json's); null in "
        "other languages.",
    )
    bad_words: Mapping[str, str] = Field(
        default={},
        description="Language -> file of words and phrases, one a line: adds rps_doc_ldnoobw_words, the number of runs "
        "of words that are on the list (RedPajama-V2; the list of its name is LDNOOBW's); null in other languages. An "
        "entry with ASCII punctuation equals no run of words.",
    )


class Quality(Stage[QualitySettings]):
    """Adds the signals of `DEFINITIONS`, and those that lists of words are given for."""

    name = "quality"
    version = 2
    needs: ClassVar[pa.Schema] = pa.schema([DOC_ID, pa.field("text", pa.large_string())])
    adds: ClassVar[pa.Schema] = pa.schema(_SIGNAL_FIELDS)

    _lists: Mapping[str, Mapping[str, Phrases]]  # signal -> language -> list

    @classmethod
    def required_columns(cls, settings: QualitySettings) -> pa.Schema:
        """The text; the language where there are lists."""
        return pa.schema([*cls.needs, _LANGUAGE]) if cls.required_files(settings) else cls.needs

    @classmethod
    def added_columns(cls, settings: QualitySettings) -> pa.Schema:
        """A column more for each kind of list."""
        return pa.schema(
            [
                *cls.adds,
                *(
                    _LISTED_FIELDS[name]
                    for name, files in _files_by_signal(settings).items()
                    if files
                ),
            ]
        )

    @classmethod
    def required_files(cls, settings: QualitySettings) -> tuple[str, ...]:
        """The lists, each once, sorted."""
        return tuple(
            sorted(
                {path for files in _files_by_signal(settings).values() for path in files.values()}
            )
        )

    def open(self) -> None:
        """Read the lists.

        Raises:
            ValueError: a list has no entry, or is no UTF-8.
        """
        self._lists = {
            name: {
                language: self._phrases(path, name == _STOP_WORDS)
                for language, path in sorted(files.items())
            }
            for name, files in _files_by_signal(self.settings).items()
            if files
        }

    def _phrases(self, reference: str, as_they_stand: bool) -> Phrases:
        path = self.files[reference]
        try:
            lines = path.read_text(encoding="utf-8-sig").splitlines()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: a list of words must be UTF-8: {error}") from error
        entries = [line.strip() if as_they_stand else line.lower() for line in lines]
        phrases = sorted(
            {
                (entry,) if as_they_stand else tuple(entry.split())
                for entry in entries
                if entry.strip()
            }
        )
        if not phrases:
            raise ValueError(
                f"{path}: no word in this list; give one a line, or take the list out of annotate.quality"
            )
        return Phrases.from_words(phrases)

    def apply(self, batch: pa.Table) -> Outcome:
        """Measure each text; a null one counts as empty."""
        texts = pc.fill_null(pc.cast(batch.column("text"), pa.large_string()), "").combine_chunks()
        signals = _measured(texts)
        added = {field.name: pa.array(signals[field.name]).cast(field.type) for field in self.adds}
        for name, lists in (self._lists if self.files else {}).items():
            added[name] = self._listed(texts, batch.column("language"), name, lists)
        return keep_all(batch, added)

    def _listed(
        self,
        texts: pa.Array,
        languages: pa.ChunkedArray,
        name: str,
        lists: Mapping[str, Phrases],
    ) -> pa.Array:
        """(n,) one of the signals by lists, null where there is none for the language."""
        values = np.full(len(texts), np.nan)
        for language, phrases in lists.items():
            is_mine = pc.fill_null(pc.equal(languages, language), False).combine_chunks()
            found = kernel.count_listed(
                *_buffers(texts.filter(is_mine)),
                build_alphabet(),
                phrases,
                name == _STOP_WORDS,
            )
            listed, words = found[:, 0], found[:, 1]
            values[is_mine.to_numpy(zero_copy_only=False)] = (
                listed / np.maximum(words, 1) if name == _STOP_WORDS else listed
            )
        return pa.array(values, mask=np.isnan(values)).cast(_LISTED_FIELDS[name].type)


def _files_by_signal(settings: QualitySettings) -> dict[str, Mapping[str, str]]:
    """Signal -> language -> file."""
    return {_STOP_WORDS: settings.stop_words, _BAD_WORDS: settings.bad_words}


def _buffers(texts: pa.Array) -> tuple[np.ndarray, np.ndarray]:
    """UTF-8 of all texts, and where each begins, (num_texts + 1,)."""
    if len(texts) == 0:
        return np.zeros(0, np.uint8), np.zeros(1, np.int64)
    _, offsets, utf8 = texts.buffers()
    starts = np.frombuffer(offsets, dtype=np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return np.frombuffer(utf8 or b"", dtype=np.uint8), starts


def _measured(texts: pa.Array) -> dict[str, np.ndarray]:
    """Signal -> (num_texts,) float64."""
    values = kernel.measure(*_buffers(texts), build_alphabet())
    signals = {name: np.ascontiguousarray(values[:, i]) for i, name in enumerate(columns.SIGNALS)}
    # The last bits of a logarithm are the mathematical library's own; RedPajama-V2 rounds all it stores to 8 decimals.
    signals["rps_doc_unigram_entropy"] = np.round(signals["rps_doc_unigram_entropy"], 8)
    return signals


_Count: TypeAlias = Annotated[int | None, Field(ge=0)]
_Limit: TypeAlias = Annotated[float | None, Field(ge=0)]
_Share: TypeAlias = Annotated[float | None, Field(ge=0, le=1)]


class QualityFilterSettings(Settings):
    """Limits that keep what equals them; null turns a rule off.

    Defaults: Rae et al. 2021 (Gopher), appendix A.1.1: its text for the quality rules, table A1 for repetition.
    """

    languages: Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        default=("en",),
        description="Languages whose documents are judged, the others pass; null judges all. Gopher's rules are "
        "for English: its stop words are, and other scripts do not put blanks between words.",
    )
    min_words: _Count = Field(default=50, description="Fewest words.")
    max_words: _Count = Field(default=100_000, description="Most words.")
    min_mean_word_length: _Limit = Field(
        default=3, description="Least mean length of a word in characters."
    )
    max_mean_word_length: _Limit = Field(
        default=10, description="Greatest mean length of a word in characters."
    )
    max_symbol_share: _Limit = Field(
        default=0.1, description='Most "#" a raw word, and most ellipses a raw word.'
    )
    max_bullet_line_share: _Share = Field(
        default=0.9, description="Greatest share of lines that start with a bullet."
    )
    max_ellipsis_line_share: _Share = Field(
        default=0.3, description="Greatest share of lines ending in an ellipsis."
    )
    min_alpha_word_share: _Share = Field(
        default=0.8, description="Least share of raw words with a letter."
    )
    min_stop_words: _Count = Field(
        default=2, le=8, description="Fewest different stop words out of Gopher's eight."
    )
    max_duplicate_line_share: _Share = Field(
        default=0.3, description="Greatest share of repeated lines."
    )
    max_duplicate_paragraph_share: _Share = Field(
        default=0.3, description="Greatest share of repeated paragraphs."
    )
    max_duplicate_line_char_share: _Share = Field(
        default=0.2,
        description="Greatest share of characters in repeated lines; FineWeb takes 0.1.",
    )
    max_duplicate_paragraph_char_share: _Share = Field(
        default=0.2, description="Greatest share of characters in repeated paragraphs."
    )
    max_top_2gram_char_share: _Share = Field(
        default=0.20,
        description="Greatest share of characters in the most frequent run of 2 words.",
    )
    max_top_3gram_char_share: _Share = Field(
        default=0.18,
        description="Greatest share of characters in the most frequent run of 3 words.",
    )
    max_top_4gram_char_share: _Share = Field(
        default=0.16,
        description="Greatest share of characters in the most frequent run of 4 words.",
    )
    max_duplicate_5gram_char_share: _Share = Field(
        default=0.15, description="Greatest share of characters in repeated runs of 5 words."
    )
    max_duplicate_6gram_char_share: _Share = Field(
        default=0.14, description="Greatest share of characters in repeated runs of 6 words."
    )
    max_duplicate_7gram_char_share: _Share = Field(
        default=0.13, description="Greatest share of characters in repeated runs of 7 words."
    )
    max_duplicate_8gram_char_share: _Share = Field(
        default=0.12, description="Greatest share of characters in repeated runs of 8 words."
    )
    max_duplicate_9gram_char_share: _Share = Field(
        default=0.11, description="Greatest share of characters in repeated runs of 9 words."
    )
    max_duplicate_10gram_char_share: _Share = Field(
        default=0.10, description="Greatest share of characters in repeated runs of 10 words."
    )
    min_terminal_line_share: _Share = Field(
        default=None,
        description="Least share of lines ending in a mark of C4's; FineWeb takes 0.12.",
    )
    max_short_line_share: _Share = Field(
        default=None,
        description="Greatest share of lines of at most 30 characters; FineWeb takes 0.67.",
    )
    max_newlines_per_word: _Limit = Field(
        default=None,
        description="Most line feeds a piece (a word or a run of punctuation); FineWeb's code takes 0.3.",
    )
    min_sentences: _Count = Field(
        default=None,
        description="Fewest sentences, ended by . ! or ?; C4 takes 3, after its rules for lines.",
    )
    max_lorem_ipsum_share: _Share = Field(
        default=None, description='Most "lorem ipsum" a character of the words; C4 takes 0.'
    )
    max_curly_bracket_share: _Share = Field(
        default=None,
        description='Greatest share of characters that are "{" or "}"; C4 takes 0, of "{".',
    )
    max_bad_words: _Count = Field(
        default=None,
        description="Most runs of words that are on a list of annotate.quality.bad_words; C4 takes 0. Documents in a "
        "language without a list pass.",
    )

    @model_validator(mode="after")
    def _ranges_are_not_empty(self) -> Self:
        for low, high in (
            ("min_words", "max_words"),
            ("min_mean_word_length", "max_mean_word_length"),
        ):
            least, most = getattr(self, low), getattr(self, high)
            if least is not None and most is not None and least > most:
                raise ValueError(
                    f"{low} is {least}, above {high}, which is {most}: nothing could be kept; lower {low}"
                )
        return self


class _Rule(NamedTuple):
    """A limit, the signal that is held against it, and what breaking it is called."""

    limit: str  # name of the setting; its first three letters tell the side
    signal: str
    reason: str
    sentence: str

    def value(self, batch: pa.Table) -> pa.ChunkedArray:
        """What is held against the limit, one per row."""
        signal = batch.column(self.signal)
        # The setting speaks of the words that do have a letter, as Gopher does; the signal of the others.
        return pc.subtract(1.0, signal) if self.limit == "min_alpha_word_share" else signal

    def broken_by(self, value: pa.ChunkedArray, limit: float) -> pa.ChunkedArray:
        """(n,) bool; what was not measured breaks nothing."""
        is_broken = (
            pc.less(value, limit) if self.limit.startswith("min") else pc.greater(value, limit)
        )
        return pc.fill_null(is_broken, False)


def _ngram_rules() -> Iterator[_Rule]:
    for n in columns.TOP_NGRAMS:
        yield _Rule(
            f"max_top_{n}gram_char_share",
            f"rps_doc_frac_chars_top_{n}gram",
            f"quality.top_{n}gram_too_frequent",
            f"The share of characters in the most frequent run of {n} words is above max_top_{n}gram_char_share.",
        )
    for n in columns.DUPE_NGRAMS:
        yield _Rule(
            f"max_duplicate_{n}gram_char_share",
            f"rps_doc_frac_chars_dupe_{n}grams",
            f"quality.duplicate_{n}grams_too_many",
            f"The share of characters in repeated runs of {n} words is above max_duplicate_{n}gram_char_share.",
        )


# The order of judging: the paper's.
_RULES = (
    _Rule(
        "min_words",
        "rps_doc_word_count",
        "quality.words_too_few",
        "The number of words is below min_words.",
    ),
    _Rule(
        "max_words",
        "rps_doc_word_count",
        "quality.words_too_many",
        "The number of words is above max_words.",
    ),
    _Rule(
        "min_mean_word_length",
        "rps_doc_mean_word_length",
        "quality.words_too_short",
        "The mean length of a word is below min_mean_word_length characters.",
    ),
    _Rule(
        "max_mean_word_length",
        "rps_doc_mean_word_length",
        "quality.words_too_long",
        "The mean length of a word is above max_mean_word_length characters.",
    ),
    _Rule(
        "max_symbol_share",
        "hash_to_word_ratio",
        "quality.hashes_too_many",
        'The number of "#" over that of words is above max_symbol_share.',
    ),
    _Rule(
        "max_symbol_share",
        "ellipsis_to_word_ratio",
        "quality.ellipses_too_many",
        "The number of ellipses over that of words is above max_symbol_share.",
    ),
    _Rule(
        "max_bullet_line_share",
        "frac_lines_start_with_bulletpoint",
        "quality.bullet_lines_too_many",
        "The share of lines that start with a bullet is above max_bullet_line_share.",
    ),
    _Rule(
        "max_ellipsis_line_share",
        "rps_doc_frac_lines_end_with_ellipsis",
        "quality.ellipsis_lines_too_many",
        "The share of lines that end with an ellipsis is above max_ellipsis_line_share.",
    ),
    _Rule(
        "min_alpha_word_share",
        "frac_words_without_letter",
        "quality.alpha_words_too_few",
        "The share of words with an alphabetic character is below min_alpha_word_share.",
    ),
    _Rule(
        "min_stop_words",
        "num_stop_words",
        "quality.stop_words_too_few",
        "The number of different English stop words is below min_stop_words.",
    ),
    _Rule(
        "max_duplicate_line_share",
        "frac_dupe_lines",
        "quality.duplicate_lines_too_many",
        "The share of lines that repeat an earlier one is above max_duplicate_line_share.",
    ),
    _Rule(
        "max_duplicate_paragraph_share",
        "frac_dupe_paragraphs",
        "quality.duplicate_paragraphs_too_many",
        "The share of paragraphs that repeat an earlier one is above max_duplicate_paragraph_share.",
    ),
    _Rule(
        "max_duplicate_line_char_share",
        "frac_chars_dupe_lines",
        "quality.duplicate_lines_too_long",
        "The share of characters in repeated lines is above max_duplicate_line_char_share.",
    ),
    _Rule(
        "max_duplicate_paragraph_char_share",
        "frac_chars_dupe_paragraphs",
        "quality.duplicate_paragraphs_too_long",
        "The share of characters in repeated paragraphs is above max_duplicate_paragraph_char_share.",
    ),
    *_ngram_rules(),
    _Rule(
        "min_terminal_line_share",
        "frac_lines_end_with_terminal_punctuation",
        "quality.terminal_lines_too_few",
        "The share of lines that end with terminal punctuation is below min_terminal_line_share.",
    ),
    _Rule(
        "max_short_line_share",
        "frac_short_lines",
        "quality.short_lines_too_many",
        "The share of short lines is above max_short_line_share.",
    ),
    _Rule(
        "max_newlines_per_word",
        "newline_to_word_ratio",
        "quality.newlines_too_many",
        "The number of line feeds over that of words and runs of punctuation is above max_newlines_per_word.",
    ),
    _Rule(
        "min_sentences",
        "rps_doc_num_sentences",
        "quality.sentences_too_few",
        "The number of sentences is below min_sentences.",
    ),
    _Rule(
        "max_lorem_ipsum_share",
        "rps_doc_lorem_ipsum",
        "quality.lorem_ipsum_too_frequent",
        'The number of "lorem ipsum" over that of characters is above max_lorem_ipsum_share.',
    ),
    _Rule(
        "max_curly_bracket_share",
        "rps_doc_curly_bracket",
        "quality.curly_brackets_too_many",
        "The share of characters that are curly brackets is above max_curly_bracket_share.",
    ),
    _Rule(
        "max_bad_words",
        _BAD_WORDS,
        "quality.bad_words_too_many",
        "The number of listed words and phrases is above max_bad_words.",
    ),
)


class QualityFilter(Stage[QualityFilterSettings]):
    """Drops documents that break a rule; the reason is the first one broken, in the order of the settings."""

    name = "quality"
    version = 1
    needs: ClassVar[pa.Schema] = pa.schema([DOC_ID, _LANGUAGE])
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {rule.reason: rule.sentence for rule in _RULES}
    )

    @classmethod
    def required_columns(cls, settings: QualityFilterSettings) -> pa.Schema:
        """The signals that have a limit."""
        wanted = {rule.signal for rule in _RULES if getattr(settings, rule.limit) is not None}
        fields = [*_SIGNAL_FIELDS, *_LISTED_FIELDS.values()]
        return pa.schema([*cls.needs, *(field for field in fields if field.name in wanted)])

    def apply(self, batch: pa.Table) -> Outcome:
        """Keep the rows that break no rule or are in a language that is not judged."""
        outcome = keep_all(batch)
        for rule in _RULES:
            limit: float | None = getattr(self.settings, rule.limit)
            if limit is not None:
                outcome = chain(outcome, self._judge(outcome.kept, rule, limit))
        return outcome

    def _judge(self, batch: pa.Table, rule: _Rule, limit: float) -> Outcome:
        value = rule.value(batch)
        is_broken = rule.broken_by(value, limit)
        if self.settings.languages is not None:
            judged = pa.array(self.settings.languages, pa.string())
            is_broken = pc.and_(is_broken, pc.is_in(batch.column("language"), value_set=judged))
        return drop_where(batch, is_broken, rule.reason, value=value, limit=limit)
