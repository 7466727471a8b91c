"""Write a sample crawl and its truth table.

    crawl = generate(Path("crawl"), num_documents=20_000, seed=1, format="wet")
    crawl.files[0].name     # CC-MAIN-20261101000000-20261101010000-00000.warc.wet.gz

Equal arguments give equal bytes (with one build of zlib and pyarrow). Memory does not grow with the
number of pages.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import logging
import shutil
import uuid
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pipeline.sample_crawl import truth_table
from pipeline.sample_crawl.languages import ISO_639_3
from pipeline.sample_crawl.pages import Pages
from pipeline.sample_crawl.records import (
    VERSION,
    Envelope,
    render_warc,
    render_warcinfo,
    render_wet,
)
from pipeline.sample_crawl.texts import Library

__all__ = ["MIN_DOCUMENTS", "VERSION", "Format", "Layout", "SampleCrawl", "generate"]

log = logging.getLogger(__name__)

Format = Literal["wet", "warc"]
Layout = Literal["flat", "common-crawl"]

# A smaller crawl has no room for a page of each kind and two good pages of each site.
MIN_DOCUMENTS = 100

_SEGMENT = "crawl-data/CC-MAIN-SAMPLE/segments/1793491200000.00"


@dataclass(frozen=True)
class SampleCrawl:
    """The result of `generate`."""

    folder: Path
    files: tuple[Path, ...]
    truth: Path
    paths_list: Path | None  # wet.paths.gz or warc.paths.gz; None in the flat layout
    num_documents: int
    num_documents_by_kind: dict[str, int]
    num_bytes: int  # of all WARC files


def generate(
    out: Path,
    *,
    num_documents: int,
    seed: int,
    format: Format,
    documents_per_file: int = 2_500,
    languages: Sequence[str] = ("en", "fr", "es"),
    layout: Layout = "flat",
    library: Library | None = None,
) -> SampleCrawl:
    """Write a crawl and its truth table. The folder appears only when it is complete.

    Args:
        out: the folder; it may exist if it is empty.
        num_documents: pages, including damaged ones.
        seed: another seed gives another crawl.
        format: `wet`: text (conversion records); `warc`: HTML (request, response and
            metadata records).
        documents_per_file: pages per WARC file.
        languages: of the good pages, in equal shares; the library must have summaries in them.
        layout: `flat`: files in `out`; `common-crawl`: under `crawl-data/CC-MAIN-SAMPLE/`, with the
            list of their paths.
        library: source of texts; default: `pipeline.models.demo.texts`.

    Raises:
        ValueError: an argument is out of range, or the library has too little text.
        FileExistsError: `out` is not an empty folder.
        AssetError: the texts cannot be fetched.
    """
    _check_arguments(out, num_documents, documents_per_file, languages)
    if library is None:
        from pipeline.models.demo import texts as demo_texts

        library = demo_texts
    pages = Pages(num_documents, documents_per_file, seed, tuple(languages), library)
    return _write_crawl(out, pages, format, layout)


def _write_crawl(out: Path, pages: Pages, format: Format, layout: Layout) -> SampleCrawl:
    names = _name_files(pages.num_files, format, layout)
    paths_list: Path | None = None
    with _create_folder(out) as folder:
        num_bytes = _write_files(folder, names, pages, format)
        if layout == "common-crawl":
            paths_list = out / _write_paths_list(folder, names, format)
    counts: dict[str, int] = {}
    for kind, roles in pages.roles.items():
        counts[kind] = len(roles)
    return SampleCrawl(
        folder=out,
        files=tuple(map(out.joinpath, names)),
        truth=out / "truth.parquet",
        paths_list=paths_list,
        num_documents=pages.num_documents,
        num_documents_by_kind=counts,
        num_bytes=num_bytes,
    )


def _check_arguments(
    out: Path, num_documents: int, documents_per_file: int, languages: Sequence[str]
) -> None:
    if num_documents < MIN_DOCUMENTS:
        raise ValueError(
            f"sample crawl: num_documents is {num_documents}, must be at least {MIN_DOCUMENTS}: "
            "a smaller crawl has no room for every kind of page"
        )
    if documents_per_file < 1:
        raise ValueError(
            f"sample crawl: documents_per_file is {documents_per_file}, must be at least 1"
        )
    unknown = set(languages) - ISO_639_3.keys()
    if unknown or not 1 <= len(set(languages)) == len(languages) <= 5:
        raise ValueError(
            f"sample crawl: languages are {list(languages)!r}, must be one to five different "
            f"ones of {', '.join(ISO_639_3)}"
        )
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(
            f"sample crawl: {str(out)!r} is not an empty folder; remove it or name another one"
        )


def _name_files(num_files: int, format: Format, layout: Layout) -> list[str]:
    folder = f"{_SEGMENT}/{format}/" if layout == "common-crawl" else ""
    suffix = "warc.wet.gz" if format == "wet" else "warc.gz"
    stem = f"{folder}CC-MAIN-20261101000000-20261101010000"
    return [f"{stem}-{i:05}.{suffix}" for i in range(num_files)]


@contextlib.contextmanager
def _create_folder(out: Path) -> Generator[Path]:
    """Yield a temporary folder next to `out`. Rename it to `out` on success, else remove it."""
    temporary = out.with_name(f".{out.name}.{uuid.uuid4().hex[:12]}")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        temporary.replace(out)
    except BaseException:
        shutil.rmtree(temporary)
        raise


def _write_files(folder: Path, names: Sequence[str], pages: Pages, format: Format) -> int:
    """Write the WARC files and the truth table. Return the bytes of the WARC files."""
    if format == "wet":
        render, page_record = render_wet, "conversion"
    else:
        render, page_record = render_warc, "response"
    positions = iter(range(pages.num_documents))
    num_bytes = 0
    with truth_table.open_truth_writer(folder / "truth.parquet") as write_row:
        for name in names:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            file_positions = itertools.islice(positions, pages.documents_per_file)
            with path.open("wb") as file:
                file.write(render_warcinfo(path.name, pages.seed))
                for record, position in enumerate(file_positions):
                    page = pages.get_page(position)
                    envelope = Envelope(page.spec, position, pages.seed)
                    file.writelines(render(page, envelope))
                    record_id = envelope.make_id(page_record)
                    write_row(truth_table.make_row(page, name, record, record_id))
                num_bytes += file.tell()
            log.info("wrote %s", name)
    return num_bytes


def _write_paths_list(folder: Path, names: Sequence[str], format: Format) -> Path:
    """Write the list of all files, as Common Crawl does. Return its path under `folder`."""
    # mtime=0: gzip would store the time, and equal arguments must give equal bytes.
    path = Path(f"crawl-data/CC-MAIN-SAMPLE/{format}.paths.gz")
    text = "\n".join((*names, ""))
    (folder / path).write_bytes(gzip.compress(text.encode(), mtime=0))
    return path
