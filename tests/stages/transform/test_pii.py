"""Personal data is replaced and counted, similar numbers are kept, and time is linear."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.transform.pii import KINDS, Pii, PiiSettings, replace

DEFAULTS = PiiSettings().model_dump()

REPLACED = {
    "email": [
        "ann@example.org",
        "Ann.O_Neil+lists@mail.example.co.uk",
        "a@b.io",
        "x" * 64 + "@" + "y" * 63 + ".museum",
    ],
    "ip": [
        "8.8.8.8",
        "172.32.0.1",
        "2a00:1450:4001:81b::200e",
        "2606:4700:4700::1111",
        "2600:1:2:3:4:5:6:7",
    ],
    "phone": [
        "+31 20 123 4567",
        "+44 (0)20 7946 0958",
        "+15552368888",
        "+1 (415) 555-2671",
        "(415) 555-2671",
        "415-555-2671",
        "415.555.2671",
        "+49\xa030\xa01234567",
        "+7(812)244-03-47",
        "+39 06 442.59.61",
    ],
    "card": [
        "4111111111111111",
        "4111 1111 1111 1111",
        "5555-5555-5555-4444",
        "2221 0000 0000 0009",
        "378282246310005",
        "3782 822463 10005",
        "3056 930902 5904",
        "6011 1111 1111 1117",
        "3530111333300000",
        "4222222222222",
    ],
}
LEFT = [
    "a@b",
    "@handle",
    "x" * 65 + "@example.org",
    "user@localhost",
    "10.0.0.1",
    "192.168.1.1",
    "127.0.0.1",
    "203.0.113.7",
    "256.1.1.1",
    "1.2.3",
    "1.2.3.4.5",
    "2001:db8::1",
    "fe80::1",
    "::1",
    "2023:12:05 10:11:12",
    "std::cafe",
    "2004-2008",
    "4111111111111112",
    "4111 1111-1111 1111",
    "1234567890123452",
    "ISBN 978-3-16-148410-0",
    "+10 12 14 16",
    "115-555-2671",
    "415 155-2671",
    "1 000 000 000",
    "2026-11-21 18:05:00",
    "3.14159265358979",
    "x4111111111111111",
]


def replace_all(
    texts: Sequence[str | None], stage: Pii | None = None
) -> list[dict[str, object]]:
    """Check the outcome and return the text of every document."""
    stage = stage or Pii(PiiSettings())
    batch = pa.table(
        {
            "doc_id": pa.array(range(len(texts)), pa.uint64()),
            "text": pa.array(texts, pa.large_string()),
        }
    )
    outcome = stage.apply(batch)
    outcome.check(batch, stage.name)
    return outcome.kept.drop_columns("doc_id").to_pylist()


@pytest.mark.parametrize(
    ("kind", "text"), [(kind, text) for kind, texts in REPLACED.items() for text in texts]
)
@pytest.mark.parametrize(
    "around", ["{}", "Write to {}.", "({}), or", "条约{}，夏天", '"{}"\n']
)
def test_each_kind_is_replaced_and_counted(kind: str, text: str, around: str) -> None:
    """At the end of a sentence, in brackets, and without spaces."""
    (row,) = replace_all([around.format(text)])
    assert row == {"text": around.format(DEFAULTS[kind])} | {
        f"pii_{k}": int(k == kind) for k in KINDS
    }


@pytest.mark.parametrize("text", LEFT)
def test_similar_text_is_kept(text: str) -> None:
    """Private and documentation addresses, wrong checksums, dates, versions, ISBNs."""
    assert replace_all([f"see {text} there"]) == [
        {"text": f"see {text} there"} | {f"pii_{k}": 0 for k in KINDS}
    ]


def test_a_number_ends_where_brackets_begin_again() -> None:
    """Opening hours after a phone number are no part of it."""
    (row,) = replace_all(["+7 (499) 999-03-03 (08-20), +31 1, +1234567890123456789"])
    assert row["text"] == f"{DEFAULTS['phone']} (08-20), +31 1, +1234567890123456789"


def test_placeholders_are_settings_and_null_disables_a_kind() -> None:
    """A placeholder may be any text, and is not searched again."""
    stage = Pii(PiiSettings(email=r"\1 8.8.8.8", ip=None, card=""))
    (row,) = replace_all(
        [
            "ann@example.org 8.8.4.4 4111111111111111",
        ],
        stage,
    )
    assert row == {
        "text": r"\1 8.8.8.8 8.8.4.4 ",
        "pii_email": 1,
        "pii_ip": 0,
        "pii_card": 1,
        "pii_phone": 0,
    }
    assert replace_all(
        ["ann@example.org"], Pii(PiiSettings(email=None, ip=None, card=None, phone=None))
    )[0]["text"] == ("ann@example.org")


PIECES = [text for texts in REPLACED.values() for text in texts] + LEFT
PIECES += [" ", ", ", "\n", "é", "-", "+", ".", "@", "1", "2001:", "415 ", "(", ")", ":"]
texts_of_pieces = st.lists(st.sampled_from(PIECES), max_size=8).map("".join)


@settings(deadline=None)
@given(st.lists(st.none() | texts_of_pieces | st.text(max_size=9), max_size=6))
def test_equals_the_rule_text_by_text(texts: list[str | None]) -> None:
    """In any batch, the fast checks skip no text that the rule would change."""
    wanted: list[dict[str, object]] = []
    for text in texts:
        new, found = (None, {}) if text is None else replace(text, DEFAULTS)
        wanted.append({"text": new} | {f"pii_{kind}": found.get(kind, 0) for kind in KINDS})
    assert replace_all(texts) == wanted
    assert [row for text in texts for row in replace_all([text])] == wanted


HOSTILE = {
    "letters": "a" * 400_000,
    "dots": "a." * 200_000,
    "local parts": "a'" * 200_000 + "@",
    "at signs": "@a" * 200_000,
    "hosts": "a@" + "a." * 200_000,
    "long hosts": ("a@" + "b" * 62 + ".") * 6_000,
    "digits": "4" * 400_000,
    "groups": "4111 " * 80_000,
    "pluses": "+2 " * 130_000,
    "plus and digits": "+222 (22222) " * 30_000,
    "phones": "+3" + " (1" * 130_000,
    "colons": "2001:" * 80_000,
    "short groups": "2:" * 200_000,
    "numbers and dots": "1." * 200_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_take_linear_time(name: str) -> None:
    """0.4 MB on which a backtracking pattern would take hours."""
    began = time.process_time()
    replace(
        HOSTILE[name] + " ann@example.org 8.8.8.8 415-555-2671 4111111111111111", DEFAULTS
    )
    assert time.process_time() - began < 3
