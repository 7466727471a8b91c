"""Check an index against its checksums, its manifest entry and the rules of the format."""

from __future__ import annotations

from shardwriter.format import (
    REFETCH,
    REWRITE,
    FormatError,
    ShardEntry,
    ShardIndex,
    TokenizerEntry,
    find_start_faults,
)
from shardwriter.verification.findings import File, Finding, check_file


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
    findings += map(Finding.from_error, find_start_faults(index, path.name))
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
