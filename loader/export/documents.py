"""Iterate over the documents of a dataset, and write files under their final name when complete."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from loader.order.permutation import BoolArray, Int64Array
from loader.reading.dataset import Dataset
from loader.reading.rows import Tokens


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
