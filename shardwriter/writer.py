"""Write one shard: the tar and its index, each in one pass.

Equal documents give equal bytes, on every machine and Python version. Sizes and SHA-256 are
computed while writing. Besides the documents, memory holds one sample and about 100 bytes per
document.

The files get their final bytes here, but not their final names: write to temporary names and rename
the files afterwards.

Example with three documents, of which the first two share a sample:

    documents = Documents(
        tokens=np.array([11, 12, 0, 21, 0, 31, 32, 33, 0], np.uint16),  # 0 is end_of_document
        doc_num_tokens=np.array([3, 2, 4]),
        doc_ids=np.array([7, 5, 9], np.uint64),
    )
    with open("shard-000000.tar", "wb") as tar, open("shard-000000.idx", "wb") as index:
        entry = write_shard(
            tar, index, shard=0, tokenizer=tokenizer, documents=documents, sample_tokens=5
        )
    entry.num_samples, entry.num_tokens    # 2, 9
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from shardwriter.documents import Documents
from shardwriter.format import (
    DOCS_DTYPE,
    DOCS_MEMBER,
    METADATA_MEMBER,
    NPY_HEADER_BYTES,
    TAR_BLOCK_BYTES,
    TOKENS_MEMBER,
    ShardEntry,
    ShardIndex,
    TokenizerEntry,
    npy_header,
    sample_key,
)
from shardwriter.tar import (
    HashedFile,
    check_member_size,
    write_end_of_archive,
    write_member,
)

# Tokens of a sample with several documents, at most. With 2 bytes per token, headers and
# padding (about 2 KiB per sample) add 1.5 %. With one document of 1,000 tokens per sample, they
# nearly double the shard.
SAMPLE_TOKENS = 2**16


def write_shard(
    tar: BinaryIO,
    index: BinaryIO,
    *,
    shard: int,
    tokenizer: TokenizerEntry,
    documents: Documents,
    sample_tokens: int = SAMPLE_TOKENS,
) -> ShardEntry:
    """Write a shard and its index, and return the shard's entry for the manifest.

    A sample holds whole documents, in order. `sample_tokens=1` writes one sample per document.

    Args:
        tar: receives the tar; it need not be seekable.
        index: receives the index.
        shard: number of the shard in its dataset, from 0.
        tokenizer: determines the dtype, the range of the ids and the end-of-document id.
        documents: the documents; a shard without documents is valid.
        sample_tokens: maximum number of tokens of a sample with several documents.

    Raises:
        ValueError: a token is not in the vocabulary, a document does not end with the
            end-of-document id, metadata cannot be written as JSON, or a member would be larger than
            8 GiB. Tokens are checked before anything is written, metadata while they are written.
        OSError: a file took fewer bytes than it was given.
    """
    if shard < 0 or sample_tokens < 1:
        raise ValueError(
            f"shard is {shard}, sample_tokens is {sample_tokens}; must be at least 0 and 1"
        )
    doc_starts = _compute_doc_starts(documents)
    first_docs = _group_documents(doc_starts, sample_tokens)
    # All checks of tokens come first: nothing is written for unusable documents.
    _check_sample_sizes(shard, tokenizer, doc_starts[first_docs])
    _check_tokens(shard, tokenizer, documents, doc_starts)
    tar_file, index_file = HashedFile(tar), HashedFile(index)
    shard_index = _write_tar(tar_file, shard, tokenizer, documents, doc_starts, first_docs)
    index_file.write(shard_index.to_bytes())
    return _make_entry(shard_index, tar_file, index_file)


def _make_entry(
    index: ShardIndex, tar_file: HashedFile, index_file: HashedFile
) -> ShardEntry:
    return ShardEntry(
        shard=index.shard,
        shard_bytes=tar_file.num_bytes,
        sha256=tar_file.sha256,
        index_bytes=index_file.num_bytes,
        index_sha256=index_file.sha256,
        num_samples=index.num_samples,
        num_docs=index.num_docs,
        num_tokens=index.num_tokens,
    )


def _compute_doc_starts(documents: Documents) -> NDArray[np.int64]:
    """Return the (D + 1,) tokens before each document; the last is the number of tokens."""
    # int64 in any case: the sums of an int32 column can overflow.
    doc_stops = np.cumsum(documents.doc_num_tokens, dtype=np.int64)
    return np.concatenate([np.zeros(1, np.int64), doc_stops])


def _group_documents(
    doc_starts: NDArray[np.int64], sample_tokens: int
) -> NDArray[np.int64]:
    """Group documents into samples.

    Args:
        doc_starts: (D + 1,) tokens before each document.
        sample_tokens: maximum number of tokens of a sample with several documents.

    Returns:
        (S + 1,) int64, the first document of each sample, and then D.
    """
    num_docs = len(doc_starts) - 1
    # (D,) if a sample starts with document d: the first document that no longer fits into it
    stop_docs = np.searchsorted(
        doc_starts[1:], doc_starts[:-1] + sample_tokens, side="right"
    )
    # A sample has at least one document, even if it is too long.
    # (D,) One vectorized search for all documents; the loop below only follows the chain.
    next_firsts = np.maximum(stop_docs, np.arange(1, num_docs + 1)).tolist()
    first_docs = [0]
    while first_docs[-1] < num_docs:
        first_docs.append(next_firsts[first_docs[-1]])
    return np.array(first_docs, np.int64)


def _check_sample_sizes(
    shard: int, tokenizer: TokenizerEntry, sample_starts: NDArray[np.int64]
) -> None:
    # (S,) bytes of each tokens member
    member_bytes = (
        np.diff(sample_starts) * tokenizer.token_dtype.itemsize + NPY_HEADER_BYTES
    )
    if len(member_bytes):
        largest = int(member_bytes.argmax())
        member = f"{sample_key(shard, largest)}.{TOKENS_MEMBER}"
        check_member_size(member, int(member_bytes[largest]))


def _check_tokens(
    shard: int,
    tokenizer: TokenizerEntry,
    documents: Documents,
    doc_starts: NDArray[np.int64],
) -> None:
    """Check that ids are in the vocabulary and that documents end with the end-of-document id."""
    tokens = documents.tokens
    if not len(tokens):
        return
    # All ids are in range if the lowest and the highest are.
    for position in (int(tokens.argmin()), int(tokens.argmax())):
        if not 0 <= tokens[position] < tokenizer.vocab_size:
            doc = int(np.searchsorted(doc_starts, position, side="right")) - 1
            raise ValueError(
                f"{documents.describe_doc(shard, doc)}: token {position - doc_starts[doc]} is "
                f"{tokens[position]}, must be in 0..{tokenizer.vocab_size - 1}; tokenize with "
                f"{tokenizer.name!r}, or correct its vocab_size"
            )
    last_tokens = tokens[doc_starts[1:] - 1]
    docs_without_end = np.flatnonzero(last_tokens != tokenizer.end_of_document)
    if len(docs_without_end):
        doc = int(docs_without_end[0])
        raise ValueError(
            f"{documents.describe_doc(shard, doc)}: the last token is {last_tokens[doc]}, must be "
            f"the end-of-document id {tokenizer.end_of_document}; append it to each document"
        )


def _write_tar(
    tar: HashedFile,
    shard: int,
    tokenizer: TokenizerEntry,
    documents: Documents,
    doc_starts: NDArray[np.int64],
    first_docs: NDArray[np.int64],
) -> ShardIndex:
    """Write the whole tar, and return its index."""
    offsets, crcs = _write_samples(
        tar, shard, tokenizer.token_dtype, documents, doc_starts, first_docs
    )
    write_end_of_archive(tar)
    return ShardIndex(
        shard=shard,
        shard_bytes=tar.num_bytes,
        token_dtype=tokenizer.token_dtype,
        sample_offsets=offsets,
        sample_starts=doc_starts[first_docs],
        doc_starts=doc_starts,
        doc_ids=documents.doc_ids,
        sample_crcs=crcs,
    )


def _write_samples(
    tar: HashedFile,
    shard: int,
    dtype: np.dtype[Any],
    documents: Documents,
    doc_starts: NDArray[np.int64],
    first_docs: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Write all samples; return the (S,) offsets and the (S,) CRC-32 of the raw tokens."""
    num_samples = len(first_docs) - 1
    offsets, crcs = np.zeros(num_samples, np.int64), np.zeros(num_samples, np.uint32)
    for sample, (first, stop) in enumerate(pairwise(first_docs.tolist())):
        key = sample_key(shard, sample)
        first_token, stop_token = int(doc_starts[first]), int(doc_starts[stop])
        starts = (doc_starts[first:stop] - first_token).astype(DOCS_DTYPE)
        docs_header = npy_header(DOCS_DTYPE, stop - first)
        write_member(tar, f"{key}.{DOCS_MEMBER}", docs_header, starts.tobytes())
        if documents.metadata is not None:
            # Members of a sample are in alphabetical order: docs.npy, json, tokens.npy.
            metadata = _encode_metadata(shard, documents, first, stop)
            write_member(tar, f"{key}.{METADATA_MEMBER}", metadata)
        # Convert one sample at a time: `documents.tokens` may be a memory map larger than memory.
        tokens = documents.tokens[first_token:stop_token].astype(dtype).tobytes()
        # The raw tokens start after the tar header and the .npy header.
        offsets[sample] = tar.num_bytes + TAR_BLOCK_BYTES + NPY_HEADER_BYTES
        crcs[sample] = zlib.crc32(tokens)
        tokens_header = npy_header(dtype, stop_token - first_token)
        write_member(tar, f"{key}.{TOKENS_MEMBER}", tokens_header, tokens)
    return offsets, crcs


def _encode_metadata(shard: int, documents: Documents, first: int, stop: int) -> bytes:
    """Return a JSON list with one document per line."""
    assert documents.metadata is not None
    lines: list[bytes] = []
    for doc in range(first, stop):
        value = documents.metadata[doc]
        try:
            lines.append(value if isinstance(value, bytes) else _encode_json(value))
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{documents.describe_doc(shard, doc)}: metadata that are not JSON ({error}); "
                f"use text, finite numbers, lists and mappings"
            ) from error
    return b"[\n" + b",\n".join(lines) + b"\n]\n"


def _encode_json(value: Mapping[str, Any]) -> bytes:
    # NaN and infinity are refused: JSON has no such numbers, and most readers fail on them.
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8")
