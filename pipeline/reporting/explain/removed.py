"""Find what paragraph_dedup removed from a document, and which other documents hold it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from pipeline.phases.dedup.paragraph_dedup import ParagraphDedup
from pipeline.phases.extract import Extract
from pipeline.phases.previous_runs import list_previous_splits
from pipeline.planning.recorded_plan import load_plan
from pipeline.reporting.explain.find import describe_other
from pipeline.reporting.explain.trace import RemovedParagraphs
from pipeline.reporting.queries import Row
from pipeline.runs.exchange import read_around
from pipeline.runs.phase_folder import PhaseFolder
from pipeline.runs.run_folder import RunFolder
from stages.dedup.paragraph_hashes import hash_paragraph

# Removed paragraphs, the longest, for which another document is looked up.
#
# Each lookup reads a part of the hash file of every split of the group.
NUM_LOOKED_UP = 5

RECORD_BITS = np.uint64(0xFFFF_FFFF)


def find_removed(
    run: RunFolder, doc_id: int, extracted: Row, annotated: Row | None, text: str
) -> RemovedParagraphs:
    """Return what paragraph_dedup removed.

    Args:
        run: the run.
        doc_id: the document.
        extracted: its row in the documents of extract.
        annotated: its row in the documents of annotate; None: annotate dropped it.
        text: its text after substring_dedup, with as many lines.
    """
    lines = extracted["text"].split("\n")
    if annotated is None:
        numbers = sorted(_read_duplicate_lines(run, doc_id))
        num_chars_left = None
    else:
        # Line rules remove further lines after paragraph_dedup.
        left = {*annotated["kept_lines"], *(annotated.get("lines_removed") or ())}
        numbers = [number for number in range(len(lines)) if number not in left]
        num_chars_left = annotated["num_chars"] + (annotated.get("chars_removed") or 0)
    duplicates: list[int] = []
    for number, rest in enumerate(text.split("\n")):
        # Lines that substring_dedup emptied are no duplicate paragraphs.
        if number in numbers and (rest.strip() or not lines[number].strip()):
            duplicates.append(number)
    removed = sorted((lines[number] for number in duplicates), key=len, reverse=True)
    copies = _find_copies(run, doc_id, removed[:NUM_LOOKED_UP])
    return RemovedParagraphs(
        paragraphs=tuple(removed),
        line_numbers=tuple(duplicates),
        copies={line: describe_other(run, other) for line, other in copies.items()},
        num_left=len(lines) - len(numbers),
        num_chars_left=num_chars_left,
        may_be_in_previous=bool(run.previous),
    )


def _read_duplicate_lines(run: RunFolder, doc_id: int) -> list[int]:
    """Return the numbers of the lines of a document that paragraph_dedup removed."""
    plan = load_plan(run)
    lines = ParagraphDedup(plan).find_duplicate_lines(plan.splits[doc_id >> 32])
    of_document = lines >> np.uint64(32) == np.uint64(doc_id) & RECORD_BITS
    return lines[of_document].astype(np.uint32).tolist()


class _HashFile(NamedTuple):
    """The paragraph hashes of one split."""

    split_index: int  # previous runs are numbered after the run's own splits
    folder: PhaseFolder
    file_name: str


def _list_hash_files(run: RunFolder, doc_id: int) -> Iterator[_HashFile]:
    """Yield the hash files that paragraph_dedup compared with this document, in input order."""
    for index, split in enumerate(list_previous_splits(run.previous)):
        name = Extract.hashes.file_name(split.key)
        yield _HashFile(len(run.splits) + index, split.run.folder(Extract.name), name)
    # Not `run.config`: a run of a version with other config keys can still be explained.
    group_splits = run.recorded_config["paragraph_dedup"]["group_splits"] or len(run.splits)
    first = (doc_id >> 32) // group_splits * group_splits
    for split in run.splits[first : first + group_splits]:
        name = Extract.hashes.file_name(split.key)
        yield _HashFile(split.index, run.folder(Extract.name), name)


def _find_copies(run: RunFolder, doc_id: int, lines: Sequence[str]) -> dict[str, int]:
    """Return line -> id of the first other document that holds it."""
    hashes = {line: hash_paragraph(line) for line in lines}
    copies: dict[str, int] = {}
    for file in _list_hash_files(run, doc_id):
        for line, line_hash in hashes.items():
            if line in copies:
                continue
            with contextlib.suppress(FileNotFoundError):  # the previous run was deleted
                others = [
                    other for other in _find_holders(file, line_hash) if other != doc_id
                ]
                if others:
                    copies[line] = others[0]
        if len(copies) == len(hashes):
            break
    return copies


def _find_holders(file: _HashFile, line_hash: int) -> list[int]:
    """Return the ids of the documents of a split that hold a line, sorted."""
    rows = read_around(file.folder.open(file.file_name), line_hash)
    records = rows["record"].to_numpy()
    return [file.split_index << 32 | int(record) for record in records]
