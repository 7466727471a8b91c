r"""Replace e-mail and IP addresses, phone, card and bank account numbers by placeholders.

The patterns are in `_PATTERNS`. The time is linear in the length of any text. A text without any of
`_HINTS` is read by RE2 only. Names, postal addresses and identity numbers are not replaced.

    Pii(PiiSettings()).apply(batch).kept      # "mail ann@x.org or +31 20 123 4567" ->
                                              # "mail |||EMAIL_ADDRESS||| or |||PHONE_NUMBER|||"

- E-mail: a local part of at most 64 characters (RFC 5321), "@", a host of at most eight labels, and a
  top level of letters; letters of other scripts than ASCII's, too. "(at)", "[at]", "(@)" and "at ... dot"
  are read as "@". After datatrove's `formatters/pii.py`, whose pattern is quadratic in a sequence of letters.
- IBAN (ISO 13616): as many signs as its country has, and correct check digits (mod 97).
- IP: four numbers of 0 to 255, or an IPv6 address, of the public Internet. Addresses that IANA's
  special-purpose registries (RFC 6890) reserve for private networks, documentation and the like are
  kept. datatrove does the same, without IPv6. Numbers that may be a version or a section are kept.
- Phone: "+" or "00" and 8 to 15 digits (ITU-T E.164), where +1 is followed by exactly a North American
  number; a North American number of ten digits in three groups, also after "1-"; an area code with 0
  and a number; and 6 to 15 digits after a word such as "Tel." or "Fax". Dolma's pattern accepts any ten
  digits; this one requires separators.
- Card: 14 to 19 digits, together or in the groups of cards, with the first digits of an issuer
  (ISO/IEC 7812: Visa, Mastercard, American Express, Discover, Diners, JCB, UnionPay) and a correct
  Luhn checksum, but not in a URL. One in ten random numbers has the checksum.

A match neither begins nor ends inside a sequence of ASCII letters and digits. A Chinese character
may be next to it.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.contract import DOCUMENT, Column, Outcome, Stage, keep_all
from stages.counters import Counters
from stages.settings.transform import PiiSettings

# In order of precedence, for patterns that match at the same position.
KINDS = ("email", "iban", "ip", "card", "phone")

# Latin, Greek and Cyrillic letters. A Chinese character ends a local part, because Chinese text has
# no blanks. It may be in a host.
_LETTERS = r"A-Za-z0-9\xc0-\u052f"
_LABEL = rf"[{_LETTERS}\u0530-\u1fff\u3040-\ud7a3-]{{1,63}}+"
_TOP_LEVEL = r"(?:[A-Za-z]{2,24}(?![A-Za-z0-9-])|xn--[A-Za-z0-9-]{2,59}|[\u0370-\u1fff\u4e00-\ud7a3]{2,24})"
_AT = r"[ \xa0]?[(\[{][ \xa0]?(?:at|AT|At|\xe4t|@)[ \xa0]?[)\]}][ \xa0]?"
_DOT = r"(?:\.|[ \xa0]?[(\[{][ \xa0]?(?:dot|DOT|Dot|punkt|\.)[ \xa0]?[)\]}][ \xa0]?)"

# Between two digits: blanks, and at most one sign. A text matches in one way only.
_BETWEEN = r"[ \xa0]{0,2}(?:[/.\u2013-][ \xa0]{0,2})?"
_IN_BRACKETS = rf"{_BETWEEN}\([0-9]{{1,5}}\)"
_INTERNATIONAL = (
    r"(?:\+[ \xa0]?1[ .\xa0-]?\(?[2-9][0-9]{2}\)?[ .\xa0-]?[2-9][0-9]{2}[ .\xa0-]?[0-9]{2}[ .-]?[0-9]{2}"
    r"|(?:\+[ \xa0]?[2-9][0-9]{0,2}|\(\+[2-9][0-9]{0,2}\)|\+\([2-9][0-9]{0,2}\))"
    rf"(?:{_IN_BRACKETS})?(?:{_BETWEEN}[0-9]){{5,14}})(?![0-9])"
)
_AREA = r"0 ?[1-9](?: ?[0-9]){1,4}"
# Words before a number, in the languages of the pages that were read.
_PHONE_WORDS = (
    r"(?:(?i:tel(?:e(?:fon|fax|phone|foon))?|t\xe9l(?:\xe9phone)?|tel\xe9fono|fon|fax|faks|phone"
    r"|mobile?|m\xf3vil|handy|hotline|whatsapp|call|rufnummer)"
    "|[\u0422\u0442]\u0435\u043b(?:\u0435\u0444\u043e\u043d)?|[\u0424\u0444]\u0430\u043a\u0441"
    "|\u03a4\u03b7\u03bb(?:\u03ad\u03c6\u03c9\u03bd\u03bf)?|\u03a6\u03b1\u03be"
    "|\u7535\u8bdd|\u96fb\u8a71|\u4f20\u771f|\u50b3\u771f|\u70ed\u7ebf|\u624b\u673a"
    "|\uc804\ud654|\ud329\uc2a4|\u260e|\u2706|\U0001f4de)"
)
_AFTER_WORD = (
    r"[^\w\n(+]{0,6}(?:(?i:unter|nr|no|number|us at|us on|at|on)[^\w\n(+]{1,3})?"
    r"(?:\n[ \xa0]{0,8})?"
)

# Every quantifier is bounded, so the time is linear in the length of the text.
_PATTERNS: Mapping[str, re.Pattern[str]] = MappingProxyType(
    {
        kind: re.compile(pattern, re.ASCII)
        for kind, pattern in {
            "email": rf"(?<![{_LETTERS}_])[{_LETTERS}_][{_LETTERS}._%+~-]{{0,63}}+(?:"
            rf"@(?:{_LABEL}\.){{1,8}}{_TOP_LEVEL}"
            rf"|{_AT}{_LABEL}(?:{_DOT}{_LABEL}){{0,6}}{_DOT}[A-Za-z]{{2,24}}(?![A-Za-z0-9-])"
            r"|[ \xa0](?:at|AT)[ \xa0][A-Za-z0-9-]{1,63}+(?:[ \xa0](?:dot|DOT)[ \xa0][A-Za-z0-9-]{2,63}+){1,4})",
            "iban": r"(?<!\w)[A-Z]{2}[ \xa0]?[0-9]{2}(?:[ \xa0.-]?[A-Z0-9]){11,30}",
            "ip": r"(?<![\w.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?!\w|\.[0-9])"
            r"|(?<![\w:.])[23][0-9A-Fa-f]{3}(?::{1,2}[0-9A-Fa-f]{1,4}){1,7}(?:::)?(?!\w|:\w)",
            "card": r"(?<![\w.+/=&?-])[2-6][0-9]{3}(?:[0-9]{10,15}"
            r"|(?P<fours>[ -])[0-9]{4}(?:(?P=fours)[0-9]{4}){2}(?:(?P=fours)[0-9]{1,3})?"
            r"|(?P<six>[ -])[0-9]{6}(?P=six)[0-9]{4,5})(?!\w|[./-][0-9])",
            # The first characters of all alternatives: this doubles the speed.
            "phone": r"(?=[0-9+(CFHMPRTWcfhmprtw\u0370-\U0001f4de])(?:"
            rf"(?<![A-Za-z]){_PHONE_WORDS}{_AFTER_WORD}(?P<after_word>{_INTERNATIONAL}"
            rf"|\(?[0-9]{{1,6}}\)?(?:{_IN_BRACKETS})?(?:{_BETWEEN}[0-9]){{4,14}}(?![0-9]))"
            rf"|(?<![0-9+]){_INTERNATIONAL}"
            # The prefix 00, with a sign or a blank after the country's code.
            rf"|(?<!\w)(?<![0-9][:.,/-])00[1-9][0-9]{{0,2}}(?:[ \xa0/-]{{1,3}}|{_IN_BRACKETS}[ \xa0]?)"
            rf"[0-9](?:{_BETWEEN}[0-9]){{5,12}}(?![0-9])"
            r"|(?:(?<![\w.+-])(?:1[ .-])?[2-9][0-9]{2}[ .\xa0-]|(?:(?<![\w.+-])1[ .-])?\([2-9][0-9]{2}\)[ .\xa0-]?)"
            r"[2-9][0-9]{2}[ .\xa0-][0-9]{4}(?!\w|[.-][0-9])"
            # With letters: 1-800-FLOWERS.
            r"|(?<![\w.+-])1[ .-]8(?:00|33|44|55|66|77|88)[ .-][A-Z0-9](?:-?[A-Z0-9]){6}(?!\w|[.-][0-9])"
            # A French number: five pairs of digits.
            r"|(?<![\w.,:/#+-])(?<![0-9] )0[1-9](?:[ .\xa0][0-9]{2}){4}(?!\w|[ ./-][0-9])"
            # An area code that begins with 0, but no ZIP code of the United States (MA 02110-1301).
            rf"|(?<![\w.,:/#+-])(?<![A-Z][A-Z] )(?<![A-Z][A-Z]  )"
            rf"(?:{_AREA}[ \xa0]?/|\({_AREA}\)[ \xa0]?/?|0[1-9][0-9]{{1,4}}[ \xa0]?[ \xa0\u2013-])"
            r"[ \xa0]?[1-9](?:[ \xa0-]{0,3}[0-9]){3,9}(?!\w|[./][0-9]))",
        }.items()
    }
)

# RE2 patterns that match every text with something of the kind, and few others.
_HINTS: Mapping[str, str] = MappingProxyType(
    {
        "email": r"@[0-9A-Za-z\x{c0}-\x{d7a3}-]|[(\[{][ \x{a0}]?(?:at|AT|At|\x{e4}t|@)[ \x{a0}]?[)\]}]"
        r"|[ \x{a0}](?:dot|DOT)[ \x{a0}]",
        "iban": r"[A-Z]{2}[ \x{a0}]?[0-9]{2}(?:[ \x{a0}.-]?[A-Z0-9]){11}",
        "ip": r"[0-9]\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]|[23][0-9A-Fa-f]{3}::?[0-9A-Fa-f]",
        "card": r"[2-6][0-9]{3}(?:[ -]?[0-9]{4}[ -]?[0-9]{4}|[ -][0-9]{6})",
        "phone": r"\+[ (\x{a0}]?[1-9][() /.\x{a0}\x{2013}-]{0,7}[0-9]|\b00[1-9]"
        r"|[2-9][0-9]{2}(?:\)[ .\x{a0}-]?|[ .\x{a0}-])[2-9][0-9]{2}[ .\x{a0}-][0-9]{4}|\b1[ .-]8[0-9]{2}[ .-]"
        r"|\b0[0-9 ]{2,9}[ \x{a0}]?[/-][ \x{a0}]?[1-9]|\b0[1-9][0-9]{1,4}[ \x{a0}\x{2013}-]{1,3}[1-9]"
        r"|\(0[0-9 ]{2,9}\)|\b0[1-9](?:[ .\x{a0}][0-9]{2}){4}"
        rf"|{_PHONE_WORDS}[^0-9]{{0,32}}[0-9](?:[() /.\x{{a0}}\x{{2013}}-]{{0,6}}[0-9]){{5}}",
    }
)

_NOT_PUBLIC_V4 = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "0.0.0.0/8",
        "10.0.0.0/8",
        "100.64.0.0/10",
        "127.0.0.0/8",
        "169.254.0.0/16",
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/3",  # multicast and reserved
    )
)
# The exceptions in 2000::/3; no other address is global unicast. Both lists are IANA's
# registries. They are copied here because `is_global` differs between versions of Python.
_NOT_PUBLIC_V6 = tuple(
    ipaddress.IPv6Network(network)
    for network in ("2001::/23", "2001:db8::/32", "3fff::/20")
)

_CARD_ISSUERS = re.compile(
    r"4(?:[0-9]{15}|[0-9]{18})"  # Visa
    r"|5[1-5][0-9]{14}|2(?:22[1-9]|2[3-9][0-9]|[3-6][0-9]{2}|7[01][0-9]|720)[0-9]{12}"  # Mastercard
    r"|3[47][0-9]{13}"  # American Express
    r"|3(?:0[0-5]|[689][0-9])[0-9]{11,16}"  # Diners
    r"|35(?:2[89]|[3-8][0-9])[0-9]{12,15}"  # JCB
    r"|(?:6011|64[4-9][0-9]|65[0-9]{2}|62[0-9]{2})[0-9]{12,15}"  # Discover, UnionPay
)


# Characters of a country's IBAN: SWIFT's IBAN registry, release 99 (December 2024).
_IBAN_SIGNS: Mapping[str, int] = MappingProxyType(
    {
        country: num_signs
        for num_signs, countries in (
            (15, "NO"),
            (16, "BE"),
            (18, "DK FI FK FO GL NL SD"),
            (19, "MK SI"),
            (20, "AT BA EE KZ LT LU MN XK"),
            (21, "CH HR LI LV"),
            (22, "BG BH CR DE GB GE IE ME RS VA"),
            (23, "AE GI IL IQ OM SO TL"),
            (24, "AD CZ ES MD PK RO SA SE SK TN VG"),
            (25, "LY PT ST"),
            (26, "IS TR"),
            (27, "BI DJ FR GR IT MC MR SM"),
            (28, "AL AZ BY CY DO GT HN HU LB NI PL SV"),
            (29, "BR EG PS QA UA"),
            (30, "JO KW MU YE"),
            (31, "MT SC"),
            (32, "LC"),
            (33, "RU"),
        )
        for country in countries.split()
    }
)

# Four numbers below 100 are an address only near such a word, or before a port or a prefix length:
# of the 1,858 on 2,851 real pages nearly all are versions and sections. 2 % of all addresses are so.
_CONTEXT_CHARS = 32
_ADDRESS_WORD = re.compile(
    r"(?i:\bip(?:v?4)?|add?ress\w{0,4}|host|server|\bdns|gateway|proxy|router|\bping)"
    r"[^\w\n]{1,3}(?:\w{1,12}[^\w\n]{1,3})?\Z"
)
_VERSION_WORD = re.compile(
    r"(?i:\bv|\bver|version|release|build|firmware|driver)[ .:]{0,3}\Z"
)
_PORT = re.compile(r":[0-9]{2,5}\b|/[0-9]{1,2}\b")
# After a word such as "mobile": 24.12.2019, 2019-12-24, 7.10.8773.
_DATE_OR_VERSION = re.compile(
    r"(?:[0-9]{1,2}[./-]){2}(?:[0-9]{2}){1,2}(?![0-9]|[./-][0-9])"
    r"|(?:19|20)[0-9]{2}[./-][0-9]{1,2}[./-][0-9]{1,2}(?![0-9])"
    r"|[1-9][0-9]?(?:\.[0-9]{1,5}){2}"
)


class Pii(Stage[PiiSettings]):
    """Replaces personal data in `text`, and adds the number of placeholders of each kind.

    The columns are `pii_email`, `pii_iban`, `pii_ip`, `pii_card` and `pii_phone`. Drops nothing.
    """

    name = "pii"
    version = 2
    needs: ClassVar[pa.Schema] = pa.schema([DOCUMENT.field("text")])
    adds: ClassVar[pa.Schema] = pa.schema(
        [DOCUMENT.field("text"), *(pa.field(f"pii_{kind}", pa.int32()) for kind in KINDS)]
    )
    counters: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "pii_email": "E-mail addresses replaced",
            "pii_iban": "IBANs replaced",
            "pii_ip": "IP addresses replaced",
            "pii_card": "Card numbers replaced",
            "pii_phone": "Phone numbers replaced",
        }
    )

    @classmethod
    def expected_counters(cls, settings: PiiSettings) -> tuple[str, ...]:
        """Return the counters of the kinds that are searched for."""
        return tuple(f"pii_{kind}" for kind in KINDS if getattr(settings, kind) is not None)

    def apply(self, batch: pa.Table) -> Outcome:
        """Replace personal data, and count placeholders."""
        texts = batch.column("text").combine_chunks()
        placeholders = {
            kind: text
            for kind in KINDS
            if (text := getattr(self.settings, kind)) is not None
        }
        counts = {kind: np.zeros(len(texts), np.int32) for kind in KINDS}
        rows, kinds_by_row = _find_candidates(texts, placeholders)
        if len(rows):
            replaced: list[str] = []
            for row, kinds, text in zip(
                rows, kinds_by_row, texts.take(pa.array(rows)).to_pylist(), strict=True
            ):
                new, found = replace(text, {kind: placeholders[kind] for kind in kinds})
                replaced.append(new)
                for kind, number in found.items():
                    counts[kind][row] = number
            is_read = np.zeros(len(texts), np.bool_)
            is_read[rows] = True
            texts = pc.replace_with_mask(
                texts, pa.array(is_read), pa.array(replaced, pa.large_string())
            )
        added: dict[str, Column] = {"text": texts}
        counters = Counters()
        for kind, number in counts.items():
            added[f"pii_{kind}"] = pa.array(number)
            counters.add(f"pii_{kind}", number.sum())
        return keep_all(batch, added, counters)


def _find_candidates(
    texts: pa.Array, kinds: Iterable[str]
) -> tuple[NDArray[np.int64], list[tuple[str, ...]]]:
    """Return the rows that match a hint, and the kinds of the hints that each of them matches."""
    hints = {kind: _HINTS[kind] for kind in kinds}
    if not hints:
        return np.empty(0, np.int64), []
    has_any = pc.fill_null(pc.match_substring_regex(texts, "|".join(hints.values())), False)
    rows = np.flatnonzero(has_any.to_numpy(zero_copy_only=False))
    read = texts.filter(has_any)
    kinds_by_row: list[tuple[str, ...]] = [()] * len(rows)
    for kind, hint in hints.items():
        has_kind = pc.match_substring_regex(read, hint).to_numpy(zero_copy_only=False)
        for index in np.flatnonzero(has_kind):
            kinds_by_row[index] = (*kinds_by_row[index], kind)
    return rows, kinds_by_row


class Found(NamedTuple):
    """Personal data in a text: its kind and its characters, `text[start:end]`."""

    kind: str
    start: int
    end: int


def find(text: str, kinds: Iterable[str] = KINDS) -> Iterator[Found]:
    """Yield the personal data of one text, in its order."""
    pattern = _compile_pattern(tuple(kinds))
    position = 0
    while (match := pattern.search(text, position)) is not None:
        kind = match.lastgroup or ""
        number = "after_word" if kind == "phone" and match["after_word"] else 0
        start = match.start(number)
        end = start + _MEASURE[kind](match)
        if end > start:
            yield Found(kind, start, end)
            position = end
        else:
            # The digits after a word may be a card number.
            position = start if number else match.end()


def replace(text: str, placeholders: Mapping[str, str]) -> tuple[str, Counter[str]]:
    """Return one text with placeholders, and the number of each kind."""
    counts: Counter[str] = Counter()
    parts: list[str] = []
    num_copied = 0
    for found in find(text, placeholders):
        counts[found.kind] += 1
        parts += [text[num_copied : found.start], placeholders[found.kind]]
        num_copied = found.end
    return "".join([*parts, text[num_copied:]]), counts


@cache
def _compile_pattern(kinds: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(
        "|".join(f"(?P<{kind}>{_PATTERNS[kind].pattern})" for kind in kinds), re.ASCII
    )


def _measure_email(match: re.Match[str]) -> int:
    return len(match[0])


def _measure_iban(match: re.Match[str]) -> int:
    """Return the characters of the number, which words in capitals may follow."""
    signs = list(re.finditer(r"[A-Z0-9]", match[0]))
    num_signs = _IBAN_SIGNS.get(match[0][:2], len(signs) + 1)
    if len(signs) < num_signs:
        return 0
    number = "".join(each[0] for each in signs[:num_signs])
    # ISO 7064, MOD 97-10: the first four at the end, letters as 10 to 35.
    rest = int("".join(str(int(sign, 36)) for sign in number[4:] + number[:4])) % 97
    return signs[num_signs - 1].end() if rest == 1 else 0


def _measure_address(match: re.Match[str]) -> int:
    try:
        address = ipaddress.ip_address(match[0])
    except ValueError:  # a number above 255, a leading zero, or too few groups
        return 0
    networks = _NOT_PUBLIC_V4 if address.version == 4 else _NOT_PUBLIC_V6
    if any(address in network for network in networks):
        return 0
    if address.version == 4 and not _is_named_address(match):
        return 0
    return len(match[0])


def _is_named_address(match: re.Match[str]) -> bool:
    """Return whether four numbers are no version or section, by their size and what is around."""
    before = match.string[max(0, match.start() - _CONTEXT_CHARS) : match.start()]
    if _VERSION_WORD.search(before):
        return False
    if max(int(number) for number in match[0].split(".")) >= 100:
        return True
    return bool(_ADDRESS_WORD.search(before) or _PORT.match(match.string, match.end()))


def _measure_card(match: re.Match[str]) -> int:
    digits = match[0].replace(" ", "").replace("-", "")
    # Luhn (ISO/IEC 7812-1, annex B): double every second digit from the right, and add all digits.
    total = 0
    for index, digit in enumerate(reversed(digits)):
        tens, ones = divmod(int(digit) * (1 + index % 2), 10)
        total += tens + ones
    is_card = total % 10 == 0 and _CARD_ISSUERS.fullmatch(digits) is not None
    return len(match[0]) if is_card else 0


def _measure_phone(match: re.Match[str]) -> int:
    text = match["after_word"] or match[0]
    num_digits = sum(character.isdigit() for character in text)
    if match["after_word"] and "+" not in text:
        is_phone = 6 <= num_digits <= 15 and _DATE_OR_VERSION.match(text) is None
    elif text[0] in "+(0":
        is_phone = 8 <= num_digits <= 15 + 2 * text.startswith("00")
    else:
        # Three groups with blanks alone may be any numbers.
        is_phone = text[0] == "1" or len(text.split()) < 3
    return len(text) if is_phone else 0


# The characters of a match that are personal data, from the beginning of its number; 0: none.
_MEASURE: Mapping[str, Callable[[re.Match[str]], int]] = MappingProxyType(
    {
        "email": _measure_email,
        "iban": _measure_iban,
        "ip": _measure_address,
        "card": _measure_card,
        "phone": _measure_phone,
    }
)
