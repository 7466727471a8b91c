"""Check an index against its checksums, its manifest entry and the rules of the format."""

from __future__ import annotations

import numpy as np

from shardwriter.format import REFETCH, FormatError, ShardEntry, ShardIndex, TokenizerEntry
from shardwriter.verification.findings import REWRITE, File, Finding, check_file


def check_index(
    path: File, entry: ShardEntry, tokenizer: TokenizerEntry, findings: list[Finding]
) -> ShardIndex | None:
    """Check an index; return it, or None if it is not the index of this shard."""
    if not check_file(path, entry.index_bytes, entry.index_sha256, findings):
        return None
    try:
        index = ShardIndex.from_bytes(path.read_bytes(), path.name)
    except OSError as error:
        findings.append(Finding.from_os_error(path.name, error, "an index", REFETCH))
        return None
    except FormatError as error:
        findings.append(Finding.from_error(error))
        return None
    if index.shard != entry.shard:
        # Every comparison with this shard's tar would fail.
        found, wanted = f"the index of shard {index.shard}", f"that of shard {entry.shard}"
        findings.append(Finding(path.name, found, wanted, REFETCH))
        return None
    _compare_counts(path.name, index, entry, findings)
    if index.token_dtype != tokenizer.token_dtype:
        found, wanted = f"tokens of {index.token_dtype}", f"{tokenizer.token_dtype}"
        findings.append(Finding(path.name, found, wanted, REWRITE))
    _check_starts(path.name, index, findings)
    return index


def _compare_counts(
    where: str, index: ShardIndex, entry: ShardEntry, findings: list[Finding]
) -> None:
    for name in ("shard_bytes", "num_samples", "num_docs", "num_tokens"):
        found, wanted = getattr(index, name), getattr(entry, name)
        if found != wanted:
            finding = Finding(
                f"{where}: {name}",
                f"{found} in the index",
                f"{wanted} as in the manifest",
                REFETCH,
            )
            findings.append(finding)


def _check_starts(where: str, index: ShardIndex, findings: list[Finding]) -> None:
    """Check that starts rise strictly from 0, and that every sample starts with a document."""
    for name, starts in (
        ("sample_starts", index.sample_starts),
        ("doc_starts", index.doc_starts),
    ):
        # (n,) With -1 in front, a first start of 0 counts as rising.
        differences = np.diff(starts, prepend=-1)
        is_rising = differences.min() >= 1
        if starts[0] != 0 or not is_rising:
            first_fault = 0 if is_rising else int(differences.argmin())
            place, found = f"{where}: {name}[{first_fault}]", f"{starts[first_fault]}"
            findings.append(Finding(place, found, "0 first, then rising numbers", REWRITE))
    inside_document = np.flatnonzero(~np.isin(index.sample_starts, index.doc_starts))
    if len(inside_document):
        sample = inside_document[0]
        found = f"token {index.sample_starts[sample]}, inside a document"
        place = f"{where}: sample_starts[{sample}]"
        findings.append(Finding(place, found, "the start of a document", REWRITE))
