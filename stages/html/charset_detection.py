"""Guess the charset of a page that does not declare it, from its bytes.

uchardet guesses, and three of its habits are corrected: it names charsets that the web does not use,
it names the smaller of two charsets that differ in punctuation or a few letters, and it takes pages
with few letters outside ASCII for Baltic, Turkish or DOS ones. A guess of a Latin charset stands if
the letters that it gives belong to one language; else the charset is chosen whose letters do.

`python -m benchmarks.quality.charsets` counts the pages that are read right, by language and charset.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType

from resiliparse.parse.encoding import detect_encoding, map_encoding_to_html5

# uchardet's name of a codec -> one that has more characters, and the same where both have one: all
# letters of Ukrainian, quotes and dashes. The ş and ţ of ISO-8859-16 have a comma; pages that are
# older than Unicode have the cedilla.
_WIDER: Mapping[str, str] = MappingProxyType(
    {
        "koi8-r": "koi8_u",
        "tis-620": "cp874",
        "iso8859-9": "cp1254",
        "iso8859-16": "cp1250",
    }
)
# Latin charsets that hardly any page has.
_RARE = frozenset({"iso8859-3", "iso8859-4", "iso8859-10", "iso8859-14"})
# Codecs of the web that map_encoding_to_html5 does not know by these names.
_OTHER_NAMES = frozenset({"cp949", "mac-cyrillic"})

# Codec -> letters outside ASCII of the languages that are written in it, in lower case; the first is
# the web's default (WHATWG Encoding Standard, section 4.2; Unicode CLDR, main exemplar characters).
_ALPHABETS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cp1252": (
            "àâæçèéêëîïôœùûüÿ",  # French
            "äöüßé",  # German
            "áéíñóúüçªº",  # Spanish, Galician, Basque
            "àáâãçéêíóôõúüªº",  # Portuguese
            "àèéìíîòóùú",  # Italian
            "àçèéíïòóúü·",  # Catalan
            "áâäèéêëíïîóôöúûü",  # Dutch, Afrikaans
            "àáäåæéöøüóòôâ",  # Danish, Norwegian, Swedish, Finnish
            "áæéíðóöúýþ",  # Icelandic
            "áíóúéàèìòù",  # Irish, Gaelic
            "çë",  # Albanian
            "õäöüšž",  # Estonian
        ),
        "cp1250": (
            "ąćęłńóśźż",  # Polish
            "áčďéěíňóřšťúůýž",  # Czech
            "áäčďéíĺľňóôŕšťúýž",  # Slovak
            "áéíóöőúüű",  # Hungarian
            "čćđšž",  # Croatian, Bosnian, Slovene
            "ăâîşţ",  # Romanian
        ),
        "cp1257": ("ąčęėįšųūž", "āčēģīķļņšūžõ", "õäöüšž"),  # Lithuanian, Latvian, Estonian
        "cp1254": ("âçğıîöşüûi̇", "äçəğıöşü"),  # Turkish, Azerbaijani
    }
)
_LATIN: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **_ALPHABETS,
        "iso8859-2": _ALPHABETS["cp1250"],
        "iso8859-13": _ALPHABETS["cp1257"],
    }
)
_DEFAULT = "cp1252"
# The charsets of Windows have the letters of these and quotes and dashes.
_WITH_QUOTES: Mapping[str, str] = MappingProxyType(
    {"iso8859-2": "cp1250", "iso8859-13": "cp1257"}
)

# uchardet's guess of a Latin charset counts if the page has so many bytes outside ASCII.
MIN_DISTINCT_BYTES = 5

# Characters of any language.
_SIGNS = frozenset("\u00a0\u00ad§©«®°±²³·»½×‘’‚“”„†•…‰‹›€™–—")

_GREEK = ("cp1253", "iso8859-7")
# Where their bytes differ, one has the letter Ά, and the other a sign or a lone accent.
_GREEK_SIGN = re.compile(r"΅|(?<=\w)Ά|Ά(?!\w)")

_ASCII = bytes(range(0x80))


def detect_charset(body: bytes) -> str:
    """Return the codec that a page without a declared charset most likely has."""
    if is_mostly_utf8(body):
        return "utf-8"
    name = detect_encoding(body, html5_compatible=False)
    guess = _find_codec(name)
    if guess is None or guess == "utf-8" or guess in _RARE:
        guess = _DEFAULT
    if guess in _GREEK:
        return min((guess, *_GREEK), key=lambda codec: _count_signs(body, codec))
    return _choose_latin(body, guess) if guess in _LATIN else guess


def is_mostly_utf8(body: bytes) -> bool:
    """Return whether more characters outside ASCII are valid UTF-8 than not."""
    text = body.decode("utf-8", "replace")
    num_invalid = text.count("\ufffd")
    num_ascii = len(body) - len(body.translate(None, _ASCII))
    return len(text) - num_ascii > 2 * num_invalid


def _find_codec(name: str | None) -> str | None:
    """Return the codec that the web uses for a guess of uchardet, or None if there is none."""
    if name is None or name in _OTHER_NAMES:
        return name
    return _WIDER.get(name, map_encoding_to_html5(name, fallback_utf8=False))


def _choose_latin(body: bytes, guess: str) -> str:
    """Return the codec whose letters fit one language best; of equal ones the guess or the default."""
    high = body.translate(None, _ASCII)
    # Two letters fit many languages, and uchardet takes ë and ç for Baltic ones.
    is_sure = len({*high}) >= MIN_DISTINCT_BYTES

    def compute_share(codec: str) -> float:
        return _compute_share(high.decode(codec, "replace"), _LATIN[codec])

    sibling = _WITH_QUOTES.get(guess, guess)
    order = (guess, sibling, *_LATIN) if is_sure else (_DEFAULT, guess, sibling, *_LATIN)
    return max(order, key=compute_share)


def _count_signs(body: bytes, codec: str) -> int:
    """Return how many Ά and ΅ are no part of a Greek word."""
    return len(_GREEK_SIGN.findall(body.decode(codec, "replace")))


def _compute_share(text: str, alphabets: tuple[str, ...]) -> float:
    """Return the largest share of a text's characters that one language has; 0 with C1 controls."""
    counts = Counter(text.lower())
    if any("\x80" <= char <= "\x9f" for char in counts):
        return 0
    num_signs = sum(counts[sign] for sign in _SIGNS)
    num_letters = (sum(counts[letter] for letter in {*each}) for each in alphabets)
    return (num_signs + max(num_letters)) / max(1, counts.total())
