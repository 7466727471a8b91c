"""The input of the comparison is made of packages whose digests are known."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.peers.pages import (
    InputPage,
    check_packages,
    extract_text,
    list_packages,
    name_file,
    read_all_pages,
    read_pages,
    take_text,
    write_pages,
)
from stages.settings.warc import WarcSettings
from stages.warc.reader import WarcReader

PACKAGE = "manual=1:2.0"
HTML = b"<title>Bread</title><h1>Bread</h1>\n\n<p>Flour,   water."
URL = "https://debian.example/a.html"
TEXT = b"Bread\nBread\nFlour, water."


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """Build a Debian package with two pages and a link to one of them."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("needs Debian's dpkg-deb")
    tree = tmp_path / "tree"
    pages = tree / "usr" / "share" / "doc"
    pages.mkdir(parents=True)
    (pages / "b.html").write_bytes(HTML)
    (pages / "a.html").write_bytes(HTML.replace(b"Bread", b"Salt"))
    (pages / "link.html").symlink_to("a.html")
    (pages / "style.css").write_text("p {}")
    control = tree / "DEBIAN" / "control"
    control.parent.mkdir()
    control.write_text(
        "Package: manual\nVersion: 1:2.0\nArchitecture: all\n"
        "Maintainer: A <a@example.org>\nDescription: pages\n"
    )
    path = tmp_path / name_file(PACKAGE)
    subprocess.run(["dpkg-deb", "--build", tree, path], check=True, capture_output=True)
    return path


def test_the_pages_of_a_package_are_its_html_files_in_order(package: Path) -> None:
    """Links and other files are left out."""
    paths = [path for path, _ in read_pages(package)]
    assert paths == ["/usr/share/doc/a.html", "/usr/share/doc/b.html"]


def test_pages_are_taken_until_there_is_enough_text(package: Path) -> None:
    """The first pages of a larger input are the same."""
    pages = list(read_all_pages([package]))
    assert [page.html.count(b"Salt") for page in pages] == [2, 0]
    assert list(take_text(pages, 1)) == pages[:1]
    assert list(take_text(pages, len(pages[0].text) + 1)) == pages
    assert list(take_text(pages, 1 << 20)) == pages


def test_a_larger_input_begins_with_the_packages_of_the_default() -> None:
    """Every package has a version and a digest."""
    few, more = list_packages(), list_packages(with_more=True)
    assert len(few) == 6
    assert list(more)[:6] == list(few)
    assert all("=" in package for package in more)
    assert {len(digest) for digest in more.values()} == {64}


def test_a_package_with_other_bytes_is_refused(package: Path) -> None:
    """The digest decides, and the message names it."""
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    assert check_packages(package.parent, {PACKAGE: digest}) == [package]
    with pytest.raises(SystemExit, match=digest):
        check_packages(package.parent, {PACKAGE: "0" * 64})
    with pytest.raises(SystemExit, match=r"other_3_all\.deb is missing"):
        check_packages(package.parent, {"other=3": digest})


def test_the_files_hold_the_same_pages(tmp_path: Path) -> None:
    """Our reader reads title and text; the WET headers are where cc_net looks for them."""
    assert extract_text(HTML) == TEXT
    counts = write_pages([InputPage(URL, TEXT, HTML)], tmp_path)
    assert (counts.num_pages, counts.html_bytes) == (1, len(HTML))
    record = gzip.decompress((tmp_path / "pages.warc.wet.gz").read_bytes())
    head, _, block = record.partition(b"\r\n\r\n")
    assert block == TEXT + b"\r\n\r\n"
    names = [line.partition(":")[0] for line in head.decode().split("\r\n")]
    # Its parse_doc reads the type, URL, date, digest and length at these positions.
    assert [names[i] for i in (1, 2, 3, 6, 8)] == [
        "WARC-Type",
        "WARC-Target-URI",
        "WARC-Date",
        "WARC-Block-Digest",
        "Content-Length",
    ]
    settings = WarcSettings(first_line_is_title=False)
    for name in ("pages.warc.wet.gz", "pages.warc.gz"):
        (batch,) = WarcReader(tmp_path / name, settings, split=0, batch_bytes=1 << 20)
        assert batch.column("url").to_pylist() == [URL]
    row = json.loads(gzip.decompress((tmp_path / "documents/pages.json.gz").read_bytes()))
    assert row["text"] == TEXT.decode()


def test_equal_pages_give_equal_files(tmp_path: Path) -> None:
    """No file holds a time."""
    for name in ("first", "second"):
        write_pages([InputPage(URL, TEXT, HTML)], tmp_path / name)
    for path in (tmp_path / "first").rglob("*.gz"):
        other = tmp_path / "second" / path.relative_to(tmp_path / "first")
        assert path.read_bytes() == other.read_bytes()
