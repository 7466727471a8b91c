r"""C4's rules for lines: which lines of a text are taken out, and which texts then go.

Promises: the rules, their order and their marks are those of C4's code, `clean_page` of tensorflow_datasets'
`text/c4_utils.py` (Raffel et al. 2020, arXiv:1910.10683, section 2.2); each can be turned off. What stays is on record:
`kept_lines`, `num_lines` and `num_chars` are those of the shorter text, `lines_removed` names what went.
Leaves to others: C4's list of bad words, its deduplication, and its language test.

Where C4's code asks nltk's Punkt how many sentences a line has, a rule that needs no model counts here: one, and one
more for every end mark inside the line that a blank follows (none has to follow 。！？).

    stage = Lines(LinesSettings(min_sentences=1))
    stage.apply(batch).kept       # "Home\nThe treaty was signed in Ghent.[3]" -> "The treaty was signed in Ghent."
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import Field

from stages.contract import (
    DOCUMENT,
    Outcome,
    Settings,
    Stage,
    chain,
    drop_where,
    keep_all,
    with_columns,
)
from stages.counters import Counters

POLICY_PHRASES = (
    "terms of use",
    "privacy policy",
    "cookie policy",
    "uses cookies",
    "use of cookies",
    "use cookies",
)
"""`_POLICY_SUBSTRINGS` of C4's code."""

_CITATION = r"\[\d*\]|\[edit\]|\[citation needed\]"  # `citation_regex` of C4's code
_ELLIPSIS = "..."
_SENTENCE_ENDS_INSIDE = (
    r"""[.?!…]["'”’»)\]]*[\s\p{Z}]+[^\s\p{Z}]|[。！？][」』）”’]*[^。！？」』）”’]"""
)

_Phrase: TypeAlias = Annotated[str, Field(min_length=1)]


class LinesSettings(Settings):
    """Which lines go, and what a text must have when they are gone. The defaults are C4's.

    FineWeb (datatrove's `examples/fineweb.py`, with `C4QualityFilter`): end_marks null, min_words_per_line 3,
    min_sentences 5, the others as they are.
    """

    max_word_chars: int | None = Field(
        default=1000,
        ge=1,
        description="Lines with a longer word go; null sets no limit. C4's code: 1000.",
    )
    remove_citations: bool = Field(
        default=True,
        description="Take Wikipedia's [1], [], [edit] and [citation needed] out of the lines.",
    )
    end_marks: Annotated[tuple[_Phrase, ...], Field(min_length=1)] | None = Field(
        default=(".", "?", "!", '"'),
        description="Lines that end with none of these, or with an ellipsis (...), go; null turns the rule off, as "
        "FineWeb does.",
    )
    min_words_per_line: int = Field(
        default=5,
        ge=0,
        description="Lines of fewer words, by blanks, go. C4: 5; FineWeb: 3; 0 turns the rule off.",
    )
    drop_lorem_ipsum: bool = Field(
        default=True,
        description='Documents go in which a line that is left has "lorem ipsum", in any case.',
    )
    remove_javascript: bool = Field(
        default=True, description='Lines go that have "javascript" in them, in any case.'
    )
    drop_curly_bracket: bool = Field(
        default=True, description='Documents go in which a line that is left has a "{".'
    )
    policy_phrases: tuple[_Phrase, ...] = Field(
        default=POLICY_PHRASES,
        description="Lines go that have one of these in them, in any case; [] for none.",
    )
    min_sentences: int = Field(
        default=3,
        ge=0,
        description="Fewest sentences of what is left. C4: 3; FineWeb: 5; 0 turns the rule off.",
    )


