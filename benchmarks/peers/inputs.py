"""The folders of pages that the chains read: Debian's pages, or the pages of WET and WARC files."""

from __future__ import annotations

import hashlib
import itertools
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from fastwarc.warc import ArchiveIterator, WarcRecord, WarcRecordType

from benchmarks.peers.pages import (
    COUNTS,
    InputPage,
    check_packages,
    download_packages,
    extract_text,
    list_packages,
    read_all_pages,
    take_text,
    write_pages,
)

# Text of all pages of the packages that `scale` 1 reads, in bytes.
TEXT_BYTES = 65_004_506

# Chain -> every how many pages of Debian it reads. Less would measure how long programs start.
EVERY = {"ccnet": 1, "quality": 5, "html": 10, "main content": 5}

# Kernels are compiled on every so many pages of Debian, or on so many pages of other files.
FEW_EVERY, FEW_PAGES = 1000, 20


@dataclass(frozen=True)
class PageSource:
    """Makes the input folders of chains: pages of Debian's documentation, or of WET and WARC files.

    The pages of files are written again as one file, with WET headers in the order of 2019, because
    cc_net reads them by position.

    Attributes:
        work: where the folders are made.
        packages: folder with the .deb files; None downloads them.
        scale: how many times Debian's pages; 0.25 and 4 read a quarter and four times as much text.
        files: WET and WARC files instead of Debian's pages.
    """

    work: Path
    packages: Path | None = None
    scale: float = 1
    files: tuple[Path, ...] = ()

    @property
    def suffix(self) -> str:
        """What the name of the result file ends with; empty for the default input."""
        if self.files:
            return "_files"
        return "" if self.scale == 1 else f"_x{self.scale:g}"

    def prepare(self, chain: str) -> Path:
        """Return the folder that a chain reads; make it if it is missing.

        Of Debian these are every n-th page of the first packages, or pages of more packages.
        """
        if self.files:
            return self._write("all", read_archives(self.files))
        share = self.scale / EVERY[chain]
        if share <= 1:
            return self._prepare_every(round(1 / share))
        pages = read_all_pages(self._find_packages(with_more=True))
        return self._write(f"x{share:g}", take_text(pages, round(share * TEXT_BYTES)))

    def prepare_few(self) -> Path:
        """Return a folder with a few pages."""
        if self.files:
            few = itertools.islice(read_archives(self.files), FEW_PAGES)
            return self._write("few", few)
        return self._prepare_every(FEW_EVERY)

    def _prepare_every(self, every: int) -> Path:
        return self._write(f"{every}", read_all_pages(self._find_packages(), every))

    def _write(self, name: str, pages: Iterator[InputPage]) -> Path:
        if self.files:
            parts = (f"{path.resolve()} {path.stat().st_size}" for path in self.files)
            digest = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:12]
            name = f"{digest}-{name}"
        folder = self.work / f"pages-{name}"
        if not (folder / COUNTS).exists():
            shutil.rmtree(folder, ignore_errors=True)
            write_pages(pages, folder)
        return folder

    def _find_packages(self, *, with_more: bool = False) -> Iterator[Path]:
        """Yield the packages, which are downloaded and checked when the first is needed."""
        packages = list_packages(with_more=with_more)
        folder = self.packages
        if folder is None:
            folder = self.work / "packages"
            download_packages(folder, packages)
        yield from check_packages(folder, packages)


def read_archives(files: Sequence[Path]) -> Iterator[InputPage]:
    """Yield the texts of conversion records, and text and HTML of responses that are pages.

    A URL is yielded once, because decisions are compared by URL. A file is read up to its first
    damaged record, with a note.
    """
    seen: set[str] = set()
    for path in files:
        for page in _read_pages(path):
            if page.url not in seen:
                seen.add(page.url)
                yield page


def _read_pages(path: Path) -> Iterator[InputPage]:
    types = WarcRecordType.conversion | WarcRecordType.response
    with path.open("rb") as file:
        records = ArchiveIterator(
            file, record_types=types, parse_http=True, auto_decode="all"
        )
        try:
            yield from filter(None, map(_read_page, records))
        except OSError as error:
            print(f"{path}: the rest is not read: {error}", flush=True)


def _read_page(record: WarcRecord) -> InputPage | None:
    """Return the page of a record, or None if it is another response."""
    url = record.headers["WARC-Target-URI"]
    if record.record_type == WarcRecordType.conversion:
        return InputPage(url, record.reader.read())
    if not record.is_http or record.http_headers.status_code != 200:
        return None
    media_type = record.http_headers.get("Content-Type") or ""  # with its charset
    if "html" not in media_type:
        return None
    html = record.reader.read()
    text = extract_text(html, media_type)
    return None if text is None else InputPage(url, text, html, media_type)
