"""Fuzzing of what comes from the crawl: archive files, pages, URLs and lists of URLs."""

from __future__ import annotations

import functools
import gzip
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
from hypothesis import strategies as st

from stages.filters.url import Url, UrlSettings
from stages.html.extraction import CAUSES, Page, extract
from stages.settings.warc import HtmlSettings, JustextSettings
from tests.conftest import REPOSITORY
from tests.faults.attack import Attack
from tests.faults.fuzz.mutations import mutated_bytes, try_inputs
from tests.stages.warc.files import (
    ARC_A,
    ARC_B,
    ARC_START,
    A,
    B,
    C,
    Reading,
    make_page,
    make_text,
    member,
    page,
    response,
)

SHARED_DATA = REPOSITORY.parent / "shared" / "data"

INPUTS_PER_TRY = 50

# Longer files would make a try slow, and each mutation touches a few places only.
MAX_BASE_BYTES = 60_000

PAGE = b"""<!doctype html><html lang=fr><head><meta charset=utf-8><title>A &amp; B</title>
<script>if (a < b) document.write("<p>no</p>")</script><style>p {color: red}</style></head>
<body><nav><a href=/>Home</a></nav><main><h1>Caf&eacute;</h1><p>One <b>two <i>three</b> four</i>
<table><tr><td>1<td>2</table><pre> a\n b</pre><ul><li>x<li>y</ul><ruby>\xe6\xbc\xa2<rt>kan</ruby>
<!-- comment --><svg><title>no</title></svg><p hidden>hidden<noscript><p>text</noscript></main>"""

CONTENT_TYPES = (
    "text/html",
    "text/html; charset=utf-8",
    "text/html; charset=shift_jis",
    "text/html; charset=none",
    "text/plain",
    "",
    "application/xhtml+xml; charset=utf-16",
)

LISTS = (
    b"0.0.0.0 ads.example.com # hosts file\n127.0.0.1 x.example\n",
    b"example.com/path\nHTTP://Example.ORG:80/a/../b?q=%7e\n\n# comment\n",
    "münchen.example\nпример.example/путь\n".encode(),
)

URLS = (
    "http://Example.org:80/a",
    "https://user:pw@[::1]:8080/%7Ea?b=c#d",
    "http://xn--mnchen-3ya.example/ü",
    "http://192.168.0.1/\x1b]52;c;x",
    "//x",
    "",
)


@functools.cache
def list_archives() -> Sequence[bytes]:
    """Return generated archive files, and the start of each real one where there are any."""
    text = make_text("A")
    http = make_page("A")
    bases = [
        A + B + C,
        member(A) + member(B) + member(C),
        member(A + B),
        response(http) + response(page(PAGE)) + A,
        ARC_START + ARC_A + ARC_B,
        member(ARC_START) + member(ARC_A) + member(ARC_B),
        response(page(gzip.compress(text, mtime=0), "Content-Encoding: gzip")),
        response(page(b"5\r\nhello\r\n0\r\n\r\n", "Transfer-Encoding: chunked")),
    ]
    for path in sorted(SHARED_DATA.rglob("*arc*")):
        if path.is_file() and path.suffix in (".gz", ".warc", ".arc", ".wet"):
            with path.open("rb") as file:
                bases.append(file.read(MAX_BASE_BYTES))
    return bases


@functools.cache
def list_pages() -> Sequence[bytes]:
    """Return HTML pages: one with most elements, and the start of real ones."""
    bases = [PAGE, make_page("A").partition(b"\r\n\r\n")[2]]
    for path in sorted(SHARED_DATA.rglob("*.warc")):
        for part in path.read_bytes().split(b"WARC/1.0\r\n"):
            start = part.lower().find(b"<html")
            if start >= 0:
                bases.append(part[start : start + MAX_BASE_BYTES])
    return bases


def fuzz_archives(seed: int, folder: Path) -> int:
    """Read mutated WARC, WET and ARC files; all records must be accounted for."""

    def check(data: bytes) -> None:
        reading = Reading(folder, data)
        reading.report.check()
        assert reading.report.num_documents == len(reading.rows)

    return try_inputs(mutated_bytes(list_archives()), check, seed, INPUTS_PER_TRY)


def fuzz_pages(seed: int, folder: Path) -> int:
    """Extract the text of mutated HTML pages."""
    all_settings = [
        HtmlSettings(),
        HtmlSettings(main_content=True),
        HtmlSettings(
            main_content=True, engine="resiliparse", alt_texts=True, list_bullets=True
        ),
        HtmlSettings(justext=JustextSettings()),
    ]

    def check(drawn: tuple[bytes, str, HtmlSettings]) -> None:
        found = extract(*drawn)
        if isinstance(found, Page):
            found.text.encode()  # no lone surrogates
        else:
            assert found.cause in CAUSES

    inputs = st.tuples(
        mutated_bytes(list_pages()),
        st.sampled_from(CONTENT_TYPES),
        st.sampled_from(all_settings),
    )
    return try_inputs(inputs, check, seed, INPUTS_PER_TRY)


def fuzz_url_lists(seed: int, folder: Path) -> int:
    """Read mutated lists of URLs, and look up mutated URLs in them."""

    def check(drawn: tuple[bytes, list[str]]) -> None:
        content, urls = drawn
        with tempfile.NamedTemporaryFile(dir=folder, suffix=".txt") as file:
            file.write(content)
            file.flush()
            stage = Url(UrlSettings(domains=("list",)), {"list": Path(file.name)})
            stage.open()
        ids = pa.array(range(len(urls)), pa.uint64())
        batch = pa.table({"doc_id": ids, "url": pa.array(urls, pa.string())})
        stage.apply(batch).check(batch, stage.name)

    urls = st.lists(st.sampled_from(URLS) | st.text(max_size=60), max_size=5)
    return try_inputs(st.tuples(mutated_bytes(LISTS), urls), check, seed, INPUTS_PER_TRY)


ATTACKS = (
    Attack(
        "fuzz: WARC, WET and ARC files",
        "No bytes stop the reader: every record is a document or is in the quarantine.",
        120,
        1,
        fuzz_archives,
        timeout_s=900.0,
    ),
    Attack(
        "fuzz: HTML pages",
        "Each page gives a text or one of the documented causes, within 10 s of CPU.",
        100,
        1,
        fuzz_pages,
        timeout_s=900.0,
    ),
    Attack(
        "fuzz: URLs and lists of URLs",
        "No list and no URL stops the filters.",
        40,
        1,
        fuzz_url_lists,
        timeout_s=900.0,
    ),
)
