"""Builds HTML and SVG from elements. Every text and attribute is escaped when it is written.

row = element("p", {"class": "note"}, "read ", element("b", {}, url))
write_element(row)                  # <p class="note">read <b>https://...</b></p>
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterable, Mapping

from terminal_output import escape

# A text, an element, or several of them.
Content = str | ET.Element | Iterable["Content"]


def element(name: str, attributes: Mapping[str, str], *children: Content) -> ET.Element:
    """Return an element. Its texts show control, invisible and reordering characters as codes."""
    made = ET.Element(name, {key: escape(value) for key, value in attributes.items()})
    _add(made, children)
    return made


def write_element(made: ET.Element) -> str:
    """Return an element as HTML."""
    return ET.tostring(made, encoding="unicode", method="html")


def _add(parent: ET.Element, children: Content) -> None:
    if isinstance(children, ET.Element):
        parent.append(children)
    elif isinstance(children, str):
        _add_text(parent, escape(children))
    else:
        for child in children:
            _add(parent, child)


def _add_text(parent: ET.Element, text: str) -> None:
    """Append text, which ElementTree stores in the parent or behind its last child."""
    if len(parent):
        parent[-1].tail = (parent[-1].tail or "") + text
    else:
        parent.text = (parent.text or "") + text
