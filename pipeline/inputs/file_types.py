"""Which files of a folder an input reads, and how a place in them is described."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class FileType:
    """Which files of a folder are read.

    Attributes:
        key: the config key that names the files, for messages.
        name: what such a file is called in messages.
        endings: matches the end of a name.
        endings_text: the endings, for messages.
    """

    key: str
    name: str
    endings: re.Pattern[str]
    endings_text: str

    @property
    def remedy(self) -> str:
        """What to do about a folder without such a file."""
        return f"its files must end in {self.endings_text}, or these with .gz, .zst or .lz4"


# Common Crawl's names end in .warc.gz and .warc.wet.gz.
CRAWL_FILES = FileType(
    "input.files",
    "crawl file",
    re.compile(r"\.(warc|wet|arc)(\.(gz|zst|lz4))?$"),
    ".warc, .wet or .arc",
)
TEXT_FILES = FileType(
    "input.text.files",
    "text file",
    re.compile(r"\.(jsonl|ndjson|json|parquet)(\.(gz|zst|lz4))?$"),
    ".jsonl, .ndjson, .json or .parquet",
)

# Text files whose documents are located by their rows.
_COUNTS_ROWS = re.compile(r"\.parquet$|\.(jsonl|ndjson|json)\.\w+$")


def describe_place(file: str, offset: int | None) -> str:
    """Return where a document was read.

    >>> describe_place("a.warc.gz", 167), describe_place("a.jsonl.gz", 3)
    ('a.warc.gz at byte 167', 'a.jsonl.gz at row 3')
    """
    if offset is None:  # in zstd and lz4 files
        return file
    kind = "row" if _COUNTS_ROWS.search(file) else "byte"
    return f"{file} at {kind} {offset}"
