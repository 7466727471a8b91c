"""Writes one shard: the tar and the index beside it, each in one pass.

Promises: equal documents give equal bytes, on every machine and Python; sizes and sha256 are taken while writing, so
that nothing is read back; tokens that the format cannot hold are refused before the first byte is written. Beside the
documents handed in, memory holds one sample and some 100 bytes per document.
Leaves to others: which documents a shard gets and in which order, atomic names (write to a file of another name and
rename it, or to a single upload), the manifest (`manifest.join`).

Three documents, of which the first two share a sample:

    documents = Documents(
        tokens=np.array([11, 12, 0, 21, 0, 31, 32, 33, 0], np.uint16),    # each ends with end_of_document, here 0
        doc_num_tokens=np.array([3, 2, 4]),
        doc_ids=np.array([7, 5, 9], np.uint64),
        languages=["en", "en", "fr"],
    )
    with open("shard-000000.tar", "wb") as tar, open("shard-000000.idx", "wb") as index:
        entry = write_shard(tar, index, shard=0, tokenizer=tokenizer, documents=documents, sample_tokens=5)
    entry.num_samples, entry.languages["fr"]                              # 2, Count(num_docs=1, num_tokens=4)
"""

from __future__ import annotations

import hashlib
import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from shardwriter.format import (
    DOCS_DTYPE,
    DOCS_MEMBER,
    MAX_MEMBER_BYTES,
    METADATA_MEMBER,
    NPY_HEADER_BYTES,
    TAR_BLOCK_BYTES,
    TOKENS_MEMBER,
    Count,
    ShardEntry,
    ShardIndex,
    TokenizerEntry,
    npy_header,
    sample_key,
)


@dataclass(frozen=True, eq=False)
class Documents:
    """The documents of one shard, in their final order; D documents, N tokens.

    tokens:         (N,) any integer dtype, or a memory map; the documents end to end
    doc_num_tokens: (D,) integers of at least 1; they add up to N
    doc_ids:        (D,) uint64, no two equal
    languages:      D labels, or None to keep no count per language
    buckets:        D labels, or None
    metadata:       D JSON objects, as mappings or as UTF-8 already encoded (then taken unread); None leaves it out

    Raises ValueError where these disagree, TypeError where a label is no string.
    """

    tokens: NDArray[np.integer[Any]]
    doc_num_tokens: NDArray[np.integer[Any]]
    doc_ids: NDArray[np.uint64]
    languages: Sequence[str] | None = None
    buckets: Sequence[str] | None = None
    metadata: Sequence[Mapping[str, Any] | bytes] | None = None

    def __post_init__(self) -> None:
        for name, array in (("tokens", self.tokens), ("doc_num_tokens", self.doc_num_tokens)):
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise ValueError(
                    f"documents: {name} is {_kind(array)}, must be a 1-D array of integers"
                )
        if self.doc_ids.ndim != 1 or self.doc_ids.dtype != np.uint64:
            raise ValueError(
                f"documents: doc_ids is {_kind(self.doc_ids)}, must be a 1-D array of uint64"
            )
        self._check_sizes()
        ids = np.sort(self.doc_ids)
        if len(twice := ids[1:][ids[1:] == ids[:-1]]):
            raise ValueError(
                f"documents: doc_id {twice[0]} occurs more than once; a document is written once"
            )

    def _check_sizes(self) -> None:
        num_docs = len(self.doc_num_tokens)
        for name in ("doc_ids", "languages", "buckets", "metadata"):
            column = getattr(self, name)
            if column is not None and len(column) != num_docs:
                raise ValueError(
                    f"documents: {name} has {len(column)} entries for {num_docs} documents"
                )
        for name, labels in (("languages", self.languages), ("buckets", self.buckets)):
            for doc, label in enumerate(labels or ()):
                if not isinstance(label, str):  # pyright: ignore[reportUnnecessaryIsInstance] - nulls come from Arrow
                    raise TypeError(
                        f"documents: {name}[{doc}] is {label!r}, must be a string; name what has no label"
                    )
        if num_docs and self.doc_num_tokens.min() < 1:
            doc = int(self.doc_num_tokens.argmin())
            found = (
                f"document {doc} (doc_id {self.doc_ids[doc]}) has {self.doc_num_tokens[doc]} tokens"
            )
            raise ValueError(f"documents: {found}, must have at least its end-of-document token")
        if (added := int(self.doc_num_tokens.sum(dtype=np.int64))) != len(self.tokens):
            raise ValueError(
                f"documents: doc_num_tokens adds up to {added}, but there are {len(self.tokens)} tokens"
            )


def _kind(array: NDArray[Any]) -> str:
    return f"a {array.ndim}-D array of {array.dtype}"


