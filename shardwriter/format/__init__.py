"""The on-disk format of a dataset, version 1: file names, tar members, indexes and the manifest.

docs/data-format.md describes it in words. Writers, the verifier and all readers use this package.
It needs only the standard library and numpy. Data that does not match the format raises
FormatError.

Read the tokens of sample 12 of shard 3:

    manifest = Manifest.loads(path.read_bytes(), where=str(path))
    index = read_index(folder / manifest.shards[3].index_file)
    start, stop = index.sample_starts[12:14]                   # tokens from the shard's start
    tar.seek(index.sample_offsets[12])
    raw = tar.read((stop - start) * index.token_dtype.itemsize)
    assert zlib.crc32(raw) == index.sample_crcs[12]
    tokens = np.frombuffer(raw, index.token_dtype)
"""

from shardwriter.format.entries import Count, ShardEntry, TokenizerEntry, Totals
from shardwriter.format.errors import REFETCH, REWRITE, FormatError, ShardCorrupt
from shardwriter.format.index import INDEX_HEADER, INDEX_MAGIC, ShardIndex, read_index
from shardwriter.format.index_layout import (
    check_layout,
    find_start_faults,
)
from shardwriter.format.manifest import Manifest
from shardwriter.format.members import (
    DOCS_DTYPE,
    DOCS_MEMBER,
    FORMAT_NAME,
    FORMAT_VERSION,
    MANIFEST_FILE,
    MAX_MEMBER_BYTES,
    METADATA_MEMBER,
    NPY_HEADER_BYTES,
    TAR_BLOCK_BYTES,
    TOKENS_MEMBER,
    index_file,
    npy_header,
    sample_key,
    shard_file,
    token_dtype,
)
from shardwriter.format.retractions import (
    RETRACTIONS_FILE,
    RetractionEntry,
    RetractionLog,
    read_tombstones,
    tombstones_file,
)
from shardwriter.format.rewritten import RewrittenShard, open_rewritten, rewritten_file

__all__ = [
    "DOCS_DTYPE",
    "DOCS_MEMBER",
    "FORMAT_NAME",
    "FORMAT_VERSION",
    "INDEX_HEADER",
    "INDEX_MAGIC",
    "MANIFEST_FILE",
    "MAX_MEMBER_BYTES",
    "METADATA_MEMBER",
    "NPY_HEADER_BYTES",
    "REFETCH",
    "RETRACTIONS_FILE",
    "REWRITE",
    "TAR_BLOCK_BYTES",
    "TOKENS_MEMBER",
    "Count",
    "FormatError",
    "Manifest",
    "RetractionEntry",
    "RetractionLog",
    "RewrittenShard",
    "ShardCorrupt",
    "ShardEntry",
    "ShardIndex",
    "TokenizerEntry",
    "Totals",
    "check_layout",
    "find_start_faults",
    "index_file",
    "npy_header",
    "open_rewritten",
    "read_index",
    "read_tombstones",
    "rewritten_file",
    "sample_key",
    "shard_file",
    "token_dtype",
    "tombstones_file",
]
