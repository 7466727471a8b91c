"""Export a dataset into the formats of Megatron and Hugging Face.

Each document is written once, in the dataset's order, with its end-of-document token. Every sample
is checked against its checksum on the way. Megatron's library is not needed for writing. Equal
datasets give equal files.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loader.order.permutation import BoolArray, Int64Array
from loader.reading.dataset import Dataset
from loader.reading.rows import Tokens

# Layout of Megatron's indexed dataset: megatron/core/datasets/indexed_dataset.py, `_IndexWriter`.
_INDEX_MAGIC = b"MMIDIDX\x00\x00"
_INDEX_VERSION = 1
# Version, dtype code, number of sequences, number of entries in the document index.
_INDEX_HEADER = struct.Struct("<QBQQ")

# Bytes per token -> (dtype code, dtype), from `DType` in indexed_dataset.py. It has no
# uint32.
_DTYPES = {2: (8, "<u2"), 4: (4, "<i4")}


class SampleDocuments(NamedTuple):
    """The D documents of one sample.

    doc_ids: (D,) uint64
    offsets: (D + 1,) int64, first token of each document in `tokens`, and then the number of tokens
    tokens:  (n,) as stored, end-of-document tokens included
    """

    doc_ids: NDArray[np.uint64]
    offsets: Int64Array
    tokens: Tokens


class Document(NamedTuple):
    """One document: its id and its (n,) tokens, the end-of-document token included."""

    doc_id: int
    tokens: Tokens


def read_sample_documents(dataset: Dataset, shard: int) -> Iterator[SampleDocuments]:
    """Yield the documents of each sample of a shard, without retracted ones.

    Raises as `Dataset.read_sample`.
    """
    index = dataset.load_index(shard)
    # (S + 1,) first document of each sample
    first_docs = np.searchsorted(index.doc_starts, index.sample_starts).tolist()
    for sample in range(index.num_samples):
        first, stop = first_docs[sample], first_docs[sample + 1]
        # (D + 1,) Samples hold whole documents, so the start after the last document ends the
        # sample.
        offsets = index.doc_starts[first : stop + 1] - index.sample_starts[sample]
        tokens = dataset.read_sample(shard, sample)
        documents = SampleDocuments(index.doc_ids[first:stop], offsets, tokens)
        retracted = dataset.mark_retracted_in_sample(shard, sample)
        if retracted is not None:
            documents = _leave_out(documents, retracted)
        yield documents


def _leave_out(documents: SampleDocuments, retracted: BoolArray) -> SampleDocuments:
    """Return the documents that are not retracted. All tokens of a document are, or none."""
    is_left = ~retracted[documents.offsets[:-1]]
    num_tokens = np.diff(documents.offsets)[is_left]
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(num_tokens)])
    return SampleDocuments(
        documents.doc_ids[is_left], offsets, documents.tokens[~retracted]
    )


def read_documents(dataset: Dataset, shard: int) -> Iterator[Document]:
    """Yield the documents of a shard in order. Raises as `Dataset.read_sample`."""
    for sample in read_sample_documents(dataset, shard):
        offsets = sample.offsets.tolist()
        for doc, doc_id in enumerate(sample.doc_ids.tolist()):
            yield Document(doc_id, sample.tokens[offsets[doc] : offsets[doc + 1]])


@contextlib.contextmanager
def create_file(path: Path) -> Generator[BinaryIO]:
    """Open a file for writing under a temporary name, and rename it when it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A crash leaves a .part file, never a file that looks complete. The next export overwrites it.
    part = path.with_name(f"{path.name}.part")
    with part.open("wb") as file:
        yield file
    part.replace(path)


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
            f"export to parquet"
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


def export_parquet(dataset: Dataset, folder: Path) -> int:
    """Write one Parquet file per shard, with the columns doc_id (uint64) and tokens (list).

    Each sample becomes a row group. `datasets.load_dataset("parquet", data_dir=folder)` reads the
    files. Empty shards are skipped, because datasets refuses files without a row group.

    Returns:
        The number of documents.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    # File names count only shards with documents: `of` must be the number of files.
    shards = np.flatnonzero(dataset.manifest.num_docs).tolist()
    token_type = pa.uint16() if dataset.token_dtype.itemsize == 2 else pa.uint32()
    # large_list has 64-bit offsets, so a row group may hold more than 2**31 tokens.
    schema = pa.schema([("doc_id", pa.uint64()), ("tokens", pa.large_list(token_type))])
    num_docs = 0
    for number, shard in enumerate(shards):
        path = folder / f"train-{number:05d}-of-{len(shards):05d}.parquet"
        with (
            create_file(path) as file,
            pq.ParquetWriter(file, schema, compression="zstd") as writer,
        ):
            for sample in read_sample_documents(dataset, shard):
                offsets = pa.array(sample.offsets, pa.int64())
                tokens = pa.array(sample.tokens, token_type)
                lists = pa.LargeListArray.from_arrays(offsets, tokens)
                doc_ids = pa.array(sample.doc_ids)
                writer.write_table(pa.Table.from_arrays([doc_ids, lists], schema=schema))
                num_docs += len(sample.doc_ids)
    return num_docs
