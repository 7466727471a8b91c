"""Write Megatron's indexed dataset: a `.bin` file of tokens and an `.idx` file.

Layout: megatron/core/datasets/indexed_dataset.py, `_IndexWriter`.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from loader.export.documents import create_file, read_sample_documents
from loader.order.permutation import Int64Array
from loader.reading.dataset import Dataset

_INDEX_MAGIC = b"MMIDIDX\x00\x00"
_INDEX_VERSION = 1
# Version, dtype code, number of sequences, number of entries in the document index.
_INDEX_HEADER = struct.Struct("<QBQQ")

# Bytes per token -> (dtype code, dtype), from `DType` in indexed_dataset.py. It has no
# uint32.
_DTYPES = {2: (8, "<u2"), 4: (4, "<i4")}


def export_megatron(dataset: Dataset, prefix: Path) -> int:
    """Write `<prefix>.bin` and `<prefix>.idx` with one sequence per document.

    Returns:
        The number of documents.

    Raises:
        ValueError: the vocabulary has more than 2**31 ids, which Megatron's int32 cannot hold.
    """
    vocab_size = dataset.manifest.tokenizer.vocab_size
    if vocab_size > 2**31:
        raise ValueError(
            f"vocab_size is {vocab_size}, but Megatron stores ids as int32, which hold 2**31; "
            f"export to mds or parquet"
        )
    num_tokens = _write_tokens(dataset, prefix.with_name(f"{prefix.name}.bin"))
    # The index is written last: it marks the export as complete.
    _write_index(dataset, prefix.with_name(f"{prefix.name}.idx"), num_tokens)
    return len(num_tokens)


def _write_tokens(dataset: Dataset, path: Path) -> Int64Array:
    """Write all tokens; return the (D,) number of tokens of each document."""
    _, dtype = _DTYPES[dataset.token_dtype.itemsize]
    # The empty array allows np.concatenate for a dataset without documents.
    doc_num_tokens: list[Int64Array] = [np.zeros(0, np.int64)]
    with create_file(path) as file:
        for shard in range(dataset.manifest.num_shards):
            for sample in read_sample_documents(dataset, shard):
                doc_num_tokens.append(np.diff(sample.offsets))
                file.write(sample.tokens.astype(dtype, copy=False).tobytes())
    return np.concatenate(doc_num_tokens)


def _write_index(dataset: Dataset, path: Path, num_tokens: Int64Array) -> None:
    code, _ = _DTYPES[dataset.token_dtype.itemsize]
    num_docs = len(num_tokens)
    # (D,) byte of the .bin file at which each document starts
    pointers = (np.cumsum(num_tokens) - num_tokens) * dataset.token_dtype.itemsize
    with create_file(path) as file:
        file.write(_INDEX_MAGIC)
        file.write(_INDEX_HEADER.pack(_INDEX_VERSION, code, num_docs, num_docs + 1))
        file.write(num_tokens.astype("<i4").tobytes())
        file.write(pointers.astype("<i8").tobytes())
        # Document index: document d starts at sequence d, because each document is one sequence.
        file.write(np.arange(num_docs + 1, dtype="<i8").tobytes())
