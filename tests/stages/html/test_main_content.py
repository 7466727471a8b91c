"""The main content of pages."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.html.main_content import MIN_INTRODUCTION_CHARS, extract_main_content
from tests.stages.html.test_blocks import serialize

SENTENCE = "The old mill by the river was opened on Sunday, and most of the village came. "
PARAGRAPH = SENTENCE * 3
ARTICLE = f"<p>{PARAGRAPH}</p>" * 4
MENU = "<ul><li><a href=/>Home</a><li><a href=/news>News</a><li><a href=/shop>Shop</a></ul>"
TEASER = f"<div><h3><a href=/1>More</a></h3><p>{SENTENCE}</p></div>"


def extract_lines(page: str) -> list[str]:
    """Return the lines of the main content that are not blank."""
    return [line for line in extract_main_content(serialize(page)).splitlines() if line]


def make_page(*extras: str) -> str:
    """Return a page with an article of four paragraphs, and markup after it."""
    article = f"<h1>Mill</h1><div>{f'<p>{PARAGRAPH}</p>' * 4}</div>"
    return f"<body>{MENU}{article}{''.join(extras)}</body>"


@pytest.mark.parametrize(
    "boilerplate",
    [
        MENU,
        f"<nav><p>{PARAGRAPH}</nav>",
        f"<footer><p>{PARAGRAPH}</footer>",
        f"<aside><p>{PARAGRAPH}</aside>",
        f"<div class='mainNav'><p>{SENTENCE}</div>",
        f"<div id=site-footer><p>{PARAGRAPH}</div>",
        f"<section class='wp_related_posts'>{TEASER * 4}</section>",
        f"<ol class=comments-list><li>{PARAGRAPH}</ol>",
        f"<div role=dialog><p>{PARAGRAPH}</div>",
        f"<div style='display: none'><p>{PARAGRAPH}</div>",
        f"<div hidden><p>{PARAGRAPH}</div>",
        f"<div aria-hidden=true><p>{PARAGRAPH}</div>",
        f"<div popover><p>{PARAGRAPH}</div>",
        f"<i-card popover=auto><i-card><p>{PARAGRAPH}</i-card><p>{PARAGRAPH}</i-card>",
        f"<div id=onetrust-banner-sdk><p>{PARAGRAPH}</div>",
        "<div class=message-cell--user>Joined in May 2021, from the old mill.</div>",
        "<dl class=postprofile><dd>Posts: 12, joined: May 2021</dl>",
        "<div class=author>By the miller, who lives there.</div>",
        "<figure><figcaption>The mill in the year 1900.</figcaption></figure>",
    ],
)
def test_boilerplate_is_dropped(boilerplate: str) -> None:
    """By its tag, role, name or looks, or because it consists of links, also in the article."""
    expected = [PARAGRAPH.strip()] * 4
    assert extract_lines(make_page(boilerplate)) == expected
    inside = make_page().replace("</p></div>", f"</p>{boilerplate}</div>")
    assert extract_lines(inside) == expected


@pytest.mark.parametrize(
    "tag",
    [
        "div class=download-area",
        "div class='col elementor-widget-container'",
        "div class=thread",
        "div class=message-userContent",
        "div class=ipsRichText--user",
        "article class='post tag-menu comments-open'",
        "div class=header",
        "form",
        "div class=widget",
    ],
)
def test_content_is_kept_under_any_name_of_its_element(tag: str) -> None:
    """Its name has no word of boilerplate, or it has most of the sentences of the page."""
    name = tag.split(maxsplit=1)[0]
    page = f"<body>{MENU}<{tag}>{f'<p>{PARAGRAPH}</p>' * 4}</{name}></body>"
    assert extract_lines(page) == [PARAGRAPH.strip()] * 4


OTHERS = (
    f"<ol class=comments-list>{f'<li>{PARAGRAPH}' * 5}</ol>"
    f"<div class=related-posts>{f'<p>{PARAGRAPH}</p>' * 5}</div>"
)


@pytest.mark.parametrize(
    "name",
    [
        "page-with-sidebar",
        "pageWithSidebar",
        "layout--right-sidebar",
        "content-sidebar-wrap",
        "main no-sidebar",
        "has-sharing",
        "hidden-contents-menu",
        "left-navigation-wrapper--margin",
        "mmenu-pagewrapper",
        "tag-mills post",
        "field--label-hidden",
        "comments-open sidebar",
    ],
)
def test_content_is_kept_in_a_layout_that_is_named_after_its_parts(name: str) -> None:
    """Also if most sentences of the page are comments and other posts."""
    article = f"<h1>Mill</h1><div>{f'<p>{PARAGRAPH}</p>' * 4}</div>"
    page = f"<body>{MENU}<div class='{name}'>{article}</div>{OTHERS}</body>"
    assert extract_lines(page) == [PARAGRAPH.strip()] * 4


@pytest.mark.parametrize("name", ["live-match-comment", "item-caption", "teaser"])
def test_items_of_one_name_are_content_if_they_have_most_of_the_page(name: str) -> None:
    """Each of them has a small share, and all of them nearly all sentences."""
    items = "".join(f"<div class={name}>Number {i}. {SENTENCE}</div>" for i in range(20))
    lines = extract_lines(f"<body>{MENU}<h1>Match</h1><div>{items}</div></body>")
    assert [line.split(".")[0] for line in lines][-20:] == [
        f"Number {i}" for i in range(20)
    ]


@pytest.mark.parametrize("name", ["author", "comment", "caption"])
def test_items_of_one_name_are_dropped_beside_an_article(name: str) -> None:
    """All of them together have less text than the article."""
    items = f"<div class={name}>{SENTENCE}</div>" * 4
    page = make_page().replace("</p></div>", f"</p>{items}</div>")
    assert extract_lines(page) == [PARAGRAPH.strip()] * 4


def test_teasers_with_long_texts_beside_an_article_are_dropped() -> None:
    """The article has more sentences than all of them, and their headings are links."""
    teaser = f"<div><h3><a href=/1>More</a></h3><p>{PARAGRAPH}</p></div>"
    page = f"<body>{MENU}<main><div>{f'<p>{PARAGRAPH}</p>' * 6}</div>{teaser * 3}</main>"
    assert extract_lines(page) == [PARAGRAPH.strip()] * 6


def test_headings_of_dropped_lists_are_dropped_at_the_end() -> None:
    """A heading with text below it stays."""
    section = f"<h2>Flour</h2><p>{SENTENCE}</p><h2>More</h2><h3>News</h3>{MENU}"
    page = make_page().replace("</p></div>", f"</p>{section}</div>")
    assert extract_lines(page)[-2:] == ["Flour", SENTENCE.strip()]


@pytest.mark.parametrize(
    ("markup", "lines"),
    [
        ("<ul><li>wheat<li>rye<li>water</ul>", ["wheat", "rye", "water"]),
        (
            "<table class='ingredients table-header'><tr><td>1 l<td>water<tr><td>1 kg<td>rye</table>",
            ["1 l\t\twater", "1 kg\t\trye"],
        ),
        ("<ul><li><a href=/1>One</a><li><a href=/2>Number two</a><li>three</ul>", []),
        ("<ul><li>3 May<li>Anna</ul>", []),
    ],
)
def test_a_list_between_heading_and_prose_is_kept(markup: str, lines: list[str]) -> None:
    """Ingredients are often in an element beside that of the steps. Lists of links are no text."""
    page = make_page().replace("</h1>", f"</h1><div class=print-links>{markup}</div>")
    assert extract_lines(page) == [*lines, *[PARAGRAPH.strip()] * 4]


@pytest.mark.parametrize("mark", "、：．。，！？；")
def test_chinese_and_japanese_sentences_are_prose(mark: str) -> None:
    """Each of their punctuation marks makes a sentence, so the content is found."""
    line = f"村の水車小屋は日曜日に再び開かれ{mark}多くの村人がそれを見に来た"
    teasers = (
        "<div><h3><a href=/1>村</a></h3><p>市役所の新しい建物の写真とその周辺の地図</p></div>"
        * 9
    )
    page = f"<body><div>{f'<p>{line}</p>' * 4}</div><div>{teasers}</div></body>"
    assert extract_lines(page) == [line] * 4


def test_teasers_beside_an_article_are_dropped() -> None:
    """The paragraphs of the article have one parent, and each teaser another."""
    assert extract_lines(make_page(TEASER * 4)) == [PARAGRAPH.strip()] * 4


def test_a_page_of_teasers_keeps_all_of_them() -> None:
    """None of them has more sentences than the others."""
    lines = extract_lines(f"<body>{MENU}<div>{TEASER * 8}</div></body>")
    assert lines.count(SENTENCE.strip()) == 8


def test_an_introduction_between_heading_and_article_is_kept() -> None:
    """A short line there is not: it is a date or a name."""
    introduction = SENTENCE * 2
    assert len(introduction) > MIN_INTRODUCTION_CHARS
    page = make_page().replace(
        "</h1>", f"</h1><header><p>{introduction}</p><p>3 May, 2019.</p></header>"
    )
    assert extract_lines(page)[:2] == [introduction.strip(), PARAGRAPH.strip()]


@pytest.mark.parametrize(
    "page",
    [
        make_page().replace(
            "</h1>", f"</h1><div class=teaser-text><p>{SENTENCE * 2}</div>"
        ),
        make_page().replace(
            "</h1>", f"</h1><div class=article-header>{SENTENCE * 2}</div>"
        ),
        make_page().replace("h1>", "h2>").replace("</h2>", f"</h2><p>{SENTENCE * 2}</p>"),
        f"<body>{MENU}<div><h1>Mill</h1><p class=teaser>{SENTENCE * 2}</p>{ARTICLE}</div>",
    ],
)
def test_an_introduction_is_kept_in_an_element_named_as_a_teaser(page: str) -> None:
    """The page's heading is its first heading, if it has no <h1>."""
    lines = [line for line in extract_lines(page) if line != "Mill"]
    assert lines == [(SENTENCE * 2).strip(), *[PARAGRAPH.strip()] * 4]


