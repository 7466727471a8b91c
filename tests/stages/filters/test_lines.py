"""C4's line rules, held against C4's own loop in plain Python, and the record of what was taken out."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from stages.filters.lines import Lines, LinesSettings
from stages.settings.filters import POLICY_PHRASES

# Every rule turned off.
NOTHING = LinesSettings(
    max_word_chars=None,
    remove_citations=False,
    end_marks=None,
    min_words_per_line=0,
    drop_lorem_ipsum=False,
    remove_javascript=False,
    drop_curly_bracket=False,
    policy_phrases=(),
    min_sentences=0,
)

GOOD = "The treaty was signed in Ghent."


def only(**rule: Any) -> Lines:
    """The stage with one rule and no other."""
    return Lines(LinesSettings(**{**NOTHING.model_dump(), **rule}))


def batch_of(
    texts: Sequence[str | None], kept_lines: Sequence[Sequence[int] | None] | None = None
) -> pa.Table:
    """One row per text."""
    return pa.table(
        {
            "doc_id": pa.array(range(len(texts)), pa.uint64()),
            "text": pa.array(texts, pa.large_string()),
            "kept_lines": pa.array(
                kept_lines or [None] * len(texts), pa.list_(pa.uint32())
            ),
        }
    )


def decisions(stage: Lines, texts: Sequence[str | None]) -> list[str]:
    """Of each text what is left of it, or the reason why it went."""
    batch = batch_of(texts)
    outcome = stage.apply(batch)
    outcome.check(batch, stage.name)
    found = {row["doc_id"]: row["text"] for row in outcome.kept.to_pylist()}
    found |= {row["doc_id"]: row["reason"] for row in outcome.dropped.to_pylist()}
    return [found[i] for i in range(len(texts))]


@pytest.mark.parametrize(
    ("rule", "text", "left"),
    [
        ({"max_word_chars": 5}, "to entering\nto exit", "to exit"),
        (
            {"remove_citations": True},
            "Bread[12] and wine[]\nBees[edit][citation needed]",
            "Bread and wine\nBees",
        ),
        ({"end_marks": (".", '"')}, 'Yes.\nNo!\nHome\nOh...\n"No"', 'Yes.\n"No"'),
        ({"min_words_per_line": 3}, "one two\none two three\n one  two ", "one two three"),
        ({"remove_javascript": True}, "Please turn on JavaScript\nfine", "fine"),
        (
            {"policy_phrases": ("use cookies",)},
            "We Use Cookies here\nWe bake cookies",
            "We bake cookies",
        ),
    ],
)
def test_each_rule_takes_its_lines(rule: dict[str, Any], text: str, left: str) -> None:
    """A rule alone takes out the lines that it names and no others; all rules off leave them all."""
    assert decisions(only(**rule), [text]) == [left]
    assert decisions(Lines(NOTHING), ["to enter\n\nto exit"]) == ["to enter\n\nto exit"]


@pytest.mark.parametrize(
    ("rule", "text", "reason"),
    [
        ({"drop_lorem_ipsum": True}, "fine\nLorem IPSUM dolor", "lines.lorem_ipsum"),
        ({"drop_curly_bracket": True}, "fine\nif (a) { b }", "lines.curly_bracket"),
        ({"min_sentences": 3}, "One. Two", "lines.sentences_too_few"),
        ({"min_words_per_line": 3}, "one two\nthree", "lines.none_left"),
    ],
)
def test_each_rule_drops_its_documents(
    rule: dict[str, Any], text: str, reason: str
) -> None:
    """A rule alone drops what it names; without it the text stays."""
    assert decisions(only(**rule), [text, f"{GOOD} {GOOD} {GOOD}"]) == [
        reason,
        f"{GOOD} {GOOD} {GOOD}",
    ]
    assert decisions(Lines(NOTHING), [text]) == [text]


def test_brackets_in_lines_that_go_anyway_do_no_harm() -> None:
    """As in C4's code: "{" counts after javascript was taken out, "lorem ipsum" before, both after short lines."""
    text = f"{GOOD}\nvar javascript = {{ a few more words }}.\nlorem ipsum"
    assert decisions(Lines(LinesSettings(min_sentences=1)), [text]) == [GOOD]
    assert decisions(
        Lines(LinesSettings()), [f"{GOOD}\nlorem ipsum javascript a b c."]
    ) == ["lines.lorem_ipsum"]


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("One", 1),
        ("One. Two! Three? Four…", 4),
        ('"One." Two.', 2),
        ("At 3.14 it was", 1),
        ("一。二！三？", 3),
        ("她说：「好。」他走了。", 2),
        ("Well... no.", 2),
    ],
)
def test_sentences_are_ends_inside_and_one_more(line: str, sentences: int) -> None:
    """A line of n sentences passes a minimum of n and not of n + 1."""
    assert decisions(only(min_sentences=sentences), [line]) == [line]
    dropped = only(min_sentences=sentences + 1).apply(batch_of([line])).dropped
    assert dropped.select(["value", "limit"]).to_pylist() == [
        {"value": sentences, "limit": sentences + 1}
    ]