def write_shard(
    tar: BinaryIO,
    index: BinaryIO,
    *,
    shard: int,
    tokenizer: TokenizerEntry,
    documents: Documents,
    sample_tokens: int = 2**16,
) -> ShardEntry:
    """Write a shard and its index, and tell what the manifest says of them.

    A sample takes whole documents, in order, as long as they come to `sample_tokens` tokens at most; a longer document
    is a sample of its own. So `sample_tokens=1` makes one sample of each document. With 2**16 tokens of 2 bytes the tar
    and the document starts add 1.5 % (headers and padding are about 2 KiB a sample); one document of 1,000 tokens per
    sample nearly doubles the shard.

    Args:
        tar: takes the tar, from its first byte; need not be seekable.
        index: takes the index.
        shard: number of the shard in its dataset, from 0 on.
        tokenizer: gives the dtype, the range of the ids and the id that ends every document.
        documents: may be none at all; the shard is valid then, and empty.
        sample_tokens: see above.

    Raises:
        ValueError: a token that the tokenizer does not have, a document without its end, metadata that are not JSON, a
            member over 8 GiB. What concerns tokens is found before anything is written, metadata as they are written.
        OSError: a file took fewer bytes than it was given.
    """
    if shard < 0 or sample_tokens < 1:
        raise ValueError(
            f"shard is {shard}, sample_tokens is {sample_tokens}; must be at least 0 and 1"
        )
    doc_starts = np.concatenate(
        [np.zeros(1, np.int64), np.cumsum(documents.doc_num_tokens, dtype=np.int64)]
    )
    first_docs = _cut(doc_starts, sample_tokens)
    _refuse_huge_samples(shard, tokenizer, doc_starts[first_docs])
    _refuse_foreign_tokens(shard, tokenizer, documents, doc_starts)
    tar_sink, index_sink = _Sink(tar), _Sink(index)
    sample_offsets, sample_crcs = _write_samples(
        tar_sink, shard, tokenizer, documents, doc_starts, first_docs
    )
    shard_index = ShardIndex(
        shard=shard,
        shard_bytes=tar_sink.num_bytes,
        token_dtype=tokenizer.token_dtype,
        sample_offsets=sample_offsets,
        sample_starts=doc_starts[first_docs],
        doc_starts=doc_starts,
        doc_ids=documents.doc_ids,
        sample_crcs=sample_crcs,
    )
    index_sink.write(shard_index.to_bytes())
    return ShardEntry(
        shard=shard,
        shard_bytes=tar_sink.num_bytes,
        sha256=tar_sink.sha256,
        index_bytes=index_sink.num_bytes,
        index_sha256=index_sink.sha256,
        num_samples=shard_index.num_samples,
        num_docs=shard_index.num_docs,
        num_tokens=shard_index.num_tokens,
        languages=_count(documents.languages, documents.doc_num_tokens),
        buckets=_count(documents.buckets, documents.doc_num_tokens),
    )


def _cut(doc_starts: NDArray[np.int64], sample_tokens: int) -> NDArray[np.int64]:
    """(S + 1,) the document that each sample begins with; the last is the number of documents."""
    num_docs = len(doc_starts) - 1
    # (D,) the first document that no longer fits into a sample that begins with this one
    fits_until = np.searchsorted(doc_starts[1:], doc_starts[:-1] + sample_tokens, side="right")
    following = np.maximum(fits_until, np.arange(1, num_docs + 1)).tolist()
    first_docs = [0]
    while first_docs[-1] < num_docs:
        first_docs.append(following[first_docs[-1]])
    return np.array(first_docs, np.int64)


def _refuse_huge_samples(
    shard: int, tokenizer: TokenizerEntry, sample_starts: NDArray[np.int64]
) -> None:
    # (S,) bytes of each tokens member
    member_bytes = np.diff(sample_starts) * tokenizer.token_dtype.itemsize + NPY_HEADER_BYTES
    if len(member_bytes) and member_bytes.max() > MAX_MEMBER_BYTES:
        sample = int(member_bytes.argmax())
        raise ValueError(
            _too_huge(f"{sample_key(shard, sample)}.{TOKENS_MEMBER}", int(member_bytes[sample]))
        )


def _too_huge(member: str, num_bytes: int) -> str:
    limit = f"a tar member holds at most {MAX_MEMBER_BYTES} bytes (8 GiB)"
    return f"{member} would have {num_bytes} bytes, but {limit}; lower sample_tokens, or split or drop the document"


def _refuse_foreign_tokens(
    shard: int, tokenizer: TokenizerEntry, documents: Documents, doc_starts: NDArray[np.int64]
) -> None:
    tokens = documents.tokens
    if not len(tokens):
        return
    for position in (int(tokens.argmin()), int(tokens.argmax())):
        if not 0 <= tokens[position] < tokenizer.vocab_size:
            doc = int(np.searchsorted(doc_starts, position, side="right")) - 1
            raise ValueError(
                f"{_place(shard, documents, doc)}: token {position - doc_starts[doc]} is {tokens[position]}, must lie "
                f"in 0..{tokenizer.vocab_size - 1}; tokenize with {tokenizer.name!r}, or correct its vocab_size"
            )
    last_tokens = tokens[doc_starts[1:] - 1]
    if (is_open := last_tokens != tokenizer.end_of_document).any():
        doc = int(is_open.argmax())
        raise ValueError(
            f"{_place(shard, documents, doc)}: the last token is {last_tokens[doc]}, must be the end-of-document id "
            f"{tokenizer.end_of_document}; append it to each document"
        )


