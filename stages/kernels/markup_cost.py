"""Estimate how long an HTML parser takes for a page, from its tags alone.

Parsers of HTML take quadratic time for several kinds of markup: a page of 1 MB can hold one for
hours. The estimate follows the stack of open elements and the list of active formatting elements
(HTML Standard, sections 13.2.4.2 and 13.2.4.3) as far as the time depends on them. It is no bound,
because it leaves out rules that hardly matter.

The result depends on the page alone, so it is the same on every machine.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.compilation import compiled
from stages.kernels.markup_scan import (
    EXCLAMATION,
    LESS,
    QUESTION,
    SLASH,
    Page,
    count_attribute_names,
    find_end_tag,
    find_name_end,
    hash_name,
    hash_span,
    is_letter,
    read_attributes,
    skip_declaration,
)

# Nanoseconds that resiliparse 2.0.1 takes, measured on 2026-11-22 on inputs of several sizes.
_FORMATTING_NS = 20  # per tag and active formatting element
_REOPEN_NS = 800  # per formatting element that is reopened, as <b> is in <p><b></p>x
_ATTRIBUTE_NS = 2  # per pair of attributes of one tag
_NAME_NS = 1  # per pair of different attribute names of the page
_OPTION_NS = 4  # per pair of options of one <select>

# The estimate is cut off here, which also bounds the time that it takes.
MAX_ESTIMATE_NS = 4_000_000_000

# Attributes of a page up to which their names are not counted: 10,000 names take 0.1 s.
_FEW_ATTRIBUTES = 10_000

# Properties of elements.
_VOID = 1  # has no content
_RAW = 2  # its content is text up to its end tag
_FORMATTING = 4  # if it is not closed, it is reopened in the next block
_SPECIAL = 8  # is not closed by the end tag of an ordinary element around it
_SCOPE = 16  # is not closed by the end tag of a block around it
_MARKER = 32  # formatting elements around it are not reopened in it
_ENDS_P = 64  # ends the paragraph that is open
_FOREIGN = 128  # SVG and MathML, in which <x/> has no content

_PROPERTIES = {
    _VOID: "area base basefont bgsound br col embed frame hr image img input keygen link meta param "
    "source track wbr",
    _RAW: "iframe noembed noframes plaintext script style textarea title xmp",
    _FORMATTING: "a b big code em font i nobr s small strike strong tt u",
    _SPECIAL: "address applet article aside blockquote body button caption center colgroup dd "
    "details dir div dl dt fieldset figcaption figure footer form frameset h1 h2 h3 h4 h5 h6 head "
    "header hgroup html li listing main marquee menu nav noscript object ol p pre search section "
    "select summary table tbody td template tfoot th thead tr ul",
    _SCOPE: "applet caption html marquee object table td template th",
    _MARKER: "applet caption marquee object td template th",
    _ENDS_P: "address article aside blockquote center dd details dialog dir div dl dt fieldset "
    "figcaption figure footer form h1 h2 h3 h4 h5 h6 header hgroup hr li listing main menu nav ol p "
    "plaintext pre search section summary table ul xmp",
    _FOREIGN: "math svg",
}

# An element ends the open element of its group, but none around the boundary. Without one, none
# around a `_SPECIAL` element, except address, div and p.
_GROUPS = (
    ("li", ""),
    ("dd dt", ""),
    ("option optgroup", "select"),
    ("td th", "table"),
    ("tr", "table"),
    ("tbody tfoot thead caption colgroup", "table"),
    ("rb rp rt rtc", "ruby"),
    ("button", "table"),
)
# Elements of these groups are ignored outside of a table.
_FIRST_TABLE_GROUP, _LAST_TABLE_GROUP = 4, 6
_RUBY_GROUP = 7  # they are nested outside of <ruby>


# Slots of the table of known names, a power of two.
_NUM_SLOTS = 512


def _tabulate() -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return the hashes, properties and groups of all known names, (_NUM_SLOTS,) each.

    A name is in the slot of its hash, or in the next free one.
    """
    properties: dict[str, int] = {}
    for flag, names in _PROPERTIES.items():
        for name in names.split():
            properties[name] = properties.get(name, 0) | flag
    groups: dict[str, int] = {}
    for number, (names, _) in enumerate(_GROUPS, start=1):
        groups.update(dict.fromkeys(names.split(), number))
    table = np.zeros((3, _NUM_SLOTS), np.int64)
    for name in sorted(properties.keys() | groups.keys()):
        slot = hash_name(name) % _NUM_SLOTS
        while table[0, slot]:
            slot = (slot + 1) % _NUM_SLOTS
        table[:, slot] = hash_name(name), properties.get(name, 0), groups.get(name, 0)
    return table[0], table[1], table[2]