def test_lines_of_lists_tables_and_code_are_kept() -> None:
    """Cells are joined as by resiliparse; code keeps its lines and its indentation."""
    markup = (
        f"<h2>Flour</h2><p>{SENTENCE}</p><ul><li>wheat<li>rye</ul>"
        "<table><tr><th>a<th>b<tr><td>1<td>2</table><pre>if x:\n    y()\n</pre>"
    )
    page = make_page().replace("</p></div>", f"</p>{markup}</div>")
    assert extract_main_content(serialize(page)).endswith(
        f"\n\nFlour\n\n{SENTENCE.strip()}\n\nwheat\nrye\na\t\tb\n1\t\t2\n\nif x:\n    y()"
    )


WORDS = st.text("ab .,漢", max_size=60)
ELEMENTS = st.sampled_from(
    ["p", "div", "nav", "li", "td", "a href=x", "h1", "div class=menu"]
)


@given(st.lists(st.tuples(ELEMENTS, WORDS)))
def test_every_line_is_text_of_the_page(parts: list[tuple[str, str]]) -> None:
    """Blank lines and white space apart, no line is made up or put together."""
    page = "".join(f"<{element}>{text}" for element, text in parts)
    text = "".join("".join(text for _, text in parts).split())
    for line in extract_lines(page):
        assert line.strip()
        assert "".join(line.split()) in text


@pytest.mark.parametrize(
    ("opened", "closed"),
    [
        ("<div>x", "</div>"),
        ("<ul><li>x", "</li></ul>"),
        ("<blockquote>Some words, and some more. ", "</blockquote>"),
        ("<td>x", "</td>"),
        ("<div class='nav'>Some words, and some more. ", "</div>"),
    ],
)
def test_deeply_nested_elements_take_linear_time(opened: str, closed: str) -> None:
    """20,000 of them take less than 5 s of CPU; a quadratic loop takes minutes."""
    started = time.process_time()
    extract_main_content(opened * 20_000 + closed * 20_000)
    assert time.process_time() - started < 5