class Lines(Stage[LinesSettings]):
    """Takes lines out of the texts and drops the texts that then break a rule, or have nothing left.

    White space at both ends of a line that stays goes, too, as in C4.

    Raises:
        ValueError: `kept_lines` has not one index for each line of its text.
    """

    name = "lines"
    version = 1
    needs: ClassVar[pa.Schema] = pa.schema(
        [DOCUMENT.field("text"), pa.field("kept_lines", pa.list_(pa.uint32()))]
    )
    adds: ClassVar[pa.Schema] = pa.schema(
        [
            pa.field("num_chars", pa.int64()),  # code points
            pa.field("num_lines", pa.int64()),
            pa.field("kept_lines", pa.list_(pa.uint32())),  # those of what came in whose lines stay
            pa.field("lines_removed", pa.list_(pa.uint32())),  # the others
            pa.field(
                "chars_removed", pa.int64()
            ),  # by how many the text is shorter, line feeds counted
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
            "lines.lorem_ipsum": 'A line has "lorem ipsum" in it; the value is the number of such lines.',
            "lines.curly_bracket": 'A line has a "{" in it; the value is the number of such lines.',
            "lines.sentences_too_few": "The lines that are left have fewer sentences than min_sentences.",
            "lines.none_left": "No line with text is left; the value is the number of lines before.",
        }
    )

    def apply(self, batch: pa.Table) -> Outcome:
        """Replace the text, annotate, drop: see the class."""
        texts = pa.chunked_array(batch.column("text").fill_null("")).combine_chunks()
        lists = pc.split_pattern(texts, "\n")
        lines, counts = lists.flatten(), pc.list_value_length(lists).to_numpy()
        documents = np.repeat(np.arange(len(counts)), counts)  # (num_lines,) the row of each line
        lines, is_kept, has_lorem, has_curly, sentences = self._judged(lines)

        def per_document(of_lines: NDArray[np.int64] | NDArray[np.bool_]) -> NDArray[np.int64]:
            return np.bincount(documents, of_lines, len(counts)).astype(np.int64)

        num_kept = per_document(is_kept)
        shorter = _joined(lines.filter(pa.array(is_kept)), num_kept)
        indices = _indices(batch, counts)
        num_chars = pc.cast(pc.utf8_length(shorter), pa.int64())
        changed = with_columns(
            batch,
            {
                "text": shorter,
                "num_chars": num_chars,
                "num_lines": pa.array(num_kept),
                "kept_lines": _lists(indices[is_kept], num_kept),
                "lines_removed": _lists(indices[~is_kept], counts - num_kept),
                "chars_removed": pc.subtract(pc.cast(pc.utf8_length(texts), pa.int64()), num_chars),
            },
        )
        facts = pa.table(
            {
                "lorem": per_document(has_lorem),
                "curly": per_document(has_curly),
                "sentences": per_document(sentences),
                "lines": counts,
                # utf8_is_space is str.isspace, character for character, and False for the empty string.
                "is_empty": pc.or_(
                    pc.utf8_is_space(shorter), pc.equal(pc.binary_length(shorter), 0)
                ),
            }
        )
        outcome = self._dropped(changed, facts)
        _count_removed(outcome.kept, outcome.counters)
        return outcome

    def _judged(
        self, lines: pa.Array
    ) -> tuple[
        pa.Array, NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_], NDArray[np.int64]
    ]:
        """Each line by each rule, in the order of C4's code.

        Args:
            lines: (num_lines,) as they are in the texts.

        Returns:
            The lines without blanks at their ends and without citations; and of each whether it stays, whether it
            has "lorem ipsum" and "{" where this is to be asked, and how many sentences it adds.
        """
        settings, lines = self.settings, pc.utf8_trim_whitespace(lines)
        stays = np.ones(len(lines), np.bool_)

        def where(test: pa.Array) -> NDArray[np.bool_]:
            return test.to_numpy(zero_copy_only=False)

        if settings.max_word_chars is not None:
            long = np.flatnonzero(where(pc.greater(pc.utf8_length(lines), settings.max_word_chars)))
            stays[long] = [
                all(len(word) <= settings.max_word_chars for word in line.split())
                for line in lines.take(pa.array(long)).to_pylist()
            ]
        if settings.remove_citations:
            lines = _without_citations(lines)
        if settings.end_marks is not None:
            ends = np.zeros(len(lines), np.bool_)
            for mark in settings.end_marks:
                ends |= where(pc.ends_with(lines, mark))
            stays &= ends & ~where(pc.ends_with(lines, _ELLIPSIS))
        if settings.min_words_per_line:
            left = np.flatnonzero(stays)
            stays[left] = _num_words(lines.take(pa.array(left))) >= settings.min_words_per_line
        nowhere = np.zeros(len(lines), np.bool_)
        has_lorem = (
            stays & where(_has(lines, ["lorem ipsum"])) if settings.drop_lorem_ipsum else nowhere
        )
        if settings.remove_javascript:
            stays &= ~where(_has(lines, ["javascript"]))
        has_curly = (
            stays & where(pc.match_substring(lines, "{"))
            if settings.drop_curly_bracket
            else nowhere
        )
        if settings.policy_phrases:
            stays &= ~where(_has(lines, settings.policy_phrases))
        sentences = np.zeros(len(lines), np.int64)
        if settings.min_sentences:
            says = stays & where(pc.greater(pc.binary_length(lines), 0))
            inside = pc.count_substring_regex(lines.filter(pa.array(says)), _SENTENCE_ENDS_INSIDE)
            sentences[says] = 1 + inside.to_numpy()
        return lines, stays, has_lorem, has_curly, sentences

    def _dropped(self, batch: pa.Table, facts: pa.Table) -> Outcome:
        """Drop by the first rule that a document breaks."""
        outcome = keep_all(batch)
        least = self.settings.min_sentences
        for reason, value, limit, test in (
            ("lines.lorem_ipsum", "lorem", 0, pc.greater(facts["lorem"], 0)),
            ("lines.curly_bracket", "curly", 0, pc.greater(facts["curly"], 0)),
            ("lines.none_left", "lines", 0, facts["is_empty"]),
            ("lines.sentences_too_few", "sentences", least, pc.less(facts["sentences"], least)),
        ):
            alive = pc.is_in(batch.column("doc_id"), value_set=outcome.kept.column("doc_id"))
            of_living, is_dropped = facts.filter(alive), pc.filter(test, alive)
            outcome = chain(
                outcome,
                drop_where(outcome.kept, is_dropped, reason, value=of_living[value], limit=limit),
            )
        return outcome


