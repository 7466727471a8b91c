"""Copies a dataset into the formats that other trainers read: Megatron's, MosaicML's and Hugging Face's.

Promises: every document once, in the dataset's order, with its end-of-document token, checked against the shard's
checksums on the way; equal datasets give equal files. The libraries are not needed to write, only to read. Files appear
under their names once they are whole, the one that names the others last. Memory holds one sample, and for MDS 64 MiB.
Leaves to others: rows (each of these readers cuts its own), languages and other metadata.

    export_megatron(reader, Path("out/web"))                # out/web.bin, out/web.idx
    export_mds(reader, Path("out/mds"))                     # out/mds/index.json, shard.00000.mds, ...
    export_parquet(reader, Path("out/parquet"))             # out/parquet/train-00000-of-00003.parquet, ...
"""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from loader.order import Ints
from loader.reader import Reader, Tokens

MDS_SHARD_BYTES = 2**26
"""What MDSWriter takes unless told otherwise (streaming/base/format/mds/writer.py, `size_limit`)."""


class Document(NamedTuple):
    """doc_id and the (n,) tokens of a document, its end included."""

    doc_id: int
    tokens: Tokens


def documents(reader: Reader, shard: int) -> Iterator[Document]:
    """The documents of a shard in order; raises what `Reader.sample` raises."""
    index = reader.index(shard)
    firsts = np.searchsorted(index.doc_starts, index.sample_starts)
    for sample in range(index.num_samples):
        tokens = reader.sample(shard, sample)
        docs = slice(int(firsts[sample]), int(firsts[sample + 1]))
        starts = (
            index.doc_starts[docs.start : docs.stop + 1] - index.sample_starts[sample]
        ).tolist()
        for place, doc_id in enumerate(index.doc_ids[docs].tolist()):
            yield Document(doc_id, tokens[starts[place] : starts[place + 1]])


