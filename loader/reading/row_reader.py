"""Read rows of a row stream by position, from all of its sources."""

from __future__ import annotations

import numpy as np

from loader.order.permutation import Int64Array
from loader.reading.open_shard import Tokens
from loader.reading.shard_reader import RowMarks, ShardReader
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

    def read_positions(
        self, positions: Int64Array, *, with_marks: bool = False
    ) -> tuple[Tokens, RowMarks]:
        """Return the rows at (n,) positions, (n, seq_len + 1) tokens, and their marks.

        Raises as `ShardReader.read`.
        """
        sources, shards, rows = self.stream.locate(positions)
        # The rows of a single dataset are returned without the copy below.
        if len(self._readers) == 1:
            return self._readers[0].read(shards, rows, with_marks=with_marks)
        seq_len = self.stream.seq_len
        tokens = np.empty((len(positions), seq_len + 1), self.token_dtype)
        is_whole = np.empty(len(positions), np.bool_)
        doc_starts = np.empty((len(positions), seq_len), np.bool_) if with_marks else None
        ignored: list[TokenRanges] = []
        for source, reader in enumerate(self._readers):
            chosen = np.flatnonzero(sources == source)
            tokens[chosen], found = reader.read(
                shards[chosen], rows[chosen], with_marks=with_marks
            )
            is_whole[chosen] = found.is_whole
            if doc_starts is not None:
                doc_starts[chosen] = found.doc_starts
            if found.ignored is not None:
                ignored.append(found.ignored._replace(rows=chosen[found.ignored.rows]))
        joined = TokenRanges.join(ignored) if ignored else None
        return tokens, RowMarks(is_whole, doc_starts, joined)

    def close(self) -> None:
        """Stop the threads and close the files of the readers."""
        for reader in self._readers:
            reader.close()
