"""Training: texts, which of them are held out, and the folder and the record of a model."""

from __future__ import annotations

import gzip
import hashlib
import importlib.metadata
import json
import lzma
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from pipeline.runs.done_records import to_json
from stages.settings.warc import HtmlSettings, WarcSettings
from stages.warc.reader import WarcReader
from storage.local import put_file

# Describes a trained model.
RECORD_FILE = "record.json"

# Increase it if equal texts and settings give other models.
VERSION = 1

# What gzip and lzma raise for a file that is cut, damaged or not compressed.
_DECOMPRESSION_ERRORS = (gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError)

# With fewer documents, percentiles and shares mean nothing.
MIN_HELD_OUT_DOCS = 10


class TrainingFailed(RuntimeError):
    """A model cannot be trained: too few texts, or a tool failed (with its last lines)."""


def write_model(
    out: Path, file_names: Sequence[str], train: Callable[[Path], dict[str, Any]]
) -> dict[str, Any]:
    """Train into a scratch folder, then move the model's files and its record to `out`.

    Args:
        out: Folder to write; created if needed. It is complete when it has RECORD_FILE.
        file_names: The files of the model.
        train: Writes them into a folder; returns the record.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=".work-") as folder:
        record = train(Path(folder))
        # The record is removed first and written last. If the process dies in between, the
        # folder has no record, so files of two models are not taken for one.
        (out / RECORD_FILE).unlink(missing_ok=True)
        for name in file_names:
            (Path(folder) / name).replace(out / name)
    put_file(out / RECORD_FILE, to_json(record))
    return record


def read_texts(files: Iterable[Path]) -> Iterator[str]:
    """Yield the documents of the user's files, one per line, in order. Blank lines are skipped.

    Args:
        files: `.jsonl`: objects whose key `text` (or `raw_content`, as in CCNet) is the
            document; any other name: each line is a document. Plain, `.gz` or `.xz`. UTF-8.

    Raises:
        TextUnreadable: a line is not UTF-8 or not such an object, or a compressed file is damaged.
    """
    for path in files:
        is_json = path.name.removesuffix(".gz").removesuffix(".xz").endswith(".jsonl")
        for number, line in enumerate(_read_lines(path), 1):
            if not line.isspace():
                yield _parse_line(line, is_json, f"{path}:{number}")


def _read_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, decompressed by the end of its name."""
    try:
        with _open_binary(path) as lines:
            yield from lines
    except _DECOMPRESSION_ERRORS as error:
        raise TextUnreadable(
            f"{path}: cannot be decompressed as {path.suffix}, which its name says: {error}; "
            f"restore or rename the file"
        ) from error


def _open_binary(path: Path) -> IO[bytes]:
    openers = {".gz": gzip.open, ".xz": lzma.open}
    return cast("IO[bytes]", openers.get(path.suffix, open)(path, "rb"))


def _parse_line(line: bytes, is_json: bool, where: str) -> str:
    try:
        if not is_json:
            return line.decode().rstrip("\r\n")
        document = json.loads(line)
        text = document["text"] if "text" in document else document["raw_content"]
        # Raises TypeError unless it is a string; str(text) would convert anything.
        return str.__str__(text)
    except (UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        wanted = "an object with a string text or raw_content" if is_json else "UTF-8"
        raise TextUnreadable(
            f"{where}: wanted {wanted}, found {line[:60]!r} ({error})"
        ) from error


class CrawlPage(NamedTuple):
    """A page of a crawl, divided by main content extraction."""

    domain: str
    main_content: str  # "" if hardly anything would be left (docs/stages.md)
    left_out: (
        str  # lines of its text that are not in the main content: menus, teasers, footers
    )


def read_crawl(files: Iterable[Path]) -> Iterator[CrawlPage]:
    """Yield the HTML pages of WARC or ARC files, in order. Broken records are left out.

    Raises:
        OSError: a file cannot be read.
    """
    html = HtmlSettings(main_content=True, page_sample_chars=_ALL_CHARS)
    for path in files:
        for batch in WarcReader(
            path, WarcSettings(html=html), split=0, batch_bytes=_BATCH_BYTES
        ):
            for row in batch.select(_PAGE_COLUMNS).to_pylist():
                if row["page_sample"] is not None:
                    yield _divide_page(row)


# More than a record may have.
_ALL_CHARS = 1 << 31
_BATCH_BYTES = 1 << 24
_PAGE_COLUMNS = ["source_domain", "text", "main_content_chars", "page_sample"]


def _divide_page(row: Mapping[str, Any]) -> CrawlPage:
    has_main_content = row["main_content_chars"] is None
    main_content = row["text"] if has_main_content else ""
    main_lines = {line.strip() for line in main_content.splitlines()}
    lines = map(str.strip, row["page_sample"].splitlines())
    left_out = [line for line in lines if line and line not in main_lines]
    return CrawlPage(row["source_domain"] or "", main_content, "\n".join(left_out))


def is_held_out(text: str, share: float) -> bool:
    """Return whether a text is for evaluation, not for training.

    A hash of the text decides, so repeated texts are on the same side.

    Args:
        text: the document.
        share: 0..1, of the texts to hold out.
    """
    position = int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")
    return position < share * 2**64


class TextUnreadable(ValueError):
    """A file of texts is damaged, or has a line that is no document. The message names the place."""


class TextDigest:
    """Counts texts and computes their digest while they are read."""

    def __init__(self) -> None:
        self.num_docs, self.num_chars = 0, 0
        self._sha256 = hashlib.sha256()

    def read(self, texts: Iterable[str]) -> Iterator[str]:
        """Yield the texts. Lone surrogates become question marks, because UTF-8 has none."""
        # A digest of digests: without it, two texts and their concatenation would be equal.
        for text in texts:
            encoded = text.encode("utf-8", "replace")
            self.num_docs += 1
            self.num_chars += len(text)
            self._sha256.update(hashlib.sha256(encoded).digest())
            yield encoded.decode()

    def summarize(self) -> dict[str, Any]:
        """Return the entry for `record.json`."""
        return {
            "num_docs": self.num_docs,
            "num_chars": self.num_chars,
            "sha256": self._sha256.hexdigest(),
        }


def list_versions(*distributions: str) -> dict[str, str]:
    """Return the versions of this package's training code and of installed distributions."""
    versions = {"corpusmill.model_training": str(VERSION)}
    for name in distributions:
        versions[name] = _find_version(name)
    return versions


@cache
def _find_version(distribution: str) -> str:
    """Return the version of an installed distribution. A run asks for them 40 times."""
    return importlib.metadata.version(distribution)
