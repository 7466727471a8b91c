r"""Remove lines from texts by C4's rules, and drop documents by their remaining lines.

The rules, their order and their punctuation marks are those of C4's code: `clean_page` in
tensorflow_datasets' `text/c4_utils.py` (Raffel et al. 2020, arXiv:1910.10683, section 2.2). Each
rule can be turned off. C4's list of bad words, its deduplication and its language test are not here.

One rule differs: C4 counts sentences with nltk's Punkt model. Here a line has one sentence, and one
more for each end mark inside the line: .?!… with a blank after it, or another character of
Unicode's property Sentence_Terminal (。！？ of Chinese and Japanese, । of Hindi, ؟ and ۔ of Arabic
and Urdu). Thai and Lao have no end mark: each of their lines counts as one sentence.

The rules are for English. They judge lines of other scripts by what these have: a line may end with a
mark of Sentence_Terminal, and Thai, Lao and Tibetan lines need no mark. Words are not counted in lines
of scripts without blanks between words.

    stage = Lines(LinesSettings(min_sentences=1))
    stage.apply(batch).kept       # "Home\nIt was signed in Ghent.[3]" -> "It was signed in Ghent."
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.contract import (
    DOCUMENT,
    Column,
    Outcome,
    Stage,
    chain,
    drop_where,
    keep_all,
    with_columns,
)
from stages.counters import Counters
from stages.sentence_marks import SENTENCE_MARKS_CLASS
from stages.settings.filters import LinesSettings

_CITATION = r"\[\d*\]|\[edit\]|\[citation needed\]"  # `citation_regex` of C4's code
_ELLIPSIS = "..."

_CLOSING = r"\p{Pe}\p{Pf}\"'"
_SENTENCE_ENDS_INSIDE = "|".join(
    (
        rf"[.?!…][{_CLOSING}]*[\s\p{{Z}}]+[^\s\p{{Z}}]",
        rf"[{SENTENCE_MARKS_CLASS}][{_CLOSING}]*[^{SENTENCE_MARKS_CLASS}{_CLOSING}]",
        # UAX #29, rule SB6: a full stop before a digit ends no sentence.
        r"．[^\p{Nd}．]",
    )
)

# A line that ends with a mark of another script, and quotation marks after it.
_FOREIGN_END = rf"[{SENTENCE_MARKS_CLASS}][{_CLOSING}]*$"

# Scripts without blanks between words, and those whose sentences have no end marks.
_WITHOUT_BLANKS = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}\p{Tibetan}"
)
_WITHOUT_END_MARKS = r"\p{Thai}\p{Lao}\p{Tibetan}"

_Bools: TypeAlias = NDArray[np.bool_]
_Ints: TypeAlias = NDArray[np.int64]


class Lines(Stage[LinesSettings]):
    """Removes lines from texts, and drops the texts that then break a rule or are empty.

    White space at both ends of the lines that are left is removed too, as in C4.

    Raises:
        ValueError: the number of `kept_lines` is not the number of lines of the text.
    """

    name = "lines"
    version = 3
    needs: ClassVar[pa.Schema] = pa.schema(
        [DOCUMENT.field("text"), pa.field("kept_lines", pa.list_(pa.uint32()))]
    )
    adds: ClassVar[pa.Schema] = pa.schema(
        [
            pa.field("num_chars", pa.int64()),  # code points
            pa.field("num_lines", pa.int64()),
            # Both hold line numbers in the extracted text.
            pa.field("kept_lines", pa.list_(pa.uint32())),
            pa.field("lines_removed", pa.list_(pa.uint32())),
            pa.field("chars_removed", pa.int64()),  # including the line feeds
        ]
    )
    counters: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "chars_removed": "Characters removed with lines, of the documents kept by this stage",
            "lines_removed": "Lines removed, of the documents kept by this stage",
        }
    )
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "lines.lorem_ipsum": 'A line contains "lorem ipsum"; the value is the number of such '
            "lines.",
            "lines.curly_bracket": 'A line contains a "{"; the value is the number of such lines.',
            "lines.sentences_too_few": "The lines that are left have fewer sentences than "
            "min_sentences.",
            "lines.none_left": "No line with text is left; the value is the number of lines "
            "before.",
        }
    )

    def apply(self, batch: pa.Table) -> Outcome:
        """Replace the texts, add the columns, drop documents."""
        texts = pa.chunked_array(batch.column("text").fill_null("")).combine_chunks()
        lists = pc.split_pattern(texts, "\n")
        num_lines = pc.list_value_length(lists).to_numpy()
        found = self._apply_line_rules(lists.flatten())
        # (num_lines,) the row of each line
        rows = np.repeat(np.arange(len(num_lines)), num_lines)

        def sum_per_row(of_lines: _Ints | _Bools) -> _Ints:
            return np.bincount(rows, of_lines, len(num_lines)).astype(np.int64)

        num_kept = sum_per_row(found.is_kept)
        new_texts = _join_lines(found.lines.filter(pa.array(found.is_kept)), num_kept)
        changed = _with_new_texts(
            batch, texts, new_texts, num_lines, num_kept, found.is_kept
        )
        measured = {
            "lorem_ipsum": sum_per_row(found.has_lorem_ipsum),
            "curly_bracket": sum_per_row(found.has_curly_bracket),
            "sentences": sum_per_row(found.num_sentences),
            "lines": num_lines,
            "is_empty": _is_blank(new_texts),
        }
        outcome = self._drop(changed, pa.table(measured))
        _count_removed(outcome.kept, outcome.counters)
        return outcome

    def _apply_line_rules(self, lines: pa.Array) -> _LineResults:
        """Apply the rules to each line, in the order of C4's code."""
        settings = self.settings
        lines = pc.utf8_trim_whitespace(lines)
        # The order matters: a rule only counts lines that no earlier rule has removed.
        is_other = ~_to_numpy(pc.string_is_ascii(lines))  # may be in another script
        is_kept = _has_no_long_word(lines, settings.max_word_chars, is_other)
        if settings.remove_citations:
            lines = _remove_citations(lines)
        if settings.end_marks is not None:
            is_kept &= _has_end_mark(lines, settings.end_marks, is_other)
        if settings.min_words_per_line:
            is_kept &= ~_has_few_words(
                lines, is_kept, settings.min_words_per_line, is_other
            )
        has_lorem_ipsum = np.zeros(len(lines), np.bool_)
        if settings.drop_lorem_ipsum:
            has_lorem_ipsum = is_kept & _contains(lines, ["lorem ipsum"])
        if settings.remove_javascript:
            is_kept &= ~_contains(lines, ["javascript"])
        has_curly_bracket = np.zeros(len(lines), np.bool_)
        if settings.drop_curly_bracket:
            has_curly_bracket = is_kept & _to_numpy(pc.match_substring(lines, "{"))
        if settings.policy_phrases:
            is_kept &= ~_contains(lines, settings.policy_phrases)
        num_sentences = np.zeros(len(lines), np.int64)
        if settings.min_sentences:
            num_sentences = _count_sentences(lines, is_kept)
        return _LineResults(
            lines, is_kept, has_lorem_ipsum, has_curly_bracket, num_sentences
        )

    def _drop(self, batch: pa.Table, measured: pa.Table) -> Outcome:
        """Drop documents by the first rule that they break."""
        min_sentences = self.settings.min_sentences
        rules = (
            ("lines.lorem_ipsum", "lorem_ipsum", 0, pc.greater(measured["lorem_ipsum"], 0)),
            (
                "lines.curly_bracket",
                "curly_bracket",
                0,
                pc.greater(measured["curly_bracket"], 0),
            ),
            ("lines.none_left", "lines", 0, measured["is_empty"]),
            (
                "lines.sentences_too_few",
                "sentences",
                min_sentences,
                pc.less(measured["sentences"], min_sentences),
            ),
        )
        outcome = keep_all(batch)
        for reason, quantity, limit, is_broken in rules:
            kept = outcome.kept
            is_left = pc.is_in(batch.column("doc_id"), value_set=kept.column("doc_id"))
            value = measured[quantity].filter(is_left)
            is_dropped = pc.filter(is_broken, is_left)
            dropped = drop_where(kept, is_dropped, reason, value=value, limit=limit)
            outcome = chain(outcome, dropped)
        return outcome


