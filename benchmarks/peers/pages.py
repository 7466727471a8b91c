"""The input of the comparison: pages of Debian's documentation packages as WARC and WET files.

    python -m benchmarks.peers.pages --output FOLDER [--packages FOLDER_WITH_DEB_FILES]

Needs Debian's apt-get and dpkg-deb. Every package is checked against its SHA-256, therefore everybody
gets the same bytes. A newer release of Debian replaces packages: then download these versions from an
archive of old packages, and give their folder with `--packages`.
"""

from __future__ import annotations

import argparse
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

# Package and version -> SHA-256 of the .deb file (Debian 12).
PACKAGES = {
    "debian-handbook=11.20220922": (
        "3d5dbeac1f1afc9c094eab9d0f701f6ecff99c4927d5a4794cf6c85678134faa"
    ),
    "python3.11-doc=3.11.2-6+deb12u9": (
        "5b3594189d6ef9a6963ce0347fd307a1cc67620ad697e144db366070e2e146be"
    ),
    "libreoffice-help-de=4:7.4.7-1+deb12u14": (
        "00490b63c509ac96f7f212d6a6e40452d3e0d1f97ccf4b824dd5ec4c01e8277f"
    ),
    "libreoffice-help-en-us=4:7.4.7-1+deb12u14": (
        "8faa840285734d6cfe1ed25537b48f07e74bd6412e3917bf8e5f8a653f7b3712"
    ),
    "libreoffice-help-es=4:7.4.7-1+deb12u14": (
        "9128a84d83d92c8b1c618d90469d16affddb7d1290b09d42a0c5109cb16f0480"
    ),
    "libreoffice-help-fr=4:7.4.7-1+deb12u14": (
        "c796530d3e95af1ea4d054076682efc8aad2b569ae9513f3d4a776b2df3fd206"
    ),
}

# Written last: what the other files hold.
COUNTS = "counts.json"

# Fixed, because the same input gives the same bytes.
DATE = "2026-01-01T00:00:00Z"

_HTTP = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n\r\n"


@dataclass
class PageCounts:
    """What the files hold: pages, bytes of HTML, and bytes of text."""

    num_pages: int = 0
    html_bytes: int = 0
    text_bytes: int = 0


def download_packages(folder: Path) -> None:
    """Download with apt-get the packages that `folder` does not have."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [name for name in PACKAGES if not (folder / name_file(name)).exists()]
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


def format_response(url: str, html: bytes) -> bytes:
    """Return a WARC response record as a gzip member."""
    head = ["WARC-Type: response", f"WARC-Target-URI: {url}", f"WARC-Date: {DATE}"]
    head += [f"WARC-Record-ID: {_make_id('response', url)}"]
    head += ["Content-Type: application/http; msgtype=response"]
    return _format_record(head, _HTTP + html)


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


def extract_text(html: bytes) -> bytes | None:
    """Return title and text as in a WET file: no blank lines, no blanks around a line."""
    page = extract(html, "text/html", HtmlSettings())
    if not isinstance(page, Page):
        return None
    lines = [page.title or "", *page.text.split("\n")]
    stripped = (" ".join(line.split()) for line in lines)
    return "\n".join(line for line in stripped if line).encode()


def write_pages(pages: Iterable[tuple[str, bytes]], folder: Path) -> PageCounts:
    """Write `pages.warc.gz`, `pages.warc.wet.gz` and `documents/pages.json.gz`, then COUNTS.

    The third has the text for programs that do not read WET files, in dolma's layout.

    Args:
        pages: path and HTML of each page.
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
        for path, html in pages:
            text = extract_text(html)
            if text is None:
                continue
            url = f"https://debian.example{path}"
            warc.write(format_response(url, html))
            wet.write(format_conversion(url, text))
            row = {"id": url, "text": text.decode(), "source": "debian", "added": DATE}
            documents.write(json.dumps(row, ensure_ascii=False).encode() + b"\n")
            counts.num_pages += 1
            counts.html_bytes += len(html)
            counts.text_bytes += len(text)
    (folder / COUNTS).write_text(json.dumps(asdict(counts)))
    return counts


def read_all_pages(packages: Iterable[Path], every: int = 1) -> Iterator[tuple[str, bytes]]:
    """Yield path and HTML of the pages of all packages; of every fourth page with `every=4`."""
    pages = (page for package in packages for page in read_pages(package))
    return itertools.islice(pages, 0, None, every)


def main() -> None:
    """Download the packages and write the files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path, required=True, help="folder of the files")
    parser.add_argument("--packages", type=Path, help="folder with the .deb files")
    parser.add_argument("--every", type=int, default=1, help="4 takes every fourth page")
    args = parser.parse_args()
    folder = args.packages
    if folder is None:
        folder = args.output / "packages"
        download_packages(folder)
    packages = check_packages(folder, PACKAGES)
    print(asdict(write_pages(read_all_pages(packages, args.every), args.output)))


if __name__ == "__main__":
    main()