@contextlib.contextmanager
def _whole(path: Path) -> Generator[BinaryIO]:
    """A file that gets its name when it is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f"{path.name}.part")
    with aside.open("wb") as file:
        yield file
    aside.replace(path)


# ------------------------------------------------------------------------------------------------------------ Megatron

_MEGATRON_MAGIC = b"MMIDIDX\x00\x00"
_MEGATRON_DTYPES = {2: (8, "<u2"), 4: (4, "<i4")}
"""Bytes per token -> (code, dtype): megatron/core/datasets/indexed_dataset.py, `DType`. It has no uint32."""


def export_megatron(reader: Reader, prefix: Path) -> int:
    """Write `<prefix>.bin` and `<prefix>.idx`, one sequence per document; gives the number of documents.

    Layout: megatron/core/datasets/indexed_dataset.py, `_IndexWriter`.

    Raises:
        ValueError: a vocabulary above 2**31, which its int32 cannot hold.
    """
    if reader.catalogue.tokenizer.vocab_size > 2**31:
        raise ValueError(
            f"vocab_size is {reader.catalogue.tokenizer.vocab_size}; Megatron's int32 holds 2**31 ids"
        )
    code, dtype = _MEGATRON_DTYPES[reader.token_dtype.itemsize]
    lengths: list[Ints] = []
    with _whole(prefix.with_name(f"{prefix.name}.bin")) as tokens:
        for shard in range(len(reader.catalogue.num_tokens)):
            lengths.append(np.diff(reader.index(shard).doc_starts))
            for sample in range(reader.index(shard).num_samples):
                tokens.write(reader.sample(shard, sample).astype(dtype, copy=False).tobytes())
    num_tokens = np.concatenate([np.zeros(0, np.int64), *lengths])
    num_docs = len(num_tokens)
    with _whole(prefix.with_name(f"{prefix.name}.idx")) as index:
        index.write(_MEGATRON_MAGIC + struct.pack("<QBQQ", 1, code, num_docs, num_docs + 1))
        index.write(num_tokens.astype("<i4").tobytes())
        pointers = (np.cumsum(num_tokens) - num_tokens) * reader.token_dtype.itemsize
        index.write(pointers.astype("<i8").tobytes())
        index.write(np.arange(num_docs + 1, dtype="<i8").tobytes())
    return num_docs


# ------------------------------------------------------------------------------------------------------------ MosaicML


def export_mds(reader: Reader, folder: Path) -> int:
    """Write MDS shards with columns doc_id (uint64) and tokens (1-D ndarray); gives the number of documents.

    Layout: streaming/base/format/mds/writer.py, `encode_joint_shard`, and mds/encodings.py, `NDArray`.
    """
    config = {
        "column_encodings": ["uint64", f"ndarray:{reader.token_dtype.name}"],
        "column_names": ["doc_id", "tokens"],
        "column_sizes": [8, None],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": MDS_SHARD_BYTES,
        "version": 2,
    }
    shards: list[dict[str, Any]] = []
    pending: list[bytes] = []

    def flush() -> None:
        name, data = f"shard.{len(shards):05d}.mds", _mds_shard(pending, config)
        with _whole(folder / name) as file:
            file.write(data)
        raw = {"basename": name, "bytes": len(data), "hashes": {}}
        shards.append({**config, "raw_data": raw, "samples": len(pending), "zip_data": None})
        pending.clear()

    num_docs = pending_bytes = 0
    for shard in range(len(reader.catalogue.num_tokens)):
        for document in documents(reader, shard):
            sample = _mds_sample(document)
            if pending and pending_bytes + len(sample) > MDS_SHARD_BYTES:
                flush()
                pending_bytes = 0
            pending.append(sample)
            pending_bytes, num_docs = pending_bytes + len(sample) + 4, num_docs + 1
    if pending:
        flush()
    with _whole(folder / "index.json") as file:
        file.write(json.dumps({"shards": shards, "version": 2}, sort_keys=True).encode())
    return num_docs


def _mds_sample(document: Document) -> bytes:
    """Size of tokens (doc_id has a fixed one), then doc_id; dimensions and type of the shape, shape, values."""
    num = len(document.tokens)
    width = next(
        code for code in range(4) if num < 1 << 8 * 2**code
    )  # uint8, uint16, uint32, uint64
    shape = bytes([1 << 2 | width]) + num.to_bytes(2**width, "little")
    tokens = shape + document.tokens.tobytes()
    return struct.pack("<IQ", len(tokens), document.doc_id) + tokens


def _mds_shard(samples: list[bytes], config: dict[str, Any]) -> bytes:
    text = json.dumps(config, sort_keys=True).encode()
    sizes = np.array([0, *map(len, samples)], np.int64)
    offsets = np.cumsum(sizes) + 4 + 4 * len(sizes) + len(text)
    return b"".join(
        [struct.pack("<I", len(samples)), offsets.astype("<u4").tobytes(), text, *samples]
    )


# -------------------------------------------------------------------------------------------------------- Hugging Face


def export_parquet(reader: Reader, folder: Path) -> int:
    """Write one Parquet file per filled shard, with doc_id (uint64) and tokens (list); gives the number of documents.

    `datasets.load_dataset("parquet", data_dir=folder)` and `load_dataset(folder)` read it. A sample is a row group.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    filled = np.flatnonzero(
        reader.catalogue.num_docs
    ).tolist()  # datasets refuses files without a row group
    values = pa.uint16() if reader.token_dtype.itemsize == 2 else pa.uint32()
    schema = pa.schema([("doc_id", pa.uint64()), ("tokens", pa.large_list(values))])
    num_docs = 0
    for number, shard in enumerate(filled):
        index = reader.index(shard)
        firsts = np.searchsorted(index.doc_starts, index.sample_starts).tolist()
        name = f"train-{number:05d}-of-{len(filled):05d}.parquet"
        with (
            _whole(folder / name) as file,
            pq.ParquetWriter(file, schema, compression="zstd") as writer,
        ):
            for sample in range(index.num_samples):
                docs = slice(firsts[sample], firsts[sample + 1])
                offsets = index.doc_starts[docs.start : docs.stop + 1] - index.sample_starts[sample]
                tokens = pa.array(reader.sample(shard, sample), values)
                lists = pa.LargeListArray.from_arrays(pa.array(offsets, pa.int64()), tokens)
                writer.write_table(
                    pa.Table.from_arrays([pa.array(index.doc_ids[docs]), lists], schema=schema)
                )
        num_docs += index.num_docs
    return num_docs