_NAMES, _PROPERTIES_OF, _GROUP_OF = _tabulate()
_BOUNDARY_OF = np.array(
    [0, *(hash_name(name) if name else 0 for _, name in _GROUPS)], np.int64
)
_A, _NOBR, _P, _DIV, _ADDRESS = map(hash_name, ("a", "nobr", "p", "div", "address"))
_FORM, _SELECT, _OPTION, _TABLE = map(hash_name, ("form", "select", "option", "table"))
_HTML, _BODY, _RUBY = map(hash_name, ("html", "body", "ruby"))
_MARKER_NAME = 0

# One array holds the open elements and the active formatting elements, because each array that is
# passed to a function takes time. Rows of the open elements, (num_open,):
_NAME = 0
_SLOT = 1  # in the table of known names, or -1
_ENTRY = 2  # index in the formatting list, or -1
# Rows of the formatting list, (num_formatting,):
_F_NAME = 3  # _MARKER_NAME: a marker
_F_TAG = 4  # hash of the whole tag
_F_OPEN = 5  # index in the open elements; -1: closed by the end of a block
# Row of the lengths:
_SIZES = 6
_NUM_OPEN, _NUM_FORMATTING, _NUM_FOREIGN = 0, 1, 2

_Elements: TypeAlias = NDArray[np.int64]  # (7, 3 or more)

# Counts of a page, (_NUM_COUNTS,) int64.
_ESTIMATE, _ATTRIBUTES, _MAX_ATTRIBUTES, _ROOT_ATTRIBUTES, _OPTIONS = 0, 1, 2, 3, 4
_NUM_COUNTS = 5

_Counts: TypeAlias = NDArray[np.int64]


def estimate_parse_ns(page: bytes, depth_ns: int) -> tuple[int, int]:
    """Return the estimated time to parse a page, and the largest number of attributes of a tag.

    Args:
        page: the page in an encoding that contains ASCII.
        depth_ns: time per tag and open element.

    Returns:
        At most MAX_ESTIMATE_NS. Where the estimate reaches it, the page is not read to its end.
    """
    return _estimate(np.frombuffer(page, np.uint8), depth_ns, page.count(b"<"))


@compiled
def _estimate(page: Page, depth_ns: int, num_tags: int) -> tuple[int, int]:
    # Each open element and each formatting element has its tag.
    elements = np.empty((7, num_tags + 4), np.int64)
    elements[_SIZES, :3] = 0
    counts = np.zeros(_NUM_COUNTS, np.int64)
    i = 0
    while counts[_ESTIMATE] < MAX_ESTIMATE_NS:
        text = i
        while i < len(page) and page[i] != LESS:
            i += 1
        if i + 2 >= len(page):
            break
        if i > text:
            counts[_ESTIMATE] += _REOPEN_NS * _reopen(elements)
        counts[_ESTIMATE] += depth_ns * elements[_SIZES, _NUM_OPEN]
        counts[_ESTIMATE] += _FORMATTING_NS * elements[_SIZES, _NUM_FORMATTING]
        if is_letter(page[i + 1]):
            i = _read_start_tag(page, i + 1, elements, counts)
        elif page[i + 1] == SLASH and is_letter(page[i + 2]):
            i = _read_end_tag(page, i + 2, elements, counts)
        elif page[i + 1] in (EXCLAMATION, QUESTION, SLASH):
            i = skip_declaration(page, i)
        else:
            i += 1
    if counts[_ATTRIBUTES] > _FEW_ATTRIBUTES:
        num_names = count_attribute_names(page)
        counts[_ESTIMATE] += _NAME_NS * num_names * num_names
    return min(counts[_ESTIMATE], MAX_ESTIMATE_NS), counts[_MAX_ATTRIBUTES]


