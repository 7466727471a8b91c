"""Batches of token tensors, the same global order on any number of ranks, resumed exactly and at once.

Promises: what comes next is a function of the state alone, which is the position behind the last batch that was handed
out, however far reading has run ahead; `state_dict` and `load_state_dict` are those of torchdata's StatefulDataLoader
and of DCP's Stateful. Tokens stay as they are stored until they are on the device. The same batches on all ranks of a
tensor- or context-parallel group, if they are given the same data-parallel rank.
Leaves to others: order, dealing, reading, faults (modules of these names); epochs of training, logging.

    loader = TokenLoader("/data/web", seq_len=2048, global_batch_rows=512, seed=7)
    for batch in loader:                                  # {"input_ids": (B, T) int64, "labels": (B, T) int64}
        ...
        torch.save(loader.state_dict(), "loader.pt")      # and later: loader.load_state_dict(torch.load("loader.pt"))
"""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from loader.mixture import Mixture
from loader.order import DEFAULT_WINDOW_ROWS
from loader.packing import Flags, document_ids, lengths, position_ids
from loader.rank_batches import Deal, Step, Uneven
from loader.rank_discovery import Mesh, resolve
from loader.reader import Reader, Tokens
from loader.state import LoaderState
from loader.storage import Counters, ReadSettings
from loader.stream import RowStream, Source, open_stream
from shardwriter.format import TokenizerEntry

if TYPE_CHECKING:
    import torch

IGNORED_LABEL = -100
"""What torch.nn.CrossEntropyLoss passes over (its `ignore_index`): labels of rows that were damaged."""

CHUNK_BYTES = 8 * 2**20
"""Rows are located and read in chunks of about this much: what a chunk costs beside copying is then a tenth of it."""

Documents = Literal["position_ids", "document_ids", "cu_seqlens"]


@dataclass(eq=False)
class Chunk:
    """Some steps' rows on this rank, read together; n rows of T + 1 tokens.

    tokens: (n, T + 1) as stored; is_whole: (n,), false num_damaged times; marks: (n, T) document starts where asked
    for; ready: on a GPU, the event after which `on_device` may be used.
    """

    steps: list[Step]
    tokens: Tokens
    is_whole: NDArray[np.bool_]
    marks: Flags | None
    num_damaged: int
    on_device: torch.Tensor | None = None
    ready: Any = None
    taken_steps: int = 0
    taken_rows: int = 0


class RowReader:
    """Rows of a stream by position, whatever their source."""

    def __init__(self, stream: RowStream, settings: ReadSettings) -> None:
        self.stream, self.counters = stream, Counters()
        self._readers = [
            Reader(catalogue, seq_len=stream.seq_len, settings=settings, counters=self.counters)
            for catalogue in stream.catalogues
        ]
        self.token_dtype = self._readers[0].token_dtype
        self.is_remote = any(reader.is_remote for reader in self._readers)

    def fetch_ahead(self, positions: NDArray[np.int64]) -> None:
        """Have fetched over the network what rows at these positions will want."""
        sources, shards, rows = self.stream.locate(positions)
        for source, reader in enumerate(self._readers):
            if reader.is_remote:
                here = np.flatnonzero(sources == source) if len(self._readers) > 1 else slice(None)
                reader.fetch_ahead(shards[here], rows[here])

    def read(
        self, positions: NDArray[np.int64], out: Tokens, *, with_marks: bool = False
    ) -> tuple[NDArray[np.bool_], Flags | None]:
        """Fill `out` (n, T + 1); which rows are whole (n,), and where documents start (n, T)."""
        sources, shards, rows = self.stream.locate(positions)
        if len(self._readers) == 1:
            marks = self._readers[0].mark_starts(shards, rows) if with_marks else None
            return self._readers[0].read(shards, rows, out), marks
        is_whole = np.empty(len(positions), np.bool_)
        marks = np.empty((len(positions), self.stream.seq_len), np.bool_) if with_marks else None
        for source, reader in enumerate(self._readers):
            here = np.flatnonzero(sources == source)
            part = np.empty((len(here), out.shape[1]), out.dtype)
            is_whole[here] = reader.read(shards[here], rows[here], part)
            out[here] = part
            if marks is not None:
                marks[here] = reader.mark_starts(shards[here], rows[here])
        return is_whole, marks

    def close(self) -> None:
        """End the readers' threads."""
        for reader in self._readers:
            reader.close()


