"""Escape the characters of a text that control a terminal or are invisible."""

from __future__ import annotations

import re

# Everything except line feed and tab that a terminal obeys, hides or reorders by, and surrogates,
# which cannot be encoded.
_UNSAFE = re.compile(
    "["
    "\x00-\x08\x0b-\x1f"  # C0 controls, with ESC (ECMA-48, section 5.2)
    "\x7f-\x9f"  # DEL and C1 controls: U+009B starts a sequence as ESC [ does (section 5.3)
    "\xad\u180e\u200b-\u200d\u2060-\u2064\ufeff"  # invisible or of zero width
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # bidirectional marks and overrides (UAX #9)
    "\u2028\u2029"  # line and paragraph separator
    "\u206a-\u206f\ufff9-\ufffb\U000e0000-\U000e007f"  # deprecated formats, annotations, tags
    "\U00013430-\U0001343f\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"  # formats of scripts
    "\ud800-\udfff"
    "]"
)


def escape(text: str) -> str:
    r"""Return the text with each unsafe character as `\uXXXX`.

    JSON has the same escapes, and unsafe characters occur in its strings only. Escaped JSON is
    therefore JSON with the same value.

    >>> print(escape("a\x1b[2J"))
    a\u001b[2J
    """
    return _UNSAFE.sub(_format_escape, text)


def _format_escape(match: re.Match[str]) -> str:
    codes = match[0].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{codes[i : i + 4]}" for i in range(0, len(codes), 4))
