"""Remove the tokens of retracted documents from the shards of a dataset, shard by shard.

Sizes, offsets, indexes and the manifest stay, so order and saved states stay valid. For each shard
the new checksums are written first, then the log names the shard, then the tar is replaced in one
step, and then its done-record. Readers accept a shard before and after that step.
"""

from __future__ import annotations

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pipeline.retraction.apply import (
    apply_requests,
    read_all_tombstones,
    read_log,
    read_manifest,
)
from pipeline.retraction.purge import purge_texts
from pipeline.runs.run_folder import RunFolder, RunNotFound
from pipeline.runs.run_lock import hold
from shardwriter.format import (
    MANIFEST_FILE,
    REFETCH,
    RETRACTIONS_FILE,
    RewrittenShard,
    ShardCorrupt,
    ShardEntry,
    ShardIndex,
    open_rewritten,
    rewritten_file,
)
from shardwriter.rewrite import blank_documents
from storage import Store


@dataclass(frozen=True)
class Rewritten:
    """What a rewrite has replaced: the numbers of shards, and other files of the run."""

    shards: tuple[int, ...]
    num_files: int


def rewrite(run: RunFolder) -> Rewritten:
    """Remove all retracted documents from the shards of a run, and their texts from its files.

    Files without such documents, and those that were rewritten before, are not changed. A killed
    call is continued by the next one. One file at a time is copied to the scratch directory.

    Raises:
        RunNotFound: the run has no dataset yet.
        HeldByAnother: another process works in the run folder.
        ShardCorrupt: a shard is damaged.
        DamagedOutput: another file is damaged.
    """
    if not run.dataset.exists(MANIFEST_FILE):
        raise RunNotFound(
            f"{run.run_dir}: there is no dataset yet; run the config to its end"
        )
    with hold(run.run_dir):
        apply_requests(run)
        shards = _rewrite_shards(run)
        return Rewritten(tuple(shards), purge_texts(run))


def _rewrite_shards(run: RunFolder) -> list[int]:
    dataset = run.dataset
    manifest = read_manifest(dataset)
    tombstones = read_all_tombstones(dataset, read_log(dataset, manifest))
    replaced: list[int] = []
    for shard in np.unique(tombstones[:, 0]).tolist():
        doc_ids = tombstones[tombstones[:, 0] == shard, 1]
        end = manifest.tokenizer.end_of_document
        if _rewrite_shard(run, manifest.shards[shard], doc_ids, end):
            replaced.append(shard)
    return replaced


def _rewrite_shard(
    run: RunFolder, entry: ShardEntry, doc_ids: NDArray[np.uint64], end_of_document: int
) -> bool:
    """Rewrite one shard without these documents; return whether it was replaced."""
    dataset = run.dataset
    where = dataset.locate(entry.index_file)
    index = ShardIndex.from_bytes(dataset.read_bytes(entry.index_file), where)
    rewritten = _read_rewritten(dataset, entry.shard)
    with dataset.staging_folder(f"rewrite-{entry.shard:06d}") as staging:
        path = staging / entry.file
        with dataset.open(entry.file) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target, 2**20)
        before = _compute_sha256(path)
        if before not in rewritten.list_sha256(entry):
            wanted = f"{entry.sha256} as in the manifest"
            raise ShardCorrupt(dataset.locate(entry.file), before, wanted, REFETCH)
        docs = np.flatnonzero(np.isin(index.doc_ids, doc_ids))
        with path.open("r+b") as tar:
            crcs = blank_documents(tar, index, docs, end_of_document)
        after = _compute_sha256(path)
        is_new = after != before
        if is_new:
            dataset.put(rewritten_file(entry.shard), rewritten.add(after, crcs).dumps())
            log = read_log(dataset).add_rewritten(entry.shard)
            dataset.put(RETRACTIONS_FILE, log.dumps())
        # Also if the tar is the same: a crash may have left the record as it was.
        task_id = entry.file.removesuffix(".tar")
        folder = run.folder("write_shards")
        if is_new or folder.record(task_id)["outputs"][entry.file]["sha256"] != after:
            folder.replace_output(task_id, path, entry.file)
    return is_new


def _read_rewritten(dataset: Store, shard: int) -> RewrittenShard:
    """Return the checksums of earlier rewrites of a shard."""
    if not dataset.exists(rewritten_file(shard)):
        return RewrittenShard(shard)
    return open_rewritten(dataset, shard)


def _compute_sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
