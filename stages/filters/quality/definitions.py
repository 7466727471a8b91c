"""Definitions of the quality signals, and the Arrow types of their columns.

The terms of the definitions:

- A *raw word* is a sequence of characters that are not white space.
- A *word* is a raw word in lower case without its ASCII punctuation, unless nothing is left. This
  is RedPajama-V2's normalised word, but not in NFD form: an accented letter is one character.
- A *piece* is a sequence of letters, digits and underscores, or a sequence of other characters that
  are not white space (RedPajama-V2's raw word).
- A *token* is a part of a raw word: a punctuation character at one of its ends, a hyphen, slash or
  such between two letters, or what is left between these (`stages.kernels.quality.tokens`).
- A *line* ends at a line feed. Blank lines do not count, nor does white space around a line.
- A *paragraph* is a sequence of lines between blank lines.

Lengths are in code points. A share of nothing is 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

import pyarrow as pa

from stages.kernels.quality import columns

_DEFINED: Mapping[str, str] = {
    "rps_doc_word_count": "Number of words.",
    "rps_doc_mean_word_length": "Mean length of a word in characters.",
    "rps_doc_frac_unique_words": "Number of different words divided by the number of words.",
    "rps_doc_unigram_entropy": "Entropy of the distribution of words, in nats, to 8 decimals.",
    "rps_doc_num_sentences": r"Number of matches of \b[^.!?]+[.!?]*.",
    "rps_doc_symbol_to_word_ratio": 'Number of "#", "..." and "…" divided by the number of pieces.',
    "rps_doc_frac_no_alph_words": "Share of pieces without a letter of a to z, in either case.",
    "rps_doc_frac_all_caps_words": "Share of pieces that have letters, all in upper case.",
    "rps_doc_frac_lines_end_with_ellipsis": 'Share of lines that end with "..." or "…".',
    "rps_doc_curly_bracket": 'Number of "{" and "}" divided by the number of characters.',
    "rps_doc_lorem_ipsum": 'Number of "lorem ipsum" in the words, joined by blanks, divided by '
    "their number of characters.",
    "rps_lines_ending_with_terminal_punctution_mark_mean": "Share of lines that end with . ! ? "
    "or ”.",
    "rps_lines_javascript_counts_mean": 'Number of words "javascript" divided by the number of '
    "lines.",
    "rps_lines_num_words_mean": "Number of words divided by the number of lines.",
    "rps_lines_numerical_chars_fraction_mean": "Mean over the lines of the share of numeric "
    "characters in their words, joined by blanks.",
    "rps_lines_start_with_bulletpoint_mean": "Share of lines that start with a bullet point or an "
    "en dash.",
    "rps_lines_uppercase_letter_fraction_mean": "Mean over the lines of the share of characters "
    "in upper case.",
    "hash_to_word_ratio": 'Number of "#" divided by the number of raw words.',
    "ellipsis_to_word_ratio": 'Number of "..." and "…" divided by the number of raw words.',
    "newline_to_word_ratio": "Number of line feeds divided by the number of pieces.",
    "frac_words_without_letter": "Share of raw words without a letter of any script.",
    "num_stop_words": "Number of Gopher's eight English stop words that occur: the, be, to, of, "
    "and, that, have, with.",
    "num_sentences": "The same as rps_doc_num_sentences, with the end marks of all scripts, such as 。 ？ । ؟ "
    "(Unicode's property Sentence_Terminal).",
    "frac_lines_start_with_bulletpoint": "Share of lines that start with a bullet point, an en dash "
    "or a hyphen.",
    "frac_lines_end_with_terminal_punctuation": "Share of lines that end with a mark of C4's "
    '(. ! ? " ”), an end mark of another script (。 । ؟), or a closing quotation mark (» 」).',
    "frac_short_lines": "Share of lines of at most 30 characters.",
    "frac_dupe_lines": "Share of lines that are equal to an earlier line of the document.",
    "frac_chars_dupe_lines": "Share of the characters of lines in lines that are equal to an earlier "
    "one.",
    "frac_dupe_paragraphs": "Share of paragraphs that are equal to an earlier one.",
    "frac_chars_dupe_paragraphs": "Share of the characters of lines in paragraphs that are equal to "
    "an earlier one.",
}


def _define_ngram_signals() -> Iterator[tuple[str, str]]:
    for n in columns.TOP_NGRAMS:
        definition = (
            f"Characters of the most frequent word {n}-gram times its count, divided by the "
            f"characters of all words. 0 if it occurs once. Of equally frequent ones, the first."
        )
        yield f"rps_doc_frac_chars_top_{n}gram", definition
    for n in columns.DUPE_NGRAMS:
        definition = (
            f"Share of the characters of words in word {n}-grams that occur twice or more, each "
            f"character counted once."
        )
        yield f"rps_doc_frac_chars_dupe_{n}grams", definition
    for n in columns.TOP_NGRAMS:
        definition = (
            f"Characters of the most frequent {n}-gram of tokens, joined by blanks, times its count, "
            f"divided by the characters of the text. 0 if it occurs once."
        )
        yield f"frac_chars_top_{n}gram", definition
    for n in columns.DUPE_NGRAMS:
        definition = (
            f"Characters of the tokens in {n}-grams of tokens that are equal to an earlier one, read "
            f"from the left without overlap, divided by the characters of the text."
        )
        yield f"frac_chars_dupe_{n}grams", definition


# Signal -> definition. The names that begin with rps_ and their definitions are
# RedPajama-V2's (`core/quality_signals`). Its rps_lines_ signals are lists of one number
# per line. Here they are the means of these lists.
DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {**_DEFINED, **dict(_define_ngram_signals())}
)

STOP_WORDS, BAD_WORDS = "rps_doc_stop_word_fraction", "rps_doc_ldnoobw_words"

_COUNTS = ("rps_doc_word_count", "rps_doc_num_sentences", "num_stop_words", "num_sentences")

# The columns that need no list of words.
SIGNAL_FIELDS = tuple(
    pa.field(name, pa.int64() if name in _COUNTS else pa.float64())
    for name in columns.SIGNALS
)

# The columns that need a list of words.
LIST_FIELDS: Mapping[str, pa.Field] = {
    STOP_WORDS: pa.field(STOP_WORDS, pa.float64()),
    BAD_WORDS: pa.field(BAD_WORDS, pa.int64()),
}