@dataclass(frozen=True)
class _LineResults:
    """The result of the rules for each line; arrays of shape (num_lines,)."""

    lines: pa.Array  # without blanks at their ends and without citations
    is_kept: _Bools
    has_lorem_ipsum: _Bools
    has_curly_bracket: _Bools
    num_sentences: _Ints  # 0 for lines that are removed


def _with_new_texts(
    batch: pa.Table,
    texts: pa.Array,
    new_texts: pa.Array,
    num_lines: _Ints,
    num_kept: _Ints,
    is_kept: _Bools,
) -> pa.Table:
    """Return the batch with the new texts and the columns that describe them."""
    line_numbers = _number_lines(batch, num_lines)
    num_chars = pc.cast(pc.utf8_length(new_texts), pa.int64())
    num_chars_before = pc.cast(pc.utf8_length(texts), pa.int64())
    added = {
        "text": new_texts,
        "num_chars": num_chars,
        "num_lines": pa.array(num_kept),
        "kept_lines": _to_lists(line_numbers[is_kept], num_kept),
        "lines_removed": _to_lists(line_numbers[~is_kept], num_lines - num_kept),
        "chars_removed": pc.subtract(num_chars_before, num_chars),
    }
    return with_columns(batch, added)


def _count_removed(kept: pa.Table, counters: Counters) -> None:
    num_removed = pc.list_value_length(kept.column("lines_removed"))
    counters.add("chars_removed", pc.sum(kept.column("chars_removed")).as_py())
    counters.add("lines_removed", pc.sum(num_removed).as_py())


