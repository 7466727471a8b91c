"""Verify a dataset.

For example:

    for finding in verify("runs/ccnet/dataset"):
        print(finding)
    # shard-000000.tar, sample 000000-00012, byte 1574528: found tokens with crc32 5d1c9f00, ...
"""

from __future__ import annotations

import os
from pathlib import Path

from shardwriter.format import MANIFEST_FILE, FormatError, Manifest
from shardwriter.verification.doc_ids import find_repeated_doc_ids
from shardwriter.verification.findings import (
    File,
    Finding,
    Folder,
    LocalFolder,
    check_file,
    has_digest,
)
from shardwriter.verification.index_check import check_index
from shardwriter.verification.retraction_check import (
    apply_rewrite,
    check_retractions,
    read_rewritten,
)
from shardwriter.verification.sample_check import check_samples


def verify(dataset: str | os.PathLike[str]) -> list[Finding]:
    """Return everything that is wrong with a dataset; an empty list means that it is correct.

    Every file is hashed, every tar is read, and samples, documents and tokens are counted again.
    Each sample is compared with its checksum and its entry in the index. Token ids must be in the
    vocabulary, and documents must end with the end-of-document id. No doc_id may occur twice, and
    no shard may be in the folder that is not in the manifest. Tombstones of retracted documents must
    be the places of these documents.

    Memory holds one sample, one index and at most `DOC_IDS_IN_MEMORY` document ids. Damaged data
    does not raise.

    Args:
        dataset: path of the dataset's folder or of its manifest.
    """
    path = Path(dataset)
    if path.is_dir():
        return verify_folder(LocalFolder(path))
    return verify_folder(LocalFolder(path.parent), path.name)


def verify_folder(folder: Folder, manifest_file: str = MANIFEST_FILE) -> list[Finding]:
    """Verify a dataset in any kind of folder, for example in a bucket; see `verify`."""
    findings: list[Finding] = []
    manifest = _check_manifest(File(folder, manifest_file), findings)
    if manifest is None:
        return findings
    _check_unnamed_files(folder, manifest, findings)
    index_files: list[tuple[File, int]] = []
    rewritten = read_rewritten(folder, findings)
    for entry in manifest.shards:
        index_path, tar_path = File(folder, entry.index_file), File(folder, entry.file)
        index = check_index(index_path, entry, manifest.tokenizer, findings)
        # A tar with a wrong checksum is still read, because its samples show where the damage is.
        sha256, tar_index = entry.sha256, index
        # A killed rewrite leaves shards as they were.
        if entry.shard in rewritten and not has_digest(tar_path, entry.sha256):
            sha256, tar_index = apply_rewrite(rewritten[entry.shard], index)
        if check_file(tar_path, entry.shard_bytes, sha256, findings):
            check_samples(tar_path, entry, manifest.tokenizer, tar_index, findings)
        if index is not None:
            # Indexes take too much memory. Their ids are read again at the end.
            index_files.append((index_path, index.num_docs))
    findings += find_repeated_doc_ids(index_files)
    findings += check_retractions(folder, manifest, rewritten)
    return findings


def _check_manifest(path: File, findings: list[Finding]) -> Manifest | None:
    try:
        manifest, faults = Manifest.inspect(path.read_bytes(), path.name)
    except OSError as error:
        remedy = "give the folder that holds manifest.json"
        findings.append(Finding.from_os_error(path.name, error, "a manifest", remedy))
        return None
    except FormatError as error:
        findings.append(Finding.from_error(error))
        return None
    findings += [Finding.from_error(fault) for fault in faults]
    return manifest


def _check_unnamed_files(
    folder: Folder, manifest: Manifest, findings: list[Finding]
) -> None:
    """Report shards that the manifest does not name."""
    named: set[str] = set()
    for entry in manifest.shards:
        named |= {entry.file, entry.index_file}
    for name in folder.list_names():
        if name.startswith("shard-") and name not in named:
            finding = Finding(
                name,
                "a file that the manifest does not name",
                "only files that it names",
                "move the file away; a reader that takes every shard in the folder would read it",
            )
            findings.append(finding)
