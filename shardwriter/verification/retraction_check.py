"""Check the retractions of a dataset: the log, the tombstones, and the documents that they name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shardwriter.format import (
    RETRACTIONS_FILE,
    FormatError,
    Manifest,
    RetractionLog,
    RewrittenShard,
    ShardIndex,
    open_rewritten,
    read_tombstones,
    rewritten_file,
    shard_file,
)
from shardwriter.rewrite import count_tokens_left
from shardwriter.verification.findings import Finding, Folder

_REMEDY = "copy the retractions again from where the dataset was retracted"


def read_rewritten(folder: Folder, findings: list[Finding]) -> dict[int, RewrittenShard]:
    """Return the checksums of the shards that were rewritten; add what cannot be read."""
    if RETRACTIONS_FILE not in folder.list_names():
        return {}
    rewritten: dict[int, RewrittenShard] = {}
    try:
        log = RetractionLog.loads(folder.read_bytes(RETRACTIONS_FILE))
    except (FormatError, OSError):
        return {}  # check_retractions names it
    for shard in log.rewritten:
        try:
            rewritten[shard] = open_rewritten(folder, shard)
        except FormatError as error:
            findings.append(Finding.from_error(error))
        except OSError as error:
            wanted = "the checksums of a rewritten shard"
            name = rewritten_file(shard)
            findings.append(Finding.from_os_error(name, error, wanted, _REMEDY))
    return rewritten


def apply_rewrite(
    rewritten: RewrittenShard, index: ShardIndex | None
) -> tuple[str, ShardIndex | None]:
    """Return the SHA-256 that the tar of a rewritten shard has, and its index with new checksums.

    The index in the folder keeps the old checksums.
    """
    if index is None:
        return rewritten.sha256[-1], None
    crcs = index.sample_crcs.copy()
    for sample, crc in rewritten.sample_crcs:
        if sample < len(crcs):
            crcs[sample] = crc
    return rewritten.sha256[-1], replace(index, sample_crcs=crcs)


def check_retractions(
    folder: Folder, manifest: Manifest, rewritten: Mapping[int, RewrittenShard]
) -> list[Finding]:
    """Return what is wrong with the retractions of a dataset.

    Each tombstone must cover exactly one document of the dataset, because readers mask the tokens
    that it names. In rewritten shards, no token of these documents may be left.
    """
    if RETRACTIONS_FILE not in folder.list_names():
        return []
    findings: list[Finding] = []
    try:
        tombstones = _read_all(folder, manifest)
    except FormatError as error:
        return [Finding.from_error(error)]
    except OSError as error:
        wanted = "the tombstones of each entry"
        return [Finding.from_os_error(RETRACTIONS_FILE, error, wanted, _REMEDY)]
    for shard in np.unique(tombstones[:, 0]).tolist():
        rows = tombstones[tombstones[:, 0] == shard]
        findings += _check_shard(folder, manifest, shard, rows, shard in rewritten)
    return findings


def _read_all(folder: Folder, manifest: Manifest) -> NDArray[np.uint64]:
    """Return the (D, 4) tombstones of all entries."""
    log = RetractionLog.loads(folder.read_bytes(RETRACTIONS_FILE))
    if log.manifest_digest != manifest.digest:
        raise FormatError(
            f"{RETRACTIONS_FILE}: manifest_digest",
            log.manifest_digest,
            f"{manifest.digest} as in the manifest",
            _REMEDY,
        )
    tables = [np.zeros((0, 4), np.uint64)]
    tables += [
        read_tombstones(folder.read_bytes(entry.tombstones), entry) for entry in log.entries
    ]
    return np.concatenate(tables)


def _check_shard(
    folder: Folder,
    manifest: Manifest,
    shard: int,
    tombstones: NDArray[np.uint64],
    is_rewritten: bool,
) -> Iterator[Finding]:
    """Yield the tombstones of a shard that are not the place of a document, and tokens left."""
    if shard >= len(manifest.shards):
        found = f"tombstones of shard {shard}"
        wanted = f"shards below {len(manifest.shards)}"
        yield Finding(RETRACTIONS_FILE, found, wanted, _REMEDY)
        return
    file = manifest.shards[shard].index_file
    try:
        index = ShardIndex.from_bytes(folder.read_bytes(file), file)
    except (FormatError, OSError):
        return  # the check of indexes names it
    starts = index.doc_starts.astype(np.uint64)
    places = np.stack([index.doc_ids, starts[:-1], np.diff(starts)], axis=1)
    known = {tuple(place) for place in places.tolist()}
    for place in tombstones[:, 1:].tolist():
        if tuple(place) not in known:
            doc_id, first, num_tokens = place
            found = f"a tombstone of document {doc_id}: {num_tokens} tokens from {first}"
            yield Finding(file, found, "the place of a document as in the index", _REMEDY)
    if is_rewritten:
        docs = np.flatnonzero(np.isin(index.doc_ids, tombstones[:, 1]))
        yield from _check_bytes(folder, manifest, index, docs)


def _check_bytes(
    folder: Folder, manifest: Manifest, index: ShardIndex, docs: NDArray[np.int64]
) -> Iterator[Finding]:
    """Yield a finding if tokens of retracted documents are left in the tar."""
    name = shard_file(index.shard)
    end = manifest.tokenizer.end_of_document
    try:
        with folder.open(name) as tar:
            num_left = count_tokens_left(tar, index, docs, end)
    except (FormatError, OSError):
        return  # the check of shards names it
    if num_left:
        remedy = "run `python -m pipeline retract RUN --rewrite` again"
        found = f"{num_left} tokens of retracted documents"
        yield Finding(name, found, "none in a rewritten shard", remedy)