@njit(nogil=True)
def _read_start_tag(page: Page, start: int, elements: _Elements, counts: _Counts) -> int:
    """Read a start tag from its name on. Return the index after it, and after the text of `_RAW`."""
    name, num_attributes, end = _read_name_and_attributes(page, start, counts)
    if name in (_HTML, _BODY):
        # The attributes of all these tags are added to one element.
        counts[_ESTIMATE] += 2 * _ATTRIBUTE_NS * counts[_ROOT_ATTRIBUTES] * num_attributes
        counts[_ROOT_ATTRIBUTES] += num_attributes
    elif name == _OPTION:
        counts[_ESTIMATE] += 2 * _OPTION_NS * counts[_OPTIONS]
        counts[_OPTIONS] += 1
    slot = _find_known(name)
    properties = _PROPERTIES_OF[slot] if slot >= 0 else 0
    if properties & _RAW and elements[_SIZES, _NUM_FOREIGN] == 0:
        return find_end_tag(page, end, name)
    is_empty = page[end - 2] == SLASH
    counts[_ESTIMATE] += _REOPEN_NS * _open(elements, name, slot, is_empty)
    if properties & _FORMATTING:
        _add_formatting(elements, name, hash_span(page, start, end))
    return end


@njit(nogil=True)
def _read_name_and_attributes(
    page: Page, start: int, counts: _Counts
) -> tuple[int, int, int]:
    """Read a tag from its name on, and count its attributes.

    Returns:
        The hash of the name, the number of attributes, and the index after the tag.
    """
    name_end = find_name_end(page, start)
    num_attributes, end = read_attributes(page, name_end)
    counts[_ATTRIBUTES] += num_attributes
    counts[_MAX_ATTRIBUTES] = max(counts[_MAX_ATTRIBUTES], num_attributes)
    counts[_ESTIMATE] += _ATTRIBUTE_NS * num_attributes * num_attributes
    return hash_span(page, start, name_end), num_attributes, end


@njit(nogil=True)
def _read_end_tag(page: Page, start: int, elements: _Elements, counts: _Counts) -> int:
    """Read an end tag from its name on, and return the index after it."""
    name, _, end = _read_name_and_attributes(page, start, counts)
    if name == _SELECT:
        counts[_OPTIONS] = 0
    _close(elements, name)
    return end


@njit(nogil=True)
def _find_known(name: int) -> int:
    """Return the slot of an element in the table of known names, or -1."""
    slot = name & (_NUM_SLOTS - 1)
    while _NAMES[slot]:
        if _NAMES[slot] == name:
            return slot
        slot = (slot + 1) & (_NUM_SLOTS - 1)
    return -1


@njit(nogil=True)
def _open(elements: _Elements, name: int, slot: int, is_empty: bool) -> int:
    """Open an element; return the number of formatting elements that are reopened before it."""
    flags = _PROPERTIES_OF[slot] if slot >= 0 else 0
    group = _GROUP_OF[slot] if slot >= 0 else 0
    num_reopened = 0
    if flags & _ENDS_P:
        _close_in_scope(elements, _P)
    if group:
        if _FIRST_TABLE_GROUP <= group <= _LAST_TABLE_GROUP and not _is_open(
            elements, _TABLE
        ):
            return 0
        if group != _RUBY_GROUP or _is_open(elements, _RUBY):
            _end_group(elements, group)
    if not flags & _SPECIAL:
        if name in (_A, _NOBR):
            _close_formatting(elements, name)
        num_reopened = _reopen(elements)
    is_second_form = name == _FORM and _is_open(elements, _FORM)
    if flags & _VOID or is_second_form or (is_empty and elements[_SIZES, _NUM_FOREIGN]):
        return num_reopened
    _push(elements, name, slot)
    if flags & _MARKER:
        _add_formatting(elements, _MARKER_NAME, _MARKER_NAME)
    return num_reopened


