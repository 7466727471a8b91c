r"""Find the main content of a page: its text without navigation, footers, teasers and comments.

    extract_main_content(tree.body.html)         # "Bread\n\nFlour, water."

Four steps decide on the blocks and block elements of `blocks.py`:

1. Prose is measured: characters of blocks that have sentences and few links. Link density and text
   length are the features that separate content from boilerplate (Kohlschuetter et al. 2010,
   "Boilerplate Detection using Shallow Text Features").
2. Elements whose tag, role, class or id names boilerplate are dropped, as in Readability and
   trafilatura, unless they have most of the prose.
3. The content is the innermost element with nearly all prose. Prose counts more where many
   paragraphs have the same parent, which those of an article have and teasers do not. The
   introduction, lists and tables between the page's heading and the content are added.
4. Lists of links, teasers beside an article, and headings at the end are dropped.

The limits were chosen on the half of the gold pages that is not held out
(benchmarks/quality/extraction.py): F1 is 0.964 on articles and 0.941 on other pages. The time is
linear in the length of the page.
"""

from __future__ import annotations

import re
from enum import IntEnum

from stages.html.blocks import PARAGRAPH_TAGS, Block, Blocks, read_blocks, split_names

# Raise it if an equal page gives other main content. It is part of the fingerprint of extract.
VERSION = 4

# Blocks that are shorter than the first have no prose. Blocks without the punctuation of a sentence
# have prose if they are longer than the second, and it counts for less: captions, table cells.
MIN_PROSE_CHARS = 20
MIN_PLAIN_PROSE_CHARS = 40
PLAIN_PROSE_WEIGHT = 0.3
_PUNCTUATION = re.compile("[.,:;!?…。，、：；！？．।،؛؟።]")

# A block or element with a larger share of its characters in links is a list of links. jusText's
# MAX_LINK_DENSITY is 0.2, for paragraphs without context.
MAX_LINK_SHARE = 0.5

# A list of links is kept if it has this many characters outside of them.
MIN_CHARS_OUTSIDE_LINKS = 200

# A block of a list of links is dropped in the content if it is shorter, and nearly all link.
MAX_LINK_BLOCK_CHARS = 100
MIN_LINK_BLOCK_SHARE = 0.8

# The innermost element with this share of the weighted prose is the content. 0.82 loses parts of
# other pages (F1 0.939 on those that are not held out, instead of 0.940).
CONTENT_SHARE = 0.85

# Prose of a group counts (prose of the group / prose of the largest group) ** GROUP_EXPONENT.
# With 1, pages of many groups of different size, such as product lists, lose text.
GROUP_EXPONENT = 0.5

# An introduction has at least this much prose, and at most this many blocks are between it and the
# content.
MIN_INTRODUCTION_CHARS = 80
MAX_INTRODUCTION_BLOCKS = 60


class _Sign(IntEnum):
    """What marks an element as boilerplate, from the weakest to the strongest sign."""

    NONE = 0
    LEAD = (
        1  # a name of page headers and teasers, which an article's introduction has as well
    )
    DOUBTFUL = 2  # a name that content has as well
    NAME = 3
    STATE = 4  # it is hidden, or its role is not content
    TAG = 5
    NEVER_CONTENT = 6


# Largest share of the page's prose in an element that is dropped for its sign. Some pages are one
# form. <nav> and <footer> have no limit: a page without other text keeps all text (extraction.py).
_MAX_SHARES: dict[_Sign, float] = {
    _Sign.NONE: 0,
    _Sign.LEAD: 0.1,
    _Sign.DOUBTFUL: 0.1,
    _Sign.NAME: 0.6,
    _Sign.STATE: 0.6,
    _Sign.TAG: 0.9,
    _Sign.NEVER_CONTENT: 2,
}

# A name is no sign if all elements of this tag with these attributes have a larger share: the items
# of a list of content. Photo captions have less than half of an article, comments more.
MAX_DOUBTFUL_ALIKE_SHARE = 0.5
MAX_ALIKE_SHARE = 0.8

# A page is an article if one group has this share of the prose in its content. Elements beside it
# are teasers of other articles if they have at most so many characters per heading that is a link.
MIN_ARTICLE_SHARE = 0.5
MAX_TEASER_CHARS = 600

