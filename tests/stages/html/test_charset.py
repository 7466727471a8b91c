"""Decoding pages that do not declare their charset."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.quality.charsets import main
from stages.html.charset import decode_page

MARKUP = "<html><style>p {margin: 0}</style><p>%s</p>\n<p>%s</p></html>"
TEXTS = {
    "ko": "마을의 방앗간은 십일 년 만에 다시 돌기 시작했다. 밀가루는 학교에 보낸다고 했다.",
    "uk": "Млин біля річки знову меле. Її колесо підняли навесні, і дуб замінив тесля з долини.",
    "ru": "Мельница у реки снова мелет. Колесо подняли весной, а дуб заменил плотник из долины.",
    "lt": "Malūnas prie upės vėl mala „po vienuolikos metų“ – ratą pavasarį ištraukė iš vandens.",
    "lv": "Dzirnavas pie upes atkal maļ “pēc vienpadsmit gadiem” – ratu pavasarī izcēla no ūdens.",
    "pl": "Młyn nad rzeką znów miele. Koło wyjęto z wody na wiosnę, a dąb wymienił cieśla.",
    "ro": "Moara de lângă râu macină din nou. Roata a fost scoasă din apă şi stejarul înlocuit, spune ţăranul.",
    "tr": "Nehir kıyısındaki değirmen yeniden öğütüyor. Çarkı ilkbaharda sudan çıkarılmıştı.",
    "is": "Myllan við ána malar aftur. Hjólið var tekið úr vatninu í vor og viðurinn þar endurnýjaður.",
    "sq": "Mulliri pranë lumit bluan përsëri. Rrota u hoq nga uji në pranverë dhe u zëvendësua.",
    "th": "โรงสีริมแม่น้ำกลับมาทำงานอีกครั้ง “หลังจากสิบเอ็ดปี” ชาวบ้านมาดูกันมาก",
    "de": "Die Mühle am Fluß mahlt wieder. Das Rad wurde im Frühjahr aus dem Wasser gehoben.",
    "en": "The miller’s wheel turns again, and most of the village came to see it on a Sunday.",
}


@pytest.mark.parametrize(
    ("language", "codec"),
    [
        ("ko", "euc_kr"),
        ("uk", "koi8_u"),
        ("ru", "koi8_r"),
        ("lt", "cp1257"),
        ("lv", "cp1257"),
        ("pl", "iso8859_2"),
        ("pl", "cp1250"),
        ("ro", "iso8859_2"),
        ("tr", "iso8859_9"),
        ("is", "cp1252"),
        ("sq", "cp1252"),
        ("th", "cp874"),
        ("de", "cp1252"),
        ("en", "cp1252"),
    ],
)
def test_undeclared_charsets_are_detected(language: str, codec: str) -> None:
    """Also where few characters are outside ASCII, and where uchardet names another charset."""
    page = MARKUP % (TEXTS[language], TEXTS[language])
    assert decode_page(page.encode(codec), "text/html", 0.01).text == page


def test_broken_utf8_stays_utf8() -> None:
    """A page whose last character was cut off, or with one line in another charset."""
    page = MARKUP % (TEXTS["uk"], "Menü")
    body = page.encode().replace("ü".encode(), b"\xfc")
    decoded = decode_page(body, "text/html", 0.01)
    assert decoded.charset == "utf-8"
    assert decoded.text == page.replace("ü", "\ufffd")


@given(st.text(max_size=200))
def test_utf8_is_never_mistaken(text: str) -> None:
    """Not even if it has few characters outside ASCII."""
    body = text.encode("utf-8", "replace")
    decoded = decode_page(b"<p>" + body, "text/html", 0.01)
    assert decoded.text == "<p>" + body.decode()


def test_benchmark_counts_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table by charset and language."""
    path = tmp_path / "texts.tsv.xz"
    sentences = [f"de\t{TEXTS['de']} {number}\n" for number in range(12)]
    path.write_bytes(lzma.compress("".join(sentences).encode()))
    main(["--texts", str(path), "--pages", "2"])
    assert "cp1252       de     2    " in capsys.readouterr().out
