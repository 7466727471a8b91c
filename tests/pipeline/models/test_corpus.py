"""Reading texts to train on, and holding some out."""

from __future__ import annotations

import gzip
import lzma
from pathlib import Path

import pytest

from pipeline.models.corpus import (
    CrawlPage,
    TextUnreadable,
    is_held_out,
    read_crawl,
    read_texts,
)
from tests.stages.warc.files import page, record, response


def test_texts_are_read_from_every_kind_of_file(tmp_path: Path) -> None:
    """Files may be text or JSON lines, plain, gzip or xz; blank lines are skipped."""
    (tmp_path / "a.txt").write_text("one\n\ntwo\r\n", encoding="utf-8")
    (tmp_path / "b.txt.xz").write_bytes(lzma.compress(b"drei\n"))
    lines = '{"text": "vier\\nlang"}\n{"raw_content": "fünf"}\n'
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(lines.encode(), mtime=0))
    files = [tmp_path / name for name in ("a.txt", "b.txt.xz", "c.jsonl.gz")]
    assert list(read_texts(files)) == ["one", "two", "drei", "vier\nlang", "fünf"]


@pytest.mark.parametrize("line", ['{"txt": "x"}', '{"text": 3}', "[1]", "{", '"text"'])
def test_invalid_line_is_located(line: str, tmp_path: Path) -> None:
    """The error has file, line number and what was wanted."""
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n' + line, encoding="utf-8")
    with pytest.raises(
        ValueError, match=r"a\.jsonl:2: wanted an object with a string text"
    ):
        list(read_texts([tmp_path / "a.jsonl"]))


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """The error has file and line number; no other encoding is tried."""
    (tmp_path / "a.txt").write_bytes(b"ok\n\xff\xfe\n")
    with pytest.raises(ValueError, match=r"a\.txt:2: wanted UTF-8"):
        list(read_texts([tmp_path / "a.txt"]))


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.txt.gz", b"hello\n"),
        ("a.txt.gz", gzip.compress(b"hello\n" * 9, mtime=0)[:-9]),
        ("a.txt.xz", b"hello\n"),
    ],
    ids=["no gzip", "cut gzip", "no xz"],
)
def test_a_file_that_cannot_be_decompressed_is_named(
    name: str, content: bytes, tmp_path: Path
) -> None:
    """The error says which file it is, and how it was read."""
    (tmp_path / name).write_bytes(content)
    message = (
        rf"{name}: cannot be decompressed as \.[gx]z, which its name says: .+; restore"
    )
    with pytest.raises(TextUnreadable, match=message):
        list(read_texts([tmp_path / name]))


def test_share_of_texts_is_held_out() -> None:
    """About the given share; a larger share holds out all texts of a smaller one."""
    texts = [f"text {i}" for i in range(4_000)]
    tenth = {text for text in texts if is_held_out(text, 0.1)}
    assert len(tenth) == pytest.approx(400, rel=0.15)
    assert tenth < {text for text in texts if is_held_out(text, 0.3)}
    assert not any(is_held_out(text, 0.0) for text in texts)


SENTENCES = (
    "The old mill by the river was opened on Sunday, and all of the village came. " * 4
)


def test_pages_of_a_crawl_are_divided_by_main_content(tmp_path: Path) -> None:
    """A page without main content is left out as a whole; other records are no pages."""
    footer = "All rights reserved. " * 30
    pages = [
        f"<nav>Home</nav><article><p>{SENTENCES}</article><footer>Imprint</footer>",
        f"<footer>{footer}</footer>",
    ]
    records = [record(b"a text of a WET file"), b"broken"]
    records += [response(page(f"<body>{each}".encode())) for each in pages]
    (tmp_path / "a.warc").write_bytes(b"".join(records))
    assert list(read_crawl([tmp_path / "a.warc"])) == [
        CrawlPage("example.org", SENTENCES.strip(), "Home\nImprint"),
        CrawlPage("example.org", "", footer.strip()),
    ]
