"""Read the rows of several steps at once, ahead of their use.

A chunk holds the rows of consecutive steps of one rank, about 8 MiB. Locating rows has a fixed cost
per call, which a chunk spreads over many rows. Threads read the next chunks while the current one
is used.
"""

from __future__ import annotations

import weakref
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loader.batches.torch_use import CudaCopier
from loader.order.rank_batches import RankBatches, Step, list_positions
from loader.reading.dataset_files import ForkCheck
from loader.reading.rows import RowMarks, StoredRows, Tokens
from loader.row_reader import RowReader

if TYPE_CHECKING:
    import torch

# At this size, the fixed cost of a chunk is a tenth of the cost of copying its rows.
CHUNK_BYTES = 8 * 2**20

# A chunk of any size has a fixed cost of half a millisecond: few small ones are read at the start.
CHUNK_GROWTH = 4


@dataclass(eq=False)
class Chunk:
    """The rows of some steps on this rank: n rows of T + 1 tokens.

    steps:       the steps, in order
    rows:        the rows, checked but not copied
    tokens:      (n, T + 1) copy of the rows that a thread made, or None
    marks:       damaged rows, document starts and tokens that must not be labels
    num_damaged: number of damaged rows
    on_device:   the same tokens on a CUDA device, or None
    copied:      CUDA event after which `on_device` is valid
    """

    steps: list[Step]
    rows: StoredRows
    tokens: Tokens | None
    marks: RowMarks
    num_damaged: int
    on_device: torch.Tensor | None = None
    copied: Any = None

    def join(self, rows: slice) -> Tokens:
        """Return the tokens of some rows, (B, T + 1). They may share memory with the chunk."""
        return self.rows.join(rows) if self.tokens is None else self.tokens[rows]


