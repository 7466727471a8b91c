"""Read rows of a row stream by position, from all of its sources."""

from __future__ import annotations

import numpy as np

from loader.order.permutation import Int64Array
from loader.reading.packing import BoolArray
from loader.reading.shard_reader import LoadedRows, RowMarks, ShardReader
from loader.reading.spans import Source, StoredRows
from loader.retraction.tombstones import TokenRanges
from loader.row_stream import RowStream
from loader.storage import Counters, ReadSettings


def open_readers(
    stream: RowStream, settings: ReadSettings, counters: Counters | None = None
) -> list[ShardReader]:
    """Return a reader for each source of a stream. Raises as `ShardReader`."""
    readers: list[ShardReader] = []
    for source, manifest in enumerate(stream.manifests):
        reader = ShardReader(
            manifest,
            seq_len=stream.seq_len,
            settings=settings,
            counters=counters,
            packing=stream.packings[source] if stream.packings else None,
            checks_files=stream.is_read_in_future(source),
        )
        readers.append(reader)
    return readers


class RowReader:
    """Reads rows of a stream by position.

    stream:      the row stream
    counters:    see `ShardReader`; summed over the sources
    token_dtype: uint16 or uint32
    is_remote:   whether some source is read over a network
    """

    def __init__(self, stream: RowStream, settings: ReadSettings) -> None:
        self.stream = stream
        self.counters = Counters()
        self._readers = open_readers(stream, settings, self.counters)
        self.token_dtype = self._readers[0].token_dtype
        self.is_remote = any(reader.is_remote for reader in self._readers)

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row of seq_len + 1 tokens."""
        return (self.stream.seq_len + 1) * self.token_dtype.itemsize

    def prefetch_positions(self, positions: Int64Array) -> None:
        """Start fetching the blocks of rows at (n,) positions over the network."""
        sources, shards, rows = self.stream.locate(positions)
        for source, reader in enumerate(self._readers):
            if reader.is_remote:
                chosen = sources == source
                reader.prefetch_rows(shards[chosen], rows[chosen])

    def load_positions(
        self, positions: Int64Array, *, with_marks: bool = False
    ) -> tuple[StoredRows, RowMarks]:
        """Check and fetch the rows at (n,) positions; return them and their marks.

        Raises as `ShardReader.read`.
        """
        num_rows = len(positions)
        sources, shards, rows = self.stream.locate(positions)
        if len(self._readers) == 1:
            loaded = self._readers[0].load(shards, rows, with_marks=with_marks)
        else:
            parts: list[tuple[Int64Array, LoadedRows]] = []
            for source, reader in enumerate(self._readers):
                chosen = np.flatnonzero(sources == source)
                part = reader.load(shards[chosen], rows[chosen], with_marks=with_marks)
                parts.append((chosen, part))
            loaded = _join_loaded(parts, num_rows)
        stored = StoredRows(
            loaded.sources,
            num_rows,
            row_tokens=self.stream.seq_len + 1,
            dtype=self.token_dtype,
            # The sources of a mixture have the same tokenizer.
            blank=self.stream.manifests[0].tokenizer.end_of_document,
            retracted=loaded.retracted,
        )
        return stored, loaded.marks

    def close(self) -> None:
        """Stop the threads and close the files of the readers."""
        for reader in self._readers:
            reader.close()


def _join_loaded(parts: list[tuple[Int64Array, LoadedRows]], num_rows: int) -> LoadedRows:
    """Return the rows of several readers as rows of one request.

    Args:
        parts: for each reader, the places of its rows in the request, and the rows.
        num_rows: of the request.
    """
    sources: list[Source] = []
    retracted: list[TokenRanges] = []
    ignored: list[TokenRanges] = []
    is_whole = np.zeros(num_rows, np.bool_)
    doc_starts: BoolArray | None = None
    for places, part in parts:
        sources += [source._replace(rows=places[source.rows]) for source in part.sources]
        is_whole[places] = part.marks.is_whole
        if part.marks.doc_starts is not None:
            if doc_starts is None:
                seq_len = part.marks.doc_starts.shape[1]
                doc_starts = np.empty((num_rows, seq_len), np.bool_)
            doc_starts[places] = part.marks.doc_starts
        for joined, ranges in ((retracted, part.retracted), (ignored, part.marks.ignored)):
            if ranges is not None:
                joined.append(ranges._replace(rows=places[ranges.rows]))
    return LoadedRows(
        sources,
        TokenRanges.join(retracted) if retracted else None,
        RowMarks(is_whole, doc_starts, TokenRanges.join(ignored) if ignored else None),
    )
