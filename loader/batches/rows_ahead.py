"""Read the rows of several requests at once, if the requests follow a pattern.

Locating rows has a fixed cost per call. A sampler of consecutive batches asks for rows at a constant
distance from those that it asked for before, also in each of several worker processes. So the rows
of the next requests can be read together with those that were asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from loader.batches.chunk_reader import CHUNK_BYTES
from loader.order.permutation import Int64Array
from loader.reading.rows import RowMarks, StoredRows, Tokens
from loader.row_reader import RowReader
from shardwriter.format import FormatError
from storage import StorageError


class RowsAhead:
    """Reads rows at requested positions, and rows of later requests ahead.

    The number of requests that are read at once starts with 1, and doubles as long as each request
    is the expected one, up to CHUNK_BYTES.

    Args:
        rows: reads rows by position.
        stop: positions from here on are not read ahead.
    """

    def __init__(self, rows: RowReader, stop: int) -> None:
        self._rows, self._stop = rows, stop
        self._previous: list[int] = []
        self._num_requests = 1
        # Rows of later requests: their positions, the rows and marks, and the next row of them.
        self._positions: list[int] = []
        self._loaded: tuple[StoredRows, RowMarks] | None = None
        self._next_row = 0

    def read(self, positions: Sequence[int]) -> tuple[Tokens, RowMarks]:
        """Return the tokens of n rows, (n, seq_len + 1), and their marks. Do not change the marks.

        Raises as `RowReader.load_positions`.
        """
        wanted = list(positions)
        rows = slice(self._next_row, self._next_row + len(wanted))
        if self._positions[rows] != wanted:
            self._read_chunk(wanted)
            rows = slice(0, len(wanted))
        assert self._loaded is not None
        self._next_row, self._previous = rows.stop, wanted
        stored, (is_whole, _, ignored) = self._loaded
        ignored = ignored and ignored.select(rows)
        return stored.join(rows), RowMarks(is_whole[rows], None, ignored)

    def _read_chunk(self, wanted: list[int]) -> None:
        """Read the wanted rows and those of the next requests."""
        requests = self._predict(wanted)
        try:
            self._read_requests(requests)
        except (StorageError, FormatError):
            if len(requests) == 1:
                raise
            # The fault may be in a row that was not asked for yet.
            self._read_requests(requests[:1])

    def _predict(self, wanted: list[int]) -> Int64Array:
        """Return the positions of this request and of the next ones, (requests, n) int64."""
        request = np.array(wanted, np.int64)
        is_used_up = self._next_row == len(self._positions)
        distance = request - self._previous if len(wanted) == len(self._previous) else None
        if distance is None or not is_used_up or len(set(distance.tolist())) != 1:
            self._num_requests = 1
            return request[np.newaxis]
        max_rows = max(1, CHUNK_BYTES // self._rows.row_bytes)
        self._num_requests = min(2 * self._num_requests, max(1, max_rows // len(wanted)))
        requests = request + np.arange(self._num_requests)[:, np.newaxis] * distance
        is_inside = ((requests >= 0) & (requests < self._stop)).all(axis=1)
        return requests[: int(np.argmin(np.append(is_inside, False)))]

    def _read_requests(self, requests: Int64Array) -> None:
        positions = requests.reshape(-1)
        # A failed read must leave no rows behind.
        self._positions = []
        self._loaded = self._rows.load_positions(positions)
        self._positions = positions.tolist()
