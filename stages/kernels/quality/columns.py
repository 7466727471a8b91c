"""The columns of `measure`, and the words, characters and limits that they are defined with."""

from __future__ import annotations

from stages.sentence_marks import CLOSING_QUOTES, SENTENCE_MARKS

# English words counted by Rae et al. 2021 (Gopher), appendix A.1.1.
STOP_WORDS = ("the", "be", "to", "of", "and", "that", "have", "with")

# Bullets of RedPajama-V2 (core/quality_signals/lines.py), and the hyphen as in datatrove.
BULLETS = "-\u2013\u2022\u2023\u25a0\u25a1\u25aa\u25ab\u25b6\u25c0\u25e6"

# RedPajama-V2's marks at the end of a line.
#
# Raffel et al. 2020 (C4), section 2.2: period, exclamation mark, question mark, end quotation mark.
TERMINAL_IN_RPV2 = ".!?\u201d"
# The same in all scripts, as in datatrove.
TERMINAL_PUNCTUATION = ".!?" + SENTENCE_MARKS + CLOSING_QUOTES

# Member of `BULLETS` that RedPajama-V2 does not count.
NOT_A_BULLET_IN_RPV2 = ord("-")

# Longest short line of FineWeb (Penedo et al. 2024, section 3.6).
SHORT_LINE_CHARS = 30

# Lengths whose most frequent n-gram is measured (Rae et al. 2021, table A1).
TOP_NGRAMS = (2, 3, 4)
# Lengths whose duplicated n-grams are measured (Rae et al. 2021, table A1).
DUPE_NGRAMS = (5, 6, 7, 8, 9, 10)

# Names of the columns in order. `stages.filters.quality` defines each of them.
SIGNALS = (
    "rps_doc_word_count",
    "rps_doc_mean_word_length",
    "rps_doc_frac_unique_words",
    "rps_doc_unigram_entropy",
    "rps_doc_num_sentences",
    "rps_doc_symbol_to_word_ratio",
    "rps_doc_frac_no_alph_words",
    "rps_doc_frac_all_caps_words",
    "rps_doc_frac_lines_end_with_ellipsis",
    "rps_doc_curly_bracket",
    "rps_doc_lorem_ipsum",
    "rps_lines_ending_with_terminal_punctution_mark_mean",
    "rps_lines_javascript_counts_mean",
    "rps_lines_num_words_mean",
    "rps_lines_numerical_chars_fraction_mean",
    "rps_lines_start_with_bulletpoint_mean",
    "rps_lines_uppercase_letter_fraction_mean",
    "hash_to_word_ratio",
    "ellipsis_to_word_ratio",
    "newline_to_word_ratio",
    "frac_words_without_letter",
    "num_stop_words",
    "num_sentences",
    "frac_lines_start_with_bulletpoint",
    "frac_lines_end_with_terminal_punctuation",
    "frac_short_lines",
    "frac_dupe_lines",
    "frac_chars_dupe_lines",
    "frac_dupe_paragraphs",
    "frac_chars_dupe_paragraphs",
    *(f"rps_doc_frac_chars_top_{n}gram" for n in TOP_NGRAMS),
    *(f"rps_doc_frac_chars_dupe_{n}grams" for n in DUPE_NGRAMS),
    *(f"frac_chars_top_{n}gram" for n in TOP_NGRAMS),
    *(f"frac_chars_dupe_{n}grams" for n in DUPE_NGRAMS),
)

NUM_SIGNALS = len(SIGNALS)

# Index of each column, in the order of SIGNALS. RedPajama-V2's n-gram columns follow NGRAMS, and
# those of Gopher's rules TOKEN_NGRAMS.
(
    WORD_COUNT,
    MEAN_WORD_LENGTH,
    UNIQUE_WORDS,
    ENTROPY,
    NUM_SENTENCES,
    SYMBOLS,
    NO_ALPHA_WORDS,
    ALL_CAPS_WORDS,
    ELLIPSIS_LINES,
    CURLY_BRACKETS,
    LOREM_IPSUM,
    RPV2_TERMINAL_LINES,
    JAVASCRIPT_PER_LINE,
    WORDS_PER_LINE,
    NUMERIC_CHARS,
    RPV2_BULLET_LINES,
    UPPERCASE_CHARS,
    HASHES,
    ELLIPSES,
    NEWLINES,
    WORDS_WITHOUT_LETTER,
    NUM_STOP_WORDS,
    ALL_SENTENCES,
    BULLET_LINES,
    TERMINAL_LINES,
    SHORT_LINES,
    DUPE_LINES,
    DUPE_LINE_CHARS,
    DUPE_PARAGRAPHS,
    DUPE_PARAGRAPH_CHARS,
    NGRAMS,
) = range(31)

TOKEN_NGRAMS = NGRAMS + len(TOP_NGRAMS) + len(DUPE_NGRAMS)
