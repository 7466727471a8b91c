r"""Change the markup of a page where resiliparse would lose text or keep what is not text.

    clean_markup("<noscript><div></noscript><p>text")      # "<p>text"
    clean_markup("<ruby>漢<rt>かん</rt></ruby>")             # "<ruby>漢</ruby>"

Each step takes linear time and changes no other markup.
"""

from __future__ import annotations

import re
from html import unescape

_SPACE = r"[\t\n\f\r ]"
_NAME_END = r"(?=[\t\n\f\r />])"

# Most pages have neither <noscript nor <rt or <rp. `[nN]` takes a tenth of IGNORECASE's time.
_RARE = re.compile("<(?:[nN][oO][sS][cC]|[rR][tTpP])")

# What can contain "<noscript" as text: comments, and elements whose content is text (HTML Standard,
# sections 13.2.6.4.4 and 13.2.6.4.7).
_OPAQUE = "script|style|textarea|title|iframe|noembed|noframes|xmp"
_START = re.compile(rf"<(?:(!--)|(noscript|{_OPAQUE}){_NAME_END})", re.IGNORECASE)
_NOSCRIPT_TAG = re.compile(rf"<(/?)noscript{_NAME_END}[^<>]*>", re.IGNORECASE)
_END_OF_COMMENT = re.compile("--!?>")
_END_TAGS = {
    name: re.compile(f"</{name}{_NAME_END}", re.IGNORECASE)
    for name in ("noscript", *_OPAQUE.split("|"))
}


# A reading ends at its end tag, or where HTML allows to omit that: before the next reading or base
# text, and at the end of <ruby>. A longer one is an element that was never closed.
_MAX_READING = 300
_READING = re.compile(
    rf"<(r[tp]){_NAME_END}[^<>]{{0,{_MAX_READING}}}>"
    rf"(?:[^<]|<(?!/?r[tpbu])){{0,{_MAX_READING}}}?"
    rf"(?:</\1{_SPACE}*>|(?=<(?:/ruby|/?rtc|r[tpb]){_NAME_END}))",
    re.IGNORECASE,
)


# A text node of one character, which is given by itself or by a character reference.
_LONE = re.compile(
    rf">{_SPACE}*(?:[\u0800-\udfff\uf900-\uffff]|&[^;<>&\t\n ]{{1,32}};)(?={_SPACE}*(?:<|\Z))"
)
# A noncharacter, which Unicode reserves for internal use (section 23.7). It is in no output.
_MARK = "\ufdd0"


def clean_markup(html: str) -> str:
    """Return the page without noscript elements and without the readings of ruby text."""
    if _RARE.search(html) is None:
        return html
    return _READING.sub("", _remove_noscript(html))


def open_noscript(html: str) -> str | None:
    """Return the page with its noscript elements as <div>, None if it has none.

    Discourse and other applications send the text of a page in them, for crawlers that run no
    scripts.
    """
    opened, num_tags = _NOSCRIPT_TAG.subn(r"<\1div>", html)
    return _READING.sub("", opened) if num_tags else None


def mark_lone_characters(html: str) -> str:
    """Return the page with a mark after each text node of one character.

    The main content of resiliparse omits nodes that are a symbol of an icon font (private use area,
    U+E000 to U+F8FF). It compares the bytes in the wrong order, and omits nearly every character of
    three bytes: those of Chinese, Japanese, Korean, Hindi, Thai and others.
    """
    return _LONE.sub(_add_mark, html)


def remove_marks(text: str) -> str:
    """Return the text without the marks of `mark_lone_characters`."""
    return text.replace(_MARK, "")


def _add_mark(node: re.Match[str]) -> str:
    character = unescape(node[0][1:].strip())
    is_icon = "\ue000" <= character <= "\uf8ff" or character == "¶"  # the link to a heading
    return node[0] if is_icon else node[0] + _MARK


def _remove_noscript(html: str) -> str:
    """Return the page without its noscript elements, as a browser with scripting reads it.

    Its content is raw text, which ends at the first end tag (HTML Standard, section 13.2.6.4.7).
    resiliparse parses without scripting: there an element that is not closed inside <noscript>
    extends it to the end of the page. A start tag without any end tag is removed alone.
    """
    kept: list[str] = []
    copied = position = 0
    is_closed = True  # whether noscript elements from here on can have an end tag
    while start := _START.search(html, position):
        name = "!--" if start[1] else start[2].lower()
        end = _find_end(html, start, name) if name != "noscript" or is_closed else None
        if name == "noscript":
            if end is None:
                is_closed = False  # not searched again: the time stays linear
                end = _find_tag_end(html, start.end())
            kept.append(html[copied : start.start()])
            copied = end
        elif end is None:
            break  # the rest of the page is inside it
        position = end
    kept.append(html[copied:])
    return "".join(kept)


def _find_end(html: str, start: re.Match[str], name: str) -> int | None:
    """Return the index after a comment or an element of raw text, None if it does not end."""
    if name == "!--":
        # From the dashes of "<!--" on, because "<!-->" is a whole comment.
        comment_end = _END_OF_COMMENT.search(html, start.start() + 2)
        return comment_end.end() if comment_end else None
    end_tag = _END_TAGS[name].search(html, start.end())
    return _find_tag_end(html, end_tag.end()) if end_tag else None


def _find_tag_end(html: str, position: int) -> int:
    """Return the index after the next ">", or the length of the page."""
    return html.find(">", position) + 1 or len(html)
