"""Markup in which resiliparse would lose text, or keep what is not text."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.html.extraction import HtmlSettings, Page, extract
from stages.html.justext import JustextSettings
from stages.html.markup import clean_markup, mark_lone_characters, open_noscript

MODES = [
    HtmlSettings(),
    HtmlSettings(main_content=True, engine="resiliparse"),
    HtmlSettings(main_content=True),
]
MODE_NAMES = ["plain", "resiliparse", "blocks"]


def extract_text(page: str, settings: HtmlSettings) -> str:
    """Return the text of a page, its lines joined by "|"."""
    found = extract(page.encode(), "text/html; charset=utf-8", settings)
    assert isinstance(found, Page)
    return "|".join(line.strip() for line in found.text.splitlines() if line.strip())


TEXT = "Some text that is long enough to be content, with a comma and a full stop."


@pytest.mark.parametrize("settings", MODES, ids=MODE_NAMES)
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


@pytest.mark.parametrize("settings", MODES, ids=MODE_NAMES)
def test_a_page_whose_text_is_in_noscript_keeps_it(settings: HtmlSettings) -> None:
    """Discourse sends its posts so, for crawlers that run no scripts."""
    posts = "".join(f"<p>{TEXT} This is post {number}.</p>" for number in range(20))
    page = (
        "<head><noscript><link rel=stylesheet href=a.css></noscript></head><body>"
        f"<p>Loading</p><noscript data-path=/t/1><div class=post>{posts}</div></noscript></body>"
    )
    text = extract_text(page, settings)
    assert text.count("This is post") == 20
    assert "stylesheet" not in text


@pytest.mark.parametrize(
    "settings",
    [
        HtmlSettings(page_sample_chars=600),
        HtmlSettings(page_sample_chars=600, justext=JustextSettings()),
    ],
    ids=["plain", "justext"],
)
def test_the_sample_of_such_a_page_has_its_posts(settings: HtmlSettings) -> None:
    """The text alone does not show that the sample is empty: jusText reads noscript elements."""
    post = f"{TEXT} It is one of the posts that were written for the test of all of this. "
    posts = f"<p>{post * 3}</p>" * 5
    page = f"<body><p>Loading</p><noscript><div>{posts}</div></noscript></body>"
    found = extract(page.encode(), "text/html; charset=utf-8", settings)
    assert isinstance(found, Page)
    assert found.sample is not None
    assert len(found.sample) == 600
    assert TEXT in found.text


@pytest.mark.parametrize("settings", MODES, ids=MODE_NAMES)
@pytest.mark.parametrize("num_sentences", [3, 16], ids=["too little", "a share"])
def test_noscript_is_left_out_beside_other_text(
    num_sentences: int, settings: HtmlSettings
) -> None:
    """A notice of under 500 characters, or a copy of the text, is no reason to read it."""
    notice = f"<noscript><p>{'Please enable JavaScript to use it. ' * num_sentences}</p></noscript>"
    page = f"<body>{notice}<p>{TEXT}</p></body>"
    assert extract_text(page, settings) == TEXT


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


@pytest.mark.parametrize("settings", MODES, ids=MODE_NAMES)
@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("<p><ruby>漢<rt>かん</rt></ruby><b>親</b>と</p>", "漢親と"),
        ("<ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp>字<rt>じ<rp>)</ruby>。", "漢字。"),
        ("<RUBY>漢<RT class=a><span>かん</span></RT ></RUBY>", "漢"),
        ("<ruby><rb>漢<rb>字<rtc><rt>かん<rt>じ</rtc></ruby>", "漢字"),
        ("<p>a<rtx>b</rtx></p>", "ab"),
    ],
)
def test_readings_of_ruby_text_are_removed(
    page: str, text: str, settings: HtmlSettings
) -> None:
    """Its characters stay. End tags of readings may be omitted."""
    assert extract_text(page, settings) == text


# The third drops a block of a few characters outside of the element with all sentences.
@pytest.mark.parametrize("settings", MODES[:2], ids=MODE_NAMES[:2])
def test_a_reading_that_is_not_closed_does_not_swallow_the_page(
    settings: HtmlSettings,
) -> None:
    """Only its own text is not removed."""
    page = f"<div><ruby>漢<rt>かん<div>{TEXT * 10}</div></div>"
    assert extract_text(page, settings) == f"漢かん|{TEXT * 10}"


@pytest.mark.parametrize("settings", MODES[1:], ids=MODE_NAMES[1:])
@given(
    characters=st.lists(
        st.characters(
            min_codepoint=0x21, exclude_characters="<&¶\x85\u2028\u2029", codec="utf-8"
        ),
        min_size=1,
    )
)
def test_main_content_keeps_text_nodes_of_one_character(
    settings: HtmlSettings, characters: list[str]
) -> None:
    """Except icons of the private use area and the sign of a link to a heading."""
    page = f"<p>{TEXT} <b>" + "</b><b>".join(characters) + "</b></p>"
    kept = "".join(c for c in characters if not "\ue000" <= c <= "\uf8ff")
    plain = extract_text(f"<p>{TEXT} {kept}</p>", MODES[0])
    found = extract_text(page, settings)
    # White space of any script becomes one blank in `blocks`, and ends of lines are left out above.
    found, plain = (text.replace("\ufdd0", "") for text in (found, plain))
    assert "".join(found.split()) == "".join(plain.split())


@pytest.mark.parametrize("settings", MODES[1:], ids=MODE_NAMES[1:])
@pytest.mark.parametrize(
    ("reference", "text"),
    [
        ("&#x6f22;", "漢"),
        ("&#28450;", "漢"),
        ("&hearts;", "♥"),
        ("&#xf101;", ""),
        ("&para;", ""),
    ],
)
def test_main_content_keeps_lone_character_references(
    reference: str, text: str, settings: HtmlSettings
) -> None:
    """As it keeps the characters themselves."""
    page = f"<title>漢</title><p>{TEXT}</p><p> {reference} </p>"
    found = extract(page.encode(), "text/html; charset=utf-8", settings)
    assert isinstance(found, Page)
    assert found.title == "漢"
    assert found.text == f"{TEXT}\n\n{text}".strip()


FRAGMENTS = [
    *("<noscript>", "</noscript>", "<noscript", "</noscript", ">", "<!--", "-->"),
    *("<script>", "</script>", "<p>", "x", " "),
    *("<ruby>", "</ruby>", "<rt>", "</rt>", "<rt", "<rp>", "</rp>"),
]


@given(st.lists(st.sampled_from(FRAGMENTS)).map("".join))
def test_any_markup_is_cleaned(page: str) -> None:
    """Nothing raises, and what is left are pieces of the page in their order."""
    rest = iter(page)
    assert all(character in rest for character in clean_markup(page))


@pytest.mark.parametrize(
    "markup",
    [
        *("<noscript>", "<noscript></noscript ", "<noscript><!--", "<script></script"),
        *("<!--", "<rt>", "<rt" + " " * 300, "<rt>" + "x" * 300, "<rt><b>", "<rt>&"),
    ],
    ids=lambda markup: markup[:16].strip(),
)
def test_hostile_markup_takes_linear_time(markup: str) -> None:
    """49,999 of them take less than 10 s of CPU; a quadratic loop takes minutes."""
    page = "<noscript><rt>" + markup * (49_999 // markup.count("<")) + "x" * 1_000_000
    start = time.process_time()
    mark_lone_characters(clean_markup(page))
    open_noscript(page)
    assert time.process_time() - start < 10.0
