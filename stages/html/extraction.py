r"""A web page as a server sent it, bytes and content type, into a title and lines of text.

Promises: never raises, whatever the bytes, and ends in the time that MAX_TAGS and MAX_ATTRIBUTES allow; broken HTML
gives the text that can be had, and a page that gives none says why (`Unusable`, with a cause from `CAUSES`); every
block element starts a line of its own.
Leaves to others: fetching, HTTP, and the cleaning of lines (white space at their ends, blank lines).

    page = extract(b"<title>Bread</title><h1>Bread</h1><p>Flour, water.", "text/html; charset=utf-8", HtmlSettings())
    page.title, page.text        # "Bread", "Bread\n\nFlour, water."
    page.charset                 # "utf-8"
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple, Self

from pydantic import Field, model_validator
from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5
from resiliparse.parse.html import HTMLTree

from stages.contract import Settings
from stages.html.justext import JustextSettings, main_text

CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "html.too_many_tags": "The page has more than 50,000 tags: it would take too long to parse.",
        "html.too_many_attributes": "A tag has more than 10,000 attributes: it would take too long to parse.",
        "html.not_text": "The share of control characters is above 5 %: the page is not text.",
        "html.not_decodable": "The share of undecodable characters is above 1 % in every charset.",
        "html.not_parsable": "The HTML parser gave up.",
    }
)
"""Cause -> one sentence, for pages that give no text."""

MAX_TAGS = 50_000
"""Largest number of tags in a page; 1,808 real pages have up to 10,840. The parser takes quadratic time for misnested
elements (0.3 s for 50,000 tags), and main content extraction for nested blocks (3 s for 12,000 tags)."""

MAX_UNDECODABLE_SHARE = 0.01
"""Largest share of characters that cannot be decoded in the best charset; each becomes U+FFFD."""

MAX_CONTROL_SHARE = 0.05
"""Largest share of control characters; resiliparse uses the same limit to recognise binary data."""

MAX_ATTRIBUTES = 10_000
"""Of one tag. Real ones have some ten; the parser takes quadratic time for them (0.2 s for 10,000, 5 s for 40,000)."""

_ATTRIBUTE = r"""[\s/]*+[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>]++))?+"""
_FEW_ATTRIBUTES = re.compile(
    rf"(?:[^<]++|<(?![a-z])|<[a-z][^\s/>]*+(?:{_ATTRIBUTE}){{0,{MAX_ATTRIBUTES}}}+(?!{_ATTRIBUTE}))*+",
    re.ASCII | re.IGNORECASE,
)
"""A whole page, tag by tag as HTML's tokenizer reads them (sections 13.2.5.6 to 13.2.5.39); each byte is looked at once
or twice, whatever the page. Scripts are read as if they were markup too."""


class HtmlSettings(Settings):
    """How text is taken out of pages."""

    main_content: bool = Field(
        default=False,
        description="Leave out navigation, footers and other boilerplate, by resiliparse's rules, in twice the time.",
    )
    justext: JustextSettings | None = Field(
        default=None,
        description="Take what jusText holds for content (as Pile-CC did), not what resiliparse does; null: no.",
    )
    alt_texts: bool = Field(default=False, description="Keep the alternative texts of images.")
    list_bullets: bool = Field(
        default=False, description="Begin the items of lists with a bullet or a number."
    )

    @model_validator(mode="after")
    def _one_engine(self) -> Self:
        given = [
            name for name in ("main_content", "alt_texts", "list_bullets") if getattr(self, name)
        ]
        if self.justext is not None and given:
            raise ValueError(
                f"{', '.join(given)} belong to resiliparse: leave them out where justext is given"
            )
        return self


class Page(NamedTuple):
    """What a page says."""

    title: str
    text: str  # lines, blocks apart; white space as it comes
    charset: str  # the codec that the bytes were decoded with
    num_undecodable: int  # places replaced by U+FFFD


class Unusable(NamedTuple):
    """Why a page gives no text."""

    cause: str
    detail: str


class _Decoded(NamedTuple):
    text: str
    charset: str
    num_undecodable: int

    @property
    def undecodable_share(self) -> float:
        return self.num_undecodable / max(1, len(self.text))


def extract(body: bytes, content_type: str, settings: HtmlSettings) -> Page | Unusable:
    """Title and text of a page.

    Args:
        body: the page without any transfer coding.
        content_type: HTTP's Content-Type, e.g. "text/html; charset=utf-8"; what is not text/plain is taken for HTML.
        settings: what to leave out, and what to refuse.
    """
    num_tags = body.count(b"<")
    is_plain = content_type.strip().lower().startswith("text/plain")
    if num_tags > MAX_TAGS and not is_plain:
        return Unusable("html.too_many_tags", f"{num_tags} tags, at most {MAX_TAGS} are parsed")
    decoded = _decode(body, content_type)
    num_control = len(_CONTROL.findall(decoded.text))
    if num_control > MAX_CONTROL_SHARE * len(decoded.text):
        return Unusable(
            "html.not_text",
            f"{num_control} of {len(decoded.text)} characters are control characters",
        )
    if decoded.undecodable_share > MAX_UNDECODABLE_SHARE:
        return Unusable(
            "html.not_decodable",
            f"{decoded.num_undecodable} of {len(decoded.text)} characters are undecodable in {decoded.charset}",
        )
    if is_plain:
        return Page("", decoded.text, decoded.charset, decoded.num_undecodable)
    if len(decoded.text) > 2 * MAX_ATTRIBUTES and not _FEW_ATTRIBUTES.fullmatch(decoded.text):
        return Unusable(
            "html.too_many_attributes", f"a tag has more than {MAX_ATTRIBUTES} attributes"
        )
    return _parse(decoded, settings)


def _parse(decoded: _Decoded, settings: HtmlSettings) -> Page | Unusable:
    try:
        tree = HTMLTree.parse(decoded.text)
        title = " ".join((tree.title or "").split())
        text = (
            _text(tree, settings)
            if settings.justext is None
            else main_text(decoded.text, settings.justext)
        )
    except Exception as error:  # noqa: BLE001 - foreign parsers fed with foreign bytes: none of their errors may end a run
        return Unusable("html.not_parsable", str(error))
    return Page(title, text, decoded.charset, decoded.num_undecodable)


def _text(tree: HTMLTree, settings: HtmlSettings) -> str:
    return extract_plain_text(
        tree,
        main_content=settings.main_content,
        alt_texts=settings.alt_texts,
        list_bullets=settings.list_bullets,
    )


# What text does not hold: the C0 controls but for tab, line feed, form feed and carriage return.
_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f]")
_CHARSET = re.compile(r"charset\s*=\s*[\"']?\s*([^\s\"';,]+)", re.IGNORECASE)
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_WIDER_CODECS: Mapping[str, str] = MappingProxyType(
    {"gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949", "big5": "big5hkscs"}
)
"""WHATWG Encoding Standard, sections 10 to 13: what these names mean on the web, in the names of Python's codecs."""


