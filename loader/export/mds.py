"""Write MosaicML's MDS shards.

Layout: streaming/base/format/mds/writer.py (`encode_joint_shard`) and mds/encodings.py (`NDArray`).
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np

from loader.export.documents import Document, create_file, read_documents
from loader.reading.dataset import Dataset

# The default of MDSWriter (streaming/base/format/mds/writer.py, `size_limit`).
MDS_SHARD_BYTES = 2**26

_OFFSET_BYTES = 4
# Codes 0, 1, 2, 3 of an array's shape stand for uint8, uint16, uint32, uint64.
_UINT8_CODE = 0


def export_mds(dataset: Dataset, folder: Path) -> int:
    """Write MDS shards with the columns doc_id (uint64) and tokens (1-D ndarray).

    Memory holds one MDS shard of at most 64 MiB, or one document if it is larger.

    Returns:
        The number of documents.
    """
    writer = _MdsWriter(folder, dataset.token_dtype.name)
    num_docs = 0
    for shard in range(dataset.manifest.num_shards):
        for document in read_documents(dataset, shard):
            writer.add(_encode_document(document))
            num_docs += 1
    writer.finish()
    return num_docs


class _MdsWriter:
    """Collects encoded documents, and writes a shard when the next one would exceed its size."""

    def __init__(self, folder: Path, dtype_name: str) -> None:
        self._folder = folder
        self._config: dict[str, Any] = {
            "column_encodings": ["uint64", f"ndarray:{dtype_name}"],
            "column_names": ["doc_id", "tokens"],
            "column_sizes": [8, None],
            "compression": None,
            "format": "mds",
            "hashes": [],
            "size_limit": MDS_SHARD_BYTES,
            "version": 2,
        }
        self._shards: list[dict[str, Any]] = []
        self._pending: list[bytes] = []
        self._pending_bytes = 0

    def add(self, sample: bytes) -> None:
        if self._pending and self._pending_bytes + len(sample) > MDS_SHARD_BYTES:
            self._write_shard()
        self._pending.append(sample)
        # Each sample also costs one offset in the header of the shard.
        self._pending_bytes += len(sample) + _OFFSET_BYTES

    def finish(self) -> None:
        """Write the last shard, and then the index that names all shards."""
        if self._pending:
            self._write_shard()
        index = json.dumps({"shards": self._shards, "version": 2}, sort_keys=True)
        with create_file(self._folder / "index.json") as file:
            file.write(index.encode())

    def _write_shard(self) -> None:
        name = f"shard.{len(self._shards):05d}.mds"
        data = _encode_shard(self._pending, self._config)
        with create_file(self._folder / name) as file:
            file.write(data)
        entry = {
            **self._config,
            "raw_data": {"basename": name, "bytes": len(data), "hashes": {}},
            "samples": len(self._pending),
            "zip_data": None,
        }
        self._shards.append(entry)
        self._pending = []
        self._pending_bytes = 0


def _encode_document(document: Document) -> bytes:
    """Encode a sample: bytes of `tokens`, doc_id, then the array with its shape.

    doc_id has a fixed size, so its size is not stored.
    """
    num_tokens = len(document.tokens)
    width_code = _UINT8_CODE
    # The smallest of 1, 2, 4 and 8 bytes that holds the length, as streaming's NDArray chooses it.
    while num_tokens >= 1 << (8 * 2**width_code):
        width_code += 1
    # One byte: number of dimensions and width code; then the length in that width.
    shape = bytes([1 << 2 | width_code]) + num_tokens.to_bytes(2**width_code, "little")
    tokens = shape + document.tokens.tobytes()
    return struct.pack("<IQ", len(tokens), document.doc_id) + tokens


def _encode_shard(samples: list[bytes], config: dict[str, Any]) -> bytes:
    """Encode a shard: number of samples, their offsets, the config as JSON, the samples."""
    config_json = json.dumps(config, sort_keys=True).encode()
    num_samples = struct.pack("<I", len(samples))
    # The leading 0 makes the cumulative sum start at the first sample.
    sizes = np.array([0, *map(len, samples)], np.int64)
    header_bytes = len(num_samples) + _OFFSET_BYTES * len(sizes) + len(config_json)
    # (samples + 1,) byte at which each sample starts, then the size of the shard
    offsets = np.cumsum(sizes) + header_bytes
    return b"".join([num_samples, offsets.astype("<u4").tobytes(), config_json, *samples])