@njit(nogil=True)
def _push(elements: _Elements, name: int, slot: int) -> None:
    top = elements[_SIZES, _NUM_OPEN]
    elements[_NAME, top], elements[_SLOT, top], elements[_ENTRY, top] = name, slot, -1
    elements[_SIZES, _NUM_OPEN] = top + 1
    elements[_SIZES, _NUM_FOREIGN] += slot >= 0 and _PROPERTIES_OF[slot] & _FOREIGN != 0


@njit(nogil=True)
def _pop_to(elements: _Elements, size: int) -> None:
    """Close the innermost elements, until `size` are open."""
    for i in range(elements[_SIZES, _NUM_OPEN] - 1, size - 1, -1):
        if elements[_ENTRY, i] >= 0:
            elements[_F_OPEN, elements[_ENTRY, i]] = -1
        if elements[_SLOT, i] >= 0:
            flags = _PROPERTIES_OF[elements[_SLOT, i]]
            elements[_SIZES, _NUM_FOREIGN] -= flags & _FOREIGN != 0
            if flags & _MARKER:
                _clear_to_marker(elements)
    elements[_SIZES, _NUM_OPEN] = min(size, elements[_SIZES, _NUM_OPEN])


@njit(nogil=True)
def _is_open(elements: _Elements, name: int) -> bool:
    for i in range(elements[_SIZES, _NUM_OPEN] - 1, -1, -1):
        if elements[_NAME, i] == name:
            return True
    return False


@njit(nogil=True)
def _end_group(elements: _Elements, group: int) -> None:
    """Close the open element of the group, and everything in it."""
    boundary = _BOUNDARY_OF[group]
    for i in range(elements[_SIZES, _NUM_OPEN] - 1, -1, -1):
        slot, name = elements[_SLOT, i], elements[_NAME, i]
        if slot >= 0 and _GROUP_OF[slot] == group:
            _pop_to(elements, i)
            return
        is_special = slot >= 0 and _PROPERTIES_OF[slot] & _SPECIAL
        is_passed = name in (_ADDRESS, _DIV, _P)
        if name == boundary or (boundary == 0 and is_special and not is_passed):
            return


@njit(nogil=True)
def _close(elements: _Elements, name: int) -> None:
    """Close the element that an end tag names, if one is open."""
    slot = _find_known(name)
    flags = _PROPERTIES_OF[slot] if slot >= 0 else 0
    group = _GROUP_OF[slot] if slot >= 0 else 0
    if flags & _FORMATTING:
        _close_formatting(elements, name)
        return
    is_of_table = name == _TABLE or _FIRST_TABLE_GROUP <= group <= _LAST_TABLE_GROUP
    for i in range(elements[_SIZES, _NUM_OPEN] - 1, -1, -1):
        if elements[_NAME, i] == name:
            _pop_to(elements, i)
            return
        other = _PROPERTIES_OF[elements[_SLOT, i]] if elements[_SLOT, i] >= 0 else 0
        if is_of_table:
            is_boundary = elements[_NAME, i] == _TABLE
        else:
            is_boundary = other & (_SCOPE if flags & _SPECIAL else _SPECIAL) != 0
        if is_boundary:
            return


@njit(nogil=True)
def _close_in_scope(elements: _Elements, name: int) -> None:
    """Close an element, unless an element of `_SCOPE` is open in it."""
    for i in range(elements[_SIZES, _NUM_OPEN] - 1, -1, -1):
        if elements[_NAME, i] == name:
            _pop_to(elements, i)
            return
        if elements[_SLOT, i] >= 0 and _PROPERTIES_OF[elements[_SLOT, i]] & _SCOPE:
            return


