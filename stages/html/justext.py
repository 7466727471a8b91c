"""The paragraphs of a page that jusText takes for content: long, full of stop words and poor in links, or among such
(Pomikalek 2011, "Removing Boilerplate and Duplicate Content from Web Corpora"; Pile-CC was made with it).

Promises: the same paragraphs as `justext.justext` with its defaults, in time linear in their number.
Leaves to others: bytes, charsets, titles, and pages that no parser takes.

    main_text("<p>Bread is made of flour, and of water, and it is as old as the field ...", JustextSettings())

Why not `justext.justext` itself: from each short paragraph it walks to the next long one, and lxml copies attributes in
quadratic time: 25,000 short paragraphs take it 75 s, 40,000 attributes of one tag 26 s.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from functools import lru_cache
from typing import Any

from pydantic import Field, field_validator

from stages.contract import Settings


class JustextSettings(Settings):
    """What jusText needs to know."""

    stop_words: tuple[str, ...] = Field(
        default=("English",),
        min_length=1,
        description="Languages whose stop words tell sentences from menus, by English name (there are 100); pages in "
        "other languages give hardly any text.",
    )

    @field_validator("stop_words")
    @classmethod
    def _has_lists(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        from justext import get_stoplists

        known = get_stoplists()
        for name in names:
            if name not in known:
                nearest = (
                    ", ".join(get_close_matches(name, sorted(known), n=3, cutoff=0.4)) or "English"
                )
                raise ValueError(
                    f"jusText has no stop words for {name!r}; the nearest names are: {nearest}"
                )
        return names


def main_text(html: str, settings: JustextSettings) -> str:
    """The paragraphs that are content, a blank line between them; "" for a page that has none.

    Raises:
        Exception: whatever lxml makes of a page that it cannot parse.
    """
    from justext import core
    from lxml import etree  # pyright: ignore[reportAttributeAccessIssue] - compiled, without stubs
    from lxml import html as lxml_html

    try:
        # As bytes, because lxml refuses a str that names its charset.
        page = lxml_html.fromstring(
            html.encode("utf-8", "replace"), parser=lxml_html.HTMLParser(encoding="utf-8")
        )
    except etree.ParserError:  # there is no element in it
        return ""
    for element in page.iter(etree.Element):
        element.attrib.clear()  # no rule asks for them
    paragraphs = core.ParagraphMaker.make_paragraphs(core.preprocessor(page))
    core.classify_paragraphs(paragraphs, _stop_words(settings.stop_words))
    texts: list[str] = [paragraph.text for paragraph in paragraphs]
    is_content = judge_in_context(
        [paragraph.cf_class for paragraph in paragraphs],
        [paragraph.heading for paragraph in paragraphs],
        [len(text) for text in texts],
        max_heading_distance=core.MAX_HEADING_DISTANCE_DEFAULT,
    )
    content = (
        _lines(*found) for found in zip(paragraphs, texts, is_content, strict=True) if found[2]
    )
    return "\n\n".join(content)


def _lines(paragraph: Any, text: str, _: bool) -> str:
    r"""A paragraph's text; a \n of the source is a blank, but for preformatted text."""
    return text if "pre" in paragraph.dom_path.split(".") else " ".join(text.split())


@lru_cache(maxsize=8)
def _stop_words(names: tuple[str, ...]) -> frozenset[str]:
    from justext import get_stoplist

    return frozenset[str]().union(*(get_stoplist(name) for name in names))


def judge_in_context(
    classes: Sequence[str],
    headings: Sequence[bool],
    num_chars: Sequence[int],
    max_heading_distance: int,
) -> list[bool]:
    """Which paragraphs are content, as `justext.core.revise_paragraph_classification` decides it.

    Args:
        classes: of each paragraph by itself: good, neargood, short, bad.
        headings: whether each is a heading.
        num_chars: the characters of each.
        max_heading_distance: characters between a short heading and the content that it may belong to.
    """
    judged = _short_ones_judged(classes)
    after = _nearest(reversed(judged), ("good", "bad"))[::-1]
    before = "bad"
    for number, kind in enumerate(judged):
        if kind == "neargood":
            judged[number] = "good" if "good" in (before, after[number]) else "bad"
        before = judged[number]
    for number, kind in enumerate(judged):
        if headings[number] and kind == "bad" and classes[number] != "bad":
            distance, following = 0, number + 1
            while following < len(judged) and distance <= max_heading_distance:
                if judged[following] == "good":
                    judged[number] = "good"
                    break
                distance += num_chars[following]
                following += 1
    return [kind == "good" for kind in judged]


def _short_ones_judged(classes: Sequence[str]) -> list[str]:
    """The classes with every short paragraph like those around it; near good ones tip the balance."""
    before, before_or_near = (
        _nearest(classes, ends) for ends in (("good", "bad"), ("good", "bad", "neargood"))
    )
    after, after_or_near = (
        _nearest(reversed(classes), ends)[::-1]
        for ends in (("good", "bad"), ("good", "bad", "neargood"))
    )
    judged = list(classes)
    for number, kind in enumerate(classes):
        if kind != "short":
            continue
        if before[number] == after[number]:
            judged[number] = before[number]
        else:
            on_bad_side = (before_or_near if before[number] == "bad" else after_or_near)[number]
            judged[number] = "good" if on_bad_side == "neargood" else "bad"
    return judged


def _nearest(classes: Iterable[str], ends: Sequence[str]) -> list[str]:
    """For each paragraph the class of the last one before it that is among `ends`; bad at the beginning."""
    found: list[str] = []
    last = "bad"
    for kind in classes:
        found.append(last)
        if kind in ends:
            last = kind
    return found
