"""Extracting title and text from web pages."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.html.extraction import (
    CAUSES,
    MAX_ATTRIBUTES,
    MAX_PARSE_S,
    MIN_MAIN_CONTENT_CHARS,
    MIN_PAGE_CHARS,
    HtmlSettings,
    Page,
    Unusable,
    extract,
)
from stages.html.justext import JustextSettings
from stages.kernels.markup_cost import estimate_parse_ns
from stages.warc.http import Response, parse_response
from stages.warc.input_content import InputContent
from stages.warc.record_framing import Record, read_records

DEFAULT = HtmlSettings()
PAGE = """<html><head><title> My
 title</title><style>p {}</style></head><body><nav><a href=x>Home</a></nav>
<h1>Head</h1><p>One <b>two</b>
 three<br>four</p><ul><li>a</li><li>b</li></ul><pre>  x
   y</pre><script>alert(1)</script><img alt="ALT"></body></html>"""


def extract_text(
    body: bytes, content_type: str = "text/html", settings: HtmlSettings = DEFAULT
) -> str:
    """Return the text of a page without blank lines."""
    page = extract(body, content_type, settings)
    assert isinstance(page, Page)
    return "|".join(line.strip() for line in page.text.splitlines() if line.strip())


def test_page_gives_title_and_one_line_per_block() -> None:
    """Blocks, breaks and list items start lines; scripts, styles and image texts are omitted."""
    page = extract(PAGE.encode(), "text/html; charset=utf-8", HtmlSettings())
    assert isinstance(page, Page)
    assert (page.title, page.charset, page.num_undecodable) == ("My title", "utf-8", 0)
    assert extract_text(PAGE.encode()) == "Home|Head|One two three|four|a|b|x|y"


@pytest.mark.parametrize(
    "attribute",
    [
        "hidden",
        'style="display:none"',
        'style="color:red; Display: NONE !important"',
    ],
)
def test_hidden_text_is_left_out(attribute: str) -> None:
    """Of all text and of the sample; a page that a script shows as a whole keeps it."""
    settings = HtmlSettings(page_sample_chars=100)
    page = extract(f"<p>seen<p {attribute}>unseen</p>".encode(), "text/html", settings)
    assert isinstance(page, Page)
    assert (page.text, page.sample) == ("seen", "seen")
    whole = f"<body {attribute}><p>A page.</p><p hidden=until-found>More.</p></body>"
    assert extract_text(whole.encode()) == "A page.|More."


def test_settings_choose_what_is_kept() -> None:
    """`main_content` removes navigation; bullets and alternative texts are optional."""
    assert extract_text(PAGE.encode(), settings=HtmlSettings(main_content=True)).startswith(
        "Head|One two three"
    )
    with_all = extract_text(
        PAGE.encode(), settings=HtmlSettings(list_bullets=True, alt_texts=True)
    )
    assert "• a" in with_all
    assert with_all.endswith("ALT")


def make_page(num_main: int, num_menu: int) -> bytes:
    """Return a page with characters that main content keeps, and some that it removes."""
    return f"<body><p>{'m' * num_main}</p><nav>{'n' * num_menu}</nav></body>".encode()


@pytest.mark.parametrize(
    ("num_main", "num_menu", "is_fallback"),
    [
        (0, MIN_PAGE_CHARS, True),
        (0, MIN_PAGE_CHARS - 1, False),
        (40, 1000, True),
        (100, 600, False),  # a page of little text
        (MIN_MAIN_CONTENT_CHARS - 1, 17_000, True),
        (MIN_MAIN_CONTENT_CHARS, 17_000, False),  # a menu with a short article
    ],
)
def test_pages_without_main_content_keep_all_text(
    num_main: int, num_menu: int, is_fallback: bool
) -> None:
    """The row has the characters of the main content that was not used."""
    body = make_page(num_main, num_menu)
    page = extract(body, "text/html", HtmlSettings(main_content=True))
    all_text = extract(body, "text/html", DEFAULT)
    assert isinstance(page, Page)
    assert isinstance(all_text, Page)
    assert (page.text == all_text.text) == is_fallback
    assert page.text.count("m") == num_main
    assert page.main_content_chars == (num_main if is_fallback else None)
    assert all_text.main_content_chars is None


@pytest.mark.parametrize(
    "engine", [{}, {"main_content": True}, {"justext": JustextSettings()}]
)
def test_sample_is_the_beginning_of_all_text(engine: dict[str, Any]) -> None:
    """Also of pages from which an engine removes the beginning."""
    body = b"<nav>Accueil et contact</nav><p>" + b"Bread is made of flour, " * 20
    page = extract(body, "text/html", HtmlSettings(page_sample_chars=7, **engine))
    assert isinstance(page, Page)
    assert page.sample == "Accueil"
    page = extract(body, "text/html", HtmlSettings(**engine))
    assert isinstance(page, Page)
    assert page.sample is None


RUSSIAN = "Привет, как дела? Сегодня хорошая погода, и мы идём гулять."


@pytest.mark.parametrize(
    ("body", "content_type", "charset"),
    [
        (RUSSIAN.encode("koi8-r"), "text/html; charset=koi8-r", "koi8-r"),
        (RUSSIAN.encode("koi8-r"), "text/html; Charset = 'KOI8-R'", "koi8-r"),
        (b"<meta charset=windows-1251>" + RUSSIAN.encode("cp1251"), "text/html", "cp1251"),
        (RUSSIAN.encode("cp1251"), "text/html; charset=no-such-charset", "cp1251"),
        (b"\xef\xbb\xbf" + RUSSIAN.encode(), "text/html; charset=koi8-r", "utf-8"),
        (b"\xff\xfe" + RUSSIAN.encode("utf-16-le"), "text/html", "utf-16-le"),
        (RUSSIAN.encode("cp1251"), "text/html; charset=utf-8", "cp1251"),
        (RUSSIAN.encode("cp1251"), "text/plain", "cp1251"),
    ],
    ids=[
        "header",
        "header-loose",
        "meta",
        "header-unknown",
        "bom-wins",
        "bom-utf16",
        "header-wrong",
        "plain",
    ],
)
def test_charset_is_detected(body: bytes, content_type: str, charset: str) -> None:
    """Byte order mark, HTTP header, meta element, then detection; a wrong header is overruled."""
    page = extract(body, content_type, HtmlSettings())
    assert isinstance(page, Page)
    assert (page.text, page.charset, page.num_undecodable) == (RUSSIAN, charset, 0)


@pytest.mark.parametrize(
    ("text", "label", "codec"),
    [("①", "shift_jis", "cp932"), ("镕", "gb2312", "gb18030"), ("똠", "euc-kr", "cp949")],
)
def test_charset_names_follow_the_encoding_standard(
    text: str, label: str, codec: str
) -> None:
    """East Asian charset names select their wider relatives."""
    page = extract(text.encode(codec), f"text/html; charset={label}", HtmlSettings())
    assert isinstance(page, Page)
    assert (page.text, page.num_undecodable) == (text, 0)


def test_plain_text_is_unchanged() -> None:
    """No part of it is parsed as a tag."""
    assert extract(b"a < b\n\n  <p>", "text/plain", HtmlSettings()) == Page(
        "", "a < b\n\n  <p>", "cp1252", 0
    )


def test_few_undecodable_bytes_are_replaced_and_counted() -> None:
    """Up to MAX_UNDECODABLE_SHARE; replacement characters of the page itself are not counted."""
    body = b"\xef\xbb\xbf" + "\ufffd".encode() + b"x" * 500 + b"\xff"
    page = extract(body, "text/html; charset=utf-8", HtmlSettings())
    assert isinstance(page, Page)
    assert page.num_undecodable == 1
    assert page.text == "\ufffd" + "x" * 500 + "\ufffd"


@pytest.mark.parametrize(
    ("body", "cause", "detail"),
    [
        (b"<p>" * 50_001, "html.too_many_tags", "50001 tags, the limit is 50000"),
        (
            b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4,
            "html.not_text",
            "control characters",
        ),
        (
            b"\xef\xbb\xbf" + b"\xff\x81\x8d" * 50,
            "html.not_decodable",
            "undecodable in",
        ),
    ],
)
def test_unusable_page_has_a_cause(body: bytes, cause: str, detail: str) -> None:
    """The cause is in CAUSES, and the detail has the numbers."""
    page = extract(body, "text/html", HtmlSettings())
    assert isinstance(page, Unusable)
    assert page.cause == cause
    assert detail in page.detail
    assert cause in CAUSES


@pytest.mark.parametrize(
    "tag",
    [
        "div",
        "b",
        "ul><li",
        "table><tr><td",
        "a><b><div",
        "select><option",
        "svg",
        "font><p",
    ],
)
def test_deep_nesting_is_parsed_in_time(tag: str) -> None:
    """12,000 open elements neither crash nor hang the parser."""
    body = f"<{tag}>".encode() * (12_000 // (tag.count("<") + 1))
    assert isinstance(extract(body + b"x", "text/html", HtmlSettings()), Page)


ATTRIBUTES = {
    "apart": " x{}",
    "with values": " x{}=1",
    "in quotes, without blanks": "x{}='<b>'",
    "by slashes": "/x{}",
    "with blanks around =": '\nx{} = "a b c d"',
}


@pytest.mark.parametrize("charset", ["utf-8", "utf-16"])
@pytest.mark.parametrize("form", ATTRIBUTES.values(), ids=ATTRIBUTES)
def test_tag_with_too_many_attributes_is_refused(form: str, charset: str) -> None:
    """Attributes in any notation count; a tag with the largest allowed number passes."""
    for num_more, is_read in ((0, True), (1, False)):
        attributes = "".join(form.format(i) for i in range(MAX_ATTRIBUTES + num_more))
        page = extract(
            f"<p>words<a {attributes}>more".encode(charset),
            f"text/html; charset={charset}",
            HtmlSettings(),
        )
        assert isinstance(page, Page) == is_read, page
        assert is_read or (
            isinstance(page, Unusable) and page.cause == "html.too_many_attributes"
        )


def number(tag: str, times: int) -> str:
    """Return the tag repeated, with a different number in each for `{}`."""
    return "".join(tag.replace("{}", str(i)) for i in range(times))


# Name -> page. Without a check, each takes 3 s to hours; the largest has 1.5 MB.
ENDLESS = {
    "formatting elements": number("<i a{}=1>", 49_000) + "words",
    "reopened formatting elements": number("<i a{}=1><p>", 20_000),
    "reopened after each end tag": number("<b a{}>", 15_000) + "x</p>" * 15_000,
    "attribute names": number("<p a{} b{} c{} d{} e{}>x", 40_000),
    "attributes of several tags": (f"<p {number('x{} ', 9_000)}>" * 20),
    "attributes of one element": number("<html a{}=1>", 49_000),
    "options": "<select>" + "<option>x" * 40_000,
    "elements of SVG": "<svg>" + "<g>" * 24_000 + "</x>" * 24_000,
}


@pytest.mark.parametrize("page", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("charset", ["utf-8", "utf-16"])
def test_page_that_takes_quadratic_time_is_refused(page: str, charset: str) -> None:
    """It costs less CPU time than the parser would take, in any charset."""
    extract(b"<p>compiles the check", "text/html", HtmlSettings())
    started = time.process_time()
    body = page.encode(charset)
    found = extract(body, f"text/html; charset={charset}", HtmlSettings())
    assert isinstance(found, Unusable)
    assert found.cause == "html.too_complex"
    assert time.process_time() - started < 10


def test_main_content_of_deeply_nested_pages_is_refused() -> None:
    """Extraction of main content takes quadratic time for them, that of all text does not."""
    body = b"<div>x" * 24_000
    assert isinstance(extract(body, "text/html", HtmlSettings()), Page)
    settings = HtmlSettings(main_content=True, engine="resiliparse")
    found = extract(body, "text/html", settings)
    assert isinstance(found, Unusable)
    assert found.cause == "html.too_complex"


def test_real_pages_are_far_from_the_limit(shared_data: Path) -> None:
    """The largest estimate is a hundredth of the limit; the checks change no decision."""
    num_pages = 0
    archive = shared_data / "web-archives" / "debian-docs-multilingual.warc.gz"
    with InputContent(archive) as content:
        for record in read_records(content, 1 << 26, 10):
            response = isinstance(record, Record) and parse_response(
                record.content, 1 << 26
            )
            if isinstance(response, Response):
                estimate_ns, max_attributes = estimate_parse_ns(response.body, 60)
                assert estimate_ns < MAX_PARSE_S * 1e9 / 100
                assert max_attributes < MAX_ATTRIBUTES / 100
                num_pages += 1
    assert num_pages > 1_500


@pytest.mark.parametrize(
    "body", [b"", b"<", b"<!--", b"<title>", b"<p", b"</p></html>", b"\x00", b"<p>\x00x"]
)
def test_page_fragments_never_raise(body: bytes) -> None:
    """The shortest broken pages give a page or a cause."""
    page = extract(body, "text/html", HtmlSettings())
    assert isinstance(page, Page) or page.cause == "html.not_text"


SCRAPS = st.lists(
    st.sampled_from(
        [
            "<p>",
            "</p",
            "<!--",
            "-->",
            "<![CDATA[",
            "&#xD800;",
            "&#0;",
            "&#x110000;",
            "<table><p>",
            "\0",
            "é",
        ]
    )
    | st.text(max_size=5)
).map("".join)


@pytest.mark.parametrize(
    "settings",
    [HtmlSettings(), HtmlSettings(justext=JustextSettings())],
    ids=["resiliparse", "justext"],
)
@given(
    st.binary(max_size=200) | SCRAPS.map(lambda text: text.encode("utf-8", "replace")),
    st.text(max_size=30),
)
def test_extract_never_raises(
    settings: HtmlSettings, body: bytes, content_type: str
) -> None:
    """Any bytes under any content type give a page in UTF-8 or a cause."""
    page = extract(body, content_type, settings)
    if isinstance(page, Page):
        (page.title + page.text).encode()
    else:
        assert page.cause in CAUSES
