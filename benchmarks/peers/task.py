"""The folders of one run of a program, and what it decided.

The environments of the peers have no package of this project. Therefore this module and the other
modules of programs import only the standard library, and each function imports what it runs.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# What a chain decides on a page that it keeps: language, perplexity, digest of the text.
Decision = tuple[str | None, float | None, str]
Decisions = dict[str, Decision]


@dataclass(frozen=True)
class Task:
    """The folders of one run of an entrant."""

    pages: Path
    models: Path
    output: Path

    @property
    def wet(self) -> Path:
        """The text of the pages."""
        return self.pages / "pages.warc.wet.gz"

    @property
    def warc(self) -> Path:
        """The HTML of the pages."""
        return self.pages / "pages.warc.gz"

    @property
    def json_lines(self) -> Path:
        """The text of the pages for programs that do not read WET files."""
        return self.pages / "documents" / "pages.json.gz"

    def languages(self) -> list[str]:
        """Return the languages that have a language model."""
        return sorted(path.name.split(".")[0] for path in self.models.glob("*.arpa.bin"))


def read_ccnet_files(folder: Path) -> Decisions:
    decisions: Decisions = {}
    for path in sorted(folder.glob("*.json.gz")):
        for row in read_json_lines(path):
            decisions[row["url"]] = (
                row["language"],
                row.get("perplexity"),
                digest_text(row["raw_content"]),
            )
    return decisions


def read_json_lines(path: Path) -> Iterator[dict[str, Any]]:
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            yield from map(json.loads, lines)
    else:
        with path.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def digest_text(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def read_html(task: Task) -> Iterator[tuple[str, bytes]]:
    from fastwarc.warc import ArchiveIterator

    with task.warc.open("rb") as file:
        for record in ArchiveIterator(file, parse_http=True):
            yield record.headers["WARC-Target-URI"], record.reader.read()


def write_texts(task: Task, texts: Iterator[tuple[str, str | None]]) -> None:
    with (task.output / "texts.jsonl").open("w", encoding="utf-8") as file:
        for url, text in texts:
            file.write(json.dumps({"url": url, "text": text or ""}) + "\n")


def read_texts(task: Task) -> Decisions:
    """Return the pages that have a text."""
    decisions: Decisions = {}
    for row in read_json_lines(task.output / "texts.jsonl"):
        if row["text"]:
            decisions[row["url"]] = (None, None, digest_text(row["text"]))
    return decisions