def _place(shard: int, documents: Documents, doc: int) -> str:
    return f"shard {shard}, document {doc} (doc_id {documents.doc_ids[doc]})"


def _write_samples(
    sink: _Sink,
    shard: int,
    tokenizer: TokenizerEntry,
    documents: Documents,
    doc_starts: NDArray[np.int64],
    first_docs: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.uint32]]:
    """Write the whole tar; gives (S,) offsets and (S,) crc32 of the raw tokens."""
    dtype = tokenizer.token_dtype
    offsets, crcs = (
        np.zeros(len(first_docs) - 1, np.int64),
        np.zeros(len(first_docs) - 1, np.uint32),
    )
    for sample, (first, last) in enumerate(pairwise(first_docs.tolist())):
        key = sample_key(shard, sample)
        start, stop = int(doc_starts[first]), int(doc_starts[last])
        starts = (doc_starts[first:last] - start).astype(DOCS_DTYPE)
        tokens = documents.tokens[start:stop].astype(dtype).tobytes()
        _write_member(
            sink, f"{key}.{DOCS_MEMBER}", npy_header(DOCS_DTYPE, last - first), starts.tobytes()
        )
        if documents.metadata is not None:
            _write_member(
                sink, f"{key}.{METADATA_MEMBER}", _metadata(shard, documents, first, last)
            )
        offsets[sample] = sink.num_bytes + TAR_BLOCK_BYTES + NPY_HEADER_BYTES
        crcs[sample] = zlib.crc32(tokens)
        _write_member(sink, f"{key}.{TOKENS_MEMBER}", npy_header(dtype, stop - start), tokens)
    sink.write(
        bytes(2 * TAR_BLOCK_BYTES)
    )  # the end of an archive (POSIX, ustar Interchange Format)
    return offsets, crcs


def _metadata(shard: int, documents: Documents, first: int, last: int) -> bytes:
    """A JSON list with one document per line."""
    assert documents.metadata is not None
    lines: list[bytes] = []
    for doc in range(first, last):
        value = documents.metadata[doc]
        try:
            lines.append(value if isinstance(value, bytes) else _json(value))
        except (TypeError, ValueError) as error:
            found = f"metadata that are not JSON ({error})"
            raise ValueError(
                f"{_place(shard, documents, doc)}: {found}; use text, finite numbers, lists"
            ) from error
    return b"[\n" + b",\n".join(lines) + b"\n]\n"


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode(
        "utf-8"
    )


def _count(
    labels: Sequence[str] | None, doc_num_tokens: NDArray[np.integer[Any]]
) -> dict[str, Count]:
    """Documents and tokens of each label, in the order of the labels."""
    if labels is None:
        return {}
    num_docs: dict[str, int] = {}
    num_tokens: dict[str, int] = {}
    for label, tokens in zip(labels, doc_num_tokens.tolist(), strict=True):
        num_docs[label] = num_docs.get(label, 0) + 1
        num_tokens[label] = num_tokens.get(label, 0) + tokens
    return {label: Count(num_docs[label], num_tokens[label]) for label in sorted(num_docs)}


# ------------------------------------------------------------------------------------------------------------------ tar


class _Sink:
    """A file that is measured and hashed while it is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._sha256 = hashlib.sha256()
        self.num_bytes = 0

    def write(self, data: bytes) -> None:
        written = self._file.write(data)
        if written != len(data):  # an unbuffered file may take a part and call it a success
            place = f"after {self.num_bytes} bytes"
            raise OSError(
                f"{self._file}: took {written} of {len(data)} bytes {place}; open the file buffered"
            )
        self._sha256.update(data)
        self.num_bytes += len(data)

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()


def _write_member(sink: _Sink, name: str, *parts: bytes) -> None:
    num_bytes = sum(map(len, parts))
    if num_bytes > MAX_MEMBER_BYTES:
        raise ValueError(_too_huge(name, num_bytes))
    sink.write(_tar_header(name, num_bytes))
    for part in parts:
        sink.write(part)
    sink.write(bytes(-num_bytes % TAR_BLOCK_BYTES))


_USTAR = struct.Struct("100s 8s8s8s 12s12s 8s c 100s 6s2s 32s32s 8s8s 155s 12x")
"""name; mode, uid, gid; size, mtime; checksum; type; link; magic, version; user, group; device numbers; prefix."""


def _tar_header(name: str, num_bytes: int) -> bytes:
    """A ustar header of a regular file (POSIX.1-1988): mode 0644, no owner, time 0.

    Made by hand: `tarfile` has written the device numbers in more than one way over Python's releases.
    """
    size, zero = b"%011o" % num_bytes, b"0000000"
    owner = b"0000644", zero, zero
    block = _USTAR.pack(
        name.encode("ascii"),
        *owner,
        size,
        b"0" * 11,
        b" " * 8,
        b"0",
        b"",
        b"ustar",
        b"00",
        b"",
        b"",
        zero,
        zero,
        b"",
    )
    return (
        block[:148] + b"%06o\0 " % sum(block) + block[156:]
    )  # the sum is taken with blanks in its own place
