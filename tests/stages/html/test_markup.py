"""Markup in which resiliparse would lose text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.html.extraction import HtmlSettings, Page, extract
from stages.html.markup import clean_markup

MODES = [HtmlSettings(), HtmlSettings(main_content=True)]


def extract_text(page: str, settings: HtmlSettings) -> str:
    """Return the text of a page, its lines joined by "|"."""
    found = extract(page.encode(), "text/html; charset=utf-8", settings)
    assert isinstance(found, Page)
    return "|".join(line.strip() for line in found.text.splitlines() if line.strip())


TEXT = "Some text that is long enough to be content, with a comma and a full stop."


@pytest.mark.parametrize("settings", MODES, ids=["plain", "main_content"])
@pytest.mark.parametrize(
    "noscript",
    [
        '<noscript><div id="x"></noscript>',
        "<NoScript ><img src=x><a href=y></NOSCRIPT\n>",
        "<noscript><!-- </noscript>",
        "<noscript><p>Please enable scripts.</p></noscript>",
        "<noscript>",
    ],
    ids=["unclosed div", "unclosed link", "unclosed comment", "closed", "no end tag"],
)
def test_noscript_does_not_swallow_the_page(noscript: str, settings: HtmlSettings) -> None:
    """Its content is raw text up to its end tag, as in a browser with scripting."""
    page = f"<body>{noscript}<p>{TEXT}</p></body>"
    assert extract_text(page, settings) == TEXT
    assert extract_text(f"<head>{noscript}</head><p>{TEXT}</p>", settings) == TEXT


@pytest.mark.parametrize(
    "page",
    [
        "<!-- <noscript> --><p>a</p><noscript></noscript>",
        "<script>write('<noscript>')</script><p>a</p><noscript></noscript>",
        "<title><noscript></title><p>a</p>",
        "<!--> <p>a</p> <!-- <noscript>",
        "<p>a</p><style><noscript>",
        "<noscripts><p>a</p>",
    ],
)
def test_noscript_in_comments_and_raw_text_is_no_element(page: str) -> None:
    """Only elements are removed."""
    assert clean_markup(page) == page.replace("<noscript></noscript>", "")


FRAGMENTS = [
    *("<noscript>", "</noscript>", "<noscript", "</noscript", ">", "<!--", "-->"),
    *("<script>", "</script>", "<p>", "x", " "),
]


@given(st.lists(st.sampled_from(FRAGMENTS)).map("".join))
def test_any_markup_is_cleaned(page: str) -> None:
    """Nothing raises, and what is left are pieces of the page in their order."""
    rest = iter(page)
    assert all(character in rest for character in clean_markup(page))


@pytest.mark.parametrize(
    "unit",
    ["<noscript>", "<noscript></noscript ", "<noscript><!--", "<script></script", "<!--"],
)
def test_hostile_noscript_takes_linear_time(unit: str) -> None:
    """49,999 of them take less than a second of CPU; a quadratic loop takes minutes."""
    page = "<noscript>" + unit * (49_999 // unit.count("<")) + "x" * 1_000_000
    start = time.process_time()
    clean_markup(page)
    assert time.process_time() - start < 1.0
