"""The shard entries of a manifest as one block of bytes: 64 bytes per shard, where the file has 385.

A block is made once per node and kept in the cache, where all ranks map it:

    sha256    32 bytes, of the digest of the manifest and everything that follows
    length    of the head, 8 bytes
    head      the manifest without its shard entries; spaces up to a multiple of 8 bytes
    numbers   (4, S) int64: shard_bytes, num_samples, num_docs, num_tokens
    digests   (S, 32) uint8: index_sha256
"""

from __future__ import annotations

import hashlib
import json
import re
from array import array
from typing import Any

import numpy as np

from loader.order.permutation import Int64Array
from loader.storage import Buffer
from shardwriter.format import FormatError, Manifest, TokenizerEntry, Totals

# Raise this when blocks change: it is part of their name in the cache.
BLOCK_VERSION = 1

# Place of the digest in the file (docs/data-format.md, "Manifest").
DIGEST_BYTES = slice(14, 78)

COLUMNS = ("shard_bytes", "num_samples", "num_docs", "num_tokens")

# Largest sum of a column. Every JSON reader represents it exactly, and no sum overflows int64.
_MAX_SUM = 2**53 - 1

_SHA256_BYTES = 32
_START_BYTES = _SHA256_BYTES + 8

# Manifests are formatted in one way (docs/data-format.md), so a pattern can read them. Objects of a
# JSON parser would take several times the memory.
_SHARDS = re.compile(rb'\n "shards": \[\n')
_NUMBER, _DIGEST = rb"(0|[1-9][0-9]{0,15})", rb'"([0-9a-f]{64})"'
_ENTRY = re.compile(
    rb'  \{\n   "file": "shard-([0-9]{6,16})\.tar",\n   "index_bytes": [0-9]+,\n'
    rb'   "index_file": "shard-\1\.idx",\n   "index_sha256": ' + _DIGEST + rb',\n   "num_docs": '
    + _NUMBER + rb',\n   "num_samples": ' + _NUMBER + rb',\n   "num_tokens": ' + _NUMBER
    + rb',\n   "sha256": "[0-9a-f]{64}",\n   "shard": ' + _NUMBER + rb',\n   "shard_bytes": '
    + _NUMBER + rb"\n  \}(?:,\n(?=  \{)|\n(?= \],\n))"
)  # fmt: skip


def is_block_of(data: Buffer, digest: bytes) -> bool:
    """Whether these are the bytes that `make_block` returned for the manifest of that digest."""
    view = memoryview(data)
    return _compute_sha256(digest, view[_SHA256_BYTES:]) == bytes(view[:_SHA256_BYTES])


def read_block(data: Buffer) -> dict[str, Any]:
    """Return the fields of `ManifestColumns` that are in the bytes of `make_block`.

    The arrays are views of the bytes.
    """
    view = memoryview(data)
    stop = _START_BYTES + int.from_bytes(view[_SHA256_BYTES:_START_BYTES], "little")
    head = json.loads(bytes(view[_START_BYTES:stop]))
    num_shards = head["totals"]["num_shards"]
    numbers = np.frombuffer(view, np.int64, num_shards * len(COLUMNS), stop)
    digests = np.frombuffer(view, np.uint8, offset=stop + numbers.nbytes)
    return {
        "digest": head["digest"],
        "tokenizer": TokenizerEntry.from_json(head["tokenizer"]),
        "totals": head["totals"],
        **dict(zip(COLUMNS, numbers.reshape(len(COLUMNS), num_shards), strict=True)),
        "index_sha256": digests.reshape(-1, _SHA256_BYTES),
    }


def make_block(data: Buffer, where: str) -> bytes:
    """Check the bytes of a manifest, and return its block.

    Raises:
        FormatError: the bytes are not a manifest, or its digest or its sums are wrong.
    """
    try:
        _check_digest(data)
        head, numbers, digests = _split(data)
        value = json.loads(head)
        del value["digest"]
        totals = Manifest.from_json(value, where).totals
        _check_totals(numbers, totals)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        # The full parser is slow, but its errors name the key.
        Manifest.loads(bytes(data), where)
        remedy = "restore manifest.json as the pipeline wrote it"
        found = f"a manifest with another layout ({error})"
        raise FormatError(where, found, "the layout of this version", remedy) from error
    head += b" " * (-len(head) % 8)
    content = b"".join([len(head).to_bytes(8, "little"), head, numbers.tobytes(), digests])
    return _compute_sha256(data[DIGEST_BYTES], content) + content


def _compute_sha256(digest: Buffer, content: Buffer) -> bytes:
    sha256 = hashlib.sha256(digest)
    sha256.update(content)
    return sha256.digest()


def _check_digest(data: Buffer) -> None:
    """Raise ValueError if the bytes do not have the digest that they name."""
    view = memoryview(data)
    # Hash the file with zeros in place of its digest, without copying 100 MB.
    sha256 = hashlib.sha256(view[: DIGEST_BYTES.start])
    sha256.update(b"0" * 64)
    sha256.update(view[DIGEST_BYTES.stop :])
    found = sha256.hexdigest()
    if found.encode() != bytes(view[DIGEST_BYTES]):
        raise ValueError(f"the digest is {found}")


def _split(data: Buffer) -> tuple[bytes, Int64Array, bytearray]:
    """Return the manifest without entries, their (4, S) numbers and their digests of indexes.

    Raises:
        ValueError: an entry has another layout, or the shards are not numbered 0, 1, 2, ...
    """
    view = memoryview(data)
    numbers, digests = array("q"), bytearray()
    found = _SHARDS.search(data)
    if found is None:  # "shards": []
        return bytes(view), np.zeros((len(COLUMNS), 0), np.int64), digests
    stop = found.end()
    for number, entry in enumerate(_ENTRY.finditer(data, stop)):
        name, digest, num_docs, num_samples, num_tokens, shard, shard_bytes = entry.groups()
        if entry.start() != stop or int(shard) != number or name != b"%06d" % number:
            raise ValueError(f"the entry of shard {number} cannot be read")
        numbers.extend(map(int, (shard_bytes, num_samples, num_docs, num_tokens)))
        digests += bytes.fromhex(digest.decode())
        stop = entry.end()
    head = b"".join([view[: found.end()], view[stop:]])
    return head, np.frombuffer(numbers, np.int64).reshape(-1, len(COLUMNS)).T, digests


def _check_totals(numbers: Int64Array, totals: Totals) -> None:
    """Raise ValueError if the totals are not the sums of the (4, S) numbers."""
    if totals.num_shards != numbers.shape[1]:
        raise ValueError(f"totals.num_shards is not {numbers.shape[1]}")
    for name, column in zip(COLUMNS, numbers, strict=True):
        # Added up as Python's integers, which do not overflow.
        if not sum(column.tolist()) == getattr(totals, name) <= _MAX_SUM:
            raise ValueError(
                f"totals.{name} is not the sum of the shards, up to {_MAX_SUM}"
            )
