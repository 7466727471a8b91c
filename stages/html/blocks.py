r"""Split a page into blocks of text, and its block elements into a tree.

    page = read_blocks('<body><h1>Bread</h1><p>Flour, <a href="/w">water</a>.</p></body>')
    [block.text for block in page.blocks]        # ["Bread", "Flour, water."]
    page.tags                                    # ["", "body", "h1", "p"]
    page.parents                                 # [-1, 0, 1, 1]

The input is HTML as resiliparse serializes it (HTML Standard, section 13.3): every tag is closed,
attributes are in double quotes, and "<" and ">" are escaped everywhere except in comments and raw
text. That makes one pattern enough to read it, and walking the tree of resiliparse from Python
takes five times as long. The time is linear in the length of the page.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field


def split_names(names: str) -> frozenset[str]:
    """Return the names that are separated by blanks."""
    return frozenset(names.split())


_TAG = re.compile(r"<(/?)([a-zA-Z][^\s/<>]*+)([^<>]*+)>([^<]*)")

# Comments, and elements whose content is not escaped.
_RAW = re.compile(r"<(?:!--|(script|style|iframe|noembed|noframes|plaintext|xmp)[ >])")

# Elements without text for readers; those inside a sentence do not end its block.
_SKIPPED = split_names(
    "audio button canvas object select svg template textarea title video"
)

BLOCK_TAGS = split_names(
    "address article aside blockquote body caption center dd details dialog dir div dl dt fieldset "
    "figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup label legend li listing main "
    "menu nav ol p pre search section summary table tbody td tfoot th thead tr ul"
)

# Elements of running text: their blocks belong to the group of the element around them.
PARAGRAPH_TAGS = split_names("blockquote dd dl dt h1 h2 h3 h4 h5 h6 li listing ol p pre ul")
_PREFORMATTED = split_names("listing pre")

# Text nodes that are an image: symbols of icon fonts (private use area), and the link to a heading.
_ICON = re.compile(r"[\ue000-\uf8ff¶]")

# Blocks that are nothing but the markup of images and frames: programs that store pages escape what is
# in <noscript>. Text that shows how to write such markup is in <p>, <li> or <pre>.
_IMAGE_MARKUP = re.compile(r"(?:<(?:img|iframe)\s[^<>]*>\s*(?:</iframe>\s*)?)+")

# Chinese and Japanese write U+3000 between names and sentences. It is as wide as a character.
_IDEOGRAPHIC_SPACE = "\u3000"
_OTHER_SPACE = re.compile(rf"[^\S{_IDEOGRAPHIC_SPACE}]+")


@dataclass(slots=True)
class Block:
    """A text without block elements in it."""

    element: int  # the innermost block element around it, an index of `Blocks.tags`
    text: str  # lines as on the page: of <pre>, or after <br>
    num_link_chars: int  # characters of the text in links


@dataclass(slots=True)
class Blocks:
    """The blocks of a page in their order, and its block elements in the order of start tags."""

    blocks: list[Block] = field(default_factory=list[Block])
    # One entry per block element; 0 is the root.
    tags: list[str] = field(default_factory=lambda: [""])
    attributes: list[str] = field(default_factory=lambda: [""])
    parents: list[int] = field(default_factory=lambda: [-1])
    groups: list[int] = field(default_factory=lambda: [0])  # innermost of no PARAGRAPH_TAGS

    def add_element(self, tag: str, attributes: str, parent: int) -> int:
        """Append an element and return its index."""
        index = len(self.tags)
        self.tags.append(tag)
        self.attributes.append(attributes)
        self.parents.append(parent)
        self.groups.append(self.groups[parent] if tag in PARAGRAPH_TAGS else index)
        return index

    def sum_over_descendants(self, values: list[float]) -> list[float]:
        """Return for each element the sum of its value and those of all elements in it."""
        sums = list(values)
        for index in range(len(sums) - 1, 0, -1):
            sums[self.parents[index]] += sums[index]
        return sums


def read_blocks(html: str) -> Blocks:
    """Read a page that resiliparse has serialized."""
    return _Reader().read(_remove_raw(html))


class _Reader:
    """The state between two tags."""

    def __init__(self) -> None:
        self.page = Blocks()
        self.element = 0
        self.pieces: list[str] = []
        self.num_link_chars = 0
        self.num_preformatted = 0  # open elements

    def read(self, html: str) -> Blocks:
        is_in_link = False
        skipped, num_skipped = (
            "",
            0,
        )  # the outermost skipped element, and how many of its name
        for slash, name, attributes, text in _TAG.findall(html):
            if num_skipped:
                if name == skipped:
                    num_skipped += -1 if slash else 1
                if num_skipped:
                    continue
            elif not slash and (
                # Custom elements can be hidden until they are opened (HTML Standard, section 6.12).
                name in _SKIPPED or ("-" in name and " popover=" in attributes)
            ):
                skipped, num_skipped = name, 1
                continue
            elif name in BLOCK_TAGS:
                self._end_block()
                if slash:
                    self._close(name)
                else:
                    self._open(name, attributes)
            elif name == "a":
                is_in_link = not slash and " href=" in attributes
            elif name == "br":
                self.pieces.append("\n")
            elif name == "hr":
                self._end_block()
            if text:
                self._add_text(text, is_in_link)
        self._end_block()
        return self.page

    def _add_text(self, text: str, is_in_link: bool) -> None:
        if _ICON.fullmatch(text.strip()):
            return
        if not self.num_preformatted:
            text = text.replace("\n", " ")
        self.pieces.append(text)
        if is_in_link:
            self.num_link_chars += len(text.strip())

    def _open(self, name: str, attributes: str) -> None:
        self.element = self.page.add_element(name, attributes, self.element)
        self.num_preformatted += name in _PREFORMATTED

    def _close(self, name: str) -> None:
        self.element = max(0, self.page.parents[self.element])
        self.num_preformatted -= name in _PREFORMATTED

    def _end_block(self) -> None:
        text = _unescape("".join(self.pieces))
        if self.num_preformatted:
            text = text.strip("\n")
        else:
            lines = map(_collapse_space, text.split("\n"))
            text = "\n".join(filter(None, lines))
        is_markup = (
            text.startswith("<i")
            and self.page.tags[self.element] not in PARAGRAPH_TAGS
            and _IMAGE_MARKUP.fullmatch(text)
        )
        if text and not text.isspace() and not is_markup:
            num_link_chars = min(self.num_link_chars, len(text))
            self.page.blocks.append(Block(self.element, text, num_link_chars))
        self.pieces.clear()
        self.num_link_chars = 0


def _collapse_space(line: str) -> str:
    """Replace white space by one blank, except ideographic space inside the line."""
    if _IDEOGRAPHIC_SPACE in line:
        return _OTHER_SPACE.sub(" ", line).strip()
    return " ".join(line.split())


def _remove_raw(html: str) -> str:
    """Return the page without comments and without elements whose content is not escaped."""
    kept: list[str] = []
    position = 0
    while start := _RAW.search(html, position):
        kept.append(html[position : start.start()])
        end_mark = f"</{start[1]}>" if start[1] else "-->"
        # From the dashes of "<!--" on, because "<!-->" is a whole comment.
        end = html.find(end_mark, start.start() + 2)
        position = end + len(end_mark) if end >= 0 else len(html)
    kept.append(html[position:])
    return "".join(kept)


def _unescape(text: str) -> str:
    """Return the text with the characters that a serializer escapes (section 13.3)."""
    if "&" in text:
        text = text.replace("&nbsp;", "\u00a0").replace("&lt;", "<")
        text = text.replace("&gt;", ">").replace("&amp;", "&")
    return text
