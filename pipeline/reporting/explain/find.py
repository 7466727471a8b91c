"""Find documents in the files of a run: by URL, by id, and in the shards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.phases.annotate import Annotate
from pipeline.phases.extract import Extract
from pipeline.phases.select import Select
from pipeline.planning.previous_runs import find_owner
from pipeline.reporting.explain.trace import OtherDocument, Row, ShardLocation
from pipeline.retraction.records import find_recorded_ids
from pipeline.runs.phase_folder import PhaseFolder
from pipeline.runs.run_folder import RunFolder
from pipeline.runs.split_output import read_matching_rows
from shardwriter.format import MANIFEST_FILE, Manifest, ShardIndex, sample_key
from stages.mixing.mix import COPY_SHIFT
from stages.settings.quality import MAX_COPIES


def find_doc_ids(run: RunFolder, key: str) -> Iterator[int]:
    """Yield the ids of the documents with this doc_id or URL. A crawl may hold a URL repeatedly.

    The id of a copy is that of its document.
    """
    if key.isdecimal():
        copy = int(key) >> COPY_SHIFT
        yield int(key) - (copy << COPY_SHIFT) if copy < MAX_COPIES else int(key)
        return
    found: set[int] = set()
    for split in run.splits:
        for artifact in (Extract.documents, Extract.decisions):
            with contextlib.suppress(FileNotFoundError):  # the split is not extracted yet
                name = artifact.file_name(split.key)
                rows = read_rows(run.folder(Extract.name), name, "url", key, ["doc_id"])
                doc_ids = rows.column("doc_id").to_pylist()
                found.update(doc_ids)
                yield from doc_ids
    # The URL of a retracted document may have been removed.
    yield from sorted(find_recorded_ids(run, key) - found)


def read_rows(
    folder: PhaseFolder,
    file_name: str,
    column: str,
    value: Any,
    columns: Sequence[str] | None = None,
) -> pa.Table:
    """Read the rows of a Parquet file with this value.

    Where the file is sorted by the column, its statistics let Arrow skip the other row groups.

    Raises:
        FileNotFoundError: the file does not exist.
    """
    return read_matching_rows(folder.open(file_name), column, value, columns)


def read_row(
    folder: PhaseFolder, file_name: str, doc_id: int, columns: Sequence[str] | None = None
) -> Row | None:
    """Read the row of a document, or None if the file or the row does not exist."""
    with contextlib.suppress(FileNotFoundError):
        rows = read_rows(folder, file_name, "doc_id", doc_id, columns).to_pylist()
        if rows:
            return rows[0]
    return None


def describe_other(run: RunFolder, doc_id: int) -> OtherDocument:
    """Return another document with its URL and its last decision.

    Args:
        run: the run in which the id is stored.
        doc_id: of this run, or of a previous run: those are numbered after the run's own splits.
    """
    owner = find_owner(doc_id, len(run.splits), run.previous)
    home, own_id = owner or (run, doc_id)
    run_dir = str(home.run_dir) if owner else None
    key = home.splits[own_id >> 32].key
    for artifact in (Select.decisions, Annotate.decisions, Extract.decisions):
        folder = home.folder(artifact.phase)
        row = read_row(
            folder, artifact.file_name(key), own_id, ["doc_id", "url", "decision"]
        )
        if row:
            return OtherDocument(own_id, run_dir, row["url"], row["decision"])
    return OtherDocument(own_id, run_dir)


def find_in_shards(run: RunFolder, doc_id: int) -> ShardLocation | None:
    """Return where a document is stored, or None if it is in no shard."""
    dataset = run.dataset
    if not dataset.exists(MANIFEST_FILE):
        return None
    content = dataset.read_bytes(MANIFEST_FILE)
    for entry in Manifest.loads(content, dataset.locate(MANIFEST_FILE)).shards:
        index = ShardIndex.from_bytes(
            dataset.read_bytes(entry.index_file), entry.index_file
        )
        rows = np.flatnonzero(index.doc_ids == np.uint64(doc_id))
        if len(rows):
            row = int(rows[0])
            start, end = (int(token) for token in index.doc_starts[row : row + 2])
            # sample_starts is the first token of each sample, so this is the sample around `start`.
            sample = int(np.searchsorted(index.sample_starts, start, side="right")) - 1
            key = sample_key(entry.shard, sample)
            return ShardLocation(entry.file, row, key, start, end - start)
    return None
