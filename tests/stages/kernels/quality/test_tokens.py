"""Tokens are those of their definition, and spaCy's on examples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.kernels.quality.alphabet import build_alphabet, classify
from stages.kernels.quality.tokens import split_tokens
from tests.stages.kernels.quality import defined_tokens


def split(text: str) -> list[str]:
    """Return the tokens of the kernel."""
    points = np.array([ord(c) for c in text], np.int32)
    starts, ends = split_tokens(points, classify(points, build_alphabet().classes))
    tokens: list[str] = []
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        tokens.append(text[start:end])
    return tokens


PIECES = [*"aZs19 .,:;/-–~+*^=<>@_#%$€'’\"()§☃É中", "...", "://", "a.de", "'s"]


@given(st.lists(st.sampled_from(PIECES), max_size=14).map("".join))
def test_tokens_are_as_defined(text: str):
    """The kernel and plain Python split words of all kinds of marks equally."""
    assert split(text) == defined_tokens.split_tokens(text)


@given(st.text(max_size=20))
def test_tokens_have_all_characters_but_white_space(text: str):
    """No character is lost or doubled, in any script."""
    assert "".join(split(text)) == "".join(text.split())


# As spacy.blank("en") of spaCy 3.8.18 splits them.
EXAMPLES = {
    "(see well-known.)": "( see well - known . )",
    "e.g., U.S. and J. Doe": "e.g. , U.S. and J. Doe",
    "Anna's $5.50, 20%, 3GB": "Anna 's $ 5.50 , 20 % , 3 GB",
    "https://example.org/a-b: www.de.org/x-y a@b-c.org": (
        "https://example.org/a-b : www.de.org/x-y a@b-c.org"
    ),
    "wait... or/and x=y 10-20 --help /etc/apt": (
        "wait ... or / and x = y 10 - 20 --help /etc / apt"
    ),
}
# Its lists of abbreviations and of measures after digits are left out.
DIFFERENT = {"e.g. , ": "e.g . , ", "3 GB": "3GB"}


@pytest.mark.parametrize(("text", "tokens"), EXAMPLES.items())
def test_tokens_are_those_of_spacy(text: str, tokens: str):
    """Except for its lists of abbreviations and measures."""
    for theirs, ours in DIFFERENT.items():
        tokens = tokens.replace(theirs, ours)
    assert " ".join(split(text)) == tokens
