"""Extraction of the main text gives the same paragraphs as jusText, in linear time."""

from __future__ import annotations

import copy
import time

import justext
import pytest
from hypothesis import given
from hypothesis import strategies as st
from justext.core import MAX_HEADING_DISTANCE_DEFAULT, revise_paragraph_classification
from justext.paragraph import Paragraph
from pydantic import ValidationError

from stages.html.extraction import HtmlSettings, Page, extract
from stages.html.justext import JustextSettings, extract_main_text, revise_paragraphs

WITH_JUSTEXT = HtmlSettings(justext=JustextSettings())
SENTENCE = (
    "The bread of the valley is baked by the people of the village, "
    "and it is sold at the market on the square. "
)
LINKS = "".join(
    f"<li><a href=/{name}>{name} of the shop</a>" for name in ("News", "Offers", "Contact")
)
PAGE = (
    f"<title>Bread</title><ul>{LINKS}</ul><h1>On bread</h1>"
    f"<p>{SENTENCE * 3}<p>{SENTENCE * 2}<p>Copyright © us"
)


def test_content_is_kept_and_menus_removed() -> None:
    """Paragraphs with stop words and their heading stay; links and copyright lines go."""
    page = extract(PAGE.encode(), "text/html", WITH_JUSTEXT)
    assert isinstance(page, Page)
    assert page.title == "Bread"
    assert page.text.split("\n\n") == [
        "On bread",
        (SENTENCE * 3).strip(),
        (SENTENCE * 2).strip(),
    ]


def test_line_feeds_of_the_source_become_blanks() -> None:
    """Line feeds in a paragraph become blanks, except in preformatted text."""
    text = extract_main_text(
        f"<p>{SENTENCE * 3}\nand\n more<pre>{SENTENCE * 3}\nand\n more</pre>",
        JustextSettings(),
    )
    assert [paragraph[len(SENTENCE * 3) - 1 :] for paragraph in text.split("\n\n")] == [
        " and more",
        "\nand\nmore",
    ]


PARTS = st.sampled_from(
    [
        *(
            "<p>",
            "<div>",
            "</div>",
            "<h2>",
            "</h2>",
            "<br>",
            "<br><br>",
            "<ul><li>",
            "</ul>",
            "<a href=x>",
            "</a>",
        ),
        *(
            "<form><select><option>",
            "</select></form>",
            "<table><tr><td>",
            "</table>",
            "<script>x</script>",
            "<!-- x -->",
        ),
        *(
            "<b class=y>",
            "</b>",
            "word ",
            "©",
            SENTENCE,
            SENTENCE * 2,
            "Preise und Angebote ohne jeden Artikel " * 3,
        ),
    ]
)


@given(st.lists(PARTS, max_size=40).map("".join))
def test_paragraphs_equal_justext(html: str) -> None:
    """Any page gives the paragraphs that `justext.justext` does not call boilerplate."""
    try:
        found = justext.justext(html, justext.get_stoplist("English"))
    except Exception:  # noqa: BLE001 - theirs raises on a page without any element; ours is empty
        found = []
    expected = "\n\n".join(
        " ".join(each.text.split()) for each in found if not each.is_boilerplate
    )
    assert extract_main_text(html, JustextSettings()) == expected


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["good", "neargood", "short", "short", "bad"]),
            st.booleans(),
            st.integers(1, 120),
        ),
        max_size=60,
    )
)
def test_context_rules_equal_justext(
    given_paragraphs: list[tuple[str, bool, int]],
) -> None:
    """Any classes, headings and lengths are revised as `revise_paragraph_classification` does."""
    paragraphs: list[Paragraph] = []
    for kind, is_heading, num_chars in given_paragraphs:
        paragraph = object.__new__(Paragraph)
        paragraph.cf_class, paragraph.class_type, paragraph.heading = kind, "", is_heading
        paragraph.text_nodes = ["x" * num_chars]
        paragraphs.append(paragraph)
    ours = copy.deepcopy(paragraphs)
    revise_paragraph_classification(paragraphs)
    revise_paragraphs(ours, MAX_HEADING_DISTANCE_DEFAULT)
    assert [each.class_type for each in ours] == [each.class_type for each in paragraphs]


@pytest.mark.parametrize(
    "body",
    [
        "<table>" + "<tr><td>x" * 12_000,
        "<p " + " ".join(f"a{n}" for n in range(15_000)) + ">x",
        "<div><p>x" * 12_000,
    ],
    ids=["short-cells", "attributes", "nested"],
)
def test_hostile_pages_take_linear_time(body: str) -> None:
    """JusText itself, or lxml, takes quadratic time for these pages: 15 s and more."""
    began = time.process_time()
    extract_main_text(body, JustextSettings())
    assert time.process_time() - began < 8


@pytest.mark.parametrize(
    "body",
    ["", " ", "<!-- x -->", "<?xml version='1.0' encoding='latin-1'?>", "\0", "&#xD800;"],
)
def test_page_without_elements_is_empty(body: str) -> None:
    """The result is empty, and no error is raised."""
    assert extract_main_text(body, JustextSettings()) == ""


def test_page_is_decoded_once() -> None:
    """A meta element or XML declaration does not decode the text again."""
    declared = "<?xml version='1.0' encoding='iso-8859-1'?><meta charset=iso-8859-1>"
    page = extract(
        f"{declared}<p>{SENTENCE * 3}Crème".encode("latin-1"),
        "text/html; charset=latin-1",
        WITH_JUSTEXT,
    )
    assert isinstance(page, Page)
    assert page.text.endswith("Crème")


def test_stop_words_select_the_language() -> None:
    """A German page has content only if German is among the languages of the stop words."""
    sentence = (
        "Das Brot des Tals wird von den Leuten aus dem Dorf gebacken, und es wird auf dem Markt "
        "verkauft. " * 3
    )
    texts = [
        extract_main_text(f"<p>{sentence}", JustextSettings(stop_words=names))
        for names in (("English",), ("German",), ("English", "German"))
    ]
    assert texts == ["", sentence.strip(), sentence.strip()]


def test_invalid_settings_are_refused() -> None:
    """Unknown languages and settings of resiliparse beside those of jusText are errors."""
    with pytest.raises(
        ValidationError, match="no stop words for 'Englsh'; the nearest names are: English"
    ):
        JustextSettings(stop_words=("Englsh",))
    with pytest.raises(
        ValidationError, match="main_content, list_bullets are settings of resiliparse"
    ):
        HtmlSettings(justext=JustextSettings(), main_content=True, list_bullets=True)