def test_what_went_is_on_record() -> None:
    """Indices point into the lines as they were read; lengths are those of what is left; the rest is counted."""
    outcome = Lines(LinesSettings(min_sentences=1)).apply(
        batch_of([f"Home\n {GOOD}\nHome", GOOD], [[2, 5, 6], [0]])
    )
    columns = ["num_chars", "num_lines", "kept_lines", "lines_removed", "chars_removed"]
    assert outcome.kept.select(columns).to_pylist() == [
        {
            "num_chars": 31,
            "num_lines": 1,
            "kept_lines": [5],
            "lines_removed": [2, 6],
            "chars_removed": 11,
        },
        {
            "num_chars": 31,
            "num_lines": 1,
            "kept_lines": [0],
            "lines_removed": [],
            "chars_removed": 0,
        },
    ]


def test_indices_of_another_text_are_refused() -> None:
    """An index for each line, or none at all."""
    with pytest.raises(
        ValueError, match=r"document 1: kept_lines has 2 indices, but the text has 1 lines"
    ):
        Lines(LinesSettings()).apply(batch_of([GOOD, GOOD], [[0], [0, 1]]))


def c4(text: str) -> str | None:
    """C4's `clean_page` as its text describes it, without bad words and before sentences are counted."""
    left: list[str] = []
    for raw in text.split("\n"):
        line = raw.strip()
        if any(len(word) > 1000 for word in line.split()):
            continue
        line = re.sub(r"\[[0-9]*\]|\[edit\]|\[citation needed\]", "", line)
        if (
            not line.endswith((".", "?", "!", '"'))
            or line.endswith("...")
            or len(line.split()) < 5
        ):
            continue
        if "lorem ipsum" in line.lower():
            return None
        if "javascript" in line.lower():
            continue
        if "{" in line:
            return None
        if not any(phrase in line.lower() for phrase in POLICY_PHRASES):
            left.append(line)
    return "\n".join(left) if "".join(left).strip() else None


PIECES = [
    "one",
    "two three",
    "a b c d e",
    "A" * 1001,
    "x" * 1000,
    "[1]",
    "[edit",
    "[citation needed]",
    " ",
    "\u3000",
    "\n",
]
PIECES += [
    ".",
    "...",
    "!",
    '"',
    "…",
    "{",
    "JavaScript",
    "Lorem ipsum",
    "Use of cookies",
    "privacy",
    " policy",
    "é",
    "\x1f",
]
texts_of_pieces = st.lists(st.sampled_from(PIECES), max_size=24).map("".join) | st.text(
    max_size=20
)


@settings(deadline=None)
@given(st.lists(st.none() | texts_of_pieces, max_size=6))
def test_equals_c4_line_by_line(texts: list[str | None]) -> None:
    """In any batch, one by one or together, what is left is what C4's loop leaves."""
    stage = Lines(LinesSettings(min_sentences=0))
    wanted = [c4(text or "") for text in texts]
    assert [
        None if decision.startswith("lines.") else decision
        for decision in decisions(stage, texts)
    ] == wanted
    assert [
        decision for text in texts for decision in decisions(stage, [text])
    ] == decisions(stage, texts)


@settings(deadline=None)
@given(texts_of_pieces)
def test_a_second_time_takes_nothing_more(text: str) -> None:
    """What is left of a text stays as it is, but for what taking out a citation brings together."""
    stage = Lines(LinesSettings(min_sentences=1, remove_citations=False))
    outcome = stage.apply(batch_of([text]))
    again = stage.apply(outcome.kept)
    assert again.kept.select(["text", "kept_lines"]).equals(
        outcome.kept.select(["text", "kept_lines"])
    )
    assert again.kept["chars_removed"].to_pylist() == [0] * outcome.kept.num_rows


def test_an_empty_phrase_is_refused() -> None:
    """It would be in every line."""
    with pytest.raises(ValidationError, match="at least 1 character"):
        LinesSettings(policy_phrases=("",))