# --- Rules for lines; each returns an array of shape (num_lines,) ---


def _to_numpy(is_true: Column) -> _Bools:
    return is_true.to_numpy(zero_copy_only=False)


def _has_no_long_word(
    lines: pa.Array, max_word_chars: int | None, is_other: _Bools
) -> _Bools:
    has_none = np.ones(len(lines), np.bool_)
    if max_word_chars is None:
        return has_none
    # Only a line that is longer than the limit can have such a word: these few are split.
    long_lines = np.flatnonzero(
        _to_numpy(pc.greater(pc.utf8_length(lines), max_word_chars))
    )
    for row, line in zip(
        long_lines, lines.take(pa.array(long_lines)).to_pylist(), strict=True
    ):
        longest = max(map(len, line.split()), default=0)
        has_none[row] = longest <= max_word_chars
    return has_none | _are_mostly(lines, ~has_none & is_other, _WITHOUT_BLANKS)


def _has_few_words(
    lines: pa.Array, is_asked: _Bools, min_words: int, is_other: _Bools
) -> _Bools:
    """Return which of the asked lines have fewer words, in a script that has words."""
    rows = np.flatnonzero(is_asked)
    has_few = np.zeros(len(lines), np.bool_)
    has_few[rows] = _count_words(lines.take(pa.array(rows))) < min_words
    return has_few & ~_are_mostly(lines, has_few & is_other, _WITHOUT_BLANKS)


def _has_end_mark(lines: pa.Array, end_marks: Sequence[str], is_other: _Bools) -> _Bools:
    has_mark = np.zeros(len(lines), np.bool_)
    for mark in end_marks:
        has_mark |= _to_numpy(pc.ends_with(lines, mark))
    has_mark &= ~_to_numpy(pc.ends_with(lines, _ELLIPSIS))
    rows = np.flatnonzero(~has_mark & is_other)
    # The expression is slow on whole lines.
    ends = pc.utf8_slice_codeunits(lines.take(pa.array(rows)), -8)
    has_mark[rows] = _to_numpy(pc.match_substring_regex(ends, _FOREIGN_END))
    return has_mark | _are_mostly(lines, ~has_mark & is_other, _WITHOUT_END_MARKS)


