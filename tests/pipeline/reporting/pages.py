"""WET files with pages that are kept, and pages that are dropped for each kind of reason."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from pipeline.runs.run_folder import RunFolder
from tests.conftest import wet_record

ENGLISH = "the treaty was signed in the museum, page {}"
FRENCH = "le chat et la souris, page {}"
SHARED = "the treaty was signed, as all pages say."
# Kind of page -> its text. `{}` becomes the name of the page where its lines must be
# unique.
PAGES = {
    "good": f"{ENGLISH}\nA line of page {{}} alone.",
    "french": f"{FRENCH}\nUne ligne de la page {{}}.",
    "short": "x",
    "copy": f"{SHARED}\nin the museum the treaty was signed.",
    "half": f"{SHARED}\nthe treaty of the museum, page {{}}",
    "empty": "",
}

# paragraph hashes do not tell digits apart
LETTERS = str.maketrans("0123456789", "abcdefghij")


def write_pages(path: Path, kinds: Sequence[str], broken: int = 0) -> Path:
    """Write a WET file with a page of each kind, and records that are broken."""
    name, records = path.stem[0], list[bytes]()
    for i, kind in enumerate(kinds):
        text = PAGES[kind].replace("{}", f"{name}{i}".translate(LETTERS))
        records.append(wet_record(f"https://example.org/{name}/{i}", f"Title\n{text}"))
    path.write_bytes(b"".join(records) + b"no record at all\r\n" * broken)
    return path


RULES: dict[str, Any] = {
    "extract": {"length": {"min_chars": 5}},
    "select": {"language": {"min_score": 0.0, "keep": ["en"]}},
}


def read_decisions(found: RunFolder) -> dict[int, str]:
    """Return doc_id -> decision. A second decision for a document is an error."""
    decisions: dict[int, str] = {}
    for phase in ("extract", "annotate", "select"):
        for split in found.splits:
            for row in pq.read_table(
                found.folder(phase).path(f"{split.key}.decisions.parquet")
            ).to_pylist():
                assert row["doc_id"] not in decisions
                decisions[row["doc_id"]] = row["decision"]
    return decisions
