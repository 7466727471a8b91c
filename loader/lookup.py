"""Which documents a step has read, and which steps have read a document.

The order of rows is arithmetic, so both are look-ups: they read the manifest, and of the shards in
question the indexes and the metadata. For example:

    stream = open_row_stream("/data/web", seq_len=2048, seed=7, settings=ReadSettings())
    finder = DocumentFinder(stream, ReadSettings())
    for part in finder.list_parts(np.arange(512)):                   # the rows of the first step
        print(part.row, part.metadata["url"])
    finder.list_positions(part.source, part.doc_id, epoch=0)         # the rows of a document
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from loader.order.permutation import Int64Array
from loader.reading.dataset import Dataset
from loader.reading.metadata import DocumentMetadata, read_metadata
from loader.row_reader import open_datasets
from loader.row_stream import RowStream
from loader.storage import ReadSettings


@dataclass(frozen=True)
class DocumentPart:
    """The part of a document that a row has as input.

    Attributes:
        position: of the row in the stream.
        source: number of the dataset in a mixture; else 0.
        shard: number of the shard.
        row: number of the row in the shard.
        doc_id: the document.
        first_token: its first token in the row, counted from the start of the document.
        num_tokens: its tokens in the row.
        is_retracted: it was retracted, so its tokens and labels are masked.
        metadata: its metadata in the shard; None if the dataset has none.
    """

    position: int
    source: int
    shard: int
    row: int
    doc_id: int
    first_token: int
    num_tokens: int
    is_retracted: bool
    metadata: DocumentMetadata | None


class DocumentFinder:
    """Looks up documents and rows of a stream."""

    def __init__(self, stream: RowStream, settings: ReadSettings) -> None:
        self._stream = stream
        self._datasets = tuple(open_datasets(stream, settings))
        # (source, shard, sample) -> metadata of its documents: rows of a step share samples
        self._metadata: dict[tuple[int, int, int], list[DocumentMetadata] | None] = {}

    def list_parts(self, positions: Int64Array) -> Iterator[DocumentPart]:
        """Yield the documents of the rows at (n,) positions, row by row.

        The last label of a row, which is the first input of the next row of the shard, is not
        counted.

        Raises:
            ReadFailed, FormatError, ShardCorrupt: an index or metadata cannot be read.
        """
        # (n, 4) position, source, shard, row
        places = np.stack([positions, *self._stream.locate(positions)], axis=1)
        for place in places.tolist():
            yield from self._list_row(*place)

    def list_positions(self, source: int, doc_id: int, epoch: int) -> list[int]:
        """Return the positions in the source's own order that read a document in an epoch.

        For a single dataset these are positions of the stream. Rows that are left over in the
        epoch have none.

        Raises:
            ValueError: the dataset has no such document.
            ReadFailed, FormatError, ShardCorrupt: an index cannot be read.
        """
        dataset, order = self._datasets[source], self._stream.sources[source].order
        shard, first, stop = _find_document(dataset, doc_id)
        positions: list[int] = []
        for row in dataset.find_rows(shard, first, stop):
            position = order.find_position(epoch, shard, row)
            if position is not None:
                positions.append(position)
        return sorted(positions)

    def is_retracted(self, source: int, doc_id: int) -> bool:
        """Return whether a document of a dataset was retracted.

        Raises:
            ValueError: the dataset has no such document.
            ReadFailed, FormatError, ShardCorrupt: an index cannot be read.
        """
        dataset = self._datasets[source]
        shard, first, _ = _find_document(dataset, doc_id)
        return _is_token_retracted(dataset, shard, first)

    def close(self) -> None:
        """Close the files."""
        for dataset in self._datasets:
            dataset.close()

    def _list_row(
        self, position: int, source: int, shard: int, row: int
    ) -> Iterator[DocumentPart]:
        dataset = self._datasets[source]
        index = dataset.load_index(shard)
        for start, stop in dataset.list_inputs(shard, row):
            first_doc = int(np.searchsorted(index.doc_starts, start, side="right")) - 1
            last_doc = int(np.searchsorted(index.doc_starts, stop, side="left")) - 1
            for doc in range(first_doc, last_doc + 1):
                doc_start, doc_stop = index.doc_starts[doc : doc + 2].tolist()
                first = max(start, doc_start)
                yield DocumentPart(
                    position=position,
                    source=source,
                    shard=shard,
                    row=row,
                    doc_id=int(index.doc_ids[doc]),
                    first_token=first - doc_start,
                    num_tokens=min(stop, doc_stop) - first,
                    is_retracted=_is_token_retracted(dataset, shard, first),
                    metadata=self._read_metadata(source, shard, doc),
                )

    def _read_metadata(self, source: int, shard: int, doc: int) -> DocumentMetadata | None:
        """Return the metadata of the document with this number in the shard."""
        dataset = self._datasets[source]
        index = dataset.load_index(shard)
        # Samples hold whole documents.
        start = index.doc_starts[doc]
        sample = int(np.searchsorted(index.sample_starts, start, side="right")) - 1
        first_doc = int(np.searchsorted(index.doc_starts, index.sample_starts[sample]))
        key = source, shard, sample
        if key not in self._metadata:
            (self._metadata[key],) = read_metadata(dataset, shard, [sample])
        documents = self._metadata[key]
        return None if documents is None else documents[doc - first_doc]


def _is_token_retracted(dataset: Dataset, shard: int, token: int) -> bool:
    """Return whether a token, counted from the start of the shard, is retracted."""
    tombstones = dataset.manifest.tombstones
    if tombstones is None:
        return False
    return len(tombstones.find(np.array([shard]), np.array([token]), 1).rows) > 0


def _find_document(dataset: Dataset, doc_id: int) -> tuple[int, int, int]:
    """Return the shard of a document, its first token there, and the token after its last."""
    for shard in range(dataset.manifest.num_shards):
        index = dataset.load_index(shard)
        found = np.flatnonzero(index.doc_ids == np.uint64(doc_id))
        if len(found):
            first, stop = index.doc_starts[found[0] : found[0] + 2].tolist()
            return shard, first, stop
    raise ValueError(f"{dataset.manifest.address} has no document {doc_id}")
