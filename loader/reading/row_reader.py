"""Read rows of a row stream by position, from all of its sources."""

from __future__ import annotations

import numpy as np

from loader.order.permutation import Int64Array
from loader.reading.open_shard import Tokens
from loader.reading.packing import BoolArray
from loader.reading.shard_reader import ShardReader
from loader.row_stream import RowStream
from loader.storage import Counters, ReadSettings


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
        self._readers: list[ShardReader] = []
        for manifest in stream.manifests:
            reader = ShardReader(
                manifest, seq_len=stream.seq_len, settings=settings, counters=self.counters
            )
            self._readers.append(reader)
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
        self, positions: Int64Array, out: Tokens, *, with_marks: bool = False
    ) -> tuple[BoolArray, BoolArray | None]:
        """Read the rows at (n,) positions into `out` (n, seq_len + 1).

        Returns:
            (n,) bool, false for damaged rows; and if `with_marks`, the document starts as
            (n, seq_len) bool. Raises as `ShardReader.read_rows`.
        """
        sources, shards, rows = self.stream.locate(positions)
        # A single dataset is read directly into `out`, without the copy below.
        if len(self._readers) == 1:
            reader = self._readers[0]
            marks = reader.mark_document_starts(shards, rows) if with_marks else None
            return reader.read_rows(shards, rows, out), marks
        is_whole = np.empty(len(positions), np.bool_)
        marks = (
            np.empty((len(positions), self.stream.seq_len), np.bool_)
            if with_marks
            else None
        )
        for source, reader in enumerate(self._readers):
            chosen = np.flatnonzero(sources == source)
            # read_rows needs contiguous memory, and out[chosen] would be a copy that is thrown
            # away.
            tokens = np.empty((len(chosen), out.shape[1]), out.dtype)
            is_whole[chosen] = reader.read_rows(shards[chosen], rows[chosen], tokens)
            out[chosen] = tokens
            if marks is not None:
                marks[chosen] = reader.mark_document_starts(shards[chosen], rows[chosen])
        return is_whole, marks

    def close(self) -> None:
        """Stop the threads and close the files of the readers."""
        for reader in self._readers:
            reader.close()
