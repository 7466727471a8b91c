"""Remove the tokens and the metadata of documents from a shard, without moving any other byte.

blank_documents(file, index, np.array([4, 17]), manifest.tokenizer.end_of_document)
"""

from __future__ import annotations

import tarfile
import zlib
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from shardwriter.format import (
    METADATA_MEMBER,
    NPY_HEADER_BYTES,
    REFETCH,
    TAR_BLOCK_BYTES,
    FormatError,
    ShardCorrupt,
    ShardIndex,
    sample_key,
    shard_file,
)

_JSON_START, _JSON_SEPARATOR, _JSON_END = b"[\n", b",\n", b"\n]\n"


def blank_documents(
    tar: BinaryIO, index: ShardIndex, docs: NDArray[np.integer[Any]], end_of_document: int
) -> dict[int, int]:
    """Replace the tokens of documents by the end-of-document id, and their metadata by blanks.

    Sizes and offsets stay. A second call with the same documents changes nothing.

    Args:
        tar: the tar of the shard, open for reading and writing.
        index: the index of the shard.
        docs: (D,) numbers of documents in the shard, from 0.
        end_of_document: the id that replaces each token.

    Returns:
        Sample -> CRC-32 of its raw tokens, for the samples that have such documents.

    Raises:
        ShardCorrupt: the tar does not follow the format.
    """
    crcs: dict[int, int] = {}
    # (D,) sample of each document; a sample holds whole documents.
    starts = index.doc_starts[docs]
    samples = np.searchsorted(index.sample_starts, starts, side="right") - 1
    for sample in np.unique(samples).tolist():
        chosen = docs[samples == sample]
        crcs[sample] = _blank_tokens(tar, index, sample, chosen, end_of_document)
        _blank_metadata(tar, index, sample, chosen)
    return crcs


def _blank_tokens(
    tar: BinaryIO,
    index: ShardIndex,
    sample: int,
    docs: NDArray[np.integer[Any]],
    end_of_document: int,
) -> int:
    """Blank the tokens of documents of one sample, and return the sample's new CRC-32."""
    first, stop = index.sample_starts[sample : sample + 2].tolist()
    offset = int(index.sample_offsets[sample])
    tar.seek(offset)
    raw = tar.read((stop - first) * index.token_dtype.itemsize)
    tokens = np.frombuffer(raw, index.token_dtype).copy()
    if len(tokens) != stop - first:
        found, wanted = f"{len(tokens)} tokens", f"{stop - first}"
        raise ShardCorrupt(
            f"{shard_file(index.shard)}, byte {offset}", found, wanted, REFETCH
        )
    for doc in docs.tolist():
        begin, end = (index.doc_starts[doc : doc + 2] - first).tolist()
        tokens[begin:end] = end_of_document
    tar.seek(offset)
    tar.write(tokens.tobytes())
    return zlib.crc32(tokens.tobytes())


def _blank_metadata(
    tar: BinaryIO, index: ShardIndex, sample: int, docs: NDArray[np.integer[Any]]
) -> None:
    """Blank the metadata of documents of one sample, if it has metadata."""
    bounds = index.sample_starts[sample : sample + 2]
    first_doc, stop_doc = np.searchsorted(index.doc_starts, bounds).tolist()
    found = _find_metadata(tar, index, sample)
    if found is None:
        return
    offset, content = found
    body = content.removeprefix(_JSON_START).removesuffix(_JSON_END)
    objects = body.split(_JSON_SEPARATOR)
    if len(objects) != stop_doc - first_doc:
        raise ShardCorrupt(
            f"{shard_file(index.shard)}, byte {offset}",
            f"metadata of {len(objects)} documents",
            f"{stop_doc - first_doc}, one per line",
            REFETCH,
        )
    for doc in docs.tolist():
        place = doc - first_doc
        objects[place] = _make_blank(int(index.doc_ids[doc]), len(objects[place]))
    blanked = _JSON_START + _JSON_SEPARATOR.join(objects) + _JSON_END
    assert len(blanked) == len(content)
    tar.seek(offset)
    tar.write(blanked)


def _make_blank(doc_id: int, num_bytes: int) -> bytes:
    """Return a JSON object of this size that only says that the document is retracted."""
    blank = b'{"doc_id":%d,"retracted":true}' % doc_id
    return (blank if len(blank) <= num_bytes else b"{}").ljust(num_bytes)


def _find_metadata(
    tar: BinaryIO, index: ShardIndex, sample: int
) -> tuple[int, bytes] | None:
    """Return offset and content of the metadata of a sample, or None if it has none."""
    offset = 0
    if sample:
        # A sample starts where the tokens of the one before end, padded to whole blocks.
        num_tokens = int(index.sample_starts[sample] - index.sample_starts[sample - 1])
        num_bytes = num_tokens * index.token_dtype.itemsize + NPY_HEADER_BYTES
        start = int(index.sample_offsets[sample - 1]) - NPY_HEADER_BYTES
        offset = start + -(-num_bytes // TAR_BLOCK_BYTES) * TAR_BLOCK_BYTES
    stop = int(index.sample_offsets[sample]) - NPY_HEADER_BYTES - TAR_BLOCK_BYTES
    member = f"{sample_key(index.shard, sample)}.{METADATA_MEMBER}"
    while offset < stop:
        tar.seek(offset)
        try:
            header = tarfile.TarInfo.frombuf(tar.read(TAR_BLOCK_BYTES), "ascii", "strict")
        except (tarfile.HeaderError, UnicodeDecodeError) as error:
            where = f"{shard_file(index.shard)}, byte {offset}"
            raise ShardCorrupt(
                where, f"no tar header ({error})", "a member", REFETCH
            ) from error
        content = offset + TAR_BLOCK_BYTES
        if header.name == member:
            return content, tar.read(header.size)
        offset = content + -(-header.size // TAR_BLOCK_BYTES) * TAR_BLOCK_BYTES
    return None


def count_tokens_left(
    tar: BinaryIO, index: ShardIndex, docs: NDArray[np.integer[Any]], end_of_document: int
) -> int:
    """Return how many tokens of documents are something else than the end-of-document id.

    Raises:
        FormatError: the index does not fit the tar.
    """
    num_left = 0
    for doc in docs.tolist():
        start, stop = index.doc_starts[doc : doc + 2].tolist()
        sample = int(np.searchsorted(index.sample_starts, start, side="right")) - 1
        in_sample = start - int(index.sample_starts[sample])
        itemsize = index.token_dtype.itemsize
        tar.seek(int(index.sample_offsets[sample]) + in_sample * itemsize)
        tokens = np.frombuffer(tar.read((stop - start) * itemsize), index.token_dtype)
        if len(tokens) != stop - start:
            where = f"{shard_file(index.shard)}, document {doc}"
            raise FormatError(where, f"{len(tokens)} tokens", f"{stop - start}", REFETCH)
        num_left += int(np.count_nonzero(tokens != end_of_document))
    return num_left