class TokenLoader:
    """An iterator of this rank's batches; `iter` goes on from where it stands, and stays at the end."""

    def __init__(
        self,
        source: Source | Mixture,
        *,
        seq_len: int,
        global_batch_rows: int,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Mesh | None = None,
        seed: int = 0,
        epochs: int | None = None,
        lanes: int | None = None,
        window_rows: int = DEFAULT_WINDOW_ROWS,
        uneven: Uneven = "refuse",
        drop_last: bool = False,
        tokens: Literal["int64", "stored"] = "int64",
        documents: Collection[Documents] = (),
        device: str | torch.device | None = None,
        prefetch_chunks: int = 2,
        allow_mismatch: bool = False,
        settings: ReadSettings | None = None,
    ) -> None:
        """Open the manifest; shards are opened when their rows are due.

        Args:
            source: path or address (https, s3, gs, az) of a manifest or its folder, or a Mixture of such.
            seq_len: T, tokens per row.
            global_batch_rows: rows of a step, over all ranks; B is this rank's equal part.
            rank: data-parallel rank; torch.distributed's, torchrun's or Ray Train's unless given.
            world_size: given together with rank.
            mesh: given instead of both: `mesh["dp"]` has all ranks of a tensor-parallel group see the same rows.
            seed: of the order.
            epochs: after which the stream ends; None goes on for ever, and steps then run on over the ends of epochs.
            lanes: places of an epoch that are read at the same time, part of the order; by the number of rows if None.
            window_rows: rows that are shuffled among each other within a lane, part of the order.
            uneven: where ranks cannot share a step equally, 'refuse' or 'carry' rows to the next (deal.py).
            drop_last: leave out the step at the end that would be smaller than the others.
            tokens: 'int64' gives input_ids and labels; 'stored' gives tokens (B, T + 1) uint16 or uint32, unwidened.
            documents: also give position_ids, document_ids (B, T) int32, and/or cu_seqlens (int32, on the host too:
                max_seqlen, an int).
            device: a CUDA device to copy to, from pinned memory on a stream of its own, and to widen on.
            prefetch_chunks: how many chunks (of about 8 MiB) are read ahead by threads; 0 reads when asked.
            allow_mismatch: accept states of other streams, at the same position.
            settings: how shards are read.

        Raises:
            ReadFailed, FormatError, ShardCorrupt: what can be known of the dataset before reading it.
            ValueError: settings that do not fit each other, the dataset or the number of ranks.
        """
        import torch

        self._torch = torch  # looking the module up in each step costs more than slicing a batch
        if tokens not in ("int64", "stored"):
            raise ValueError(f"tokens is {tokens!r}, must be 'int64' or 'stored'")
        if unknown := set(documents) - {"position_ids", "document_ids", "cu_seqlens"}:
            raise ValueError(
                f"documents has {sorted(unknown)}; there are position_ids, document_ids and cu_seqlens"
            )
        self.rank, self.world_size = resolve(rank, world_size, mesh)
        self._settings = settings or ReadSettings()
        self._stream = open_stream(
            source,
            seq_len=seq_len,
            seed=seed,
            settings=self._settings,
            lanes=lanes,
            window_rows=window_rows,
        )
        end = self._stream.end(epochs)
        self._deal = Deal(global_batch_rows, self.rank, self.world_size, uneven, end, drop_last)
        self._rows = RowReader(self._stream, self._settings)
        self._tokens, self._documents, self._allow_mismatch = (
            tokens,
            frozenset(documents),
            allow_mismatch,
        )
        self._device, self._copies = _cuda(device)
        self._prefetch_chunks = prefetch_chunks
        self._ahead_rows = 0
        if self._rows.is_remote:
            self._ahead_rows = self._settings.ahead_bytes // (
                (seq_len + 1) * self._rows.token_dtype.itemsize
            )
        self._clock = _Clock()
        self._pool: ThreadPoolExecutor | None = None
        self._go_to(self._stream.state(0, global_batch_rows=global_batch_rows))

    @property
    def tokenizer(self) -> TokenizerEntry:
        """What made the dataset's tokens: name, sha256, vocab_size, end_of_document."""
        return self._stream.catalogues[0].tokenizer

    # ----------------------------------------------------------------------------------------------------------- state

    def state_dict(self) -> dict[str, Any]:
        """Where the stream stands, behind the last batch handed out; see `LoaderState`."""
        return self.state.to_dict()

    @property
    def state(self) -> LoaderState:
        """The same as an object."""
        return self._stream.state(
            self._position,
            global_batch_rows=self._deal.global_batch_rows,
            carried_rows=self._carried_rows,
            skipped_rows=self._skipped_rows,
        )

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state of this stream, saved on any number of ranks and with any global batch.

        Raises:
            ResumeMismatch: it is of another stream, and `allow_mismatch` is not set.
            ValueError: it is no state.
        """
        state = LoaderState.from_dict(state_dict)
        here = self._stream.state(state.position, global_batch_rows=self._deal.global_batch_rows)
        if not self._allow_mismatch:
            state.refuse_other_stream(here)
        self._go_to(state)

    def _go_to(self, state: LoaderState) -> None:
        self._position, self._carried_rows, self._skipped_rows = (
            state.position,
            state.carried_rows,
            state.skipped_rows,
        )
        self._forget_reading()

    def _forget_reading(self) -> None:
        """Drop what was read ahead; reading begins again behind the last batch handed out."""
        self._planned = self._fetched = self._position, self._carried_rows
        self._ahead: deque[Future[Chunk]] = deque()
        self._chunk: Chunk | None = None
        self._chunk_steps = (
            1  # the first batch is not kept waiting for others; then twice as many each time
        )

    # --------------------------------------------------------------------------------------------------------- batches

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, Any]:
        chunk = self._chunk
        if chunk is None or chunk.taken_steps == len(chunk.steps):
            chunk = self._chunk = self._next_chunk()
        step = chunk.steps[chunk.taken_steps]
        start, stop = chunk.taken_rows, chunk.taken_rows + step.rows_per_rank
        batch = self._batch(chunk, start, stop)
        chunk.taken_steps, chunk.taken_rows = chunk.taken_steps + 1, stop
        self._position, self._carried_rows = step.position, step.carried_rows
        if chunk.num_damaged:
            self._skipped_rows += step.rows_per_rank - int(
                np.count_nonzero(chunk.is_whole[start:stop])
            )
        self._clock.rows += step.rows_per_rank
        self._clock.batches += 1
        return batch

    def _batch(self, chunk: Chunk, start: int, stop: int) -> dict[str, Any]:
        from_numpy, int64 = self._torch.from_numpy, self._torch.int64
        batch: dict[str, Any] = {}
        if chunk.on_device is not None:
            rows = chunk.on_device[start:stop]
            if self._tokens == "stored":
                batch["tokens"] = rows
            else:
                batch["input_ids"], batch["labels"] = rows[:, :-1].to(int64), rows[:, 1:].to(int64)
        elif self._tokens == "stored":
            batch["tokens"] = from_numpy(chunk.tokens[start:stop])
        else:  # numpy widens on the host twice as fast as torch does (one core)
            rows = chunk.tokens[start:stop]
            batch["input_ids"] = from_numpy(rows[:, :-1].astype(np.int64))
            batch["labels"] = from_numpy(rows[:, 1:].astype(np.int64))
        if self._tokens == "stored" and self._settings.on_corrupt == "skip_and_count":
            batch["is_whole"] = from_numpy(chunk.is_whole[start:stop].copy())
        elif chunk.num_damaged:
            batch["labels"][from_numpy(~chunk.is_whole[start:stop])] = IGNORED_LABEL
        if chunk.marks is not None:
            batch |= self._document_tensors(chunk.marks[start:stop])
        return batch

    def _document_tensors(self, marks: Flags) -> dict[str, Any]:
        arrays: dict[str, NDArray[np.int32]] = {}
        batch: dict[str, Any] = {}
        if "position_ids" in self._documents:
            arrays["position_ids"] = position_ids(marks)
        if "document_ids" in self._documents:
            arrays["document_ids"] = document_ids(marks)
        if "cu_seqlens" in self._documents:
            arrays["cu_seqlens"], batch["max_seqlen"] = lengths(marks)
        for name, array in arrays.items():
            batch[name] = self._torch.from_numpy(array)
            if self._device is not None:
                batch[name] = batch[name].pin_memory().to(self._device, non_blocking=True)
        return batch

    # --------------------------------------------------------------------------------------------------------- reading

    def _next_chunk(self) -> Chunk:
        """The next chunk with a step in it; raises StopIteration at the end, and what reading raises."""
        began = time.perf_counter()
        try:
            if self._prefetch_chunks:
                self._read_ahead()
                chunk = self._ahead.popleft().result() if self._ahead else None
                self._read_ahead()
            else:
                steps = self._plan()
                chunk = self._read(steps) if steps else None
        except BaseException:
            self._forget_reading()  # so that whoever goes on gets this very batch, once it can be read
            raise
        if chunk is None:
            raise StopIteration
        if chunk.on_device is not None:
            stream = self._torch.cuda.current_stream(self._device)
            stream.wait_event(chunk.ready)
            chunk.on_device.record_stream(stream)
        self._clock.waited(began)
        return chunk

    def _read_ahead(self) -> None:
        while len(self._ahead) < self._prefetch_chunks and (steps := self._plan()):
            self._ahead.append(self._threads().submit(self._read, steps))
        if self._ahead_rows:
            self._fetch_ahead()

    def _fetch_ahead(self) -> None:
        """Lanes come to the ends of their blocks at about the same time: without this, all would wait then.

        In large parts: what it takes to find the blocks of many rows is hardly more than for those of a few.
        """
        self._fetched = max(self._fetched, self._planned)
        if self._fetched[0] - self._planned[0] > self._ahead_rows * 3 // 4:
            return
        positions: list[NDArray[np.int64]] = []
        while self._fetched[0] < self._planned[0] + self._ahead_rows and (
            step := self._deal.step(*self._fetched)
        ):
            positions.append(step.positions)
            self._fetched = step.position, step.carried_rows
        if positions:
            self._threads().submit(self._rows.fetch_ahead, np.concatenate(positions))

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            num_threads = max(1, self._prefetch_chunks) + bool(self._ahead_rows)
            self._pool = ThreadPoolExecutor(num_threads, thread_name_prefix="loader-read")
            weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        return self._pool

    def _plan(self) -> list[Step]:
        """The steps of the next chunk; none at the end."""
        steps: list[Step] = []
        rows_left = max(
            1, CHUNK_BYTES // ((self._stream.seq_len + 1) * self._rows.token_dtype.itemsize)
        )
        while (
            rows_left > 0
            and len(steps) < self._chunk_steps
            and (step := self._deal.step(*self._planned))
        ):
            steps.append(step)
            self._planned = step.position, step.carried_rows
            rows_left -= step.rows_per_rank
        self._chunk_steps *= 2
        return steps

    def _read(self, steps: list[Step]) -> Chunk:
        positions = np.concatenate([step.positions for step in steps])
        shape = len(positions), self._stream.seq_len + 1
        if self._device is None:
            tokens, pinned = np.empty(shape, self._rows.token_dtype), None
        else:
            tokens, pinned = _pinned(shape, self._rows.token_dtype)
        is_whole, marks = self._rows.read(positions, tokens, with_marks=bool(self._documents))
        chunk = Chunk(
            steps, tokens, is_whole, marks, len(is_whole) - int(np.count_nonzero(is_whole))
        )
        if pinned is not None:
            with self._torch.cuda.stream(self._copies):
                chunk.on_device = pinned.to(self._device, non_blocking=True)
                chunk.ready = self._torch.cuda.Event()
                chunk.ready.record()
        return chunk

    def close(self) -> None:
        """End the threads. A loader that is dropped ends its threads too."""
        self._forget_reading()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None
        self._rows.close()

    # ------------------------------------------------------------------------------------------------------------- see

    def stats(self) -> dict[str, Any]:
        """What this rank did since it was built, and where the stream stands.

        rows, batches, tokens, tokens_per_s (since the first was asked for), wait_s and wait_share (of that time, spent
        waiting for reads), skipped_rows, cache_hits, cache_misses, cache_evictions, retries, refetches, fetched_bytes,
        damaged_samples, lost_shards, position, rows_left (that no step takes, once the stream has ended), epochs (of
        each source).
        """
        counters = self._rows.counters
        names = (
            "cache_hits",
            "cache_misses",
            "cache_evictions",
            "retries",
            "refetches",
            "fetched_bytes",
        )
        ended = self._deal.step(self._position, self._carried_rows) is None
        return {
            **self._clock.stats(self._stream.seq_len),
            "skipped_rows": self._skipped_rows,
            **{name: counters[name] for name in (*names, "damaged_samples", "lost_shards")},
            "position": self._position,
            "rows_left": self._deal.rows_left(self._position) if ended else 0,
            "epochs": self._stream.epochs(self._position),
        }


@dataclass
class _Clock:
    """Rows and waiting since the first batch was asked for."""

    rows: int = 0
    batches: int = 0
    wait_s: float = 0.0
    began: float | None = field(default=None)

    def waited(self, began: float) -> None:
        if self.began is None:
            self.began = began
        self.wait_s += time.perf_counter() - began

    def stats(self, seq_len: int) -> dict[str, Any]:
        elapsed_s = time.perf_counter() - self.began if self.began is not None else 0.0
        tokens = self.rows * seq_len
        return {
            "rows": self.rows,
            "batches": self.batches,
            "tokens": tokens,
            "tokens_per_s": tokens / elapsed_s if elapsed_s else 0.0,
            "wait_s": self.wait_s,
            "wait_share": self.wait_s / elapsed_s if elapsed_s else 0.0,
        }


def _cuda(device: str | torch.device | None) -> tuple[torch.device | None, Any]:
    """A CUDA device and a stream on it for copies, or (None, None) for the host."""
    if device is None:
        return None, None
    import torch

    found = torch.device(device)
    if found.type == "cpu":
        return None, None
    if found.type != "cuda":
        raise ValueError(
            f"device is {device!r}, must be a CUDA device or the CPU; move batches yourself to others"
        )
    return found, torch.cuda.Stream(found)


def _pinned(shape: tuple[int, int], dtype: np.dtype[Any]) -> tuple[Tokens, torch.Tensor]:
    """One page-locked buffer, as an array and as a tensor."""
    import torch

    tensor = torch.empty(
        shape, dtype={2: torch.uint16, 4: torch.uint32}[dtype.itemsize], pin_memory=True
    )
    return tensor.numpy(), tensor
