r"""Put placeholders in the place of e-mail addresses, public IP addresses, phone numbers and card numbers.

Promises: what is taken for each is stated below and in `_PATTERNS`; the number of each per document is stored; the time
is linear in the length of the text, whatever the text; texts without anything alike cost two scans by RE2.
Leaves to others: names, postal addresses, identity numbers of single countries.

    Pii(PiiSettings()).apply(batch).kept      # "mail ann@x.org or +31 20 123 4567" ->
                                              # "mail |||EMAIL_ADDRESS||| or |||PHONE_NUMBER|||"

- e-mail: a local part of at most 64 ASCII characters (RFC 5321), "@", a host of at most eight labels and a top level of
  letters. Source of the kind: datatrove's `formatters/pii.py`, whose pattern is quadratic in a run of letters.
- IP: four numbers of 0 to 255, or an IPv6 address, of the public Internet: not those that IANA's special-purpose
  registries (RFC 6890) keep for private networks, documentation and the like. As datatrove, which leaves IPv6 alone.
- phone: "+" and 8 to 15 digits (ITU-T E.164), with 1 for a country exactly a North American number after it; or a North
  American number of ten digits in three groups. Dolma's pattern takes any ten digits; ours wants the groups set apart.
- card: 13 to 19 digits, together or in the groups of cards, whose first digits are an issuer's (ISO/IEC 7812: Visa,
  Mastercard, American Express, Discover, Diners, JCB, UnionPay), with the right Luhn checksum (a tenth has, by chance).

No match begins or ends inside a run of ASCII letters and digits; a Chinese character may touch it.
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

KINDS = ("email", "ip", "card", "phone")
"""In the order of trying, where two could begin at one place."""

_PATTERNS: Mapping[str, str] = MappingProxyType(
    {
        # Every quantifier is bounded: so time is linear in the length of the text.
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

_HINTS: Mapping[str, str] = MappingProxyType(
    {
        "email": r"@[A-Za-z0-9-]",
        "ip": r"[0-9]\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]|[23][0-9A-Fa-f]{3}::?[0-9A-Fa-f]",
        "card": r"[2-6][0-9]{3}(?:[ -]?[0-9]{4}[ -]?[0-9]{4}|[ -][0-9]{6})",
        "phone": r"\+[1-9][ (.\x{a0}-]{0,3}[0-9]|[2-9][0-9]{2}(?:\) ?|[ .-])[2-9][0-9]{2}[ .-][0-9]{4}",
    }
)
"""What RE2 finds in every text that has something of the kind."""

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
_NOT_PUBLIC_V6 = tuple(
    ipaddress.IPv6Network(network) for network in ("2001::/23", "2001:db8::/32", "3fff::/20")
)
"""Of 2000::/3, outside of which nothing is global unicast. Both lists: IANA's registries, stated here because Python's
`is_global` differs between its versions."""

_CARD_ISSUERS = re.compile(
    r"4(?:[0-9]{12}|[0-9]{15}|[0-9]{18})"  # Visa
    r"|5[1-5][0-9]{14}|2(?:22[1-9]|2[3-9][0-9]|[3-6][0-9]{2}|7[01][0-9]|720)[0-9]{12}"  # Mastercard
    r"|3[47][0-9]{13}"  # American Express
    r"|3(?:0[0-5]|[689][0-9])[0-9]{11,16}"  # Diners
    r"|35(?:2[89]|[3-8][0-9])[0-9]{12,15}"  # JCB
    r"|(?:6011|64[4-9][0-9]|65[0-9]{2}|62[0-9]{2})[0-9]{12,15}"  # Discover, UnionPay
)


class Pii(Stage[PiiSettings]):
    """Replaces in `text`, and adds how often, as `pii_email`, `pii_ip`, `pii_card` and `pii_phone`. Drops nothing."""

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
        """Replace and count."""
        texts = batch.column("text").combine_chunks()
        placeholders = {
            kind: text for kind in KINDS if (text := getattr(self.settings, kind)) is not None
        }
        counts = {kind: np.zeros(len(texts), np.int32) for kind in KINDS}
        rows, kinds_of_rows = _rows_to_read(texts, placeholders)
        if len(rows):
            replaced: list[str] = []
            for row, kinds, text in zip(
                rows, kinds_of_rows, texts.take(pa.array(rows)).to_pylist(), strict=True
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


def _rows_to_read(
    texts: pa.Array, kinds: Iterable[str]
) -> tuple[NDArray[np.int64], list[tuple[str, ...]]]:
    """The rows in which something could be, and for each of what kinds: told by patterns of linear time."""
    hints = {kind: _HINTS[kind] for kind in kinds}
    if not hints:
        return np.empty(0, np.int64), []
    has_any = pc.fill_null(pc.match_substring_regex(texts, "|".join(hints.values())), False)
    rows = np.flatnonzero(has_any.to_numpy(zero_copy_only=False))
    read = texts.filter(has_any)
    of_kind = [pc.match_substring_regex(read, hint).to_pylist() for hint in hints.values()]
    return rows, [
        tuple(k for k, has in zip(hints, row, strict=True) if has)
        for row in zip(*of_kind, strict=True)
    ]


def replace(text: str, placeholders: Mapping[str, str]) -> tuple[str, Counter[str]]:
    """The text with placeholders, and how many of each kind: the rule in plain Python, for one text."""
    found: Counter[str] = Counter()

    def placeholder(match: re.Match[str]) -> str:
        kind = match.lastgroup or ""
        if not _IS_RIGHT[kind](match[0]):
            return match[0]
        found[kind] += 1
        return placeholders[kind]

    return _pattern(tuple(placeholders)).sub(placeholder, text), found


@cache
def _pattern(kinds: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?P<{kind}>{_PATTERNS[kind]})" for kind in kinds), re.ASCII)


def _is_public_address(text: str) -> bool:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:  # a number above 255 or with a zero before it, or too few groups
        return False
    networks = _NOT_PUBLIC_V4 if address.version == 4 else _NOT_PUBLIC_V6
    return not any(address in network for network in networks)


def _is_card(text: str) -> bool:
    digits = text.replace(" ", "").replace("-", "")
    # Luhn (ISO/IEC 7812-1, annex B): every second digit from the right counts twice, less 9 where that has two digits.
    total = sum(
        int(d) if i % 2 == 0 else sum(divmod(2 * int(d), 10))
        for i, d in enumerate(reversed(digits))
    )
    return total % 10 == 0 and _CARD_ISSUERS.fullmatch(digits) is not None


def _is_phone(text: str) -> bool:
    return not text.startswith("+") or 8 <= sum(character.isdigit() for character in text) <= 15


_IS_RIGHT: Mapping[str, Callable[[str], bool]] = MappingProxyType(
    {"email": lambda _: True, "ip": _is_public_address, "card": _is_card, "phone": _is_phone}
)
