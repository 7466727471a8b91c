r"""Extract the title and the text of a web page.

No bytes raise an error. MAX_TAGS, MAX_ATTRIBUTES and MAX_PARSE_S refuse pages that would take long.
Broken HTML gives the text that the parser finds. A page without usable text is returned as `Unusable` with a cause
from `CAUSES`. Every block element starts a new line.

    body = b"<title>Bread</title><h1>Bread</h1><p>Flour, water."
    page = extract(body, "text/html; charset=utf-8", HtmlSettings())
    page.title, page.text        # "Bread", "Bread\n\nFlour, water."
    page.charset                 # "utf-8"
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from resiliparse.extract.html2text import extract_plain_text
from resiliparse.parse.html import HTMLTree

from stages.html import trafilatura
from stages.html.charset import DecodedPage, decode_page
from stages.html.justext import extract_main_text
from stages.html.main_content import VERSION as BLOCKS_VERSION
from stages.html.main_content import extract_main_content
from stages.html.markup import (
    clean_markup,
    mark_lone_characters,
    open_noscript,
    remove_marks,
)
from stages.kernels.markup_cost import estimate_parse_ns
from stages.settings.warc import HtmlSettings

# Cause -> description, for pages without usable text.
CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "html.too_many_tags": (
            "The page has more than 50,000 tags: it would take too long to parse."
        ),
        "html.too_many_attributes": (
            "A tag has more than 10,000 attributes: it would take too long to parse."
        ),
        "html.too_complex": (
            "Parsing would take more than 2 s, by an estimate from the tags: elements are nested too "
            "deeply, or too many formatting elements, attribute names or options are open at once."
        ),
        "html.too_slow": "Extracting its text took more CPU time than engine.document_timeout_s.",
        "html.not_text": "The share of control characters is above 5 %: the page is not text.",
        "html.not_decodable": "The share of undecodable characters is above 1 % in every charset.",
        "html.not_parsable": "The HTML parser gave up.",
    }
)

# Largest number of tags in a page; 1,808 real pages have up to 10,840.
#
# The parser takes quadratic time for misnested elements (0.3 s for 50,000 tags), and main content
# extraction for nested blocks (3 s for 12,000 tags).
MAX_TAGS = 50_000

# Largest share of undecodable characters in the best charset; each becomes U+FFFD.
MAX_UNDECODABLE_SHARE = 0.01

# Largest share of control characters; resiliparse uses the same limit to recognise binary
# data.
MAX_CONTROL_SHARE = 0.05

# Largest number of attributes of one tag; real tags have about ten.
#
# The parser takes quadratic time for them: 0.2 s for 10,000, 5 s for 40,000.
MAX_ATTRIBUTES = 10_000

# Largest estimate of the time to parse a page; 1,875 real pages have up to 0.007 s.
#
# 49,000 nested <i> with different attributes take 34 s, 200,000 different attribute names 26 s,
# 24,000 options of one <select> 3 s, and main content extraction of 24,000 nested blocks 10 s.
MAX_PARSE_S = 2.0

# C0 controls except tab, line feed, form feed and carriage return.
_CONTROL = bytes([*range(0x09), 0x0B, *range(0x0E, 0x20)])

# Pages with fewer tags and characters are parsed in 0.2 s or less.
_FEW_TAGS = 500
_FEW_CHARS = 2 * MAX_ATTRIBUTES  # an attribute has at least a space and a letter

# Nanoseconds per tag and open element. resiliparse's main content walks up from each node.
_DEPTH_NS = 4
_DEPTH_NS_OF_MAIN_CONTENT = 60


# Main content that is shorter than both is not used: the rules have missed the content.
#
# trafilatura also tries another way below 250 characters (`MIN_EXTRACTED_SIZE` in its
# settings.cfg). The share leaves short pages alone. Of 1,825 real pages, 72 have so few
# characters, and 3 of them also less than a tenth of 500 characters or more.
MIN_MAIN_CONTENT_CHARS = 250
MIN_MAIN_CONTENT_SHARE = 0.1

# Pages with fewer characters have too little text for a comparison.
MIN_PAGE_CHARS = 500

# Elements that no browser shows before a script does. `until-found` is shown by a search.
_HIDDEN = [
    '[hidden]:not([hidden="until-found" i])',
    '[style*="display:none" i]',
    '[style*="display: none" i]',
]

# Hidden text is kept if less than this share of a page's text is visible: a script shows the page.
# Of 1,500 real pages, 16 have less than a quarter: those of up to 0.05 are whole articles that a
# script shows, those from 0.1 on are menus, dialogs and inactive tabs.
MIN_VISIBLE_SHARE = 0.1
# Pages with more visible text are not read twice.
MIN_VISIBLE_CHARS = 2000


class Page(NamedTuple):
    """The title and text of a page."""

    title: str
    text: str  # blocks on lines of their own, white space unchanged
    charset: str  # the codec that decoded the bytes
    num_undecodable: int  # byte sequences replaced by U+FFFD
    # Characters of the main content, if it was too short and `text` is all text of the page.
    main_content_chars: int | None = None
    sample: str | None = None  # the first `page_sample_chars` characters of all text


class Unusable(NamedTuple):
    """A page without usable text."""

    cause: str  # one of CAUSES
    detail: str


def list_engine_versions(settings: HtmlSettings) -> dict[str, str]:
    """Return names and versions of the rules that find main content; {} for resiliparse and none.

    Raises:
        ExtraNotInstalled: the engine needs trafilatura, which is not installed.
    """
    versions: dict[str, str] = {}
    if settings.main_content and settings.engine == "blocks":
        versions["blocks"] = str(BLOCKS_VERSION)
    if settings.main_content and settings.engine == "trafilatura":
        versions |= trafilatura.list_versions()
    return versions


def extract(body: bytes, content_type: str, settings: HtmlSettings) -> Page | Unusable:
    """Extract title and text.

    Args:
        body: the page without any transfer coding.
        content_type: HTTP's Content-Type, for example "text/html; charset=utf-8". Everything except
            text/plain is parsed as HTML.
        settings: what to extract.
    """
    is_plain = content_type.strip().lower().startswith("text/plain")
    num_tags = body.count(b"<")
    if num_tags > MAX_TAGS and not is_plain:
        return Unusable("html.too_many_tags", f"{num_tags} tags, the limit is {MAX_TAGS}")
    decoded = decode_page(body, content_type, MAX_UNDECODABLE_SHARE)
    page = body if decoded.charset == "utf-8" else decoded.text.encode("utf-8", "replace")
    if (fault := _check_text(decoded, page)) is not None:
        return fault
    if is_plain:
        return Page("", decoded.text, decoded.charset, decoded.num_undecodable)
    is_small = num_tags <= _FEW_TAGS and len(decoded.text) <= _FEW_CHARS
    if not is_small and (fault := _check_markup(page, settings)) is not None:
        return fault
    return _parse(decoded, settings)


def _check_text(decoded: DecodedPage, page: bytes) -> Unusable | None:
    """Return why a page, which is given decoded and in UTF-8, is not text, or None if it is."""
    num_chars = len(decoded.text)
    # On bytes this is five times as fast as on str.
    num_control = len(page) - len(page.translate(None, _CONTROL))
    if num_control > MAX_CONTROL_SHARE * num_chars:
        detail = f"{num_control} of {num_chars} characters are control characters"
        return Unusable("html.not_text", detail)
    if decoded.undecodable_share > MAX_UNDECODABLE_SHARE:
        detail = (
            f"{decoded.num_undecodable} of {num_chars} characters are undecodable "
            f"in {decoded.charset}"
        )
        return Unusable("html.not_decodable", detail)
    return None


def _check_markup(page: bytes, settings: HtmlSettings) -> Unusable | None:
    """Return why a page in UTF-8 would take too long to parse, or None if it would not."""
    walks_up = settings.main_content and settings.engine == "resiliparse"
    depth_ns = _DEPTH_NS_OF_MAIN_CONTENT if walks_up else _DEPTH_NS
    estimate_ns, max_attributes = estimate_parse_ns(page, depth_ns)
    if max_attributes > MAX_ATTRIBUTES:
        detail = f"a tag has more than {MAX_ATTRIBUTES} attributes"
        return Unusable("html.too_many_attributes", detail)
    if estimate_ns > MAX_PARSE_S * 1e9:
        detail = f"the estimated time to parse it is above {MAX_PARSE_S:g} s"
        return Unusable("html.too_complex", detail)
    return None


def _parse(decoded: DecodedPage, settings: HtmlSettings) -> Page | Unusable:
    page = _parse_markup(clean_markup(decoded.text), decoded, settings)
    if isinstance(page, Unusable) or _count_least_chars(page) >= MIN_MAIN_CONTENT_CHARS:
        return page
    markup = open_noscript(decoded.text)
    if markup is None:
        return page
    opened = _parse_markup(markup, decoded, settings)
    if isinstance(opened, Page) and _has_missed_text(page, opened):
        return opened
    return page


def _count_least_chars(page: Page) -> int:
    """Return the characters of the text, or of the sample if it is shorter.

    jusText reads noscript elements. The sample does not, so it can be empty beside a long text.
    """
    return len(page.text) if page.sample is None else min(len(page.text), len(page.sample))


def _has_missed_text(page: Page, opened: Page) -> bool:
    """Return whether text or sample is much longer with the noscript elements (`opened`)."""
    if _is_too_short(len(page.text), len(opened.text)):
        return True
    return _is_too_short(len(page.sample or ""), len(opened.sample or ""))


def _parse_markup(
    markup: str, decoded: DecodedPage, settings: HtmlSettings
) -> Page | Unusable:
    try:
        if settings.main_content and settings.engine == "resiliparse":
            markup = mark_lone_characters(markup)
        tree = HTMLTree.parse(markup)
        title = " ".join(remove_marks(tree.title or "").split())
        main_content_chars = None
        if settings.justext is not None:
            text = extract_main_text(decoded.text, settings.justext)
        elif settings.main_content:
            text, main_content_chars = _extract_main_content(tree, markup, settings)
        else:
            text = _extract_text(tree, settings, main_content=False)
        sample = _extract_sample(tree, settings)
    except trafilatura.ExtraNotInstalled:
        raise  # a fault of the installation, not of the page
    except Exception as error:  # noqa: BLE001 - no page may end a run, for any error of the parsers
        return Unusable("html.not_parsable", str(error))
    return Page(
        title, text, decoded.charset, decoded.num_undecodable, main_content_chars, sample
    )


def _extract_main_content(
    tree: HTMLTree, markup: str, settings: HtmlSettings
) -> tuple[str, int | None]:
    """Return the main content and None, or all text and the characters of the main content."""
    if settings.engine == "resiliparse":
        main_content = remove_marks(_extract_text(tree, settings, main_content=True))
    elif settings.engine == "trafilatura":
        main_content = trafilatura.extract_main_content(markup)
    else:
        main_content = extract_main_content(tree.body.html if tree.body else "")
    num_chars = len(main_content)
    # All text is extracted for few pages only, because that takes half as long again.
    if num_chars >= MIN_MAIN_CONTENT_CHARS:
        return main_content, None
    text = remove_marks(_extract_text(tree, settings, main_content=False))
    if _is_too_short(num_chars, len(text)):
        return text, num_chars
    return main_content, None


def _is_too_short(num_chars: int, num_page_chars: int) -> bool:
    """Return whether a text of less than MIN_MAIN_CONTENT_CHARS has missed that of the page."""
    if num_page_chars < MIN_PAGE_CHARS:
        return False
    return num_chars < MIN_MAIN_CONTENT_SHARE * num_page_chars


def _extract_sample(tree: HTMLTree, settings: HtmlSettings) -> str | None:
    if settings.page_sample_chars == 0:
        return None
    text = remove_marks(_extract_text(tree, settings, main_content=False))
    return text[: settings.page_sample_chars]


def _extract_text(tree: HTMLTree, settings: HtmlSettings, *, main_content: bool) -> str:
    """Return text without hidden elements, unless they have nearly all of it."""

    def extract_without(selectors: list[str]) -> str:
        return extract_plain_text(
            tree,
            main_content=main_content,
            alt_texts=settings.alt_texts,
            list_bullets=settings.list_bullets,
            skip_elements=selectors,
        )

    visible = extract_without(_HIDDEN)
    if main_content or len(visible) >= MIN_VISIBLE_CHARS:
        return visible
    text = extract_without([])
    return visible if len(visible) >= MIN_VISIBLE_SHARE * len(text) else text