def _are_mostly(lines: pa.Array, is_asked: _Bools, characters: str) -> _Bools:
    """Return which of the asked lines have at least half of their letters in a character class."""
    is_mostly = np.zeros(len(lines), np.bool_)
    rows = np.flatnonzero(is_asked)
    asked = lines.take(pa.array(rows))
    # One search is faster than counting, and hardly any line of most languages is found.
    has_some = _to_numpy(pc.match_substring_regex(asked, f"[{characters}]"))
    rows, asked = rows[has_some], asked.filter(pa.array(has_some))
    num_found = pc.count_substring_regex(asked, f"[{characters}]").to_numpy()
    num_letters = pc.count_substring_regex(asked, r"[\p{L}\p{M}]").to_numpy()
    is_mostly[rows] = 2 * num_found >= num_letters
    return is_mostly


def _contains(lines: pa.Array, phrases: Sequence[str]) -> _Bools:
    """Whether a line contains one of the phrases, in any case."""
    pattern = "|".join(map(re.escape, phrases))
    return _to_numpy(pc.match_substring_regex(lines, pattern, ignore_case=True))


def _count_words(lines: pa.Array) -> _Ints:
    """Count words as `len(line.split())` does."""
    words = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(lines))
    num_words = pc.list_value_length(words).to_numpy()
    # Arrow splits the empty string into one empty word.
    is_empty = pc.binary_length(lines).to_numpy() == 0
    return np.where(is_empty, 0, num_words)


def _count_sentences(lines: pa.Array, is_kept: _Bools) -> _Ints:
    num_sentences = np.zeros(len(lines), np.int64)
    has_text = is_kept & _to_numpy(pc.greater(pc.binary_length(lines), 0))
    ends_inside = pc.count_substring_regex(
        lines.filter(pa.array(has_text)), _SENTENCE_ENDS_INSIDE
    )
    # The end of the line ends one more sentence.
    num_sentences[has_text] = 1 + ends_inside.to_numpy()
    return num_sentences


def _remove_citations(lines: pa.Array) -> pa.Array:
    has_bracket = pc.match_substring(lines, "[")
    if not pc.any(has_bracket).as_py():
        return lines
    without = pc.replace_substring_regex(lines.filter(has_bracket), _CITATION, "")
    return pc.replace_with_mask(lines, has_bracket, without)


# --- Lines and texts ---


def _is_blank(texts: pa.Array) -> pa.Array:
    # utf8_is_space equals str.isspace for every character, and is False for the empty string.
    return pc.or_(pc.utf8_is_space(texts), pc.equal(pc.binary_length(texts), 0))


def _join_lines(lines: pa.Array, num_lines: _Ints) -> pa.Array:
    """Join lines to texts; `num_lines` (n,) is the number of lines of each text."""
    offsets = pa.array(np.append(0, np.cumsum(num_lines)), pa.int32())
    return pc.binary_join(
        pa.ListArray.from_arrays(offsets, lines), pa.scalar("\n", lines.type)
    )


def _to_lists(values: NDArray[np.uint32], lengths: _Ints) -> pa.ListArray:
    offsets = pa.array(np.append(0, np.cumsum(lengths)), pa.int32())
    return pa.ListArray.from_arrays(offsets, pa.array(values))


def _number_lines(batch: pa.Table, num_lines: _Ints) -> NDArray[np.uint32]:
    """Return the number of each line in the extracted text, from `kept_lines`.

    If `kept_lines` is null, no line was removed before, and lines are numbered from 0.
    """
    kept_lines = batch.column("kept_lines")
    lengths = pc.list_value_length(kept_lines).to_numpy()  # NaN where kept_lines is null
    is_given = ~np.isnan(lengths)
    wrong = np.flatnonzero(is_given & (lengths != num_lines))
    if len(wrong):
        row = wrong[0]
        raise ValueError(
            f"document {batch.column('doc_id')[row]}: kept_lines has {lengths[row]:.0f} indices, "
            f"but the text has {num_lines[row]} lines; were they made for another text?"
        )
    firsts = np.cumsum(num_lines) - num_lines
    numbers = (np.arange(num_lines.sum()) - np.repeat(firsts, num_lines)).astype(np.uint32)
    numbers[np.repeat(is_given, num_lines)] = pc.list_flatten(kept_lines).to_numpy()
    return numbers
