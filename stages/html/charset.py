"""Decode the bytes of a web page with the charset that fits them."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

from stages.html.charset_detection import detect_charset

_CHARSET = re.compile(r"charset\s*=\s*(?:[\"']\s*)?([^\s\"';,]+)", re.IGNORECASE)
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# Python codecs for the meaning of these names on the web.
#
# Source: WHATWG Encoding Standard, sections 10 to 13.
_WIDER_CODECS: Mapping[str, str] = MappingProxyType(
    {"gbk": "gb18030", "shift_jis": "cp932", "euc_kr": "cp949", "big5": "big5hkscs"}
)

_REPLACEMENT = "\ufffd"

# Where a meta element may declare a charset (HTML, section 13.2.3.2).
_META_BYTES = 1024
_ONLY_ASCII = bytes(byte if byte < 0x80 else ord("?") for byte in range(0x100))


class DecodedPage(NamedTuple):
    """The text of a page, before it is parsed."""

    text: str
    charset: str  # name of the Python codec
    num_undecodable: int  # byte sequences replaced by U+FFFD

    @property
    def undecodable_share(self) -> float:
        """Undecodable sequences per character of the text."""
        return self.num_undecodable / max(1, len(self.text))


def decode_page(
    body: bytes, content_type: str, max_undecodable_share: float
) -> DecodedPage:
    """Decode with the first charset that fits, or else with the one that fits best.

    Args:
        body: the page.
        content_type: HTTP's Content-Type header.
        max_undecodable_share: a charset fits if at most this share cannot be decoded.
    """
    # `_list_charsets` is lazy: detection runs only if the charsets before it do not fit.
    best: DecodedPage | None = None
    for charset in _list_charsets(body, content_type):
        decoded = _decode(body, charset)
        if decoded.undecodable_share <= max_undecodable_share:
            return decoded
        if best is None or decoded.undecodable_share < best.undecodable_share:
            best = decoded
    assert best is not None
    return best


def _list_charsets(body: bytes, content_type: str) -> Iterator[str]:
    """Yield codecs to try: byte order mark, HTTP header, meta element, then detection.

    A byte order mark wins (Encoding Standard, section 6.1, "decode"). The rest of the order is that
    of HTML (section 13.2.3.2, "determining the character encoding").
    """
    for mark, charset in _BYTE_ORDER_MARKS:
        if body.startswith(mark):
            yield charset
            break
    if named := _CHARSET.search(content_type):
        yield from _find_codec(named[1])
    # Without letters outside ASCII there is nothing to guess from: only a meta element is read.
    start = body[:_META_BYTES].translate(_ONLY_ASCII)
    named_by_meta = detect_encoding(start, from_html_meta=True, html5_compatible=False)
    if named_by_meta != "ascii":
        yield from _find_codec(named_by_meta)
    detected = detect_charset(body)
    yield _WIDER_CODECS.get(detected, detected)
    yield "utf-8"


def _find_codec(label: str | None) -> Iterator[str]:
    """Yield Python's codec for a charset label of the web, if there is one."""
    charset = map_encoding_to_html5(label, fallback_utf8=False) if label else None
    if charset is not None:
        name = codecs.lookup(charset).name
        yield _WIDER_CODECS.get(name, name)


def _decode(body: bytes, charset: str) -> DecodedPage:
    text = body.decode(charset, errors="replace").removeprefix("\ufeff")
    num_undecodable = text.count(_REPLACEMENT)
    if num_undecodable and charset.startswith("utf"):
        # U+FFFD characters that the page itself contains are decoded correctly.
        num_undecodable -= body.count(_REPLACEMENT.encode(charset))
    return DecodedPage(text, charset, max(0, num_undecodable))
