"""Find the same documents in two runs, with a bounded amount of memory.

Input splits of the same files have the same documents under the same record numbers, so these are
compared split by split. The documents of all other splits are compared by URL, in several passes
over the stored decisions if there are many.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.phases.extract import Extract
from pipeline.phases.registry import DECIDING_PHASES
from pipeline.reporting.kept_documents import read_num_tokens
from pipeline.reporting.queries import read_output
from pipeline.runs.run_folder import RunFolder, RunSplit

# The decision on a document that only the other run has.
ABSENT = "not in the run"

# Documents of a run that are compared by URL at a time: about 1 GB.
MAX_ROWS = 2**21

COLUMNS = pa.schema(
    [
        pa.field("doc_id", pa.uint64()),
        pa.field("url", pa.string()),
        pa.field("decision", pa.string()),
        pa.field("value", pa.float64()),
        pa.field("limit", pa.float64()),
        pa.field("detail", pa.string()),
        pa.field("num_chars", pa.int64()),
        pa.field("language", pa.string()),
        pa.field("num_tokens", pa.int64()),  # null: not tokenized
    ]
)


@dataclass(frozen=True)
class Pairing:
    """The input splits of two runs.

    Attributes:
        same: splits of the same files, in both runs.
        only_before, only_after: the others.
    """

    same: Sequence[tuple[RunSplit, RunSplit]]
    only_before: Sequence[RunSplit]
    only_after: Sequence[RunSplit]


def pair_splits(before: RunFolder, after: RunFolder) -> Pairing:
    """Find the input splits of the same files. A file that occurs twice has two pairs."""
    waiting: dict[str, list[RunSplit]] = {}
    for split in after.splits:
        waiting.setdefault(_content(split), []).append(split)
    same: list[tuple[RunSplit, RunSplit]] = []
    only_before: list[RunSplit] = []
    for split in before.splits:
        if found := waiting.get(_content(split)):
            same.append((split, found.pop(0)))
        else:
            only_before.append(split)
    left = {split.key for splits in waiting.values() for split in splits}
    only_after = [split for split in after.splits if split.key in left]
    return Pairing(same, only_before, only_after)


def _content(split: RunSplit) -> str:
    """Return the part of a split's key that depends on its files only."""
    return split.key.partition("-")[2]


def pair_documents(
    before: RunFolder, after: RunFolder, pairing: Pairing
) -> Iterator[pa.Table]:
    """Yield the documents of both runs, each once.

    Each column of COLUMNS occurs twice, with the suffixes `_before` and `_after`. The values of a
    document that only one run has are null in the other; its decision there is ABSENT.
    """
    record = pa.scalar(0xFFFF_FFFF, pa.uint64())
    for splits in pairing.same:
        tables = [
            _read_split(run, split)
            for run, split in zip((before, after), splits, strict=True)
        ]
        keys = [pc.bit_wise_and(table.column("doc_id"), record) for table in tables]
        yield _join(tables, keys)
    sides = ((before, pairing.only_before), (after, pairing.only_after))
    num_rows = max(_count_documents(run, splits) for run, splits in sides)
    num_passes = math.ceil(num_rows / MAX_ROWS)
    for number in range(num_passes):
        tables = [_read_partition(run, splits, number, num_passes) for run, splits in sides]
        yield _join(tables, [_number_urls(table) for table in tables])


def _count_documents(run: RunFolder, splits: Sequence[RunSplit]) -> int:
    keys = [split.key for split in splits]
    records = run.folder(Extract.name).intact_records(keys)
    return sum(record["counters"]["counts"].get("documents", 0) for record in records)


def _read_split(run: RunFolder, split: RunSplit) -> pa.Table:
    """Return the last decision on each document, with its tokens, as COLUMNS."""
    names = COLUMNS.names[:-1]
    artifacts = [phase.decisions for phase in DECIDING_PHASES]
    rows = pa.concat_tables(read_output(run, each, split.key, names) for each in artifacts)
    num_tokens = read_num_tokens(run, split, rows.column("doc_id"))
    return rows.append_column("num_tokens", num_tokens).cast(COLUMNS)


def _read_partition(
    run: RunFolder, splits: Sequence[RunSplit], number: int, num_partitions: int
) -> pa.Table:
    """Return the documents of some splits whose URLs are in one of the partitions."""
    tables = [COLUMNS.empty_table()]
    for split in splits:
        rows = _read_split(run, split)
        if num_partitions > 1:
            urls = rows.column("url").to_pylist()
            partitions = [zlib.crc32((url or "").encode()) % num_partitions for url in urls]
            rows = rows.filter(pa.array(np.array(partitions) == number))
        tables.append(rows)
    return pa.concat_tables(tables)


def _number_urls(rows: pa.Table) -> pa.Array:
    """Return a key for each document: its URL, and how often the run had that URL before."""
    urls = pc.fill_null(rows.column("url"), "").combine_chunks()
    codes = urls.dictionary_encode().indices.to_numpy(zero_copy_only=False)
    order = np.lexsort((rows.column("doc_id").to_numpy(), codes))
    is_first = np.diff(codes[order], prepend=-1) != 0
    places = np.arange(len(order))
    starts = np.maximum.accumulate(np.where(is_first, places, 0))
    occurrences = np.empty(len(order), np.int64)
    occurrences[order] = places - starts
    numbers = pc.cast(pa.array(occurrences), pa.string())
    return pc.binary_join_element_wise(urls, numbers, "\n")


def _join(
    tables: Sequence[pa.Table], keys: Sequence[pa.Array | pa.ChunkedArray]
) -> pa.Table:
    """Return the rows of both tables; those with equal keys are one row."""
    before, after = (
        table.append_column("key", key) for table, key in zip(tables, keys, strict=True)
    )
    rows = before.join(
        after,
        "key",
        join_type="full outer",
        left_suffix="_before",
        right_suffix="_after",
        use_threads=False,
    ).drop_columns("key")
    for name in ("decision_before", "decision_after"):
        place = rows.schema.get_field_index(name)
        rows = rows.set_column(place, name, pc.fill_null(rows.column(name), ABSENT))
    return rows
