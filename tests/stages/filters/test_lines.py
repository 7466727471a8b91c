"""C4's line rules, compared with C4's own loop in plain Python."""

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
from stages.sentence_marks import SENTENCE_MARKS
from stages.settings.filters import POLICY_PHRASES
from tests.stages.filters.other_scripts import MENU_ITEMS, TEXTS

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


def make_stage(**rule: Any) -> Lines:
    """Return the stage with one rule."""
    return Lines(LinesSettings(**{**NOTHING.model_dump(), **rule}))


def make_batch(
    texts: Sequence[str | None], kept_lines: Sequence[Sequence[int] | None] | None = None
) -> pa.Table:
    """Return a batch with one row per text."""
    return pa.table(
        {
            "doc_id": pa.array(range(len(texts)), pa.uint64()),
            "text": pa.array(texts, pa.large_string()),
            "kept_lines": pa.array(
                kept_lines or [None] * len(texts), pa.list_(pa.uint32())
            ),
        }
    )


def list_decisions(stage: Lines, texts: Sequence[str | None]) -> list[str]:
    """Return the text that is left of each document, or its drop reason."""
    batch = make_batch(texts)
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
def test_each_rule_removes_its_lines(rule: dict[str, Any], text: str, left: str) -> None:
    """One rule removes only its own lines; without rules all lines are kept."""
    assert list_decisions(make_stage(**rule), [text]) == [left]
    assert list_decisions(Lines(NOTHING), ["to enter\n\nto exit"]) == [
        "to enter\n\nto exit"
    ]


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
    """One rule drops only its own documents."""
    assert list_decisions(make_stage(**rule), [text, f"{GOOD} {GOOD} {GOOD}"]) == [
        reason,
        f"{GOOD} {GOOD} {GOOD}",
    ]
    assert list_decisions(Lines(NOTHING), [text]) == [text]


def test_document_rules_apply_after_line_rules() -> None:
    """As in C4: "{" counts after javascript lines are removed, "lorem ipsum" before."""
    text = f"{GOOD}\nvar javascript = {{ a few more words }}.\nlorem ipsum"
    assert list_decisions(Lines(LinesSettings(min_sentences=1)), [text]) == [GOOD]
    assert list_decisions(
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
        ("ﾃｽﾄ｡次｡", 2),
        ("である．また，３．１４は．", 2),
        ("वह आया। फिर गया॥", 2),
        ("हाँ।नहीं।शायद", 3),
        ("هل جاء؟ نعم. ذهب", 3),
        ("وہ آیا۔ وہ گیا۔", 2),
        ("她问：“好？！”他走了！！再见。", 3),
        ("ሰላም። እንደምን ነህ፧ ደህና።", 3),
        ("မင်္ဂလာပါ။ နေကောင်းလား။", 2),
        ("ไทย ไม่มีเครื่องหมาย", 1),
    ],
)
def test_a_line_has_one_sentence_more_than_ends_inside(line: str, sentences: int) -> None:
    """A line of n sentences passes a minimum of n and not of n + 1."""
    assert list_decisions(make_stage(min_sentences=sentences), [line]) == [line]
    dropped = make_stage(min_sentences=sentences + 1).apply(make_batch([line])).dropped
    assert dropped.select(["value", "limit"]).to_pylist() == [
        {"value": sentences, "limit": sentences + 1}
    ]


def test_every_sentence_terminal_of_unicode_ends_a_sentence() -> None:
    """The set equals that of the regex module, which has Unicode's tables."""
    regex = pytest.importorskip("regex")
    points = [*range(0xD800), *range(0xE000, 0x110000)]
    marks = regex.findall(r"\p{Sentence_Terminal}", "".join(map(chr, points)))
    assert len(marks) > 150
    texts = [f"a{mark} b" for mark in marks if mark not in "․﹒"]
    assert list_decisions(make_stage(min_sentences=2), texts) == texts


