"""benchmarks.quality.gold_warc makes labelled pages the input of a run."""

from __future__ import annotations

from pathlib import Path

from benchmarks.quality.gold_pages import GoldPage
from benchmarks.quality.gold_warc import write_warc
from stages.settings.warc import WarcSettings
from stages.warc.reader import WarcReader


def test_pages_are_read_back_with_url_and_text(tmp_path: Path) -> None:
    """The pipeline's own reader finds every page, in order, and decodes it as UTF-8."""
    pages = [
        GoldPage("a", "page", "<p>Käse und Brot</p>".encode(), url="https://a.example/"),
        GoldPage("b", "page", b"<p>Flour</p>", url="https://b.example/x?y=1"),
    ]
    path = tmp_path / "pages.warc.gz"
    assert write_warc(pages, path) == 2
    reader = WarcReader(path, WarcSettings(), split=0, batch_bytes=1 << 20)
    documents = [row for batch in reader for row in batch.to_pylist()]
    assert [row["url"] for row in documents] == [page.url for page in pages]
    assert [row["text"].strip() for row in documents] == ["Käse und Brot", "Flour"]


def test_the_same_pages_give_the_same_bytes(tmp_path: Path) -> None:
    """So the fingerprint of a run on them does not change."""
    pages = [GoldPage("a", "page", b"<p>Flour</p>", url="https://a.example/")]
    for name in ("first", "second"):
        write_warc(pages, tmp_path / name)
    first, second = (tmp_path / name for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
