"""The rules of Gopher, C4 and FineWeb on quality signals: limits and reasons."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from stages.contract import Column
from stages.filters.quality.definitions import BAD_WORDS
from stages.kernels.quality import columns
from stages.settings.languages import LID_176, SCRIPTS_WITHOUT_BLANKS, list_scripts


class Exemption(NamedTuple):
    """Languages in which a rule measures nothing, and the reason."""

    reason: str
    scripts: frozenset[str] = frozenset()  # ISO 15924
    only_english: bool = False

    def covers(self, language: str) -> bool:
        """Return whether a rule with this exemption is off in the language."""
        if self.only_english:
            return language != "en"
        return not self.scripts.isdisjoint(list_scripts(language))


_CHINESE_AND_JAPANESE = {"Hani", "Hans", "Hant", "Jpan"}

NO_BLANKS = Exemption("no blanks between words", SCRIPTS_WITHOUT_BLANKS)
# Korean words have two to four characters, so min_mean_word_length 3 would drop most texts.
SYLLABLES = Exemption(
    "a character is a syllable or a word", frozenset({*_CHINESE_AND_JAPANESE, "Hang"})
)
NO_END_MARKS = Exemption("sentences have no end marks", frozenset({"Laoo", "Thai", "Tibt"}))
NOT_ENGLISH = Exemption("the words are English", only_english=True)


class Rule(NamedTuple):
    """A rule: a setting with the limit, the signal it limits, and the reason of a drop."""

    limit: str  # name of the setting: begins with min or max
    signal: str
    reason: str
    sentence: str
    exemptions: tuple[Exemption, ...] = ()

    def applies_to(self, language: str | None) -> bool:
        """Return whether the rule measures something in the language. None: it is not known."""
        if language is None:
            return True
        return not any(exemption.covers(language) for exemption in self.exemptions)

    def compute_value(self, batch: pa.Table) -> pa.ChunkedArray:
        """(n,) the values that are compared with the limit."""
        signal = batch.column(self.signal)
        # The setting counts words with a letter, as Gopher does; the signal counts the others.
        return pc.subtract(1.0, signal) if self.limit == "min_alpha_word_share" else signal

    def is_broken_by(
        self, value: pa.ChunkedArray, limit: float | Column
    ) -> pa.ChunkedArray:
        """(n,) bool: whether the rule is broken. A null value or limit breaks no rule."""
        is_broken = (
            pc.less(value, limit)
            if self.limit.startswith("min")
            else pc.greater(value, limit)
        )
        return pc.fill_null(is_broken, False)


def _ngram_rules() -> Iterator[Rule]:
    for n in columns.TOP_NGRAMS:
        yield Rule(
            f"max_top_{n}gram_char_share",
            f"frac_chars_top_{n}gram",
            f"quality.top_{n}gram_too_frequent",
            f"The share of characters in the most frequent word {n}-gram is above "
            f"max_top_{n}gram_char_share.",
        )
    for n in columns.DUPE_NGRAMS:
        yield Rule(
            f"max_duplicate_{n}gram_char_share",
            f"frac_chars_dupe_{n}grams",
            f"quality.duplicate_{n}grams_too_many",
            f"The share of characters in word {n}-grams that repeat an earlier one is above "
            f"max_duplicate_{n}gram_char_share.",
        )


# The order of the papers: Rae et al. 2021 (Gopher, arXiv:2112.11446, appendix A.1.1 and table A1), then
# C4 and FineWeb. The first broken rule is the reason of a drop.
RULES = (
    Rule(
        "min_words",
        "rps_doc_word_count",
        "quality.words_too_few",
        "The number of words is below min_words.",
        (NO_BLANKS,),
    ),
    Rule(
        "max_words",
        "rps_doc_word_count",
        "quality.words_too_many",
        "The number of words is above max_words.",
        (NO_BLANKS,),
    ),
    Rule(
        "min_mean_word_length",
        "rps_doc_mean_word_length",
        "quality.words_too_short",
        "The mean length of a word is below min_mean_word_length characters.",
        (NO_BLANKS, SYLLABLES),
    ),
    Rule(
        "max_mean_word_length",
        "rps_doc_mean_word_length",
        "quality.words_too_long",
        "The mean length of a word is above max_mean_word_length characters.",
        (NO_BLANKS,),
    ),
    Rule(
        "max_symbol_share",
        "hash_to_word_ratio",
        "quality.hashes_too_many",
        'The number of "#" per word is above max_symbol_share.',
        (NO_BLANKS,),
    ),
    Rule(
        "max_symbol_share",
        "ellipsis_to_word_ratio",
        "quality.ellipses_too_many",
        "The number of ellipses per word is above max_symbol_share.",
        (NO_BLANKS,),
    ),
    Rule(
        "max_bullet_line_share",
        "frac_lines_start_with_bulletpoint",
        "quality.bullet_lines_too_many",
        "The share of lines that start with a bullet is above max_bullet_line_share.",
    ),
    Rule(
        "max_ellipsis_line_share",
        "rps_doc_frac_lines_end_with_ellipsis",
        "quality.ellipsis_lines_too_many",
        "The share of lines that end with an ellipsis is above max_ellipsis_line_share.",
    ),
    Rule(
        "min_alpha_word_share",
        "frac_words_without_letter",
        "quality.alpha_words_too_few",
        "The share of words with a letter is below min_alpha_word_share.",
        (NO_BLANKS,),
    ),
    Rule(
        "min_stop_words",
        "num_stop_words",
        "quality.stop_words_too_few",
        "The number of different English stop words is below min_stop_words.",
        (NOT_ENGLISH,),
    ),
    Rule(
        "max_duplicate_line_share",
        "frac_dupe_lines",
        "quality.duplicate_lines_too_many",
        "The share of lines that repeat an earlier one is above max_duplicate_line_share.",
    ),
    Rule(
        "max_duplicate_paragraph_share",
        "frac_dupe_paragraphs",
        "quality.duplicate_paragraphs_too_many",
        "The share of paragraphs that repeat an earlier one is above "
        "max_duplicate_paragraph_share.",
    ),
    Rule(
        "max_duplicate_line_char_share",
        "frac_chars_dupe_lines",
        "quality.duplicate_lines_too_long",
        "The share of characters in repeated lines is above max_duplicate_line_char_share.",
    ),
    Rule(
        "max_duplicate_paragraph_char_share",
        "frac_chars_dupe_paragraphs",
        "quality.duplicate_paragraphs_too_long",
        "The share of characters in repeated paragraphs is above "
        "max_duplicate_paragraph_char_share.",
    ),
    *_ngram_rules(),
    Rule(
        "min_terminal_line_share",
        "frac_lines_end_with_terminal_punctuation",
        "quality.terminal_lines_too_few",
        "The share of lines that end with terminal punctuation is below min_terminal_line_share.",
        (NO_END_MARKS,),
    ),
    Rule(
        "max_short_line_share",
        "frac_short_lines",
        "quality.short_lines_too_many",
        "The share of short lines is above max_short_line_share.",
        (SYLLABLES,),
    ),
    Rule(
        "max_newlines_per_word",
        "newline_to_word_ratio",
        "quality.newlines_too_many",
        "The number of line feeds per word or sequence of punctuation is above "
        "max_newlines_per_word.",
        (NO_BLANKS,),
    ),
    Rule(
        "min_sentences",
        "num_sentences",
        "quality.sentences_too_few",
        "The number of sentences is below min_sentences.",
        (NO_END_MARKS,),
    ),
    Rule(
        "max_lorem_ipsum_share",
        "rps_doc_lorem_ipsum",
        "quality.lorem_ipsum_too_frequent",
        'The number of "lorem ipsum" per character is above max_lorem_ipsum_share.',
    ),
    Rule(
        "max_curly_bracket_share",
        "rps_doc_curly_bracket",
        "quality.curly_brackets_too_many",
        "The share of characters that are curly brackets is above max_curly_bracket_share.",
    ),
    Rule(
        "max_bad_words",
        BAD_WORDS,
        "quality.bad_words_too_many",
        "The number of listed words and phrases is above max_bad_words.",
    ),
)


def describe_exemptions(
    limits: Collection[str], languages: Iterable[str] | None
) -> Iterator[str]:
    """Yield a line for each exemption, with the settings and languages in which they are off.

    Args:
        limits: the settings that are not null.
        languages: languages to which the rules apply; None: all.
    """
    for exemption in (NOT_ENGLISH, NO_BLANKS, SYLLABLES, NO_END_MARKS):
        settings: dict[str, None] = {}
        for rule in RULES:
            if exemption in rule.exemptions and rule.limit in limits:
                settings[rule.limit] = None
        covered = [code for code in languages or LID_176 if exemption.covers(code)]
        if settings and covered:
            names = ", ".join(covered)
            if languages is None and exemption.only_english:
                names = "all languages but en"
            yield f"off for {names}: {', '.join(settings)} ({exemption.reason})"
