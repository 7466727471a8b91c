"""The input of the comparison: pages of Debian's documentation packages as WARC and WET files.

`packages.txt` has the packages: six with 65 MB of text, and more of them for larger inputs.

Needs Debian's apt-get and dpkg-deb. Every package is checked against its SHA-256, therefore everybody
gets the same bytes. A newer release of Debian replaces packages: then download these versions from an
archive of old packages, and give their folder with `--packages` of benchmarks.peers.run.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import io
import itertools
import json
import subprocess
import tarfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from stages.html.extraction import Page, extract
from stages.settings.warc import HtmlSettings

PACKAGES_FILE = Path(__file__).with_name("packages.txt")

# Written last: what the other files hold.
COUNTS = "counts.json"

# Fixed, because the same input gives the same bytes.
DATE = "2026-01-01T00:00:00Z"


@dataclass(frozen=True)
class InputPage:
    """A page: its text as in a WET file, and its HTML, if there is any.

    Attributes:
        content_type: of the HTTP response.
    """

    url: str
    text: bytes
    html: bytes = b""
    content_type: str = "text/html"


@dataclass
class PageCounts:
    """What the files hold: pages, bytes of HTML, and bytes of text."""

    num_pages: int = 0
    html_bytes: int = 0
    text_bytes: int = 0


def list_packages(*, with_more: bool = False) -> dict[str, str]:
    """Return `package=version` -> SHA-256 of its .deb file, in the order of the pages.

    Args:
        with_more: include the packages of larger inputs, which follow the second comment.
    """
    _, first, more = PACKAGES_FILE.read_text(encoding="utf-8").split("#")
    lines = first.splitlines()[1:]
    if with_more:
        lines += more.splitlines()[1:]
    return dict(line.split(" ") for line in lines)


def download_packages(folder: Path, packages: Iterable[str]) -> None:
    """Download with apt-get the packages that `folder` does not have."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in packages if not (folder / name_file(name)).exists()]
    if missing:
        subprocess.run(["apt-get", "download", "-qq", *missing], cwd=folder, check=True)


def name_file(package: str) -> str:
    """Return the file name that apt-get gives to `name=version`."""
    name, _, version = package.partition("=")
    return f"{name}_{version.replace(':', '%3a')}_all.deb"


def check_packages(folder: Path, packages: dict[str, str]) -> list[Path]:
    """Return the package files, after a check of their digests.

    Raises:
        SystemExit: if a file is missing or has other bytes.
    """
    paths: list[Path] = []
    for package, wanted in packages.items():
        path = folder / name_file(package)
        if not path.exists():
            raise SystemExit(
                f"{path} is missing: download this version, or leave out --packages"
            )
        found = hashlib.sha256(path.read_bytes()).hexdigest()
        if found != wanted:
            raise SystemExit(
                f"{path} has the SHA-256 {found}, wanted {wanted}: download it again"
            )
        paths.append(path)
    return paths


def read_pages(package: Path) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of the HTML files of a package, in the order of the paths."""
    command = ["dpkg-deb", "--fsys-tarfile", str(package)]
    found: dict[str, bytes] = {}
    unpacked = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(unpacked)) as tar:
        for member in tar:
            content = tar.extractfile(member) if member.isreg() else None
            if content is not None and member.name.endswith((".html", ".htm")):
                found[member.name.removeprefix(".")] = content.read()
    yield from sorted(found.items())


def format_response(page: InputPage) -> bytes:
    """Return a WARC response record as a gzip member."""
    head = ["WARC-Type: response", f"WARC-Target-URI: {page.url}", f"WARC-Date: {DATE}"]
    head += [f"WARC-Record-ID: {_make_id('response', page.url)}"]
    head += ["Content-Type: application/http; msgtype=response"]
    http = f"HTTP/1.1 200 OK\r\nContent-Type: {page.content_type}\r\n\r\n"
    return _format_record(head, http.encode() + page.html)


def format_conversion(url: str, text: bytes) -> bytes:
    """Return a WET record as a gzip member, with the headers in the order of 2019.

    cc_net reads the headers by their position.
    """
    digest = base64.b32encode(hashlib.sha1(text, usedforsecurity=False).digest()).decode()
    head = ["WARC-Type: conversion", f"WARC-Target-URI: {url}", f"WARC-Date: {DATE}"]
    head += [f"WARC-Record-ID: {_make_id('conversion', url)}"]
    head += [f"WARC-Refers-To: {_make_id('response', url)}"]
    head += [f"WARC-Block-Digest: sha1:{digest}", "Content-Type: text/plain"]
    return _format_record(head, text)


def _make_id(kind: str, url: str) -> str:
    return f"<urn:sha256:{hashlib.sha256(f'{kind} {url}'.encode()).hexdigest()}>"


def _format_record(head: list[str], block: bytes) -> bytes:
    lines = ["WARC/1.0", *head, f"Content-Length: {len(block)}", "", ""]
    return gzip.compress("\r\n".join(lines).encode() + block + b"\r\n\r\n", mtime=0)


def extract_text(html: bytes, content_type: str = "text/html") -> bytes | None:
    """Return title and text as in a WET file: no blank lines, no blanks around a line."""
    page = extract(html, content_type, HtmlSettings())
    if not isinstance(page, Page):
        return None
    lines = [page.title or "", *page.text.split("\n")]
    stripped = (" ".join(line.split()) for line in lines)
    return "\n".join(line for line in stripped if line).encode()


def write_pages(pages: Iterable[InputPage], folder: Path) -> PageCounts:
    """Write `pages.warc.gz`, `pages.warc.wet.gz` and `documents/pages.json.gz`, then COUNTS.

    The third has the text for programs that do not read WET files, in dolma's layout.

    Args:
        pages: a page without HTML is left out of the first file.
        folder: where to write.
    """
    counts = PageCounts()
    (folder / "documents").mkdir(parents=True, exist_ok=True)
    with (
        (folder / "pages.warc.gz").open("wb") as warc,
        (folder / "pages.warc.wet.gz").open("wb") as wet,
        (folder / "documents" / "pages.json.gz").open("wb") as raw,
        gzip.GzipFile("", "wb", fileobj=raw, mtime=0) as documents,
    ):
        for page in pages:
            if page.html:
                warc.write(format_response(page))
            wet.write(format_conversion(page.url, page.text))
            text = page.text.decode("utf-8", "replace")
            row = {"id": page.url, "text": text, "source": "debian", "added": DATE}
            documents.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            counts.num_pages += 1
            counts.html_bytes += len(page.html)
            counts.text_bytes += len(page.text)
    (folder / COUNTS).write_text(json.dumps(asdict(counts)))
    return counts


def read_all_pages(packages: Iterable[Path], every: int = 1) -> Iterator[InputPage]:
    """Yield the pages of all packages that have text; of every fourth page with `every=4`."""
    found = (page for package in packages for page in read_pages(package))
    for path, html in itertools.islice(found, 0, None, every):
        text = extract_text(html)
        if text is not None:
            yield InputPage(f"https://debian.example{path}", text, html)


def take_text(pages: Iterable[InputPage], num_bytes: int) -> Iterator[InputPage]:
    """Yield pages until they have at least that many bytes of text."""
    for page in pages:
        yield page
        num_bytes -= len(page.text)
        if num_bytes <= 0:
            return
