r"""Find the main content of a page: its text without navigation, footers, teasers and comments.

    extract_main_content(tree.body.html)         # "Bread\n\nFlour, water."

Four steps decide on the blocks and block elements of `blocks.py`:

1. Prose is measured: characters of blocks that have sentences and few links. Link density and text
   length are the features that separate content from boilerplate (Kohlschuetter et al. 2010,
   "Boilerplate Detection using Shallow Text Features").
2. Elements whose tag, role, class or id names boilerplate are dropped, as in Readability and
   trafilatura, unless they have most of the prose.
3. The content is the innermost element with nearly all prose. Prose counts more where many
   paragraphs have the same parent, which those of an article have and teasers do not. Blocks between
   the page's heading and the content are added: the introduction of an article.
4. Elements in it that consist of links are dropped.

The limits were chosen on the half of the gold pages that is not held out
(benchmarks/quality/extraction.py): F1 is 0.961 on articles and 0.928 on other pages. Half or twice a
limit, or the same step of a share, changes either by at most 0.014. The time is linear in the length
of the page.
"""

from __future__ import annotations

import math
import re

from stages.html.blocks import PARAGRAPH_TAGS, Block, Blocks, read_blocks, split_names

# Raise it if an equal page gives other main content. It is part of the fingerprint of extract.
VERSION = 3

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

# The innermost element with this share of the weighted prose is the content. 0.7 loses parts of
# other pages (0.922, articles 0.968), 0.9 keeps teasers beside articles (0.956, other pages 0.928).
CONTENT_SHARE = 0.85

# Prose of a group counts (prose of the group / prose of the largest group) ** GROUP_EXPONENT.
# Without it (0) F1 is 0.952 and 0.924. With 1 it is 0.970 and 0.926, but pages of many groups of
# different size, such as product lists, lose text.
GROUP_EXPONENT = 0.5

# An introduction has at least this much prose, and at most this many blocks are between it and the
# content.
MIN_INTRODUCTION_CHARS = 120
MAX_INTRODUCTION_BLOCKS = 30

# Largest share of the page's prose in an element that is dropped for its tag, name or looks. Some
# pages are one form. <nav> and <footer> have no limit: a page without other text keeps all text
# (extraction.py).
CHROME_TAG_SHARE = 0.9
CHROME_NAME_SHARE = 0.6
DOUBTFUL_NAME_SHARE = 0.05

_NEVER_CONTENT_TAGS = split_names("dialog footer menu nav search")
_CHROME_TAGS = split_names("aside form label")
_CHROME_ROLES = split_names(
    "alert banner complementary contentinfo dialog menu menubar navigation search tablist "
    "toolbar"
)

# Words at the end of a part of a class or id ("main-nav", "mainNav", "mainnav"). Those of the
# second pattern must be the whole part; content has them as well ("hidden-print", "ad-free").
_CHROME_NAME = re.compile(
    r"(?:nav(?:bar|igation|box)?|menu|breadcrumb|footer|sidebar|side-bar|shar(?:e|ing)|"
    r"social|sociable|related|comment|disqus|newsletter|subscribe|subscription|signup|sign-up|"
    r"cookie[a-z]*|consent|gdpr|pagination|pager|taglist|tag-list|byline|copyright|outbrain|taboola|"
    # Notices of OneTrust, Usercentrics, TrustArc, Complianz, iubenda and Quantcast.
    r"onetrust|usercentrics|truste|trustarc|cmplz|iubenda|qc-cmp|"
    r"noprint|no-print|advert|advertisement|advertorial|(?<![a-z])(?:search|skip|jump|login)|"
    r"masthead|toolbar|popup|trending)s?(?![a-z])"
)
_DOUBTFUL_NAME = re.compile(
    r"(?<![a-z])(?:widget|ad|promo[a-z]*|sponsor[a-z]*|banner|recommend[a-z]*|modal|overlay|tag|"
    r"author|meta|teaser[a-z]*|print|rating|hidden|popular|toc|infobox|dropdown|header|caption|"
    r"credit|"
    # Boxes about the author of a post: XenForo, vBulletin, phpBB, Invision, Stack Exchange.
    r"(?:message|cell)-+user(?!-)|user-?(?:info|details|extra|title|banner)|post-?profile|"
    r"author-(?:column|pane|info|details|stat))s?(?![a-z])"
)
# Part of the page builder Elementor, which has all content in its widgets.
_NO_NAME = re.compile(r"elementor-widget")

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
    prose = [_measure_prose(block) for block in page.blocks]
    is_dropped = _find_boilerplate(page, prose)
    for i, block in enumerate(page.blocks):
        if is_dropped[block.element]:
            prose[i] = 0
    content = _find_content(page, prose)
    is_inside = _find_inside(page, content, is_dropped)
    kept = [i for i, block in enumerate(page.blocks) if is_inside[block.element]]
    if kept:
        kept = _find_introduction(page, prose, kept[0]) + kept
    return [i for i in kept if not _is_link(page, page.blocks[i])]