# A list or table beside the content has at least this many items.
MIN_LIST_ITEMS = 3

_NEVER_CONTENT_TAGS = split_names("dialog footer menu nav search")
_CHROME_TAGS = split_names("aside form label")
_CHROME_ROLES = split_names(
    "alert banner complementary contentinfo dialog menu menubar navigation search tablist "
    "toolbar"
)

# Words at the end of a part of a class or id ("site-footer", "siteFooter", "sitefooter"). Those of
# the other patterns must be the whole part, and content has them as well. Menus are doubtful because
# their prose is short: a long one is a page that is named after its menu.
_CHROME_NAME = re.compile(
    r"(?:breadcrumb|footer|sidebar|side-bar|shar(?:e|ing)|"
    r"social|sociable|related|relatedposts|comment|disqus|newsletter|subscribe|subscription|signup|sign-up|"
    r"cookie[a-z]*|consent|gdpr|pagination|pager|taglist|tag-list|byline|copyright|outbrain|taboola|"
    r"sharedaddy|saboxplugin|kommentar(?:en?)?|commentaire|comentario|commenti|"
    # Notices of OneTrust, Usercentrics, TrustArc, Complianz, iubenda and Quantcast.
    r"onetrust|usercentrics|truste|trustarc|cmplz|iubenda|qc-cmp|"
    r"noprint|no-print|advert|advertisement|advertorial|(?<![a-z])(?:search|skip|jump|login)|"
    r"masthead|toolbar|popup|trending)s?(?![a-z])"
)
_DOUBTFUL_NAME = re.compile(
    r"(?<![a-z])(?:tag|print|hidden)s?(?!\S)|"
    r"(?<![a-z])(?:widget|(?<![0-9])ad(?!s?[0-9])|promo[a-z]*|sponsor[a-z]*|banner|recommend[a-z]*|modal|"
    r"overlay|author|meta|rating|popular|toc|infobox|dropdown|caption|credit|disclaimer|disclosure|"
    r"legend|postmeta(?:data)?|entry-utility|print-only|print-block|"
    r"(?:image|img|photo|picture)-?(?:info|text|title|subtitle|annotation|meta[a-z]*|desc[a-z]*|source)|"
    # Boxes about the author of a post: XenForo, vBulletin, phpBB, Invision, Stack Exchange.
    r"(?:message|cell)-+user(?!-)|user-?(?:info|details|extra|title|banner)|post-?profile|"
    r"author-(?:column|pane|info|details|stat))s?(?![a-z])|"
    r"(?:nav(?:bar|igation|box)?|menu)s?(?![a-z])"
)
_LEAD_NAME = re.compile(r"(?<![a-z])(?:teaser[a-z]*|header)s?(?![a-z])")

# Names that say what a page or an element has beside itself ("with-sidebar", "has-sharing",
# "content-sidebar-wrap", "no-header"), or how it looks ("label-hidden"), and parts of the page
# builder Elementor, which has all content in its widgets.
_NO_NAME = re.compile(
    r"elementor-widget|"
    r"(?<!\S)\S*(?:with(?:out)?(?!in)|(?<![a-z])(?:has|layout|label|overflow(?:-[xy])?|hidden)[-_])\S*|"
    r"(?<!\S)(?:\S*[a-z][-_]+)?no[-_]?(?:sidebar|nav|header|footer|menu)\S*|"
    r"(?<!\S)\S*(?:content[-_]+sidebar|sidebar[-_]+(?:left|right|wrap|on|included|fixed))\S*"
)

# Elements whose names describe the whole page or the whole post ("post-type-post tag-ads").
_WHOLE_PAGE_TAGS = split_names("article body main")

_ATTRIBUTE = re.compile(r' (class|id|role|style|hidden|popover|aria-hidden)="([^"]*)"')
_CAMEL_CASE = re.compile("(?<=[a-z])(?=[A-Z])")


def extract_main_content(html: str) -> str:
    """Return the main content of a page, one line per line of the page; "" if it has no text.

    Args:
        html: the body of the page as resiliparse serializes it.
    """
    page = read_blocks(html)
    return join_blocks(page, find_main_blocks(page))


