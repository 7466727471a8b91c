"""Blocks and block elements of serialized pages."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from resiliparse.parse.html import HTMLTree

from stages.html.blocks import read_blocks


def serialize(page: str) -> str:
    """Return the body of a page as resiliparse serializes it."""
    body = HTMLTree.parse(page).body
    assert body is not None
    return body.html


def read_texts(page: str) -> list[str]:
    """Return the texts of the blocks of a page."""
    return [block.text for block in read_blocks(serialize(page)).blocks]


@pytest.mark.parametrize(
    ("page", "texts"),
    [
        ("a<p>b<b>c</b> <i>d</i><p>e", ["a", "bc d", "e"]),
        ("<p>a\n  b<br>c</p>d<hr>e", ["a b\nc", "d", "e"]),
        ("<p>\u3000山田\u3000太郎 \t\n\u2003様\u3000</p>", ["山田\u3000太郎 様"]),
        ("<pre>\n  a\n\n  b\n</pre>", ["  a\n\n  b"]),
        ("<ul><li>a<li>b<ul><li>c</ul>d</ul>", ["a", "b", "c", "d"]),
        ("<table><tr><th>a<td>b<tr><td>c</table>", ["a", "b", "c"]),
        ("&lt;p&gt; &amp;amp; a&nbsp;b &copy;", ["<p> &amp; a b ©"]),
        ('<p title="a > b < c">d</p>', ["d"]),
        ("<p>a<script>if (b<c) '</p>'</script>d</p>", ["ad"]),
        ("<p>a<!-- <p>b --> c</p><!-->d", ["a c", "d"]),
        ("<style>a</style><iframe><p>b</iframe><p>c", ["c"]),
        ("<p>a<svg><text>b</text><svg></svg></svg>c<select><option>d</select>", ["ac"]),
        ("<p>a<template><p>b</template>c", ["ac"]),
        ("<h1>a<a href=#a>¶</a></h1><i>\uf101</i>", ["a"]),
        ("<plaintext>a<b>", []),
        ("", []),
    ],
)
def test_blocks_end_at_block_elements(page: str, texts: list[str]) -> None:
    """Scripts, comments, images and symbols of icon fonts are no text."""
    assert read_texts(page) == texts


def test_links_are_counted_in_their_block() -> None:
    """Also if a link is around several blocks; an anchor without a target is no link."""
    page = read_blocks(
        serialize("<p>a <a href=x>bcd</a><a href=y><p>ef</p></a><a id=z>g</a>")
    )
    assert [(each.text, each.num_link_chars) for each in page.blocks] == [
        ("a bcd", 3),
        ("ef", 2),
        ("g", 0),
    ]


def test_elements_are_a_tree_in_the_order_of_start_tags() -> None:
    """Elements of running text belong to the group of the element around them."""
    page = read_blocks(serialize("<div><p>a</p><ul><li>b</ul></div><main id=m>c</main>"))
    assert page.tags == ["", "body", "div", "p", "ul", "li", "main"]
    assert page.parents == [-1, 0, 1, 2, 2, 4, 1]
    assert page.groups == [0, 1, 2, 2, 2, 2, 6]
    assert [block.element for block in page.blocks] == [3, 5, 6]
    assert page.attributes[6] == ' id="m"'
    assert page.sum_over_descendants([0, 0, 0, 1, 2, 4, 8]) == [15, 15, 7, 1, 6, 4, 8]


FRAGMENTS = [
    *(
        "<p>",
        "</p>",
        "<div class='a>b'>",
        "</div>",
        "<a href=x>",
        "</a>",
        "<pre>",
        "</pre>",
    ),
    *("<!--", "-->", "<script>", "</script>", "<svg>", "</svg>", "<table>", "<td>", "<br>"),
    *("x", " y\n", "<", ">", "&lt;", "&amp;", '"', "</"),
]


@given(st.lists(st.sampled_from(FRAGMENTS)).map("".join))
def test_any_markup_gives_a_tree(page: str) -> None:
    """Parents come before their children, and no block is empty."""
    found = read_blocks(serialize(page))
    assert all(0 <= parent < i for i, parent in enumerate(found.parents[1:], start=1))
    for block in found.blocks:
        assert block.text.strip()
        assert 0 <= block.num_link_chars <= len(block.text)
        assert block.element < len(found.tags)


@pytest.mark.parametrize(
    "opened", ["<div>x", "<!--", "<script >", "<svg>", "<a href=", "<pre>x", "<", "x<br>"]
)
def test_hostile_markup_takes_linear_time(opened: str) -> None:
    """50,000 of them take less than 5 s of CPU; a quadratic loop takes minutes."""
    started = time.process_time()
    read_blocks(opened * 50_000)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    ("markup", "texts"),
    [
        ('<div>&lt;img src="/a.png" alt="mill"&gt;</div><p>Flour', ["Flour"]),
        ("<div>&lt;iframe src=/a&gt;&lt;/iframe&gt; &lt;img src=/b&gt;</div>", []),
        ("<p>&lt;img src=/a&gt;</p>", ["<img src=/a>"]),
        ("<div>Write &lt;img src=/a&gt;</div>", ["Write <img src=/a>"]),
    ],
)
def test_escaped_markup_of_images_alone_is_no_text(markup: str, texts: list[str]) -> None:
    """Programs that store pages escape the content of <noscript>; text about HTML stays."""
    page = read_blocks(serialize(f"<body>{markup}</body>"))
    assert [block.text for block in page.blocks] == texts
