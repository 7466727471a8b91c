"""The demo's texts: disjoint parts, reproducible."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.models.demo import texts as demo_texts
from pipeline.models.demo.texts import assign_part


@given(st.text())
def test_every_title_is_in_one_part(title: str) -> None:
    """Any title is in one of the three parts, always the same one."""
    assert assign_part(title) in demo_texts.PART_BELOW
    assert assign_part(title) == assign_part(title)


def test_parts_have_fixed_shares() -> None:
    """Parts have 60, 15 and 25 % of the titles. Three are pinned, because models depend on them."""
    counts = Counter(assign_part(f"title {i}") for i in range(10_000))
    assert counts["lm"] == pytest.approx(6_000, rel=0.03)
    assert counts["reference"] == pytest.approx(1_500, rel=0.06)
    assert counts["pages"] == pytest.approx(2_500, rel=0.05)
    assert [assign_part(title) for title in ("Jazz", "Einstein", "Berlin")] == [
        "lm",
        "reference",
        "pages",
    ]


@pytest.mark.models
@pytest.mark.parametrize("language", ["en", "fr", "es"])
def test_no_text_is_in_two_parts(language: str) -> None:
    """No training text of a language model is a reference or a page."""
    parts = [
        list(demo_texts.summaries(language, part)) for part in ("lm", "reference", "pages")
    ]
    titles, texts = ([pair[i] for part in parts for pair in part] for i in (0, 1))
    assert len(titles) > 6_000
    assert len(set(titles)) == len(titles)
    assert len(set(texts)) == len(texts)


@pytest.mark.models
def test_crawl_like_texts_depend_only_on_arguments() -> None:
    """Equal arguments give equal texts, another seed gives others."""
    first = demo_texts.crawl_like("es", 50, seed=1)
    assert len(first) == 50
    assert all(first)
    assert first == demo_texts.crawl_like("es", 50, seed=1)
    assert first != demo_texts.crawl_like("es", 50, seed=2)
    assert len(demo_texts.sentences("es")) == 1_000
    assert demo_texts.sentences("xx") == []
