"""The words in which two documents differ, such as a near-duplicate and its representative."""

from __future__ import annotations

import difflib
import re
from typing import Any

from pipeline.reporting.browse.index import Index
from pipeline.reporting.queries import read_text
from pipeline.runs.run_folder import RunNotFound

# The rest of longer texts is not compared. difflib leaves out words that are frequent in the text,
# so this many words take at most a second, also if a page was written to make it slow.
MAX_WORDS = 4_000

_WORD = re.compile(r"\S+\s*")


def compare_texts(index: Index, first_id: int, second_id: int) -> dict[str, Any]:
    """Return the texts of two documents as segments, in order, as JSON.

    Returns:
        "segments": pairs of a side ("both", "first" or "second") and a text; "is_cut": whether a
        text is longer than what is compared.

    Raises:
        RunNotFound: a text is not stored.
    """
    words: list[list[str]] = []
    for doc_id in (first_id, second_id):
        is_known = index.find_row(doc_id) is not None
        text = read_text(index.run, doc_id) if is_known else None
        if text is None:
            raise RunNotFound(
                f"{index.run.run_dir}: no text of document {doc_id} is stored"
            )
        words.append(_WORD.findall(text))
    first, second = words
    is_cut = max(len(first), len(second)) > MAX_WORDS
    segments = list_segments(first[:MAX_WORDS], second[:MAX_WORDS])
    return {"segments": segments, "is_cut": is_cut}


def list_segments(first: list[str], second: list[str]) -> list[tuple[str, str]]:
    """Return the words of two texts, those that both have once, in order."""
    segments: list[tuple[str, str]] = []
    matcher = difflib.SequenceMatcher(None, first, second)
    for tag, start, end, other_start, other_end in matcher.get_opcodes():
        if tag == "equal":
            segments.append(("both", "".join(first[start:end])))
            continue
        if start < end:
            segments.append(("first", "".join(first[start:end])))
        if other_start < other_end:
            segments.append(("second", "".join(second[other_start:other_end])))
    return segments
