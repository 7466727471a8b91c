"""Main content by the vote of three extractors."""

from __future__ import annotations

import pytest

pytest.importorskip("trafilatura", reason="needs the extra trafilatura")

from stages.html import vote
from stages.html.extraction import HtmlSettings, Page, extract, list_engine_versions
from stages.html.justext import extract_in_any_language
from stages.html.main_content import extract_main_content
from stages.html.trafilatura import extract_main_content as extract_by_trafilatura
from stages.html.vote import extract_by_vote
from tests.stages.html.test_blocks import serialize

SETTINGS = HtmlSettings(main_content=True, engine="vote")
SENTENCES = (
    "The old mill by the river was opened on Sunday, and most of the village came to see it. "
    * 3
)
PARAGRAPHS = "".join(
    f"<p>{word}, {SENTENCES}</p>" for word in ("First", "Then", "Later", "Last")
)
MENU = "<nav><a href=/>Home</a></nav>"


def extract_all(content: str) -> tuple[list[str], str]:
    """Return the text of each extractor for a page, and that of the vote."""
    page = f"<html><body>{MENU}<div>{content}</div></body></html>"
    html = serialize(page)
    texts = [
        extract_main_content(html),
        extract_by_trafilatura(page),
        extract_in_any_language(page),
    ]
    return texts, extract_by_vote(html, page)


@pytest.mark.parametrize(
    ("content", "votes"),
    [
        (f"<div>{PARAGRAPHS}</div><div class=promo><p>Boxed, {SENTENCES}</p></div>", "-++"),
        (f"{PARAGRAPHS}<div class=meta><p>Boxed, {SENTENCES}</p></div>", "+-+"),
        (f"{PARAGRAPHS}<p>Boxed xyzzy, plugh. {'Zork blorb, ' * 30}</p>", "++-"),
        (f"{PARAGRAPHS}<ul><li>Boxed wheat<li>rye</ul>", "+--"),
        (f"{PARAGRAPHS}<p>Boxed, {SENTENCES}</p>", "+++"),
        (f"{PARAGRAPHS}<footer>Boxed</footer>", "---"),
    ],
)
def test_two_of_three_keep_a_block(content: str, votes: str) -> None:
    """In the order of the module: ours, trafilatura, jusText."""
    texts, voted = extract_all(content)
    assert "".join("-+"["Boxed" in text] for text in texts) == votes
    assert ("Boxed" in voted) == (votes.count("+") >= 2)
    assert [voted.count(word) for word in ("First", "Then", "Later", "Last")] == [1] * 4
    assert "Home" not in voted


def test_a_repeated_text_is_kept_where_our_rules_keep_it() -> None:
    """The others give texts without places."""
    repeated = f"<div class=promo><p>First, {SENTENCES}</p></div>"
    texts, voted = extract_all(f"<div>{PARAGRAPHS}</div>{repeated}")
    assert [text.count("First") for text in texts] == [1, 1, 2]
    assert voted.count("First") == 1


def test_pages_with_too_many_comparisons_are_decided_by_our_rules(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The limit is on blocks * characters, which are the same on every machine."""
    monkeypatch.setattr(vote, "MAX_SEARCHED", 0)
    texts, voted = extract_all(f"{PARAGRAPHS}<ul><li>Boxed wheat<li>rye</ul>")
    assert voted == texts[0]


def test_engine_is_chosen_by_its_name() -> None:
    """Its fingerprint has the versions of all three."""
    body = f"<html><body>{MENU}<div>{PARAGRAPHS}</div>".encode()
    page = extract(body, "text/html; charset=utf-8", SETTINGS)
    assert isinstance(page, Page)
    assert page.text.split("\n\n")[0] == f"First, {SENTENCES}".strip()
    assert list_engine_versions(SETTINGS).keys() == {
        "blocks",
        "justext",
        "lxml",
        "trafilatura",
        "vote",
    }
