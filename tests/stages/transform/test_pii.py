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
        "jürgen@müller.example.de",
        "почта@пример.рф",
        "info@例え.jp",
        "ann (at) example.org",
        "ann[at]example[dot]org",
        "ann(@)example.org",
        "ann at example dot org",
    ],
    "iban": [
        "DE89 3704 0044 0532 0130 00",
        "NL91ABNA0417164300",
        "GB29 NWBK 6016 1331 9268 19",
        "FR14 2004 1010 0505 0001 3M02 606",
        "NO93 8601 1117 947",
        "MT84 MALT 0110 0001 2345 MTLC AST0 01S",
    ],
    "ip": [
        "8.8.8.200",
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
        "+43/1/479 15 23-200",
        "+43 – (0)1 – 361 88 98",
        "+ 1-866-673-6996",
        "(+48) 22 525 80 00",
        "0043(0) 316/82 16 36",
        "00852-27100021",
        "1-800-273-8255",
        "1-305-677-6594",
        "1-800-FLOWERS",
        "01 43 31 80 49",
        "(866)-286-2049",
        "+1 (929) 214-16-90",
        "+(65) 3158 0269",
        "0228/6845-7350",
        "0 36 31 / 46 55 08",
        "(0551) 19 24 0",
        "030 311 96 000",
        "0571-85383458",
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
    "https://example.org/posts/2395361813834269",
    "/item?id=4111111111111111",
    "4222222222222",
    "DE88 3704 0044 0532 0130 00",
    "XX89 3704 0044 0532 0130 00",
    "AC27 FCDC F277 F1E4",
    "538 538 1075",
    "IT 00853870210",
    "MA 02110-1301",
    "#0361-23469",
    "01 02 03 04 05 06",
    "04/21/2022",
    "print(a) outcome",
    "a talk at example.org",
    "15.4.1.1. Rules",
    "Section 11.1.7.3",
    "Firefox 2.0.0.16",
    "version 1.2.3.104",
    "mobile 24.12.2019",
    "Phone 7.10.8773.98",
    "phone 12 costs 300",
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


@pytest.mark.parametrize(
    ("before", "number"),
    [
        ("Tel. ", "040 41178-0"),
        ("Tel.:\t\t", "030/ 209 1394 0"),
        ("Telefon:\n", "06051 88770 230"),
        ("Fon\xa0 ", "05191 979238"),
        ("Fax: ", "6533 6002"),
        ("TEL：", "0512-55111066"),
        ("тел.:", "(495) 640-52-58"),
        ("Hotline ", "116 000"),
        ("Tel. unter ", "0345 122 99 84"),
        ("call us at ", "0345 744 4422"),
        ("电话：", "400-081-2017"),
    ],
)
def test_words_for_phones_mark_national_numbers(before: str, number: str) -> None:
    """The word stays, and the number after it is replaced."""
    (row,) = replace_all([f"{before}{number} or write"])
    assert row["text"] == f"{before}{DEFAULTS['phone']} or write"


def test_an_iban_ends_after_the_signs_of_its_country() -> None:
    """Words in capitals that follow it are no part of it."""
    (row,) = replace_all(["IBAN: DE89370400440532013000 BIC: COBADEFF"])
    assert row["text"] == f"IBAN: {DEFAULTS['iban']} BIC: COBADEFF"


def test_small_numbers_are_an_address_where_the_text_says_so() -> None:
    """Four numbers below 100 are replaced after words for addresses, and before a port."""
    (row,) = replace_all(["nameserver 8.8.8.8\n5.1.4.2. server\n8.8.4.4:53"])
    found = DEFAULTS["ip"]
    assert row["text"] == f"nameserver {found}\n5.1.4.2. server\n{found}:53"


def test_a_card_number_after_a_word_for_phones_is_a_card_number() -> None:
    """The digits are read again if they are no phone number."""
    (row,) = replace_all(["call 4111 1111 1111 1111"])
    assert row["text"] == f"call {DEFAULTS['card']}"


def test_a_number_ends_where_brackets_begin_again() -> None:
    """Opening hours after a phone number are no part of it."""
    (row,) = replace_all(["+7 (499) 999-03-03 (08-20), +31 1, +1234567890123456789"])
    assert row["text"] == f"{DEFAULTS['phone']} (08-20), +31 1, +1234567890123456789"


def test_placeholders_are_settings_and_null_disables_a_kind() -> None:
    """A placeholder may be any text, and is not searched again."""
    stage = Pii(PiiSettings(email=r"\1 8.8.8.200", ip=None, card=""))
    (row,) = replace_all(
        [
            "ann@example.org 8.8.4.4 4111111111111111",
        ],
        stage,
    )
    assert row == {
        "text": r"\1 8.8.8.200 8.8.4.4 ",
        "pii_email": 1,
        "pii_iban": 0,
        "pii_ip": 0,
        "pii_card": 1,
        "pii_phone": 0,
    }
    assert replace_all(
        ["ann@example.org"],
        Pii(PiiSettings(email=None, iban=None, ip=None, card=None, phone=None)),
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
    "accounts": "DE89 " * 80_000,
    "obfuscated": "a(at)b" * 60_000,
    "hosts in words": "a at b dot cc " * 30_000,
    "words": "tel" * 130_000,
    "words and blanks": "tel. \n      " * 40_000,
    "words and digits": "tel 0  0  0  0  0  0  " * 20_000,
    "blanks between digits": "0123  4" * 60_000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_texts_take_linear_time(name: str) -> None:
    """0.4 MB on which a backtracking pattern would take hours."""
    began = time.process_time()
    replace(
        HOSTILE[name] + " ann@example.org 8.8.8.8 415-555-2671 4111111111111111", DEFAULTS
    )
    assert time.process_time() - began < 3