def find_main_blocks(page: Blocks) -> list[int]:
    """Return the indices of the blocks of the main content, in order."""
    all_prose = [_measure_prose(block) for block in page.blocks]
    signs = _find_boilerplate(page, all_prose)
    prose: list[float] = []
    for block, chars in zip(page.blocks, all_prose, strict=True):
        prose.append(0 if signs[block.element] else chars)
    content = _find_content(page, prose)
    is_inside = _find_inside(page, content, signs, _find_teasers(page, prose, content))
    kept = {i for i, block in enumerate(page.blocks) if is_inside[block.element]}
    if kept:
        kept |= _find_lists(page, signs, max(kept))
        kept |= _find_introduction(page, all_prose, signs, kept)
    return _drop_last_headings(
        page, [i for i in sorted(kept) if not _is_link(page, page.blocks[i])]
    )


def _measure_prose(block: Block) -> float:
    """Return the characters outside of links of a block that reads like sentences, else 0."""
    num_chars = len(block.text)
    if num_chars < MIN_PROSE_CHARS or block.num_link_chars > MAX_LINK_SHARE * num_chars:
        return 0
    prose = num_chars - block.num_link_chars
    if _PUNCTUATION.search(block.text):
        return prose
    return PLAIN_PROSE_WEIGHT * prose if num_chars > MIN_PLAIN_PROSE_CHARS else 0


def _find_boilerplate(page: Blocks, prose: list[float]) -> list[_Sign]:
    """Return the sign for which each element, or an element around it, is dropped, or NONE."""
    sums = _sum_prose(page, prose)
    of_alike = _sum_alike(page, sums)
    num_h1 = page.sum_over_descendants([float(tag == "h1") for tag in page.tags])
    known: dict[str, _Sign] = {
        "": _Sign.NONE
    }  # by attributes: most of them occur many times
    signs = [_Sign.NONE] * len(page.tags)
    for element in range(1, len(page.tags)):
        attributes = page.attributes[element]
        if attributes not in known:
            known[attributes] = _find_sign(attributes)
        sign = _find_sign_of_tag(page.tags[element], known[attributes])
        max_share = _MAX_SHARES[sign]
        if sign is _Sign.NAME and num_h1[element]:
            max_share = _MAX_SHARES[
                _Sign.DOUBTFUL
            ]  # the page's heading is beside its content
        is_dropped = sign and sums[element] < max_share * (sums[0] or 1)
        if is_dropped and sign <= _Sign.NAME and page.tags[element] != "figcaption":
            limit = MAX_ALIKE_SHARE if sign is _Sign.NAME else MAX_DOUBTFUL_ALIKE_SHARE
            is_dropped = of_alike[page.tags[element], attributes] <= limit * sums[0]
        signs[element] = signs[page.parents[element]]
        if is_dropped:
            signs[element] = max(sign, signs[element])
    return signs


def _find_sign_of_tag(tag: str, sign: _Sign) -> _Sign:
    """Return the sign of an element by its tag and the sign of its attributes."""
    if tag in _NEVER_CONTENT_TAGS:
        return _Sign.NEVER_CONTENT
    if tag in _CHROME_TAGS:
        return _Sign.TAG
    if tag == "figcaption":
        return _Sign.DOUBTFUL
    if tag in _WHOLE_PAGE_TAGS or (sign is _Sign.LEAD and tag in _TEXT_TAGS):
        return _Sign.NONE
    return sign


def _find_sign(attributes: str) -> _Sign:
    """Return the strongest sign of boilerplate in these attributes."""
    sign = _Sign.NONE
    for name, value in _ATTRIBUTE.findall(attributes):
        if name in ("class", "id"):
            words = _CAMEL_CASE.sub("-", _NO_NAME.sub("", value)).lower().replace("_", "-")
            if _CHROME_NAME.search(words):
                sign = max(sign, _Sign.NAME)
            elif _DOUBTFUL_NAME.search(words):
                sign = max(sign, _Sign.DOUBTFUL)
            elif _LEAD_NAME.search(words):
                sign = max(sign, _Sign.LEAD)
        elif (
            name in ("hidden", "popover")
            or (name == "role" and value in _CHROME_ROLES)
            or (name == "aria-hidden" and value == "true")
            or (name == "style" and "display:none" in value.replace(" ", ""))
        ):
            sign = _Sign.STATE
    return sign


