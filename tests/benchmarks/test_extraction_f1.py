"""benchmarks/extraction_f1.py on two test pages: its measures are right, and extraction reaches its floors."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.extraction_f1 import (
    Score,
    articles,
    entrants,
    measure,
    score,
    shingle_f1,
    wcxb,
)

MENU = "<nav><ul><li><a href=/>Home</a><li><a href=/news>All the news</a><li><a href=/shop>Our shop</a></ul></nav>"
FOOTER = "<footer><p>© 2026 The Valley Post. <a href=/terms>Terms</a> <a href=/privacy>Privacy</a></footer>"
ARTICLE = """The mill by the river grinds again
After eleven years of silence the old mill by the river was opened on Sunday, and most of the village came to see it. \
The wheel had been taken out of the water in spring, and its oak had been replaced by a carpenter of the valley.
The miller said that the first flour would be given to the school, and that what was left would be sold at the market. \
He has learnt the trade from his aunt, who had worked there until the dam was closed.
There is a plan to light the houses on the square with what the wheel gives at night, but it has not been paid for.
""".splitlines()
MANUAL = """Setting the stones
Before the stones are set, the water has to be shut off and the wheel has to be tied to the post on the left of it. \
Lift the upper stone by a hand's width with the lever, and look at the grooves of both stones in the light of a lamp.
If the grooves are no deeper than a coin is thick, the stones have to be dressed before they are used for flour again.
""".splitlines()


def page(title: str, paragraphs: list[str], aside: str) -> bytes:
    """Return a page with these paragraphs; the first one is its heading."""
    body = f"<h1>{paragraphs[0]}</h1>" + "".join(
        f"<p>{text}</p>\n" for text in paragraphs[1:]
    )
    return (
        f"<!DOCTYPE html><html><head><title>{title}</title><style>p {{color: red}}</style></head><body>{MENU}"
        f"<main><article>{body}</article></main><aside>{aside}</aside>{FOOTER}<script>track('page')</script></body></html>"
    ).encode()


PAGES = [
    (
        "article",
        page(
            "Mill - The Valley Post",
            ARTICLE,
            "<a href=/1>More news</a> <a href=/2>Weather</a>",
        ),
        ARTICLE,
    ),
    (
        "documentation",
        page(
            "Manual", MANUAL, "<ul><li><a href=/a>Contents</a><li><a href=/b>Index</a></ul>"
        ),
        MANUAL,
    ),
]


@pytest.fixture
def gold(tmp_path: Path) -> Path:
    """Write the pages in the layouts of both gold sets."""
    for folder in ("html", "ground-truth"):
        (tmp_path / folder).mkdir()
    by_name: dict[str, Any] = {}
    for kind, html, paragraphs in PAGES:
        text = "\n\n".join(paragraphs)
        (tmp_path / "html" / f"{kind}.html.gz").write_bytes(gzip.compress(html, mtime=0))
        by_name[kind] = {"articleBody": text}
        found = {
            "_internal": {"page_type": {"primary": kind}},
            "ground_truth": {"main_content": text},
        }
        (tmp_path / "ground-truth" / f"{kind}.json").write_text(json.dumps(found))
    (tmp_path / "ground-truth.json").write_text(json.dumps(by_name))
    return tmp_path


def test_extraction_reaches_its_floors(gold: Path) -> None:
    """Plain text has every word; main content and jusText leave out the navigation and the footer."""
    measured = measure(list(wcxb(gold)), entrants())
    found = measured["extractors"]
    assert measured["kinds"] == {"article": 1, "documentation": 1}
    assert found["plain"]["recall"] == 1.0
    assert found["main content"]["f1"] >= 0.95
    assert found["justext (ours)"]["f1"] >= 0.95
    assert all(
        each["f1_95"][0] <= each["f1"] <= each["f1_95"][1] for each in found.values()
    )


def test_both_gold_sets_give_the_same_pages(gold: Path) -> None:
    """Both layouts give the same pages and texts; only one has their kinds."""
    assert [each[1:] for each in articles(gold)] == [each[1:] for each in wcxb(gold)]
    assert [each.kind for each in articles(gold)] == ["article", "article"]


@pytest.mark.parametrize(
    ("text", "gold_text", "expected"),
    [
        ("Home Flour and water", "flour and water", Score(0.75, 1.0, 6 / 7)),
        ("a a b", "a b b", Score(2 / 3, 2 / 3, 2 / 3)),
        ("", "", Score(1.0, 1.0, 1.0)),
        ("menu", "", Score(0.0, 0.0, 0.0)),
        ("", "text", Score(0.0, 0.0, 0.0)),
    ],
)
def test_score_counts_each_word_as_often_as_both_texts_contain_it(
    text: str, gold_text: str, expected: Score
) -> None:
    """The score is precision, recall and F1 of multisets of words; an empty text equals only an empty text."""
    assert score(text, gold_text) == pytest.approx(expected)


def test_shingle_f1_depends_on_word_order() -> None:
    """Words in another order share no 4-gram; a page without text counts for recall only."""
    assert shingle_f1(["a b c d e"], ["a b c d e"]) == 1.0
    assert shingle_f1(["e d c b a"], ["a b c d e"]) == 0.0
    assert shingle_f1(["a b c d", ""], ["a b c d", "a b c d"]) == pytest.approx(2 / 3)
