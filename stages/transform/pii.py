r"""Replace e-mail addresses, public IP addresses, phone numbers and card numbers by placeholders.

The patterns are in `_PATTERNS`. The time is linear in the length of any text, and a text without
digits or "@" takes two scans by RE2. Names, postal addresses and identity numbers are not replaced.

    Pii(PiiSettings()).apply(batch).kept      # "mail ann@x.org or +31 20 123 4567" ->
                                              # "mail |||EMAIL_ADDRESS||| or |||PHONE_NUMBER|||"

- E-mail: a local part of at most 64 ASCII characters (RFC 5321), "@", a host of at most eight labels,
  and a top level of letters. After datatrove's `formatters/pii.py`, whose pattern is quadratic in a
  sequence of letters.
- IP: four numbers of 0 to 255, or an IPv6 address, of the public Internet. Addresses that IANA's
  special-purpose registries (RFC 6890) reserve for private networks, documentation and the like are
  kept. datatrove does the same, without IPv6.
- Phone: "+" and 8 to 15 digits (ITU-T E.164), where 1 is followed by exactly a North American number;
  or a North American number of ten digits in three groups. Dolma's pattern accepts any ten digits;
  this one requires separators.
- Card: 13 to 19 digits, together or in the groups of cards, with the first digits of an issuer
  (ISO/IEC 7812: Visa, Mastercard, American Express, Discover, Diners, JCB, UnionPay) and a correct
  Luhn checksum. One in ten random numbers has one.

A match neither begins nor ends inside a sequence of ASCII letters and digits. A Chinese character
may be next to it.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.contract import DOCUMENT, Column, Outcome, Stage, keep_all
from stages.counters import Counters
from stages.settings.transform import PiiSettings

# In order of precedence, for patterns that match at the same position.
KINDS = ("email", "ip", "card", "phone")

_PATTERNS: Mapping[str, str] = MappingProxyType(
    {
        # Every quantifier is bounded, so the time is linear in the length of the text.
        "email": r"(?<![A-Za-z0-9_])[A-Za-z0-9_][A-Za-z0-9._%+~-]{0,63}@(?:[A-Za-z0-9-]{1,63}\.){1,8}"
        r"[A-Za-z]{2,24}(?![A-Za-z0-9-])",
        "ip": r"(?<![\w.])(?:[0-9]{1,3}\.){3}[0-9]{1,3}(?!\w|\.[0-9])"
        r"|(?<![\w:.])[23][0-9A-Fa-f]{3}(?::{1,2}[0-9A-Fa-f]{1,4}){1,7}(?:::)?(?!\w|:\w)",
        "card": r"(?<![\w.+-])[2-6][0-9]{3}(?:[0-9]{9,15}"
        r"|(?P<fours>[ -])[0-9]{4}(?:(?P=fours)[0-9]{4}){2}(?:(?P=fours)[0-9]{1,3})?"
        r"|(?P<six>[ -])[0-9]{6}(?P=six)[0-9]{4,5})(?!\w|[.-][0-9])",
        "phone": r"(?<![\w+])\+(?:1[ .\xa0-]?\(?[2-9][0-9]{2}\)?[ .\xa0-]?[2-9][0-9]{2}[ .\xa0-]?[0-9]{4}"
        r"|[2-9][0-9]{0,2}[ .\xa0-]{0,2}(?:\([0-9]{1,5}\)[ .\xa0-]{0,2})?[0-9](?:[ .\xa0-]?[0-9]){4,12})(?![0-9])"
        r"|(?<![\w.+-])(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[ .-])[2-9][0-9]{2}[ .-][0-9]{4}(?!\w|[.-][0-9])",
    }
)

# RE2 patterns that match every text with something of the kind, and few others.
_HINTS: Mapping[str, str] = MappingProxyType(
    {
        "email": r"@[A-Za-z0-9-]",
        "ip": r"[0-9]\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]|[23][0-9A-Fa-f]{3}::?[0-9A-Fa-f]",
        "card": r"[2-6][0-9]{3}(?:[ -]?[0-9]{4}[ -]?[0-9]{4}|[ -][0-9]{6})",
        "phone": r"\+[1-9][ (.\x{a0}-]{0,3}[0-9]|[2-9][0-9]{2}(?:\) ?|[ .-])[2-9][0-9]{2}[ .-][0-9]{4}",
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
    r"4(?:[0-9]{12}|[0-9]{15}|[0-9]{18})"  # Visa
    r"|5[1-5][0-9]{14}|2(?:22[1-9]|2[3-9][0-9]|[3-6][0-9]{2}|7[01][0-9]|720)[0-9]{12}"  # Mastercard
    r"|3[47][0-9]{13}"  # American Express
    r"|3(?:0[0-5]|[689][0-9])[0-9]{11,16}"  # Diners
    r"|35(?:2[89]|[3-8][0-9])[0-9]{12,15}"  # JCB
    r"|(?:6011|64[4-9][0-9]|65[0-9]{2}|62[0-9]{2})[0-9]{12,15}"  # Discover, UnionPay
)


class Pii(Stage[PiiSettings]):
    """Replaces personal data in `text`, and adds the number of placeholders of each kind.

    The columns are `pii_email`, `pii_ip`, `pii_card` and `pii_phone`. Drops nothing.
    """

    name = "pii"
    version = 1
    needs: ClassVar[pa.Schema] = pa.schema([DOCUMENT.field("text")])
    adds: ClassVar[pa.Schema] = pa.schema(
        [DOCUMENT.field("text"), *(pa.field(f"pii_{kind}", pa.int32()) for kind in KINDS)]
    )
    counters: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "pii_email": "E-mail addresses replaced",
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


def replace(text: str, placeholders: Mapping[str, str]) -> tuple[str, Counter[str]]:
    """Return one text with placeholders, and the number of each kind."""
    found: Counter[str] = Counter()

    def placeholder(match: re.Match[str]) -> str:
        kind = match.lastgroup or ""
        if not _IS_VALID[kind](match[0]):
            return match[0]
        found[kind] += 1
        return placeholders[kind]

    return _compile_pattern(tuple(placeholders)).sub(placeholder, text), found


@cache
def _compile_pattern(kinds: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(
        "|".join(f"(?P<{kind}>{_PATTERNS[kind]})" for kind in kinds), re.ASCII
    )


def _is_public_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:  # a number above 255, a leading zero, or too few groups
        return False
    networks = _NOT_PUBLIC_V4 if address.version == 4 else _NOT_PUBLIC_V6
    return not any(address in network for network in networks)


def _is_card(text: str) -> bool:
    digits = text.replace(" ", "").replace("-", "")
    # Luhn (ISO/IEC 7812-1, annex B): double every second digit from the right, and add all digits.
    total = 0
    for index, digit in enumerate(reversed(digits)):
        tens, ones = divmod(int(digit) * (1 + index % 2), 10)
        total += tens + ones
    return total % 10 == 0 and _CARD_ISSUERS.fullmatch(digits) is not None


def _is_phone(text: str) -> bool:
    return (
        not text.startswith("+")
        or 8 <= sum(character.isdigit() for character in text) <= 15
    )


_IS_VALID: Mapping[str, Callable[[str], bool]] = MappingProxyType(
    {
        "email": lambda _: True,
        "ip": _is_public_address,
        "card": _is_card,
        "phone": _is_phone,
    }
)