def _sum_alike(page: Blocks, sums: list[float]) -> dict[tuple[str, str], float]:
    """Return the prose in all elements with the same tag and attributes, not nested directly."""
    of_alike: dict[tuple[str, str], float] = {}
    for element in range(1, len(page.tags)):
        name = page.tags[element], page.attributes[element]
        parent = page.parents[element]
        is_nested = name == (page.tags[parent], page.attributes[parent])
        of_alike[name] = of_alike.get(name, 0) + (0 if is_nested else sums[element])
    return of_alike


def _sum_prose(page: Blocks, prose: list[float]) -> list[float]:
    """Return the prose in each element."""
    own = [0.0] * len(page.tags)
    for block, chars in zip(page.blocks, prose, strict=True):
        own[block.element] += chars
    return page.sum_over_descendants(own)


def _find_content(page: Blocks, prose: list[float]) -> int:
    """Return the innermost element with nearly all prose."""
    of_group = [0.0] * len(page.tags)
    for block, chars in zip(page.blocks, prose, strict=True):
        of_group[page.groups[block.element]] += chars
    largest = max(of_group) or 1
    weighted: list[float] = []
    for block, chars in zip(page.blocks, prose, strict=True):
        share = of_group[page.groups[block.element]] / largest
        weighted.append(chars * share**GROUP_EXPONENT)
    sums = _sum_prose(page, weighted)
    # Elements are in the order of start tags: the last of several is the innermost.
    content = 0
    for element in range(1, len(page.tags)):
        is_child = page.parents[element] == content
        has_nearly_all = sums[element] >= CONTENT_SHARE * sums[content] > 0
        if is_child and has_nearly_all and page.tags[element] not in _INNER_TAGS:
            content = element
    return content


_INNER_TAGS = PARAGRAPH_TAGS | {"table", "tbody", "td", "th", "thead", "tr"}
# An introduction can be one of these itself, and a table can be named after its header.
_TEXT_TAGS = _INNER_TAGS - {"li"}


def _find_teasers(page: Blocks, prose: list[float], content: int) -> set[int]:
    """Return the elements beside the article that have linked headings and little prose."""
    of_group = [0.0] * len(page.tags)
    num_linked = [0.0] * len(page.tags)
    for block, chars in zip(page.blocks, prose, strict=True):
        of_group[page.groups[block.element]] += chars
        is_linked = block.num_link_chars > MIN_LINK_BLOCK_SHARE * len(block.text)
        if is_linked and page.tags[block.element] in _HEADING_TAGS:
            num_linked[block.element] += 1
    sums = _sum_prose(page, prose)
    article = max(range(len(page.tags)), key=of_group.__getitem__)
    if of_group[article] < MIN_ARTICLE_SHARE * sums[content]:
        return set()
    around: set[int] = set()
    while article > 0:
        around.add(article)
        article = page.parents[article]
    num_linked = page.sum_over_descendants(num_linked)
    teasers: set[int] = set()
    for element in range(content + 1, len(page.tags)):
        is_beside = page.tags[element] not in _INNER_TAGS and element not in around
        max_chars = MAX_TEASER_CHARS * num_linked[element]
        if is_beside and num_linked[element] and sums[element] <= max_chars:
            teasers.add(element)
    return teasers


def _find_inside(
    page: Blocks, content: int, signs: list[_Sign], teasers: set[int]
) -> list[bool]:
    """Return which elements are in the content, without boilerplate and lists of links."""
    own_chars = [0.0] * len(page.tags)
    own_link_chars = [0.0] * len(page.tags)
    for block in page.blocks:
        if not signs[block.element]:
            own_chars[block.element] += len(block.text)
            own_link_chars[block.element] += block.num_link_chars
    num_chars = page.sum_over_descendants(own_chars)
    num_link_chars = page.sum_over_descendants(own_link_chars)
    is_inside = [False] * len(page.tags)
    is_inside[content] = True
    for element in range(content + 1, len(page.tags)):
        is_link_list = (
            num_link_chars[element] > MAX_LINK_SHARE * num_chars[element]
            and num_chars[element] - num_link_chars[element] < MIN_CHARS_OUTSIDE_LINKS
            and page.tags[element] not in _ITEM_TAGS
        )
        is_inside[element] = (
            is_inside[page.parents[element]]
            and not signs[element]
            and element not in teasers
            and not is_link_list
        )
    return is_inside