def _decode(body: bytes, content_type: str) -> _Decoded:
    """The text in the first charset that fits, or else in the one that fits best."""
    best: _Decoded | None = None
    for charset in _charsets(body, content_type):
        decoded = _decode_as(body, charset)
        if decoded.undecodable_share <= MAX_UNDECODABLE_SHARE:
            return decoded
        if best is None or decoded.undecodable_share < best.undecodable_share:
            best = decoded
    assert best is not None
    return best


def _charsets(body: bytes, content_type: str) -> Iterator[str]:
    """Codecs to try: byte order mark, HTTP header, the page's own word, then what resiliparse makes of the bytes.

    The order is that of the Encoding Standard (section 6.1, decode: a byte order mark wins) and of HTML (section
    13.2.3.2, determining the character encoding).
    """
    for mark, charset in _BYTE_ORDER_MARKS:
        if body.startswith(mark):
            yield charset
            break
    if named := _CHARSET.search(content_type):
        yield from _codec(named[1])
    yield from _codec(detect_encoding(body, from_html_meta=True))
    yield from _codec(detect_encoding(body))
    yield "utf-8"


def _codec(label: str | None) -> Iterator[str]:
    """Python's codec for a charset's name on the web, if there is one."""
    charset = map_encoding_to_html5(label, fallback_utf8=False) if label else None
    if charset is not None:
        name = codecs.lookup(charset).name
        yield _WIDER_CODECS.get(name, name)


def _decode_as(body: bytes, charset: str) -> _Decoded:
    text = body.decode(charset, errors="replace").removeprefix("\ufeff")
    num_undecodable = text.count("\ufffd")
    if num_undecodable and charset.startswith(
        "utf"
    ):  # U+FFFD that the page itself holds is no fault of the charset
        num_undecodable = max(0, num_undecodable - body.count("\ufffd".encode(charset)))
    return _Decoded(text, charset, num_undecodable)