def _count_removed(kept: pa.Table, counters: Counters) -> None:
    lines_removed = pc.list_value_length(kept.column("lines_removed"))
    counters.add("chars_removed", pc.sum(kept.column("chars_removed")).as_py())
    counters.add("lines_removed", pc.sum(lines_removed).as_py())


def _has(lines: pa.Array, phrases: Sequence[str]) -> pa.Array:
    """(num_lines,) bool: whether one of the phrases occurs, in any case."""
    return pc.match_substring_regex(lines, "|".join(map(re.escape, phrases)), ignore_case=True)


def _without_citations(lines: pa.Array) -> pa.Array:
    is_cited = pc.match_substring(lines, "[")
    if not pc.any(is_cited).as_py():
        return lines
    return pc.replace_with_mask(
        lines, is_cited, pc.replace_substring_regex(lines.filter(is_cited), _CITATION, "")
    )


def _num_words(lines: pa.Array) -> NDArray[np.int64]:
    """(num_lines,) as `len(line.split())`."""
    words = pc.list_value_length(
        pc.utf8_split_whitespace(pc.utf8_trim_whitespace(lines))
    ).to_numpy()
    return np.where(pc.binary_length(lines).to_numpy() == 0, 0, words)


def _joined(lines: pa.Array, num_lines: NDArray[np.int64]) -> pa.Array:
    """Texts of so many of the lines each."""
    offsets = pa.array(np.append(0, np.cumsum(num_lines)), pa.int32())
    return pc.binary_join(pa.ListArray.from_arrays(offsets, lines), pa.scalar("\n", lines.type))


def _lists(indices: NDArray[np.uint32], lengths: NDArray[np.int64]) -> pa.ListArray:
    return pa.ListArray.from_arrays(
        pa.array(np.append(0, np.cumsum(lengths)), pa.int32()), pa.array(indices)
    )


def _indices(batch: pa.Table, counts: NDArray[np.int64]) -> NDArray[np.uint32]:
    """(num_lines,) the number of each line in the text as it was read; without `kept_lines`, in this text."""
    kept_lines = batch.column("kept_lines")
    lengths = pc.list_value_length(kept_lines).to_numpy()  # nan where there is none
    wrong = np.flatnonzero(~np.isnan(lengths) & (lengths != counts))
    if len(wrong):
        raise ValueError(
            f"document {batch.column('doc_id')[wrong[0]]}: kept_lines has {lengths[wrong[0]]:.0f} indices, but the "
            f"text has {counts[wrong[0]]} lines; were they made for another text?"
        )
    firsts = np.cumsum(counts) - counts
    indices = (np.arange(counts.sum()) - np.repeat(firsts, counts)).astype(np.uint32)
    indices[np.repeat(~np.isnan(lengths), counts)] = pc.list_flatten(kept_lines).to_numpy()
    return indices
