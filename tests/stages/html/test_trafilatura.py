"""Main content by trafilatura, an optional library."""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from stages.html import trafilatura
from stages.html.extraction import (
    CAUSES,
    HtmlSettings,
    Page,
    extract,
    list_engine_versions,
)
from stages.html.trafilatura import ExtraNotInstalled
from stages.settings.warc import WarcSettings
from stages.warc.reader import WarcReader

SETTINGS = HtmlSettings(main_content=True, engine="trafilatura")
PARAGRAPH = (
    "The old mill by the river was opened on Sunday, and most of the village came. " * 3
)
MENU = "<nav><ul><li><a href=/>Home</a><li><a href=/news>News</a></ul></nav>"


def extract_page(page: str) -> Page:
    """Return what trafilatura finds in the body of a page."""
    found = extract(f"<html><body>{page}".encode(), "text/html; charset=utf-8", SETTINGS)
    assert isinstance(found, Page)
    return found


def test_a_missing_library_is_not_a_fault_of_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error names the setting and the extra, instead of one page after another."""
    trafilatura.load_library.cache_clear()
    monkeypatch.setitem(sys.modules, "trafilatura", None)
    # The error is not kept: its frames have the parsed page, which only this thread may free.
    message = r"trafilatura needs .*pip install 'corpusmill\[trafilatura\]'"
    with pytest.raises(ExtraNotInstalled, match=message):
        extract(b"<p>words", "text/html", SETTINGS)
    monkeypatch.setattr(trafilatura, "LIBRARIES", ("no-such-library",))
    with pytest.raises(ExtraNotInstalled, match="needs the library 'no-such-library'"):
        list_engine_versions(SETTINGS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"engine": "trafilatura"}, "set main_content: true"),
        (
            {"engine": "trafilatura", "main_content": True, "alt_texts": True},
            "alt_texts are settings of resiliparse",
        ),
    ],
)
def test_settings_without_effect_are_refused(
    settings: dict[str, object], message: str
) -> None:
    """The engine finds main content, and has no settings."""
    with pytest.raises(ValidationError, match=message):
        HtmlSettings.model_validate(settings)


class TestInstalled:
    """With the library."""

    @pytest.fixture(autouse=True)
    def _library(self) -> None:
        pytest.importorskip("trafilatura", reason="needs the extra trafilatura")

    def test_boilerplate_is_dropped(self) -> None:
        """Menus and comments are no content; tables are."""
        page = extract_page(
            f"{MENU}<article><h1>Mill</h1><p>First, {PARAGRAPH}</p><p>Then, {PARAGRAPH}</p>"
            f"<table><tr><td>wheat</td><td>12</td></tr></table></article>"
            f"<div id=comments><p>{PARAGRAPH.upper()}</p></div>"
        )
        assert page.text.count(PARAGRAPH.strip()) == 2
        assert "wheat" in page.text
        assert "Home" not in page.text
        assert "MILL" not in page.text

    def test_readings_of_ruby_are_removed(self) -> None:
        """As for the other engines; the characters stay."""
        ruby = "<ruby>漢<rt>かん</rt></ruby>"
        assert extract_page(f"<p>{PARAGRAPH}{ruby}</p><p>{PARAGRAPH}").text.count("漢") == 1
        assert "かん" not in extract_page(f"<p>{PARAGRAPH}{ruby}</p><p>{PARAGRAPH}").text

    def test_page_without_main_content_keeps_all_text(self) -> None:
        """The row has the characters of the main content that was not used."""
        page = extract_page(
            f"<p>Short.</p><footer>{'News of the day, and more. ' * 40}</footer>"
        )
        assert page.text.count("News of the day") == 40
        assert page.main_content_chars == len("Short.")

    def test_earlier_pages_have_no_effect(self) -> None:
        """It can drop paragraphs that it has seen; with our options each page is the first one."""
        pages = [f"<p>{PARAGRAPH}</p><p>{number} {PARAGRAPH}</p>" for number in range(6)]
        forward = [extract_page(page).text for page in pages]
        backward = [extract_page(page).text for page in reversed(pages)]
        assert forward == backward[::-1]
        assert all(text.count(PARAGRAPH.strip()) == 2 for text in forward)

    def test_pages_without_text_are_not_logged(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A crawl has millions of them."""
        with caplog.at_level(logging.DEBUG):
            extract_page("")
        assert caplog.records == []

    def test_versions_are_those_of_the_installed_libraries(self) -> None:
        """They are part of the fingerprint of extract."""
        assert list_engine_versions(SETTINGS).keys() == {"trafilatura", "justext", "lxml"}
        assert list_engine_versions(HtmlSettings()) == {}

    @given(st.binary(max_size=200))
    def test_extract_never_raises(self, body: bytes) -> None:
        """Any bytes give a page in UTF-8 or a cause."""
        page = extract(body, "text/html", SETTINGS)
        if isinstance(page, Page):
            (page.title + page.text).encode()
        else:
            assert page.cause in CAUSES

    def test_damaged_files_give_the_same_documents_as_all_text(
        self, shared_data: Path
    ) -> None:
        """The engine changes texts, not which records are read or quarantined."""
        files = sorted((shared_data / "hostile").rglob("*arc*"))
        assert files
        for path in filter(Path.is_file, files):
            found = [_read_documents(path, each) for each in (SETTINGS, HtmlSettings())]
            assert found[0] == found[1], path

    @pytest.mark.parametrize(
        "page",
        [
            "<p>x" * 6_000,
            "<div>x" * 6_000,
            "<p>a<time>b</time>" * 12_000,
            "<a href=x><div>" * 3_000,
            "<table><tr><td>" * 2_000,
            "<b><p>x</b>" * 2_000,
            f"<p {' '.join(f'a{i}' for i in range(5_000))}>x",
        ],
        ids=lambda page: page[:16],
    )
    def test_hostile_pages_take_bounded_time(self, page: str) -> None:
        """Each takes less than 10 s of CPU."""
        started = time.process_time()
        extract_page(page)
        assert time.process_time() - started < 10


def _read_documents(
    path: Path, html: HtmlSettings
) -> tuple[list[int], list[tuple[int, str]]]:
    """Return the ids of the documents of a file, and its quarantined records with their causes."""
    settings = WarcSettings(html=html)
    reader = WarcReader(path, settings, split=0, batch_bytes=1 << 20)
    ids = [each for table in reader for each in table.column("doc_id").to_pylist()]
    return ids, [(each.record, each.cause) for each in reader.report.quarantine]
