"""Apply the requests of a run to its dataset: write tombstones and the log beside the shards, and check them."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pipeline.retraction.documents import find_named
from pipeline.retraction.records import RequestRecord, list_doc_ids, read_records
from pipeline.runs.run_folder import RunFolder
from shardwriter.format import (
    MANIFEST_FILE,
    RETRACTIONS_FILE,
    Manifest,
    RetractionEntry,
    RetractionLog,
    ShardEntry,
    ShardIndex,
    read_tombstones,
)
from shardwriter.verification.findings import Finding
from stages.mixing.mix import COPY_SHIFT
from storage import Store
from terminal_output import format_count

_REMEDY = "run the config of this run again: it applies all requests"

# A copy of a document has its number above these bits (`select.mix`).
_DOC_ID_BITS = np.uint64(2**COPY_SHIFT - 1)


def apply_requests(run: RunFolder) -> list[RetractionEntry]:
    """Apply each request of a run that the dataset's log does not have yet.

    The tombstones are written first and the log last, each in one step. After a crash, the next
    call continues. Call this with the run lock held.

    Returns:
        The new entries of the log.

    Raises:
        FormatError: the manifest, an index or the log is damaged.
    """
    records = read_records(run.run_dir)
    if not records or not run.dataset.exists(MANIFEST_FILE):
        return []
    dataset = run.dataset
    manifest = read_manifest(dataset)
    log = read_log(dataset, manifest)
    applied = {entry.request_sha256 for entry in log.entries}
    added: list[RetractionEntry] = []
    for record in records:
        if record.sha256 in applied:
            continue
        tombstones = find_tombstones(run, manifest, log, record)
        log, content = log.append(
            tombstones,
            recorded_at=record.recorded_at,
            reason=record.reason,
            requested_by=record.requested_by,
            request_sha256=record.sha256,
        )
        entry = log.entries[-1]
        dataset.put(entry.tombstones, content)
        dataset.put(RETRACTIONS_FILE, log.dumps())
        added.append(entry)
    return added


def find_unretracted(run: RunFolder) -> list[Finding]:
    """Return one finding per request of which the dataset has a document without a tombstone.

    URLs and domains are matched again with everything that the run has read.

    Raises:
        FormatError: the manifest, an index or the log is damaged.
    """
    findings: list[Finding] = []
    records = read_records(run.run_dir)
    if not records:
        return findings
    dataset = run.dataset
    manifest = read_manifest(dataset)
    log = read_log(dataset, manifest)
    applied = {entry.request_sha256 for entry in log.entries}
    for record in records:
        left = find_tombstones(run, manifest, log, record)
        if len(left) or record.sha256 not in applied:
            documents = format_count(len(left), "document")
            found = f"request {record.number}, of which {documents} not masked"
            findings.append(Finding(RETRACTIONS_FILE, found, "none", _REMEDY))
    return findings


def read_manifest(dataset: Store) -> Manifest:
    """Return the manifest of a dataset.

    Raises:
        FormatError: it is damaged.
    """
    return Manifest.loads(dataset.read_bytes(MANIFEST_FILE), dataset.locate(MANIFEST_FILE))


def read_log(dataset: Store, manifest: Manifest | None = None) -> RetractionLog:
    """Return the log of a dataset; one without entries if it has no log.

    Raises:
        FormatError: the log or the manifest is damaged.
    """
    if dataset.exists(RETRACTIONS_FILE):
        where = dataset.locate(RETRACTIONS_FILE)
        return RetractionLog.loads(dataset.read_bytes(RETRACTIONS_FILE), where)
    return RetractionLog((manifest or read_manifest(dataset)).digest)


def list_retractions(run: RunFolder) -> tuple[RetractionEntry, ...]:
    """Return the entries of the log of a run's dataset; none before the dataset is finished."""
    if "write_shards" not in run.folders or not run.dataset.exists(RETRACTIONS_FILE):
        return ()
    return read_log(run.dataset).entries


def read_all_tombstones(dataset: Store, log: RetractionLog) -> NDArray[np.uint64]:
    """Return the (D, 4) tombstones of all entries of a log."""
    empty = np.zeros((0, 4), np.uint64)
    return np.concatenate([empty, *read_tombstone_tables(dataset, log)])


def read_tombstone_tables(
    dataset: Store, log: RetractionLog
) -> Iterator[NDArray[np.uint64]]:
    """Yield the (D, 4) tombstones of each entry of a log."""
    for entry in log.entries:
        content = dataset.read_bytes(entry.tombstones)
        yield read_tombstones(content, entry, dataset.locate(entry.tombstones))


def find_tombstones(
    run: RunFolder, manifest: Manifest, log: RetractionLog, record: RequestRecord
) -> NDArray[np.uint64]:
    """Return the (D, 4) places of the documents of a request that are not retracted yet."""
    retracted = read_all_tombstones(run.dataset, log)[:, 1]
    wanted = np.unique(np.fromiter(_list_doc_ids(run, record), np.uint64))
    tables = [np.zeros((0, 4), np.uint64)]
    if len(wanted):
        read = functools.partial(_find_in_shard, run.dataset, wanted, retracted)
        tables += run.dataset.read_each(manifest.shards, read)
    return np.concatenate(tables)


def _list_doc_ids(run: RunFolder, record: RequestRecord) -> Iterator[int]:
    """Yield the ids of the documents of a request in this run."""
    named, _ = find_named(run, record.request)
    yield from named.column("doc_id").to_pylist()
    # A rewrite removes URLs, so the documents that were named before are looked up by number.
    yield from list_doc_ids(run, record)


def get_own_ids(doc_ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the ids of the documents that (n,) ids of a dataset are, or are copies of."""
    return doc_ids & _DOC_ID_BITS


def _find_in_shard(
    dataset: Store,
    wanted: NDArray[np.uint64],
    retracted: NDArray[np.uint64],
    entry: ShardEntry,
) -> NDArray[np.uint64]:
    """Return the (D, 4) places of wanted documents in a shard, without retracted ones."""
    where = dataset.locate(entry.index_file)
    index = ShardIndex.from_bytes(dataset.read_bytes(entry.index_file), where)
    is_wanted = np.isin(get_own_ids(index.doc_ids), wanted)
    docs = np.flatnonzero(is_wanted & ~np.isin(index.doc_ids, retracted))
    starts = index.doc_starts.astype(np.uint64)
    shards = np.full(len(docs), entry.shard, np.uint64)
    num_tokens = starts[docs + 1] - starts[docs]
    return np.stack([shards, index.doc_ids[docs], starts[docs], num_tokens], axis=1)
