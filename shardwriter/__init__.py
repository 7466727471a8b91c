"""Write and verify datasets: WebDataset shards with an index beside each, and one manifest.

`shardwriter.format` is the on-disk format. Readers import only this package; it needs nothing else
of shardwriter.
"""

from shardwriter.documents import Documents
from shardwriter.manifest import build_manifest
from shardwriter.verification.dataset import verify
from shardwriter.verification.findings import Finding
from shardwriter.writer import write_shard

__all__ = ["Documents", "Finding", "build_manifest", "verify", "write_shard"]