@njit(nogil=True)
def _add_formatting(elements: _Elements, name: int, tag: int) -> None:
    """Add the innermost open element to the formatting list, or a marker.

    Of four equal tags behind the last marker, the first is removed ("Noah's Ark clause").
    """
    num, num_equal, first_equal = elements[_SIZES, _NUM_FORMATTING], 0, -1
    if name != _MARKER_NAME:
        for i in range(num - 1, -1, -1):
            if elements[_F_NAME, i] == _MARKER_NAME:
                break
            if elements[_F_TAG, i] == tag:
                num_equal, first_equal = num_equal + 1, i
    if num_equal >= 3:
        _remove_formatting(elements, first_equal)
        num -= 1
    top = elements[_SIZES, _NUM_OPEN] - 1
    elements[_F_NAME, num], elements[_F_TAG, num] = name, tag
    elements[_F_OPEN, num] = top
    elements[_SIZES, _NUM_FORMATTING] = num + 1
    if name != _MARKER_NAME:
        elements[_ENTRY, top] = num


@njit(nogil=True)
def _remove_formatting(elements: _Elements, index: int) -> None:
    """Remove an entry of the formatting list. Its element stays open if it is."""
    if elements[_F_OPEN, index] >= 0:
        elements[_ENTRY, elements[_F_OPEN, index]] = -1
    for i in range(index, elements[_SIZES, _NUM_FORMATTING] - 1):
        elements[_F_NAME, i] = elements[_F_NAME, i + 1]
        elements[_F_TAG, i] = elements[_F_TAG, i + 1]
        position = elements[_F_OPEN, i + 1]
        elements[_F_OPEN, i] = position
        if position >= 0 and elements[_F_NAME, i] != _MARKER_NAME:
            elements[_ENTRY, position] = i
    elements[_SIZES, _NUM_FORMATTING] -= 1


@njit(nogil=True)
def _clear_to_marker(elements: _Elements) -> None:
    """Remove the formatting elements behind the last marker, and the marker."""
    while elements[_SIZES, _NUM_FORMATTING]:
        elements[_SIZES, _NUM_FORMATTING] -= 1
        last = elements[_SIZES, _NUM_FORMATTING]
        if elements[_F_NAME, last] == _MARKER_NAME:
            return
        if elements[_F_OPEN, last] >= 0:
            elements[_ENTRY, elements[_F_OPEN, last]] = -1


@njit(nogil=True)
def _close_formatting(elements: _Elements, name: int) -> None:
    """Close the last formatting element of this name ("adoption agency algorithm")."""
    index = elements[_SIZES, _NUM_FORMATTING] - 1
    while index >= 0 and elements[_F_NAME, index] != name:
        if elements[_F_NAME, index] == _MARKER_NAME:
            return
        index -= 1
    if index < 0:
        return
    position = elements[_F_OPEN, index]
    _remove_formatting(elements, index)
    if position < 0:
        return
    for i in range(position + 1, elements[_SIZES, _NUM_OPEN]):
        slot = elements[_SLOT, i]
        if slot >= 0 and _PROPERTIES_OF[slot] & _SPECIAL:
            _remove_open(elements, position)  # the block in it stays open
            return
    _pop_to(elements, position)


@njit(nogil=True)
def _remove_open(elements: _Elements, position: int) -> None:
    """Remove one open element; those in it stay open."""
    for i in range(position, elements[_SIZES, _NUM_OPEN] - 1):
        elements[_NAME, i], elements[_SLOT, i] = (
            elements[_NAME, i + 1],
            elements[_SLOT, i + 1],
        )
        entry = elements[_ENTRY, i + 1]
        elements[_ENTRY, i] = entry
        if entry >= 0:
            elements[_F_OPEN, entry] = i
    elements[_SIZES, _NUM_OPEN] -= 1


@njit(nogil=True)
def _reopen(elements: _Elements) -> int:
    """Open the formatting elements that blocks have closed; return their number."""
    first = elements[_SIZES, _NUM_FORMATTING]
    while (
        first > 0
        and elements[_F_NAME, first - 1] != _MARKER_NAME
        and elements[_F_OPEN, first - 1] < 0
    ):
        first -= 1
    for i in range(first, elements[_SIZES, _NUM_FORMATTING]):
        _push(elements, elements[_F_NAME, i], _find_known(elements[_F_NAME, i]))
        elements[_F_OPEN, i] = elements[_SIZES, _NUM_OPEN] - 1
        elements[_ENTRY, elements[_SIZES, _NUM_OPEN] - 1] = i
    return elements[_SIZES, _NUM_FORMATTING] - first
