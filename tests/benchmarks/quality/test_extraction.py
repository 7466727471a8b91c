"""benchmarks.quality.extraction on two test pages: its measures are right, and extraction reaches its floors."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.quality.extraction import main, make_extractors, measure
from benchmarks.quality.gold_pages import (
    SETS,
    GoldPage,
    read_articles,
    read_trafilatura,
    read_wcxb,
)
from benchmarks.quality.text_scores import Score, score_strings, score_words

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


def page(title: str, paragraphs: Sequence[str], aside: str) -> bytes:
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
    """Write the pages in the layouts of the three gold sets."""
    articles, cache, wcxb = (
        tmp_path / "articles",
        tmp_path / "trafilatura" / "tests" / "cache",
        tmp_path / "wcxb" / "test",
    )
    for folder in (articles / "html", cache, wcxb / "html", wcxb / "ground-truth"):
        folder.mkdir(parents=True)
    bodies: dict[str, Any] = {}
    strings: dict[str, Any] = {}
    for kind, html, paragraphs in PAGES:
        text = "\n\n".join(paragraphs)
        for folder in (articles, wcxb):
            packed = gzip.compress(html, mtime=0)
            (folder / "html" / f"{kind}.html.gz").write_bytes(packed)
        (cache / f"{kind}.html").write_bytes(html)
        found = {
            "_internal": {"page_type": {"primary": kind}},
            "ground_truth": {"main_content": text},
        }
        (wcxb / "ground-truth" / f"{kind}.json").write_text(json.dumps(found))
        bodies[kind] = {"articleBody": text, "url": f"https://example.org/{kind}"}
        strings[kind] = {
            "file": f"{kind}.html",
            "with": [paragraphs[1][:40], paragraphs[-1]],
            "without": ["All the news", "Privacy"],
        }
    (articles / "ground-truth.json").write_text(json.dumps(bodies))
    (cache.parent / "evaldata.json").write_text(json.dumps(strings))
    return tmp_path


@pytest.mark.parametrize("name", SETS)
def test_extraction_reaches_its_floors(gold: Path, name: str) -> None:
    """All text has every word; main content and jusText leave out navigation and footer."""
    pages = list(SETS[name](gold / name))
    found = measure(pages, make_extractors())["extractors"]
    assert found["text"]["all"]["recall"] == 1.0
    assert found["text"]["all"]["precision"] < 0.95
    assert found["main content"]["all"]["f1"] >= 0.95
    assert found["justext"]["all"]["f1"] >= 0.95
    assert [each["lost"] for each in found.values()] == [0] * len(found)


def test_all_sets_give_the_same_pages(gold: Path) -> None:
    """The layouts differ; names, pages and texts are the same."""
    articles = list(read_articles(gold / "articles"))
    wcxb = list(read_wcxb(gold / "wcxb"))
    strings = list(read_trafilatura(gold / "trafilatura"))
    assert [(each.name, each.html, each.text) for each in articles] == [
        (each.name, each.html, each.text) for each in wcxb
    ]
    assert [each.kind for each in wcxb] == ["article", "documentation"]
    assert [each.html for each in strings] == [each.html for each in wcxb]


def test_the_program_prints_one_table_for_each_set(
    gold: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without the peers it needs no other environment."""
    arguments = ["extraction", "--gold", str(gold), "--without-peers"]
    monkeypatch.setattr(sys, "argv", arguments)
    main()
    printed = capsys.readouterr().out
    for name in SETS:
        assert f"{name}: 2 pages" in printed


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
    assert score_words(text, gold_text) == pytest.approx(expected)


def test_the_score_of_strings_ignores_white_space() -> None:
    """One of two wanted strings and one unwanted string are found, over a line break."""
    page = GoldPage("a", "page", b"", "", ("two words", "missing"), ("the menu", "no"))
    score = score_strings(["has two\n words, and the  menu"], [page])
    assert score == Score(0.5, 0.5, 0.5)
