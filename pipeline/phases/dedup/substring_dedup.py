"""The phases substring_hashes and substring_dedup: find spans of words that an earlier document has, over the whole crawl.

A span of at least `min_words` words is repeated in a document if an earlier document, or one of a previous run, has it.
The first document keeps it. The result depends on the texts and their order alone. Each removed span, word for word,
occurs in an earlier document.

    extract: SPLIT.documents.parquet ──▶ SPLIT.windows.arrow    hashes of all windows of min_words words
    SPLIT.windows.arrow ──▶ p000of004.repeated.arrow            the windows that an earlier document has, per split

Source: Lee et al. 2022, "Deduplicating Training Data Makes Language Models Better", section 4.1, with words in place of
tokens. They, and Penedo et al. 2023 (RefinedWeb, section 3.3), remove spans of 50 tokens.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from pipeline.config import RunConfig
from pipeline.inputs.input_splits import InputSplit
from pipeline.phases.artifact import Artifact
from pipeline.phases.dedup.hash_phase import FindingPhase, SplitHashes, mask_rows
from pipeline.phases.extract import Extract
from pipeline.phases.previous_runs import find_unreadable
from pipeline.runs.exchange import (
    NUM_RANGES,
    Partition,
    SegmentWriter,
    group_by_range,
    join_batches,
    sort_by_hash,
    take_rows,
)
from pipeline.runs.phase_folder import PendingOutput
from pipeline.runs.run_folder import RunFolder
from pipeline.runs.split_output import read_row_groups
from stages.contract import Counters
from stages.dedup.substring_dedup import hash_windows

# Memory per window of the part of a split that is hashed at a time: 24 as stored, and the order of
# the buckets.
BYTES_HELD = 36

# Memory of a partition per window: 24 as read, and 24 while its chunks are built. Later 8 for
# a result, and the memory for one chunk.
BYTES_PER_WINDOW = 48

# Bytes of text per word, for the estimate of the number of partitions; English text has 6.
BYTES_PER_WORD = 6

# A window of words: two hashes, its document, and the place of its first word there.
WINDOWS = pa.schema(
    [
        pa.field("hash", pa.uint64()),
        pa.field("check", pa.uint64()),
        pa.field("record", pa.uint32()),
        pa.field("word", pa.uint32()),
    ]
)

REPEATED = pa.schema([WINDOWS.field("record"), WINDOWS.field("word")])


class SubstringHashes(SplitHashes):
    """Hash all windows of words of every document."""

    name = "substring_hashes"
    section = "substring_dedup"
    version = 3
    parents = (Extract,)

    # by hash
    windows = Artifact(
        "windows.arrow", WINDOWS, last_use="previous_runs", has_segments=True
    )

    def run(self, task_id: str) -> None:
        """Write the windows of the documents of one split."""
        counters = Counters()
        with self.folder.commit(task_id) as output:
            name = self.windows.file_name(task_id)
            parts = self._collect_parts(self._read_windows(task_id))
            counters.add("windows", _write_windows(output, name, parts))
            output.record = {"counters": counters.to_json()}

    def _collect_parts(
        self, batches: Iterator[list[NDArray[Any]]]
    ) -> Iterator[pa.RecordBatch]:
        """Join the rows of batches into parts that fill half of the memory of a task."""
        max_rows = self.config.engine.memory_mb * 2**19 // BYTES_HELD
        waiting: list[list[NDArray[Any]]] = []
        num_rows = 0
        for columns in batches:
            waiting.append(columns)
            num_rows += len(columns[0])
            if num_rows >= max_rows:
                yield _concatenate(waiting)
                num_rows = 0
        if waiting:
            yield _concatenate(waiting)

    def _read_windows(self, task_id: str) -> Iterator[list[NDArray[Any]]]:
        """Yield the columns of WINDOWS of some documents at a time."""
        assert self.config.substring_dedup is not None
        num_words = self.config.substring_dedup.min_words
        documents = self.plan.folder(Extract.name).open(
            Extract.documents.file_name(task_id)
        )
        batch_mb = self.config.engine.advanced.batch_mb
        for batch in read_row_groups(documents, ["doc_id", "text"], batch_mb):
            starts, hashes = hash_windows(batch.column("text"), num_words)
            counts = np.diff(starts)
            records = batch.column("doc_id").to_numpy().astype(np.uint32)  # the lower half
            words = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
            yield [*hashes, np.repeat(records, counts), words.astype(np.uint32)]


def _write_windows(
    output: PendingOutput, name: str, parts: Iterator[pa.RecordBatch]
) -> int:
    """Write the windows by hash, and return their number. One part is in memory at a time."""
    paths: list[Path] = []
    num_windows = 0
    for part in parts:
        paths.append(output.path(f"{name}.part{len(paths)}"))
        with pa.ipc.new_file(paths[-1], WINDOWS) as file:
            for rows in group_by_range(part):
                file.write_batch(rows)
        num_windows += part.num_rows
        del part  # before the next part is made
    with contextlib.ExitStack() as stack:
        # Pages of memory maps would count as memory of the process.
        sources = [stack.enter_context(pa.OSFile(str(path))) for path in paths]
        files = [pa.ipc.open_file(source) for source in sources]
        with SegmentWriter(output, name, WINDOWS) as merged:
            for index in range(NUM_RANGES):
                rows = join_batches(WINDOWS, [file.get_batch(index) for file in files])
                merged.write(sort_by_hash(rows))
    for path in paths:
        path.unlink()
    return num_windows


def _concatenate(batches: list[list[NDArray[Any]]]) -> pa.RecordBatch:
    """Return the rows of all batches, and empty the list."""
    columns: list[NDArray[Any]] = []
    for _ in WINDOWS:
        # The columns are removed, so that only one of them is in memory twice.
        column = [batch.pop(0) for batch in batches]
        columns.append(np.concatenate(column))
    batches.clear()
    return pa.record_batch(columns, schema=WINDOWS)


class SubstringDedup(FindingPhase):
    """Find the windows that an earlier document has, by ranges of hash space."""

    name = "substring_dedup"
    version = 2
    parents = (SubstringHashes,)
    compared = (SubstringHashes.windows, "windows")
    bytes_per_row = BYTES_PER_WINDOW

    # a segment per split
    found = Artifact("repeated.arrow", REPEATED, last_use="run", has_segments=True)

    @classmethod
    def phases_read_in_previous_runs(cls, config: RunConfig) -> tuple[str, ...]:
        """Return substring_hashes: the windows there are compared too."""
        return (SubstringHashes.name,) if cls.is_enabled(config) else ()

    @classmethod
    def check_previous_run(cls, config: RunConfig, run: RunFolder) -> Iterator[str]:
        """Yield the reasons why windows cannot be compared."""
        ours, theirs = config.substring_dedup, run.config.substring_dedup
        if ours is None:
            return
        if theirs is None or theirs.min_words != ours.min_words:
            found = "null" if theirs is None else theirs.model_dump()
            yield (
                f"its substring_dedup is {found}, ours is {ours.model_dump()}; "
                "set min_words to the same number"
            )
        else:
            yield from find_unreadable(run, SubstringHashes.windows)

    def find(self, part: Partition) -> Sequence[pa.RecordBatch]:
        """Return the windows of each split that an earlier document has."""
        checks = [rows["check"].to_numpy() for rows in part.files]

        def find_in_chunk(chunk: Sequence[slice]) -> NDArray[np.bool_]:
            hashes, ids = part.gather(chunk)
            return find_repeated_windows(hashes, take_rows(checks, chunk), ids)

        own = slice(len(self.plan.previous_splits), None)
        masks = mask_rows(part, find_in_chunk)[own]
        return [
            rows.select(REPEATED.names).filter(pa.array(mask))
            for rows, mask in zip(part.files[own], masks, strict=True)
        ]

    def count(self, segment: pa.RecordBatch) -> dict[str, int]:
        """Return the number of repeated windows."""
        return {"windows_repeated": segment.num_rows}

    def find_spans(self, split: InputSplit) -> NDArray[np.uint64]:
        """Return the repeated spans of a split as record << 32 | word.

        Returns:
            (2 n,) first word, end, first word, end ... of n spans, sorted. Spans of a document are
            apart.
        """
        settings = self.config.substring_dedup
        if settings is None:
            return np.empty(0, np.uint64)
        rows = self.read_found(split)
        records = rows["record"].to_numpy().astype(np.uint64)
        windows = np.sort(records << np.uint64(32) | rows["word"].to_numpy())
        return join_windows(windows, settings.min_words)


def join_windows(windows: NDArray[np.uint64], num_words: int) -> NDArray[np.uint64]:
    """Return the spans that windows cover.

    Args:
        windows: (n,) record << 32 | first word of each window, sorted.
        num_words: words per window.

    Returns:
        (2 m,) first word and end of m spans, as record << 32 | word, sorted. Windows that overlap
        or touch are one span.
    """
    if not len(windows):
        return windows
    # Windows of two records are farther apart than any number of words.
    is_apart = np.diff(windows) > num_words
    starts = windows[np.append(True, is_apart)]
    ends = windows[np.append(is_apart, True)] + np.uint64(num_words)
    return np.stack([starts, ends], axis=1).reshape(-1)


def find_repeated_windows(
    hashes: NDArray[np.uint64], checks: NDArray[np.uint64], ids: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """Return whether an earlier document has each window, shape (n,).

    Args:
        hashes: (n,) the first hash of each window.
        checks: (n,) its second hash.
        ids: (n,) the document of each window. Those of equal windows never decrease.
    """
    # The sort is stable, so the first of equal windows is that of the first document.
    order = np.lexsort((checks, hashes))
    is_first = np.ones(len(ids), np.bool_)
    is_first[1:] = (np.diff(hashes[order]) != 0) | (np.diff(checks[order]) != 0)
    first_ids = ids[order][is_first][np.cumsum(is_first) - 1]
    is_repeated = np.empty(len(ids), np.bool_)
    is_repeated[order] = ids[order] != first_ids
    return is_repeated
