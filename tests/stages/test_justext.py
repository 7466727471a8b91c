"""stages._justext: what jusText's own code takes for content, and in time whatever the page."""

from __future__ import annotations

import time

import justext
import pytest
from hypothesis import given
from hypothesis import strategies as st
from justext.core import MAX_HEADING_DISTANCE_DEFAULT, revise_paragraph_classification
from justext.paragraph import Paragraph
from pydantic import ValidationError

from stages.html.extraction import HtmlSettings, Page, extract
from stages.html.justext import JustextSettings, judge_in_context, main_text

WITH_JUSTEXT = HtmlSettings(justext=JustextSettings())
SENTENCE = "The bread of the valley is baked by the people of the village, and it is sold at the market on the square. "
LINKS = "".join(
    f"<li><a href=/{name}>{name} of the shop</a>" for name in ("News", "Offers", "Contact")
)
PAGE = f"<title>Bread</title><ul>{LINKS}</ul><h1>On bread</h1><p>{SENTENCE * 3}<p>{SENTENCE * 2}<p>Copyright © us"


def test_content_stays_and_menus_go() -> None:
    """Paragraphs full of stop words and the heading over them, a blank line apart, without links and copyright."""
    page = extract(PAGE.encode(), "text/html", WITH_JUSTEXT)
    assert isinstance(page, Page)
    assert page.title == "Bread"
    assert page.text.split("\n\n") == ["On bread", (SENTENCE * 3).strip(), (SENTENCE * 2).strip()]


def test_a_line_of_the_source_is_no_line_of_the_text() -> None:
    """Line feeds in a paragraph are blanks, unless it is preformatted."""
    text = main_text(
        f"<p>{SENTENCE * 3}\nand\n more<pre>{SENTENCE * 3}\nand\n more</pre>", JustextSettings()
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
def test_the_paragraphs_are_those_of_justext(html: str) -> None:
    """Any page gives the paragraphs that `justext.justext` calls no boilerplate."""
    try:
        found = justext.justext(html, justext.get_stoplist("English"))
    except Exception:  # noqa: BLE001 - theirs raises on a page without any element; ours is empty
        found = []
    expected = "\n\n".join(" ".join(each.text.split()) for each in found if not each.is_boilerplate)
    assert main_text(html, JustextSettings()) == expected


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
def test_the_second_step_decides_as_justext_does(
    given_paragraphs: list[tuple[str, bool, int]],
) -> None:
    """Classes, headings and lengths in any order are revised as `revise_paragraph_classification` revises them."""
    paragraphs: list[Paragraph] = []
    for kind, is_heading, num_chars in given_paragraphs:
        paragraph = object.__new__(Paragraph)
        paragraph.cf_class, paragraph.class_type, paragraph.heading = kind, "", is_heading
        paragraph.text_nodes = ["x" * num_chars]
        paragraphs.append(paragraph)
    revise_paragraph_classification(paragraphs)
    classes, headings, num_chars = (
        [each[column] for each in given_paragraphs] for column in range(3)
    )
    judged = judge_in_context(classes, headings, num_chars, MAX_HEADING_DISTANCE_DEFAULT)
    assert judged == [not paragraph.is_boilerplate for paragraph in paragraphs]


@pytest.mark.parametrize(
    "body",
    [
        "<table>" + "<tr><td>x" * 12_000,
        "<p " + " ".join(f"a{n}" for n in range(15_000)) + ">x",
        "<div><p>x" * 12_000,
    ],
    ids=["short-cells", "attributes", "nested"],
)
def test_hostile_pages_end_in_time(body: str) -> None:
    """Linear where jusText itself, or lxml under it, is quadratic: 15 s and more."""
    began = time.process_time()
    main_text(body, JustextSettings())
    assert time.process_time() - began < 8


@pytest.mark.parametrize(
    "body", ["", " ", "<!-- x -->", "<?xml version='1.0' encoding='latin-1'?>", "\0", "&#xD800;"]
)
def test_a_page_without_elements_has_no_content(body: str) -> None:
    """Nothing that jusText would call content, and no error."""
    assert main_text(body, JustextSettings()) == ""


def test_the_charset_that_a_page_names_is_not_believed_twice() -> None:
    """A page is decoded once: neither meta element nor XML declaration is asked again."""
    declared = "<?xml version='1.0' encoding='iso-8859-1'?><meta charset=iso-8859-1>"
    page = extract(
        f"{declared}<p>{SENTENCE * 3}Crème".encode("latin-1"),
        "text/html; charset=latin-1",
        WITH_JUSTEXT,
    )
    assert isinstance(page, Page)
    assert page.text.endswith("Crème")


def test_stop_words_decide_the_language() -> None:
    """A German page is content to German stop words, also beside English ones, and not to English ones alone."""
    sentence = (
        "Das Brot des Tals wird von den Leuten aus dem Dorf gebacken, und es wird auf dem Markt verkauft. "
        * 3
    )
    texts = [
        main_text(f"<p>{sentence}", JustextSettings(stop_words=names))
        for names in (("English",), ("German",), ("English", "German"))
    ]
    assert texts == ["", sentence.strip(), sentence.strip()]


def test_what_justext_cannot_do_is_refused() -> None:
    """An unknown language is answered with the nearest ones; resiliparse's own keys do not mix with jusText."""
    with pytest.raises(
        ValidationError, match="no stop words for 'Englsh'; the nearest names are: English"
    ):
        JustextSettings(stop_words=("Englsh",))
    with pytest.raises(ValidationError, match="main_content, list_bullets belong to resiliparse"):
        HtmlSettings(justext=JustextSettings(), main_content=True, list_bullets=True)


def test_pages_without_justext_keep_their_fingerprint() -> None:
    """The key leaves no trace where it is not used."""
    assert "justext" not in HtmlSettings().model_dump()
