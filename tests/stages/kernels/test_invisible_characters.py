"""Characters that no reader sees are removed, and joiners stay where they shape letters."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.kernels.invisible_characters import (
    INVISIBLE,
    JOINERS,
    remove_invisible,
    remove_invisible_bytes,
)

# Letters that join and that do not, and what stands between them.
TEXTS = st.text(
    st.sampled_from("ab é中\nم\u0915\u094d❤\ufe0f🔥👨" + INVISIBLE + JOINERS * 4)
)


@given(st.lists(TEXTS))
def test_each_text_of_a_batch_equals_the_rule_applied_to_it_alone(texts: list[str]) -> None:
    """What is visible stays, and nothing is left to remove."""
    encoded = [text.encode() for text in texts]
    starts = np.cumsum([0, *map(len, encoded)])
    kept, kept_starts, num_removed = remove_invisible_bytes(
        np.frombuffer(b"".join(encoded), np.uint8), starts
    )
    found = [kept[a:b].tobytes().decode() for a, b in pairwise(kept_starts)]
    assert found == list(map(remove_invisible, texts))
    assert num_removed == len("".join(texts)) - len("".join(found))
    for text, result in zip(texts, found, strict=True):
        assert remove_invisible(result) == result
        assert not set(result) & set(INVISIBLE)
        visible = str.maketrans("", "", INVISIBLE + JOINERS)
        assert result.translate(visible) == text.translate(visible)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Un\u00adbe\u00adkannt \u200bhier", "Unbekannt hier"),
        ("می\u200cخواهم", "می\u200cخواهم"),
        ("क्\u200dष", "क्\u200dष"),
        ("👨\u200d👩\u200d👧 ❤\ufe0f\u200d🔥", "👨\u200d👩\u200d👧 ❤\ufe0f\u200d🔥"),
        ("a\u200cb\u200d", "ab"),
        ("م\u200e\u200cخ", "م\u200cخ"),
        ("\ufeffa\u2060b\u202ec", "abc"),
    ],
)
def test_examples(text: str, expected: str) -> None:
    assert remove_invisible(text) == expected


@pytest.mark.parametrize("character", INVISIBLE + JOINERS)
def test_every_entry_is_a_format_character_of_unicode(character: str) -> None:
    assert unicodedata.category(character) == "Cf"
