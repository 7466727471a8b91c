r"""Extract the title and the text of a web page.

No bytes raise an error, and the time is limited by MAX_TAGS and MAX_ATTRIBUTES. Broken HTML gives
the text that the parser finds. A page without usable text is returned as `Unusable` with a cause
from `CAUSES`. Every block element starts a new line.

    body = b"<title>Bread</title><h1>Bread</h1><p>Flour, water."
    page = extract(body, "text/html; charset=utf-8", HtmlSettings())
    page.title, page.text        # "Bread", "Bread\n\nFlour, water."
    page.charset                 # "utf-8"
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from stages.html.charset import DecodedPage, decode_page
from stages.html.justext import extract_main_text
from stages.settings.warc import HtmlSettings

# Cause -> description, for pages without usable text.
CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "html.too_many_tags": (
            "The page has more than 50,000 tags: it would take too long to parse."
        ),
        "html.too_many_attributes": (
            "A tag has more than 10,000 attributes: it would take too long to parse."
        ),
        "html.not_text": "The share of control characters is above 5 %: the page is not text.",
        "html.not_decodable": "The share of undecodable characters is above 1 % in every charset.",
        "html.not_parsable": "The HTML parser gave up.",
    }
)

# Largest number of tags in a page; 1,808 real pages have up to 10,840.
#
# The parser takes quadratic time for misnested elements (0.3 s for 50,000 tags), and main content
# extraction for nested blocks (3 s for 12,000 tags).
MAX_TAGS = 50_000

# Largest share of undecodable characters in the best charset; each becomes U+FFFD.
MAX_UNDECODABLE_SHARE = 0.01

# Largest share of control characters; resiliparse uses the same limit to recognise binary
# data.
MAX_CONTROL_SHARE = 0.05

# Largest number of attributes of one tag; real tags have about ten.
#
# The parser takes quadratic time for them: 0.2 s for 10,000, 5 s for 40,000.
MAX_ATTRIBUTES = 10_000

# C0 controls except tab, line feed, form feed and carriage return.
_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f]")

# White space, name, and optionally a value: quoted, or up to the next white space.
_ATTRIBUTE = r"""[\s/]*+[^\s/>][^\s/>=]*+(?:\s*+=\s*+(?:"[^"]*+"|'[^']*+'|[^\s>]++))?+"""
# Text, a "<" that opens no tag, or a tag with few attributes. Possessive quantifiers (*+,
# ++) prevent backtracking, so that each byte is read once or twice in any page.
# Matches a whole page without a tag of more than MAX_ATTRIBUTES attributes.
#
# It follows HTML's tokenizer (sections 13.2.5.6 to 13.2.5.39), but reads scripts as markup too.
_FEW_ATTRIBUTES = re.compile(
    r"(?:[^<]++|<(?![a-z])|"
    rf"<[a-z][^\s/>]*+(?:{_ATTRIBUTE}){{0,{MAX_ATTRIBUTES}}}+(?!{_ATTRIBUTE}))*+",
    re.ASCII | re.IGNORECASE,
)


class Page(NamedTuple):
    """The title and text of a page."""

    title: str
    text: str  # blocks on lines of their own, white space unchanged
    charset: str  # the codec that decoded the bytes
    num_undecodable: int  # byte sequences replaced by U+FFFD


class Unusable(NamedTuple):
    """A page without usable text."""

    cause: str  # one of CAUSES
    detail: str


def extract(body: bytes, content_type: str, settings: HtmlSettings) -> Page | Unusable:
    """Extract title and text.

    Args:
        body: the page without any transfer coding.
        content_type: HTTP's Content-Type, for example "text/html; charset=utf-8". Everything except
            text/plain is parsed as HTML.
        settings: what to extract.
    """
    is_plain = content_type.strip().lower().startswith("text/plain")
    num_tags = body.count(b"<")
    if num_tags > MAX_TAGS and not is_plain:
        return Unusable("html.too_many_tags", f"{num_tags} tags, the limit is {MAX_TAGS}")
    decoded = decode_page(body, content_type, MAX_UNDECODABLE_SHARE)
    if (fault := _check_text(decoded)) is not None:
        return fault
    if is_plain:
        return Page("", decoded.text, decoded.charset, decoded.num_undecodable)
    # An attribute has at least a space and a letter, so short pages need no check.
    is_long = len(decoded.text) > 2 * MAX_ATTRIBUTES
    if is_long and not _FEW_ATTRIBUTES.fullmatch(decoded.text):
        detail = f"a tag has more than {MAX_ATTRIBUTES} attributes"
        return Unusable("html.too_many_attributes", detail)
    return _parse(decoded, settings)


def _check_text(decoded: DecodedPage) -> Unusable | None:
    """Return why the decoded bytes are not text, or None if they are."""
    num_chars = len(decoded.text)
    num_control = len(_CONTROL.findall(decoded.text))
    if num_control > MAX_CONTROL_SHARE * num_chars:
        detail = f"{num_control} of {num_chars} characters are control characters"
        return Unusable("html.not_text", detail)
    if decoded.undecodable_share > MAX_UNDECODABLE_SHARE:
        detail = (
            f"{decoded.num_undecodable} of {num_chars} characters are undecodable "
            f"in {decoded.charset}"
        )
        return Unusable("html.not_decodable", detail)
    return None


def _parse(decoded: DecodedPage, settings: HtmlSettings) -> Page | Unusable:
    try:
        tree = HTMLTree.parse(decoded.text)
        title = " ".join((tree.title or "").split())
        if settings.justext is None:
            text = _extract_text(tree, settings)
        else:
            text = extract_main_text(decoded.text, settings.justext)
    except Exception as error:  # noqa: BLE001 - no page may end a run, for any error of the parsers
        return Unusable("html.not_parsable", str(error))
    return Page(title, text, decoded.charset, decoded.num_undecodable)


def _extract_text(tree: HTMLTree, settings: HtmlSettings) -> str:
    return extract_plain_text(
        tree,
        main_content=settings.main_content,
        alt_texts=settings.alt_texts,
        list_bullets=settings.list_bullets,
    )
