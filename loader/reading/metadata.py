"""Read the metadata that shards store for their documents, from the `<key>.json` members.

For example:

    for documents in read_metadata(dataset, shard=3):
        for document in documents or ():
            document["language"]
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from loader.reading.dataset import Dataset
from shardwriter.format import (
    METADATA_MEMBER,
    NPY_HEADER_BYTES,
    REFETCH,
    TAR_BLOCK_BYTES,
    ShardCorrupt,
    sample_key,
    shard_file,
)

DocumentMetadata = dict[str, Any]

# Fields of a tar header: offsets are in docs/data-format.md.
_NAME = slice(0, 100)
_SIZE = slice(124, 135)


def read_metadata(
    dataset: Dataset, shard: int, samples: Iterable[int] | None = None
) -> Iterator[list[DocumentMetadata] | None]:
    """Yield the documents' metadata of each sample, or None if the dataset has no metadata.

    Tokens are not read.

    Args:
        dataset: the dataset.
        shard: number of the shard.
        samples: numbers of samples; None: all.

    Raises:
        ReadFailed: bytes cannot be read.
        FormatError: the index belongs to another dataset.
        ShardCorrupt: a member is damaged.
    """
    index = dataset.load_index(shard)
    name = shard_file(shard)
    # (S,) documents and token bytes of each sample
    num_docs = np.diff(np.searchsorted(index.doc_starts, index.sample_starts)).tolist()
    num_bytes = (np.diff(index.sample_starts) * index.token_dtype.itemsize).tolist()
    # (S,) where the tokens start, after the header of a .npy file
    offsets = index.sample_offsets.tolist()
    read_range = dataset.files.open_ranges(name)
    for sample in range(len(offsets)) if samples is None else samples:
        # A sample starts where the tokens of the one before end, padded to whole blocks. Its
        # other members end where the header of its tokens starts.
        start = 0
        if sample:
            content_bytes = NPY_HEADER_BYTES + num_bytes[sample - 1]
            start = offsets[sample - 1] - NPY_HEADER_BYTES + _round_up(content_bytes)
        stop = offsets[sample] - NPY_HEADER_BYTES - TAR_BLOCK_BYTES
        data = read_range(start, stop)
        where = f"{dataset.files.where(name)}, bytes {start}..{stop - 1}"
        member = f"{sample_key(shard, sample)}.{METADATA_MEMBER}"
        yield _find_metadata(data, member, num_docs[sample], where)


def _find_metadata(
    data: memoryview, member: str, num_docs: int, where: str
) -> list[DocumentMetadata] | None:
    """Return the content of the member with this name, or None if it is missing."""
    offset = 0
    try:
        while offset < len(data):
            header = data[offset : offset + TAR_BLOCK_BYTES]
            name = bytes(header[_NAME]).rstrip(b"\0").decode("ascii")
            num_bytes = int(bytes(header[_SIZE]), 8)
            content = offset + TAR_BLOCK_BYTES
            if name == member:
                value = json.loads(bytes(data[content : content + num_bytes]))
                return _check_metadata(value, num_docs, f"{where}, {member}")
            offset = content + _round_up(num_bytes)
    except ShardCorrupt:
        raise
    except ValueError as error:
        raise ShardCorrupt(
            f"{where}, {member}", f"{error}", "tar headers and JSON", REFETCH
        ) from error
    return None


def _check_metadata(value: Any, num_docs: int, where: str) -> list[DocumentMetadata]:
    found = len(value) if isinstance(value, list) else type(value).__name__
    if found != num_docs:
        raise ShardCorrupt(where, f"{found}", f"a list of {num_docs} objects", REFETCH)
    return value


def _round_up(num_bytes: int) -> int:
    """Round up to a multiple of the tar's block size."""
    return -(-num_bytes // TAR_BLOCK_BYTES) * TAR_BLOCK_BYTES
