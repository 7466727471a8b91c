"""Bytes on disk: shards that any WebDataset reader opens, an index beside each, one manifest, and their verification.

`shardwriter.format` is the contract that readers import; it needs nothing else of this package.
"""

from shardwriter.manifest import Finding, join, verify
from shardwriter.writer import Documents, write_shard

__all__ = ["Documents", "Finding", "join", "verify", "write_shard"]
