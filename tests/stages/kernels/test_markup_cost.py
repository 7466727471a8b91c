"""The estimate of the time to parse a page: large where parsers take quadratic time, else small."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time

import pytest

from stages.kernels.markup_cost import MAX_ESTIMATE_NS, estimate_parse_ns
from tests.conftest import REPOSITORY

TIMES = 5_000

# Markup that browsers parse without nesting, in old pages often without end tags.
FLAT = [
    "<p>x",
    "<li>x",
    "<ul><li>x<li>x</ul>",
    "<dl><dt>x<dd>x</dl>",
    "<table><tr><td>x<td><b>x</b><tr><td>x</table>",
    "<table><tr><td><table><tr><td>x</table></table>",
    "<h1>x</h1><p>x<div>x</div>",
    "<a href=x>x<a href=y>",
    "<p><b>x</p>",
    "<font color=red><p>x</font>",
    "<button>x",
    "<br><img src=x/><hr><input>",
    "<svg><path/><circle/></svg>",
    "<script>'<div><i>'</script><style><b></style><title><b></title>",
    "<!-- <div><i> --><!doctype html><?x <b>?></x>",
    "<select><option>x<option>y</select>",
    "<ruby>x<rp>(<rt>x<rp>)</ruby>",
    "<form><label>x</label></form>",
    "<td>x<tr>x",
    "< a <3 <",
    "<object><b></object>",
    "<b><div></b></div>",
]

# Markup that opens one more element, or formatting element, each time.
NESTED = [
    "<div>x",
    "<span>x",
    "<i a{}>x",
    "<I A='{}>'>x",
    "<ul><li>x",
    "<table><tr><td>x",
    "<svg><g>x",
    "<svg><g/></p>",
    "<svg><title>x",
    "<x-y z=1>x",
    "<span><div></span>x",
    "<rt>x",
    "<td><div>x",
    "<object><i>x",
]


def repeat(markup: str, times: int) -> bytes:
    """Return the markup repeated, with a different number in each for `{}`."""
    return "".join(markup.replace("{}", str(i)) for i in range(times)).encode()


@pytest.mark.parametrize("markup", FLAT)
def test_flat_markup_has_a_small_estimate(markup: str) -> None:
    """It grows with the number of tags, not with its square."""
    estimate, _ = estimate_parse_ns(repeat(markup, TIMES), 60)
    half, _ = estimate_parse_ns(repeat(markup, TIMES // 2), 60)
    assert estimate < 50_000_000
    assert estimate <= 2.1 * half + 10_000


@pytest.mark.parametrize("markup", NESTED)
def test_nested_markup_has_a_large_estimate(markup: str) -> None:
    """It grows with the square of the number of tags."""
    estimate, _ = estimate_parse_ns(repeat(markup, TIMES), 60)
    half, _ = estimate_parse_ns(repeat(markup, TIMES // 2), 60)
    assert estimate > 500_000_000
    assert estimate == MAX_ESTIMATE_NS or estimate > 3.5 * half


def test_the_depth_counts_as_much_as_is_asked_for() -> None:
    """1,000 nested elements: 0 + 1 + ... + 999 open elements at the tags."""
    at_4, _ = estimate_parse_ns(b"<div>" * 1_000, 4)
    at_60, _ = estimate_parse_ns(b"<div>" * 1_000, 60)
    assert at_60 - at_4 == 56 * 499_500


@pytest.mark.parametrize(
    ("page", "attributes"),
    [
        ("<a>", 0),
        ("<a b c=1 d='x y' e=\"<f g>\" h = i j>", 6),
        ("<a/b/c='/>'/d>", 3),
        ("<a =b c ==d>", 2),
        ("x<p a>y</p b c>", 2),
        ("<!-- <a b c> --><i d><script><a b c></script>", 1),
        ("<a b='c d>", 1),
        ("<a b", 1),
    ],
)
def test_attributes_are_counted(page: str, attributes: int) -> None:
    """As HTML's tokenizer finds them: quoted or not, in end tags, not in comments and scripts."""
    assert estimate_parse_ns(page.encode() + b" " * 9, 4)[1] == attributes


@pytest.mark.parametrize(
    "scrap",
    [
        "<a x='",
        '<a b="',
        "<a<",
        "<a =",
        "<a b=\"<c d='",
        "< ",
        "<!-",
        "</",
        "<script></scrip",
    ],
)
def test_the_estimate_takes_linear_time(scrap: str) -> None:
    """Eight million bytes that make a careless reader start again and again."""
    page = scrap.encode() * (8_000_000 // len(scrap))
    estimate_parse_ns(b"<p>compiles the kernel", 4)  # which takes 8 s of CPU
    started = time.process_time()
    estimate_parse_ns(page, 4)
    assert time.process_time() - started < 10


SCRAPS = [
    "<b>",
    "<b a{}>",
    "</b>",
    "<p>",
    "</p>",
    "<div>",
    "</div>",
    "<a>",
    "</a>",
    "<table>",
    "<tr>",
    "<td>",
    "</td>",
    "</table>",
    "<li>",
    "<ul>",
    "</ul>",
    "<object>",
    "</object>",
    "<svg>",
    "</svg>",
    "<g/>",
    "<i>",
    "</i>",
    "<nobr>",
    "<select>",
    "<option>",
    "</select>",
    "x",
    "<!--",
    "-->",
    "<script>",
    "</script>",
    "<form>",
    "<button>",
    "<template>",
    "</template>",
    "<h1>",
    "<caption>",
    "<",
    "<a b='",
    "'>",
]


def draw_page(seed: int) -> bytes:
    """Return a page of up to 300 scraps."""
    draw = random.Random(seed)
    scraps = draw.choices(SCRAPS, k=draw.randrange(120))
    return "".join(scrap.replace("{}", str(draw.randrange(9))) for scrap in scraps).encode()


# Prints the estimates without compilation: then numpy checks every index.
PRINT_ESTIMATES = """
import json
from stages.kernels.markup_cost import estimate_parse_ns
from tests.stages.kernels.test_markup_cost import draw_page
print(json.dumps([[int(n) for n in estimate_parse_ns(draw_page(seed), 7)] for seed in range(120)]))
"""


def test_the_compiled_estimate_stays_in_its_arrays() -> None:
    """Random pages have the same estimates without compilation, which checks every index."""
    done = subprocess.run(
        [sys.executable, "-c", PRINT_ESTIMATES],
        cwd=REPOSITORY,
        env={**os.environ, "NUMBA_DISABLE_JIT": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    compiled = [[*estimate_parse_ns(draw_page(seed), 7)] for seed in range(120)]
    assert json.loads(done.stdout) == compiled
    assert max(estimate for estimate, _ in compiled) > 20_000
