"""Texts equal the output of ftfy, and correct texts are not passed to it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import ftfy
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from ftfy.badness import is_bad
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.transform.unicode import Unicode, UnicodeSettings
from tests.stages.batches import make_batch

GOOD = [
    'The treaty was signed at Q&A, "quoted", AT&T.\n\tTabs stay.',
    "Le traité fut signé au musée où l’été dure; «cœur», à Noël.",
    "Der Vertrag ist schön: „Größe“, Straße.",
    "Договор был подписан в музее города.",
    "条约在博物馆签署，夏天很长。「好」",
    "تم توقيع المعاهدة في المتحف",
]
PIECES = [
    "schÃ¶n",
    "lâ€™Ã©tÃ©",
    "Ã ",
    "\n",
    "Â ",
    "â€œ",
    "Ð¿Ñ",
    "вЂ",
    "é",
    "à",
    "’",
    "œ",
    "«",
    "²",
    "€",
    "а",
    "z",
    " ",
]
PIECES += [
    "&amp;",
    "&lt;",
    "&EACUTE;",
    "&",
    "<b>",
    "\x85",
    "\x9d",
    "\x1b[0m",
    "\0",
    "\ufeff",
    "\r\n",
    "\xa0",
]
PIECES += ["ﬁ", "ＡＢ", "“", "e\u0301"]
texts_of_pieces = st.lists(st.sampled_from(PIECES), max_size=8).map("".join) | st.text(
    max_size=12
)
SETTINGS = [
    {},
    {"unescape_html": False},
    {"unescape_html": True, "fix_line_breaks": True},
    {"uncurl_quotes": True},
    {"fix_latin_ligatures": True, "fix_character_width": True},
    {"normalization": "NFC"},
]


def opened(**values: Any) -> Unicode:
    """Return the opened stage."""
    stage = Unicode(UnicodeSettings(**values))
    stage.open()
    return stage


SUSPICIOUS = opened()._suspicious


def repair(stage: Unicode, texts: Sequence[str | None]) -> list[str | None]:
    """Check the outcome and return the texts."""
    batch = make_batch(texts)
    outcome = stage.apply(batch)
    outcome.check(batch, stage.name)
    assert outcome.kept.schema.field("text").type == pa.large_string()
    return outcome.kept["text"].to_pylist()


def test_encoding_faults_are_repaired() -> None:
    """Mojibake, entities, Windows-1252 and control characters; other text is kept."""
    broken = [
        "schÃ¶n &lt;3",
        "lâ€™Ã©tÃ©",
        "caf\x85 \x1b[31mred\x1b[0m\ufeff",
        "“ﬁne” ＡＢ。",
        None,
        "",
    ]
    assert repair(opened(), broken) == [
        "schön <3",
        "l’été",
        "caf… red",
        "“ﬁne” ＡＢ。",
        None,
        "",
    ]
    assert repair(opened(uncurl_quotes=True, fix_latin_ligatures=True), ["“ﬁne”"]) == [
        '"fine"'
    ]


@pytest.mark.parametrize("values", SETTINGS, ids=str)
@settings(max_examples=40, deadline=None)
@given(texts=st.lists(st.none() | texts_of_pieces | st.sampled_from(GOOD), max_size=5))
def test_equals_ftfy(values: dict[str, Any], texts: list[str | None]) -> None:
    """In any batch and with any settings, each text equals `ftfy.fix_text`."""
    config = ftfy.TextFixerConfig(explain=False, **UnicodeSettings(**values).model_dump())
    wanted = [None if text is None else ftfy.fix_text(text, config) for text in texts]
    stage = opened(**values)
    assert repair(stage, texts) == wanted
    assert [one for text in texts for one in repair(stage, [text])] == wanted


@settings(max_examples=300, deadline=None)
@given(texts_of_pieces)
def test_texts_that_ftfy_finds_bad_are_suspicious(text: str) -> None:
    """The fast pattern passes every text to ftfy that ftfy would change."""
    if is_bad(text):
        assert pc.match_substring_regex(pa.array([text]), SUSPICIOUS).to_pylist() == [True]


def test_correct_texts_are_not_passed_to_ftfy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts of many scripts are checked by one pattern."""
    stage = opened()
    monkeypatch.setattr(ftfy, "fix_text", None)
    assert repair(stage, GOOD) == GOOD
    with pytest.raises(TypeError):
        repair(stage, ["schÃ¶n"])


def test_nested_entities_take_linear_time() -> None:
    """A megabyte of "&amp;amp;amp;..." is kept; a few levels are decoded."""
    hostile = "&" + "amp;" * 250_000
    began = time.process_time()
    assert repair(opened(), [hostile, "&amp;amp;lt;"]) == [hostile, "<"]
    assert time.process_time() - began < 5


def test_marks_in_the_wrong_order_take_linear_time_to_normalize() -> None:
    """Also if they are entities. ftfy took 5 CPU seconds for 100,000 marks, and 80 for 400,000."""
    marks, entities = "\u0301\u0316" * 200_000, "&#x301;&#x316;" * 20_000
    start_s = time.process_time()
    (repaired, decoded) = repair(opened(normalization="NFC"), [f"a{marks}", f"a{entities}"])
    assert time.process_time() - start_s < 10
    assert repaired is not None
    assert repaired.replace("\u034f", "").startswith("\xe1" + "\u0316" * 15 + "\u0301" * 14)
    assert decoded is not None
    assert decoded[:46] == repaired[:46]
