"""Find the spans of words that substring_dedup found in a document, and which document has each first."""

from __future__ import annotations

import contextlib

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.phases.dedup.substring_dedup import SubstringDedup, SubstringHashes
from pipeline.planning.recorded_plan import load_plan
from pipeline.reporting.explain.find import describe_other
from pipeline.reporting.explain.trace import RepeatedSpan
from pipeline.runs.exchange import read_around
from pipeline.runs.run_folder import RunFolder
from stages.dedup.substring_dedup import SPANS, cut_spans, find_words, hash_windows

# Spans, the longest, for which the first document is looked up.
#
# Each lookup reads a part of the windows of every split up to the document's own.
NUM_LOOKED_UP = 5

RECORD_BITS = np.uint64(0xFFFF_FFFF)


def find_repeated_spans(
    run: RunFolder, doc_id: int, text: str
) -> tuple[tuple[RepeatedSpan, ...], str]:
    """Return the repeated spans of a document, longest first, and its text without them.

    Args:
        run: a run that has finished substring_dedup, if it is on.
        doc_id: the document.
        text: the text that extract has stored.
    """
    settings = run.recorded_config.get("substring_dedup")
    if settings is None:
        return (), text
    plan = load_plan(run)
    dedup = SubstringDedup(plan)
    bounds = dedup.find_spans(plan.splits[doc_id >> 32])
    is_own = bounds >> np.uint64(32) == np.uint64(doc_id) & RECORD_BITS
    bounds = bounds[is_own].astype(np.uint32)
    texts = pa.array([text], pa.large_string())
    words = find_words(text)
    _, windows = hash_windows(texts, settings["min_words"])
    places = [(int(start), int(end)) for start, end in bounds.reshape(-1, 2)]
    places.sort(key=lambda place: (place[0] - place[1], place))
    found: list[RepeatedSpan] = []
    for start, end in places:
        is_looked_up = len(found) < NUM_LOOKED_UP
        first = _find_first(dedup, windows[:, start]) if is_looked_up else None
        other = None if first is None else describe_other(run, first)
        found.append(RepeatedSpan(" ".join(words[start:end]), end - start, other))
    if settings["action"] == "drop":
        return tuple(found), text
    cut = cut_spans(texts, pa.array([bounds.tolist()], SPANS.type))
    return tuple(found), cut.texts[0].as_py()


def _find_first(dedup: SubstringDedup, window: NDArray[np.uint64]) -> int | None:
    """Return the id of the first document that has a window.

    Returns:
        None if the previous run that has it was deleted.
    """
    for index, (folder, key) in enumerate(dedup.sources(SubstringHashes.name)):
        with contextlib.suppress(FileNotFoundError):
            source = folder.open(SubstringHashes.windows.file_name(key))
            rows = read_around(source, int(window[0]))
            is_equal = rows["check"].to_numpy() == window[1]
            records = rows["record"].to_numpy()[is_equal]
            if len(records):
                found = np.array([index << 32 | int(records.min())], np.uint64)
                return int(dedup.doc_ids(found)[0])
    return None