def test_removed_lines_are_recorded() -> None:
    """Indices refer to the lines before the removal, lengths to the text after it."""
    outcome = Lines(LinesSettings(min_sentences=1)).apply(
        make_batch([f"Home\n {GOOD}\nHome", GOOD], [[2, 5, 6], [0]])
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
    """The table has an index list for each line, or none at all."""
    with pytest.raises(
        ValueError, match=r"document 1: kept_lines has 2 indices, but the text has 1 lines"
    ):
        Lines(LinesSettings()).apply(make_batch([GOOD, GOOD], [[0], [0, 1]]))


def c4(text: str) -> str | None:
    """Return the text after C4's `clean_page`, without its word list and sentence count."""
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
# The blocks of Han, Kana, Thai, Lao, Tibetan, Burmese and Khmer, and the end marks of other scripts.
OTHER_SCRIPTS = re.compile(
    "[\u0e00-\u109f\u1780-\u17ff\u19e0-\u19ff\u2e80-\u9fff\ua9e0-\ua9ff\uaa60-\uaa7f"
    "\uf900-\ufaff\uff66-\uff9f\U00016fe0-\U00016fff\U0001aff0-\U0001b16f\U0001f200"
    f"\U00020000-\U0003ffff{SENTENCE_MARKS}]"
)


@settings(deadline=None)
@given(st.lists(st.none() | texts_of_pieces, max_size=6))
def test_equals_c4_line_by_line(texts: list[str | None]) -> None:
    """In any batch, the text that is left equals that of C4's loop, where words have blanks."""
    texts = [None if text is None else OTHER_SCRIPTS.sub("", text) for text in texts]
    stage = Lines(LinesSettings(min_sentences=0))
    wanted = [c4(text or "") for text in texts]
    assert [
        None if decision.startswith("lines.") else decision
        for decision in list_decisions(stage, texts)
    ] == wanted
    assert [
        decision for text in texts for decision in list_decisions(stage, [text])
    ] == list_decisions(stage, texts)


@settings(deadline=None)
@given(texts_of_pieces)
def test_a_second_pass_removes_nothing_more(text: str) -> None:
    """Except for text that the removal of a citation has joined."""
    stage = Lines(LinesSettings(min_sentences=1, remove_citations=False))
    outcome = stage.apply(make_batch([text]))
    again = stage.apply(outcome.kept)
    assert again.kept.select(["text", "kept_lines"]).equals(
        outcome.kept.select(["text", "kept_lines"])
    )
    assert again.kept["chars_removed"].to_pylist() == [0] * outcome.kept.num_rows


@pytest.mark.parametrize("language", TEXTS)
def test_sentences_of_every_script_are_kept(language: str) -> None:
    """All of C4's rules leave the whole text."""
    text = TEXTS[language]
    assert list_decisions(Lines(LinesSettings()), [text]) == [text]


@pytest.mark.parametrize("language", MENU_ITEMS)
def test_lines_without_end_mark_go_where_the_script_has_marks(language: str) -> None:
    """An item of a menu is no sentence in any of these languages."""
    text = TEXTS[language]
    page = f"{MENU_ITEMS[language]}\n{text}\n{MENU_ITEMS[language]}"
    assert list_decisions(Lines(LinesSettings()), [page]) == [text]


def test_words_are_not_counted_where_no_blanks_separate_them() -> None:
    """Neither a short line nor a long paragraph says anything about words there."""
    short, long = "你好。", "这是一个很长的段落，" * 200 + "完。"
    assert list_decisions(make_stage(min_words_per_line=5), [short]) == [short]
    assert list_decisions(make_stage(max_word_chars=1000), [long]) == [long]
    # Half of the letters decide.
    mixed = ["ab 你好", "abc 你好"]
    found = list_decisions(make_stage(min_words_per_line=5), mixed)
    assert found == ["ab 你好", "lines.none_left"]


def test_an_empty_phrase_is_refused() -> None:
    """Every line contains it."""
    with pytest.raises(ValidationError, match="at least 1 character"):
        LinesSettings(policy_phrases=("",))