class ChunkReader:
    """Reads the chunks of one rank in order.

    Args:
        rows: reads rows by position.
        rank_batches: computes the steps of this rank.
        prefetch_chunks: number of chunks that threads read ahead; 0 reads on demand.
        ahead_bytes: of remote datasets, how far ahead blocks are fetched.
        with_marks: also compute document starts.
        copier: copies chunks to a CUDA device, or None.
    """

    def __init__(
        self,
        rows: RowReader,
        rank_batches: RankBatches,
        *,
        prefetch_chunks: int,
        ahead_bytes: int,
        with_marks: bool,
        copier: CudaCopier | None,
    ) -> None:
        self._rows, self._rank_batches = rows, rank_batches
        self._prefetch_chunks = prefetch_chunks
        self._ahead_rows = 0
        if rows.is_remote:
            # One epoch has all blocks. Locating rows of each further epoch costs some milliseconds,
            # and a tiny dataset can have thousands of epochs in `ahead_bytes`.
            self._ahead_rows = min(ahead_bytes // rows.row_bytes, rows.stream.num_rows)
        self._with_marks = with_marks
        self._copier = copier
        self._check_fork = ForkCheck()
        self._pool: ThreadPoolExecutor | None = None
        # Requests blocks in a thread that chunks do not use: it may wait for a server.
        self._request_pool: ThreadPoolExecutor | None = None
        self._request: Future[None] | None = None
        self.restart(0, 0)

    def restart(self, position: int, carried_rows: int) -> None:
        """Drop the chunks that were read ahead and continue at another position."""
        # Each is (position, carried_rows): after the last chunk that was returned, after the last
        # chunk that was planned, and after the last row whose block was requested.
        self._returned = self._planned = self._requested = position, carried_rows
        self._pending: deque[Future[Chunk]] = deque()
        # The first chunk is a single step, which makes the first batch available early. Each later
        # chunk has CHUNK_GROWTH times as many steps, up to CHUNK_BYTES.
        self._max_chunk_steps = 1

    def read_next(self) -> Chunk | None:
        """Return the next chunk, or None at the end of the stream.

        If reading fails, the error is raised and the next call tries the same chunk again.

        Raises:
            RuntimeError: this is a fork of the process that opened the loader.
        """
        if self._prefetch_chunks:
            self._check_fork()
        try:
            chunk = self._take_prefetched() if self._prefetch_chunks else self._read_now()
        except BaseException:
            # Also after KeyboardInterrupt: a caller that continues must not lose a chunk. Later
            # chunks may have been read already: drop them too, to keep the order.
            self.restart(*self._returned)
            raise
        if chunk is None:
            return None
        # From here on, a later error restarts after this chunk.
        self._returned = chunk.steps[-1].end
        if self._copier is not None and chunk.on_device is not None:
            # The device waits for the copy; this thread does not.
            self._copier.wait_for_copy(chunk.on_device, chunk.copied)
        return chunk

    def close(self) -> None:
        """Stop the threads. They also stop when the reader is garbage-collected."""
        self.restart(*self._returned)
        for pool in (self._pool, self._request_pool):
            if pool is not None:
                pool.shutdown(wait=False, cancel_futures=True)
        self._pool = self._request_pool = self._request = None

    def _read_now(self) -> Chunk | None:
        steps = self._plan_steps()
        return self._read_chunk(steps) if steps else None

    def _take_prefetched(self) -> Chunk | None:
        self._start_reads()
        # Refill before and after waiting: threads must be busy both while this thread waits for a
        # chunk and while the caller uses it.
        chunk = self._pending.popleft().result() if self._pending else None
        self._start_reads()
        return chunk

    def _start_reads(self) -> None:
        # Only reading is parallel. Steps are planned in this thread, which keeps chunks in order.
        while len(self._pending) < self._prefetch_chunks and (steps := self._plan_steps()):
            if self._pool is None:
                self._pool = self._start_threads(max(1, self._prefetch_chunks))
            self._pending.append(self._pool.submit(self._read_chunk, steps))
        if self._ahead_rows:
            self._request_blocks()

    def _request_blocks(self) -> None:
        """Request the remote blocks of the rows that come after the planned chunks.

        All sections of the row order reach the ends of their blocks at about the same time. Without
        these requests, all of them would wait for their next block then. Many rows are requested
        together, because locating many rows costs little more than locating a few.
        """
        if self._request is not None and not self._request.done():
            return
        # Both are (position, carried_rows). Planned rows are read by _read_chunk itself.
        self._requested = max(self._requested, self._planned)
        # Wait until a quarter of the distance is used up, to request many rows at once.
        rows_requested = self._requested[0] - self._planned[0]
        if rows_requested > self._ahead_rows * 3 // 4:
            return
        stop = self._planned[0] + self._ahead_rows
        steps: list[Step] = []
        for step in self._rank_batches.iterate(*self._requested):
            if self._requested[0] >= stop:
                break
            steps.append(step)
            self._requested = step.end
        if steps:
            # The result is not awaited: reading the same rows reports any error.
            if self._request_pool is None:
                self._request_pool = self._start_threads(1)
            self._request = self._request_pool.submit(
                self._rows.prefetch_positions, list_positions(steps)
            )

    def _start_threads(self, num_threads: int) -> ThreadPoolExecutor:
        pool = ThreadPoolExecutor(num_threads, thread_name_prefix="loader-read")
        # An idle pool does not refer to this object, so a dropped loader ends its threads.
        weakref.finalize(self, pool.shutdown, wait=False, cancel_futures=True)
        return pool

    def _plan_steps(self) -> list[Step]:
        """Return the steps of the next chunk; an empty list at the end of the stream."""
        # At least one step, even if its rows are larger than CHUNK_BYTES.
        max_rows = max(1, CHUNK_BYTES // self._rows.row_bytes)
        batches = self._rank_batches
        rows_per_step = batches.global_batch_rows // batches.world_size
        num_steps = min(self._max_chunk_steps, -(-max_rows // rows_per_step))
        steps = batches.make_steps(*self._planned, num_steps)
        if steps:
            self._planned = steps[-1].end
        self._max_chunk_steps = CHUNK_GROWTH * num_steps
        return steps

    def _read_chunk(self, steps: list[Step]) -> Chunk:
        # The rows of all steps are located and checked in one call.
        rows, marks = self._rows.load_positions(
            list_positions(steps), with_marks=self._with_marks
        )
        num_rows = len(marks.is_whole)
        num_damaged = num_rows - int(np.count_nonzero(marks.is_whole))
        tokens = None
        if self._prefetch_chunks or self._copier is not None:
            # In a thread, so that the caller does not wait for a disk.
            tokens = rows.join(slice(0, num_rows))
        chunk = Chunk(steps, rows, tokens, marks, num_damaged)
        if self._copier is not None and tokens is not None:
            chunk.on_device, chunk.copied = self._copier.start_copy(tokens)
        return chunk
