"""Extract the main text of a page with jusText's rules.

jusText keeps paragraphs that are long, full of stop words and poor in links, and short ones between
such paragraphs (Pomikalek 2011, "Removing Boilerplate and Duplicate Content from Web Corpora").
Pile-CC was made with it. The result equals `justext.justext` with its defaults.

    extract_main_text("<p>Bread is made of flour, and of water, ...", JustextSettings())

`justext.justext` itself takes quadratic time. It walks from each short paragraph to the next long
one, and lxml copies attributes: 25,000 short paragraphs take 75 s, 40,000 attributes of one tag
26 s. The time here is linear in the number of paragraphs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from stages.settings.warc import JustextSettings


def extract_main_text(html: str, settings: JustextSettings) -> str:
    """Return the paragraphs with content, a blank line between them; "" if there are none.

    Raises:
        Exception: any error of lxml for a page that it cannot parse.
    """
    from justext import core
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue] - compiled, without stubs
    from lxml import html as lxml_html

    try:
        # As bytes, because lxml refuses a str that names its charset.
        page = lxml_html.fromstring(
            html.encode("utf-8", "replace"), parser=lxml_html.HTMLParser(encoding="utf-8")
        )
    except etree.ParserError:  # the page has no element
        return ""
    for element in page.iter(etree.Element):
        element.attrib.clear()  # no rule uses them, and copying them takes quadratic time
    paragraphs = core.ParagraphMaker.make_paragraphs(core.preprocessor(page))
    # jusText copies the stop words for each page: those of all languages are 200,000.
    words: set[str] = set()
    for paragraph in paragraphs:
        words.update(map(str.lower, paragraph.text.split()))
    core.classify_paragraphs(paragraphs, _load_stop_words(settings.stop_words) & words)
    classes: list[str] = []
    headings: list[bool] = []
    texts: list[str] = []
    for paragraph in paragraphs:
        classes.append(paragraph.cf_class)
        headings.append(paragraph.heading)
        texts.append(paragraph.text)  # a property that joins text nodes: read it once
    num_chars = list(map(len, texts))
    max_distance = core.MAX_HEADING_DISTANCE_DEFAULT
    is_content = classify_in_context(classes, headings, num_chars, max_distance)
    content: list[str] = []
    for paragraph, text, is_kept in zip(paragraphs, texts, is_content, strict=True):
        if is_kept:
            content.append(_format_paragraph(paragraph, text))
    return "\n\n".join(content)


def _format_paragraph(paragraph: Any, text: str) -> str:
    r"""Replace each \n of the source by a blank, except in preformatted text."""
    return text if "pre" in paragraph.dom_path.split(".") else " ".join(text.split())


@lru_cache(maxsize=8)
def _load_stop_words(names: tuple[str, ...]) -> frozenset[str]:
    from justext import get_stoplist

    stop_words: set[str] = set()
    for name in names:
        stop_words.update(map(str.lower, get_stoplist(name)))
    return frozenset(stop_words)


def classify_in_context(
    classes: Sequence[str],
    headings: Sequence[bool],
    num_chars: Sequence[int],
    max_heading_distance: int,
) -> list[bool]:
    """Return which paragraphs are content, as `justext.core.revise_paragraph_classification` does.

    Args:
        classes: class of each paragraph by itself: good, neargood, short, bad.
        headings: whether each is a heading.
        num_chars: the characters of each.
        max_heading_distance: largest number of characters between a short heading and its content.
    """
    revised = _revise_short(classes)
    # A near-good paragraph is good if a neighbour is good. "before" is the revised class.
    after = _find_last_seen(reversed(revised), ("good", "bad"))[::-1]
    before = "bad"
    for i, kind in enumerate(revised):
        if kind == "neargood":
            revised[i] = "good" if "good" in (before, after[i]) else "bad"
        before = revised[i]
    # A short heading is content if content follows it soon.
    for i, kind in enumerate(revised):
        is_short_heading = headings[i] and kind == "bad" and classes[i] != "bad"
        if is_short_heading and _has_content_after(
            i, revised, num_chars, max_heading_distance
        ):
            revised[i] = "good"
    return [kind == "good" for kind in revised]


def _has_content_after(
    heading: int, classes: Sequence[str], num_chars: Sequence[int], max_distance: int
) -> bool:
    distance, i = 0, heading + 1
    while i < len(classes) and distance <= max_distance:
        if classes[i] == "good":
            return True
        distance += num_chars[i]
        i += 1
    return False


def revise_paragraphs(paragraphs: Sequence[Any], max_heading_distance: int) -> None:
    """Set `class_type` of classified paragraphs as `justext.core.revise_paragraph_classification`.

    Args:
        paragraphs: of jusText, with `cf_class`.
        max_heading_distance: largest number of characters between a short heading and its content.
    """
    classes: list[str] = []
    headings: list[bool] = []
    num_chars: list[int] = []
    for paragraph in paragraphs:
        classes.append(paragraph.cf_class)
        headings.append(paragraph.heading)
        num_chars.append(len(paragraph.text))
    is_content = classify_in_context(classes, headings, num_chars, max_heading_distance)
    for paragraph, is_kept in zip(paragraphs, is_content, strict=True):
        paragraph.class_type = "good" if is_kept else "bad"


def _revise_short(classes: Sequence[str]) -> list[str]:
    """Give each short paragraph the class of its neighbours.

    If its neighbours differ, it is good if a near-good paragraph is between it and the bad one.
    """
    clear, clear_or_near = ("good", "bad"), ("good", "bad", "neargood")
    before = _find_last_seen(classes, clear)
    before_or_near = _find_last_seen(classes, clear_or_near)
    after = _find_last_seen(reversed(classes), clear)[::-1]
    after_or_near = _find_last_seen(reversed(classes), clear_or_near)[::-1]
    revised = list(classes)
    for i, kind in enumerate(classes):
        if kind != "short":
            continue
        if before[i] == after[i]:
            revised[i] = before[i]
        else:
            on_bad_side = before_or_near[i] if before[i] == "bad" else after_or_near[i]
            revised[i] = "good" if on_bad_side == "neargood" else "bad"
    return revised


def _find_last_seen(classes: Iterable[str], wanted: Sequence[str]) -> list[str]:
    """Return the last wanted class before each paragraph, "bad" if there is none."""
    found: list[str] = []
    last = "bad"
    for kind in classes:
        found.append(last)
        if kind in wanted:
            last = kind
    return found