# Elements that are judged as blocks: a link in a sentence, in a cell, or in one item of a list.
_ITEM_TAGS = split_names("h1 h2 h3 h4 h5 h6 li p td th tr")
_HEADING_TAGS = split_names("h1 h2 h3 h4 h5 h6")


def _find_introduction(
    page: Blocks, all_prose: list[float], signs: list[_Sign], kept: set[int]
) -> set[int]:
    """Return the blocks of prose between the page's heading and the first prose of the content."""
    first = min((i for i in kept if all_prose[i]), default=min(kept))
    headings = {"h1"}
    if not any(page.tags[block.element] == "h1" for block in page.blocks):
        headings = {"h2", "h3"}
    found: set[int] = set()
    for i in range(first - 1, max(-1, first - 1 - MAX_INTRODUCTION_BLOCKS), -1):
        element = page.blocks[i].element
        if page.tags[element] in headings:
            return found
        if all_prose[i] >= MIN_INTRODUCTION_CHARS and signs[element] <= _Sign.LEAD:
            found.add(i)
    return set()


def _find_lists(page: Blocks, signs: list[_Sign], last: int) -> set[int]:
    """Return the blocks of lists and tables between the page's heading and block `last`.

    They are ingredients, prices or dates, which often are in an element beside that of the prose.
    """
    lists = [0] * len(page.tags)
    for element in range(1, len(page.tags)):
        is_list = page.tags[element] in _LIST_TAGS
        lists[element] = lists[page.parents[element]] or (element if is_list else 0)
    items: dict[int, list[int]] = {}
    has_heading = False
    for i in range(last):
        element = page.blocks[i].element
        has_heading = has_heading or page.tags[element] in ("h1", "h2")
        if has_heading and lists[element] and not signs[element]:
            items.setdefault(lists[element], []).append(i)
    found: set[int] = set()
    for its in items.values():
        num_chars = sum(len(page.blocks[i].text) for i in its)
        num_link_chars = sum(page.blocks[i].num_link_chars for i in its)
        if len(its) >= MIN_LIST_ITEMS and num_link_chars <= MAX_LINK_SHARE * num_chars:
            found.update(its)
    return found


_LIST_TAGS = split_names("dl ol table ul")


def _drop_last_headings(page: Blocks, kept: list[int]) -> list[int]:
    """Return the blocks without headings at the end: those of lists of links that were dropped."""
    end = len(kept)
    while end and page.tags[page.blocks[kept[end - 1]].element] in _HEADING_TAGS:
        end -= 1
    return kept[:end] or kept


def _is_link(page: Blocks, block: Block) -> bool:
    """Return whether a block is nothing but a link, and no heading or cell."""
    tag = page.tags[block.element]
    return (
        tag not in _HEADING_TAGS
        and tag not in ("td", "th")
        and len(block.text) < MAX_LINK_BLOCK_CHARS
        and block.num_link_chars > MIN_LINK_BLOCK_SHARE * len(block.text)
    )


def join_blocks(page: Blocks, indices: list[int]) -> str:
    r"""Join blocks as resiliparse does: cells of a row by \t\t, items by \n, paragraphs by \n\n."""
    pieces: list[str] = []
    last_row = last_tag = None
    for i in indices:
        block = page.blocks[i]
        tag = page.tags[block.element]
        row = page.parents[block.element] if tag in ("td", "th") else None
        if pieces:
            if row is not None and row == last_row:
                pieces.append("\t\t")
            elif tag in _LINE_TAGS and last_tag in _LINE_TAGS:
                pieces.append("\n")
            else:
                pieces.append("\n\n")
        pieces.append(block.text)
        last_row, last_tag = row, tag
    return "".join(pieces)


_LINE_TAGS = split_names("dd dt li td th")
