"""stages.html: title and lines out of the pages that servers send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.html.extraction import (
    _FEW_ATTRIBUTES,
    CAUSES,
    MAX_ATTRIBUTES,
    HtmlSettings,
    Page,
    Unusable,
    extract,
)
from stages.html.justext import JustextSettings

DEFAULT = HtmlSettings()
PAGE = """<html><head><title> My
 title</title><style>p {}</style></head><body><nav><a href=x>Home</a></nav><h1>Head</h1><p>One <b>two</b>
 three<br>four</p><ul><li>a</li><li>b</li></ul><pre>  x
   y</pre><script>alert(1)</script><img alt="ALT"></body></html>"""


def text_of(body: bytes, content_type: str = "text/html", settings: HtmlSettings = DEFAULT) -> str:
    """The text of a page that has one, without blank lines and blanks."""
    page = extract(body, content_type, settings)
    assert isinstance(page, Page)
    return "|".join(line.strip() for line in page.text.splitlines() if line.strip())


def test_a_page_gives_its_title_and_a_line_per_block() -> None:
    """Blocks, breaks and list items start lines; scripts, styles and alternative texts stay out."""
    page = extract(PAGE.encode(), "text/html; charset=utf-8", HtmlSettings())
    assert isinstance(page, Page)
    assert (page.title, page.charset, page.num_undecodable) == ("My title", "utf-8", 0)
    assert text_of(PAGE.encode()) == "Home|Head|One two three|four|a|b|x|y"


def test_settings_choose_what_is_kept() -> None:
    """Navigation goes with `main_content`; bullets and alternative texts come when asked for."""
    assert text_of(PAGE.encode(), settings=HtmlSettings(main_content=True)).startswith(
        "Head|One two three"
    )
    with_all = text_of(PAGE.encode(), settings=HtmlSettings(list_bullets=True, alt_texts=True))
    assert "• a" in with_all
    assert with_all.endswith("ALT")


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
def test_the_charset_is_found(body: bytes, content_type: str, charset: str) -> None:
    """Byte order mark, HTTP header, meta element, then the bytes themselves; a wrong header is overruled."""
    page = extract(body, content_type, HtmlSettings())
    assert isinstance(page, Page)
    assert (page.text, page.charset, page.num_undecodable) == (RUSSIAN, charset, 0)


@pytest.mark.parametrize(
    ("text", "label", "codec"),
    [("①", "shift_jis", "cp932"), ("镕", "gb2312", "gb18030"), ("똠", "euc-kr", "cp949")],
)
def test_charsets_mean_what_they_mean_on_the_web(text: str, label: str, codec: str) -> None:
    """Names of East Asian charsets stand for their wider relatives, as in the Encoding Standard."""
    page = extract(text.encode(codec), f"text/html; charset={label}", HtmlSettings())
    assert isinstance(page, Page)
    assert (page.text, page.num_undecodable) == (text, 0)


def test_plain_text_is_left_as_it_is() -> None:
    """Nothing in it is taken for a tag."""
    assert extract(b"a < b\n\n  <p>", "text/plain", HtmlSettings()) == Page(
        "", "a < b\n\n  <p>", "cp1252", 0
    )


def test_few_undecodable_bytes_are_replaced_and_counted() -> None:
    """Up to MAX_UNDECODABLE_SHARE; the replacement characters that a page itself holds are not counted."""
    body = b"\xef\xbb\xbf" + "\ufffd".encode() + b"x" * 500 + b"\xff"
    page = extract(body, "text/html; charset=utf-8", HtmlSettings())
    assert isinstance(page, Page)
    assert page.num_undecodable == 1
    assert page.text == "\ufffd" + "x" * 500 + "\ufffd"


@pytest.mark.parametrize(
    ("body", "cause", "detail"),
    [
        (b"<p>" * 50_001, "html.too_many_tags", "50001 tags, at most 50000"),
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
def test_a_page_without_text_says_why(body: bytes, cause: str, detail: str) -> None:
    """Cause from the table, with the numbers."""
    page = extract(body, "text/html", HtmlSettings())
    assert isinstance(page, Unusable)
    assert page.cause == cause
    assert detail in page.detail
    assert cause in CAUSES


@pytest.mark.parametrize(
    "tag", ["div", "b", "ul><li", "table><tr><td", "a><b><div", "select><option", "svg", "font><p"]
)
def test_hostile_nesting_ends_in_time(tag: str) -> None:
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
def test_a_tag_with_more_attributes_than_the_parser_can_take_is_refused(
    form: str, charset: str
) -> None:
    """However they are written; a tag with as many as are allowed passes."""
    for num_more, is_read in ((0, True), (1, False)):
        attributes = "".join(form.format(i) for i in range(MAX_ATTRIBUTES + num_more))
        page = extract(
            f"<p>words<a {attributes}>more".encode(charset),
            f"text/html; charset={charset}",
            HtmlSettings(),
        )
        assert isinstance(page, Page) == is_read, page
        assert is_read or (isinstance(page, Unusable) and page.cause == "html.too_many_attributes")


@pytest.mark.parametrize(
    "scrap", ["<a x='", '<a b="', "<a<", "<a =", "<a b=\"<c d='", "< ", "<" + "a" * 13_000 + " "]
)
def test_looking_for_attributes_takes_linear_time(scrap: str) -> None:
    """Eight million characters of what makes a careless pattern look again and again."""
    text = scrap * (8_000_000 // len(scrap))
    _FEW_ATTRIBUTES.fullmatch(text)  # quadratic, it would not end within the time that a test has


@pytest.mark.parametrize(
    "body", [b"", b"<", b"<!--", b"<title>", b"<p", b"</p></html>", b"\x00", b"<p>\x00x"]
)
def test_scraps_of_pages_give_a_page_or_a_cause(body: bytes) -> None:
    """The shortest broken pages there are."""
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
def test_nothing_is_ever_raised(settings: HtmlSettings, body: bytes, content_type: str) -> None:
    """Any bytes under any content type: a page whose text is UTF-8, or a cause."""
    page = extract(body, content_type, settings)
    if isinstance(page, Page):
        (page.title + page.text).encode()
    else:
        assert page.cause in CAUSES
