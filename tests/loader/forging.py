"""Change manifests and indexes so that their own checksums still fit."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwriter.format import INDEX_HEADER, MANIFEST_FILE, ShardIndex

ZEROS = "0" * 64


def forge_manifest(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the JSON of a manifest, and write it with a matching digest."""
    path = folder / MANIFEST_FILE
    value = json.loads(path.read_bytes())
    change(value)
    path.write_bytes(sign_manifest(value))


def sign_manifest(value: dict[str, Any]) -> bytes:
    """Return the bytes of a manifest with a matching digest."""
    value["digest"] = ZEROS
    unsigned = json.dumps(value, sort_keys=True, indent=1).encode() + b"\n"
    digest = hashlib.sha256(unsigned).hexdigest()
    return unsigned.replace(ZEROS.encode(), digest.encode(), 1)


def sign_index(data: bytes) -> bytes:
    """Return the bytes of an index with a matching CRC-32."""
    head, payload = data[: INDEX_HEADER.size - 4], data[INDEX_HEADER.size :]
    return head + zlib.crc32(payload, zlib.crc32(head)).to_bytes(4, "little") + payload


def forge_index(folder: Path, shard: int, data: bytes) -> None:
    """Replace an index, and its digest and size in the manifest."""
    path = folder / f"shard-{shard:06d}.idx"
    path.write_bytes(data)

    def change(manifest: dict[str, Any]) -> None:
        entry = manifest["shards"][shard]
        manifest["totals"]["index_bytes"] += len(data) - entry["index_bytes"]
        entry["index_bytes"] = len(data)
        entry["index_sha256"] = hashlib.sha256(data).hexdigest()

    forge_manifest(folder, change)


def forge_array(
    folder: Path, shard: int, name: str, change: Callable[[NDArray[Any]], Any]
) -> None:
    """Change an array of an index in place, and all checksums of the index."""
    path = folder / f"shard-{shard:06d}.idx"
    index = ShardIndex.from_bytes(path.read_bytes(), str(path))
    array = np.array(getattr(index, name))
    change(array)
    object.__setattr__(index, name, array)
    data = bytearray(index.to_bytes())
    # `num_tokens` follows from the last start; the header keeps its value.
    data[: INDEX_HEADER.size] = path.read_bytes()[: INDEX_HEADER.size]
    forge_index(folder, shard, sign_index(bytes(data)))
