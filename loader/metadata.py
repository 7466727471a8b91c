"""What shards say of their documents beside the tokens: the objects of `<key>.json`, in order.

Promises: one list per sample, with one object per document of it, or None where the dataset was written without; what
is not as the format says is a ShardCorrupt that names the member. Tokens are not read.
Leaves to others: tokens (`reader`), which keys there are (the run that wrote them).

    for about in metadata(reader, shard=3, settings=ReadSettings()):
        [document["language"] for document in about or ()]
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np

from loader.reader import Reader
from loader.storage import ReadSettings, Remote, open_store
from shardwriter.format import (
    METADATA_MEMBER,
    NPY_HEADER_BYTES,
    REFETCH,
    TAR_BLOCK_BYTES,
    ShardCorrupt,
    sample_key,
    shard_file,
)

About = list[dict[str, Any]]


def metadata(reader: Reader, shard: int, settings: ReadSettings) -> Iterator[About | None]:
    """Of each sample of a shard: its documents' objects, or None where it has none.

    Raises:
        ReadFailed, FormatError: bytes cannot be had, or the index is not of this dataset.
        ShardCorrupt: the members are not as the format says.
    """
    index = reader.index(shard)
    if not index.num_samples:
        return
    store, name = open_store(reader.catalogue.address, settings, reader.counters), shard_file(shard)
    local = None if isinstance(store, Remote) else memoryview(store.map(name))
    num_docs = np.diff(np.searchsorted(index.doc_starts, index.sample_starts)).tolist()
    num_bytes = (np.diff(index.sample_starts) * index.token_dtype.itemsize).tolist()
    start = 0
    for sample, offset in enumerate(index.sample_offsets.tolist()):
        tokens_member = offset - NPY_HEADER_BYTES - TAR_BLOCK_BYTES
        if local is not None:
            data = local[start:tokens_member]
        else:
            assert isinstance(store, Remote)
            data = store.fetch(name, start, tokens_member)
        where = f"{store.where(name)}, bytes {start}..{tokens_member - 1}"
        yield _parse(
            data, f"{sample_key(shard, sample)}.{METADATA_MEMBER}", num_docs[sample], where
        )
        start = tokens_member + TAR_BLOCK_BYTES + _blocks(NPY_HEADER_BYTES + num_bytes[sample])


def _parse(data: memoryview, member: str, num_docs: int, where: str) -> About | None:
    """The member of that name among those in the bytes; offsets are of the header's fields, in docs/data-format.md."""
    at = 0
    try:
        while at < len(data):
            name = bytes(data[at : at + 100]).rstrip(b"\0").decode("ascii")
            num_bytes = int(bytes(data[at + 124 : at + 135]), 8)
            content = at + TAR_BLOCK_BYTES
            if name == member:
                about = json.loads(bytes(data[content : content + num_bytes]))
                found = len(about) if isinstance(about, list) else type(about).__name__
                if found != num_docs:
                    raise ShardCorrupt(
                        f"{where}, {member}", f"{found}", f"a list of {num_docs} objects", REFETCH
                    )
                return about
            at = content + _blocks(num_bytes)
    except ValueError as error:
        if isinstance(error, ShardCorrupt):
            raise
        raise ShardCorrupt(
            f"{where}, {member}", f"{error}", "headers of a tar, and JSON", REFETCH
        ) from error
    return None


def _blocks(num_bytes: int) -> int:
    """Rounded up to whole blocks of the tar."""
    return -(-num_bytes // TAR_BLOCK_BYTES) * TAR_BLOCK_BYTES