def _measure_prose(block: Block) -> float:
    """Return the characters outside of links of a block that reads like sentences, else 0."""
    num_chars = len(block.text)
    if num_chars < MIN_PROSE_CHARS or block.num_link_chars > MAX_LINK_SHARE * num_chars:
        return 0
    prose = num_chars - block.num_link_chars
    if _PUNCTUATION.search(block.text):
        return prose
    return PLAIN_PROSE_WEIGHT * prose if num_chars > MIN_PLAIN_PROSE_CHARS else 0


def _find_boilerplate(page: Blocks, prose: list[float]) -> list[bool]:
    """Return which elements are boilerplate by their names, or are in such an element."""
    sums = _sum_prose(page, prose)
    limits: dict[str, float] = {}  # by attributes: most of them occur many times
    is_dropped = [False] * len(page.tags)
    for element in range(1, len(page.tags)):
        tag, attributes = page.tags[element], page.attributes[element]
        limit = 0.0
        if tag in _NEVER_CONTENT_TAGS:
            limit = math.inf
        elif tag in _CHROME_TAGS:
            limit = CHROME_TAG_SHARE
        elif tag == "figcaption":
            limit = DOUBTFUL_NAME_SHARE
        elif attributes and tag not in _WHOLE_PAGE_TAGS:
            if attributes not in limits:
                limits[attributes] = _find_limit(attributes)
            limit = limits[attributes]
        is_dropped[element] = is_dropped[page.parents[element]] or (
            sums[element] < limit * sums[0] or limit == math.inf
        )
    return is_dropped


def _find_limit(attributes: str) -> float:
    """Return the share of prose up to which an element with these attributes is boilerplate."""
    limit = 0.0
    for name, value in _ATTRIBUTE.findall(attributes):
        if name in ("class", "id"):
            words = _CAMEL_CASE.sub("-", _NO_NAME.sub("", value)).lower().replace("_", "-")
            if _CHROME_NAME.search(words):
                limit = CHROME_NAME_SHARE
            elif _DOUBTFUL_NAME.search(words):
                limit = max(limit, DOUBTFUL_NAME_SHARE)
        elif (
            name in ("hidden", "popover")
            or (name == "role" and value in _CHROME_ROLES)
            or (name == "aria-hidden" and value == "true")
            or (name == "style" and "display:none" in value.replace(" ", ""))
        ):
            limit = CHROME_NAME_SHARE
    return limit


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


def _find_inside(page: Blocks, content: int, is_dropped: list[bool]) -> list[bool]:
    """Return which elements are in the content, without boilerplate and lists of links."""
    own_chars = [0.0] * len(page.tags)
    own_link_chars = [0.0] * len(page.tags)
    for block in page.blocks:
        if not is_dropped[block.element]:
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
            and not is_dropped[element]
            and not is_link_list
        )
    return is_inside


# Elements that are judged as blocks: a link in a sentence, in a cell, or in one item of a list.
_ITEM_TAGS = split_names("h1 h2 h3 h4 h5 h6 li p td th tr")
_HEADING_TAGS = split_names("h1 h2 h3 h4 h5 h6")


def _find_introduction(page: Blocks, prose: list[float], first: int) -> list[int]:
    """Return the blocks of prose between the page's heading and the first block of the content."""
    found: list[int] = []
    for i in range(first - 1, max(-1, first - 1 - MAX_INTRODUCTION_BLOCKS), -1):
        if page.tags[page.blocks[i].element] == "h1":
            return found[::-1]
        if prose[i] >= MIN_INTRODUCTION_CHARS:
            found.append(i)
    return []


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
