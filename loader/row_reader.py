"""Read rows of a row stream by position, from all of its sources."""

from __future__ import annotations

import numpy as np

from loader.order.permutation import Int64Array
from loader.packed.packing_index import PackedRows
from loader.reading.dataset import Dataset
from loader.reading.row_pieces import PlainRows
from loader.reading.rows import LoadedRows, RowMarks, StoredRows
from loader.row_stream import RowStream
from loader.storage import Counters, ReadSettings


def open_datasets(
    stream: RowStream, settings: ReadSettings, counters: Counters | None = None
) -> list[Dataset]:
    """Return the dataset of each source of a stream. Raises as `Dataset`."""
    counters = counters or Counters()
    datasets: list[Dataset] = []
    for number, source in enumerate(stream.sources):
        layout = PlainRows(stream.seq_len)
        if source.packing is not None:
            layout = PackedRows(source.packing, settings, counters)
        dataset = Dataset(
            source.manifest,
            settings=settings,
            layout=layout,
            counters=counters,
            checks_files=stream.is_read_in_future(number),
        )
        datasets.append(dataset)
    return datasets


class RowReader:
    """Reads rows of a stream by position.

    stream:      the row stream
    counters:    see `Dataset`; summed over the sources
    token_dtype: uint16 or uint32
    is_remote:   whether some source is read over a network
    """

    def __init__(self, stream: RowStream, settings: ReadSettings) -> None:
        self.stream = stream
        self.counters = Counters()
        self._datasets = open_datasets(stream, settings, self.counters)
        self.token_dtype = self._datasets[0].token_dtype
        self.is_remote = any(dataset.files.is_remote for dataset in self._datasets)

    @property
    def row_bytes(self) -> int:
        """Bytes of one stored row of seq_len + 1 tokens."""
        return (self.stream.seq_len + 1) * self.token_dtype.itemsize

    def prefetch_positions(self, positions: Int64Array) -> None:
        """Start fetching the blocks of rows at (n,) positions over the network."""
        sources, shards, rows = self.stream.locate(positions)
        for source, dataset in enumerate(self._datasets):
            if dataset.files.is_remote:
                chosen = sources == source
                dataset.prefetch_rows(shards[chosen], rows[chosen])

    def load_positions(
        self, positions: Int64Array, *, with_marks: bool = False
    ) -> tuple[StoredRows, RowMarks]:
        """Check and fetch the rows at (n,) positions; return them and their marks.

        Raises as `Dataset.load`.
        """
        sources, shards, rows = self.stream.locate(positions)
        loaded = LoadedRows(len(positions), self.stream.seq_len, with_marks=with_marks)
        for source, dataset in enumerate(self._datasets):
            places = np.flatnonzero(sources == source)
            dataset.load(shards[places], rows[places], places, loaded)
        blank = self.stream.tokenizer.end_of_document
        return loaded.store(self.token_dtype, blank), loaded.marks

    def close(self) -> None:
        """Stop the threads and close the files of the datasets."""
        for dataset in self._datasets:
            dataset.close()
