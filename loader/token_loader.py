"""TokenLoader: iterate over batches of one rank, in a global order that any number of ranks shares.

    loader = TokenLoader("/data/web", seq_len=2048, global_batch_rows=512, seed=7)
    for batch in loader:                 # {"input_ids": (B, T) int64, "labels": (B, T) int64}
        ...
        torch.save(loader.state_dict(), "loader.pt")

To resume, call `loader.load_state_dict(torch.load("loader.pt"))`. The state depends only on the
batches that were returned, not on the rows that were read ahead.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import numpy as np

from loader.batches.batch_builder import BatchBuilder, DocumentOutput
from loader.batches.chunk_reader import Chunk, ChunkReader
from loader.batches.torch_use import CudaCopier, open_cuda_copier
from loader.order.mixture import Mixture
from loader.order.rank_batches import RankBatches, Step, Uneven
from loader.order.row_order import DEFAULT_WINDOW_ROWS
from loader.rank_discovery import Mesh, resolve_rank
from loader.row_reader import RowReader
from loader.row_stream import Packing, Source, open_row_stream
from loader.state import LoaderState
from loader.storage import ReadSettings
from shardwriter.format import TokenizerEntry

if TYPE_CHECKING:
    import torch

_REPORTED_COUNTERS = (
    "cache_hits",
    "cache_misses",
    "cache_evictions",
    "retries",
    "refetches",
    "fetched_bytes",
    "damaged_samples",
    "lost_shards",
)


class TokenLoader:
    """Iterator over the batches of one rank.

    It implements `state_dict` and `load_state_dict` as torchdata's StatefulDataLoader and torch's
    distributed checkpoint (DCP) expect them. `iter(loader)` returns the loader itself: it continues
    where it is and does not start again at the end of the stream.

    Args:
        source: path or address (https, s3, gs, az) of a manifest, of its folder or of a run of
            the pipeline, or a `Mixture`.
        seq_len: T, tokens per row.
        global_batch_rows: rows of a step over all ranks. B, the rows of a batch, is this rank's
            equal part.
        rank: data-parallel rank. If it is not given, torch.distributed, torchrun's environment
            or Ray Train determines it.
        world_size: number of data-parallel ranks; give it together with `rank`.
        mesh: data-parallel part of a device mesh, in place of rank and world_size. With
            `mesh["dp"]`, all ranks of a tensor-parallel group get the same rows.
        seed: seed of the row order.
        epochs: number of epochs after which the stream ends. None: the stream is endless, and a
            step may contain the end of one epoch and the start of the next.
        interleave_depth: number of places of an epoch that are read in turn. It is part of the
            order. None: chosen from the number of rows, at most 64.
        window_rows: rows that are permuted among each other. It is part of the order.
        packing: None for plain rows. True for rows that documents are packed into without being
            cut where they fit, by the file that `python -m loader pack` wrote beside the
            manifest; or the path or address of that file; for a mixture also a mapping from the
            names of the sources.
        uneven: what to do if the ranks cannot divide a step equally: "refuse", or "carry" rows
            to the next step (see loader/order/rank_batches.py).
        drop_last: skip the last step if it is smaller than the others.
        tokens: "int64" gives input_ids and labels as torch tensors. "stored" gives tokens
            (B, T + 1) as uint16 or uint32: tensors, or numpy arrays if torch is not installed.
        labels_are_shifted: with tokens="int64", labels[t] is the token after input_ids[t]. False:
            it is input_ids[t], for models that shift labels themselves, as every `ForCausalLM` of
            transformers does. The token after the last input is then no label.
        documents: further entries of a batch: position_ids and document_ids (B, T) int32,
            cu_seqlens int32 together with max_seqlen, an int.
        device: CUDA device to copy the tokens to. They are copied as stored and widened there.
        prefetch_chunks: chunks of about 8 MiB that threads read ahead; 0 reads on demand.
        allow_mismatch: load states of other streams too, at the same position.
        settings: how shards are read.

    Raises:
        ReadFailed, FormatError, ShardCorrupt: the dataset cannot be read or is damaged, as far
            as this can be seen before reading rows.
        ValueError: the arguments do not fit each other, the dataset or the number of ranks.
        ImportError: tensors are requested, but torch is not installed.

    Attributes:
        rank: data-parallel rank.
        world_size: number of data-parallel ranks.
    """

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
        interleave_depth: int | None = None,
        window_rows: int = DEFAULT_WINDOW_ROWS,
        packing: Packing | None = None,
        uneven: Uneven = "refuse",
        drop_last: bool = False,
        tokens: Literal["int64", "stored"] = "int64",
        labels_are_shifted: bool = True,
        documents: Collection[DocumentOutput] = (),
        device: str | torch.device | None = None,
        prefetch_chunks: int = 2,
        allow_mismatch: bool = False,
        settings: ReadSettings | None = None,
    ) -> None:
        """Read the manifest. Shards are opened when their rows are needed."""
        self.rank, self.world_size = resolve_rank(rank, world_size, mesh)
        settings = settings or ReadSettings()
        # Checks that need no dataset come first: they fail without waiting for a network.
        copier = open_cuda_copier(device)
        self._builder = _make_builder(
            tokens, labels_are_shifted, documents, settings, copier
        )
        self._stream = open_row_stream(
            source,
            seq_len=seq_len,
            seed=seed,
            settings=settings,
            interleave_depth=interleave_depth,
            window_rows=window_rows,
            packing=packing,
        )
        end = self._stream.find_end(epochs)
        self._rank_batches = RankBatches(
            global_batch_rows, self.rank, self.world_size, uneven, end, drop_last
        )
        self._open_files(settings, prefetch_chunks, copier)
        self._allow_mismatch = allow_mismatch
        self._throughput = _Throughput()
        self._set_state(self._stream.make_state(0, global_batch_rows=global_batch_rows))

    def _open_files(
        self, settings: ReadSettings, prefetch_chunks: int, copier: CudaCopier | None
    ) -> None:
        """Check the sizes of local shards, and prepare to read chunks."""
        self._builder.ignored_entry = self._stream.ignored_entry
        self._rows = RowReader(self._stream, settings)
        self._chunks = ChunkReader(
            self._rows,
            self._rank_batches,
            prefetch_chunks=prefetch_chunks,
            ahead_bytes=settings.ahead_bytes,
            with_marks=self._builder.needs_marks,
            copier=copier,
        )

    @property
    def tokenizer(self) -> TokenizerEntry:
        """The tokenizer that made the dataset: name, sha256, vocab_size, end_of_document."""
        return self._stream.tokenizer

    @property
    def state(self) -> LoaderState:
        """The position after the last returned batch."""
        return self._stream.make_state(
            self._position,
            global_batch_rows=self._rank_batches.global_batch_rows,
            carried_rows=self._carried_rows,
            skipped_rows=self._skipped_rows,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last returned batch; see `LoaderState`."""
        return self.state.to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue from a state of this stream, saved on any number of ranks with any global batch.

        Raises:
            ResumeMismatch: the state belongs to another stream, and `allow_mismatch` is false.
            FormatError: it is not the state of a loader; a FormatError is a ValueError.
            ValueError: its position is behind the end of this stream.
        """
        state = self._stream.read_state(
            state_dict, self._rank_batches, allow_mismatch=self._allow_mismatch
        )
        self._set_state(state)

    def _set_state(self, state: LoaderState) -> None:
        self._position, self._carried_rows = state.position, state.carried_rows
        self._skipped_rows = state.skipped_rows
        self._chunk: Chunk | None = None
        self._next_step = self._next_row = 0
        self._chunks.restart(self._position, self._carried_rows)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> dict[str, Any]:
        chunk, step = self._advance()
        rows = slice(self._next_row, self._next_row + step.rows_per_rank)
        batch = self._builder.build(chunk, rows)
        # Updated after the batch was built: if building fails, the state still points at this
        # batch.
        self._next_step, self._next_row = self._next_step + 1, rows.stop
        self._position, self._carried_rows = step.end
        if chunk.num_damaged:
            num_whole = int(np.count_nonzero(chunk.marks.is_whole[rows]))
            self._skipped_rows += step.rows_per_rank - num_whole
        self._throughput.add_batch(step.rows_per_rank)
        return batch

    def _advance(self) -> tuple[Chunk, Step]:
        """Return the next step and the chunk that holds it; read a new chunk if needed."""
        if self._chunk is None or self._next_step == len(self._chunk.steps):
            # Drop the old chunk first: its memory can be reused, and an error leaves no half state.
            self._chunk = None
            started = time.perf_counter()
            chunk = self._chunks.read_next()
            if chunk is None:
                raise StopIteration
            self._throughput.add_wait(started)
            self._chunk = chunk
            self._next_step = self._next_row = 0
        return self._chunk, self._chunk.steps[self._next_step]

    def close(self) -> None:
        """Stop the threads and close the files, as also happens in garbage collection."""
        self._chunk = None
        self._chunks.restart(self._position, self._carried_rows)
        self._chunks.close()
        self._rows.close()

    def stats(self) -> dict[str, Any]:
        """Return what this rank read since the loader was created.

        rows, batches, tokens:  returned so far
        tokens_per_s:           since the first batch was requested
        wait_s, wait_share:     time spent waiting for reads, in seconds and as a share of that time
        skipped_rows:           damaged rows that were skipped
        position:               rows read so far, over all ranks and epochs
        rows_left:              rows at the end of the stream that are in no step; 0 before the end
        epochs:                 source name -> epochs read so far
        cache_hits, cache_misses, cache_evictions, retries, refetches, fetched_bytes,
        damaged_samples, lost_shards: see docs/loader.md
        """
        has_ended = self._rank_batches.make_step(self._position, self._carried_rows) is None
        counters = self._rows.counters
        return {
            **self._throughput.to_dict(self._stream.seq_len),
            "skipped_rows": self._skipped_rows,
            **{name: counters[name] for name in _REPORTED_COUNTERS},
            "position": self._position,
            "rows_left": self._rank_batches.count_rows_left(self._position)
            if has_ended
            else 0,
            "epochs": self._stream.count_epochs(self._position),
        }


def _make_builder(
    tokens: Literal["int64", "stored"],
    labels_are_shifted: bool,
    documents: Collection[DocumentOutput],
    settings: ReadSettings,
    copier: CudaCopier | None,
) -> BatchBuilder:
    """Return what makes batches from chunks; it refuses wrong values of the arguments."""
    return BatchBuilder(
        tokens,
        documents,
        labels_are_shifted=labels_are_shifted,
        reports_damage=settings.on_corrupt == "skip_and_count",
        device=None if copier is None else copier.device,
    )


@dataclass
class _Throughput:
    """Rows and waiting time since the first batch was requested. Times are in seconds."""

    rows: int = 0
    batches: int = 0
    wait_s: float = 0.0
    started: float | None = None

    def add_batch(self, rows: int) -> None:
        self.rows += rows
        self.batches += 1

    def add_wait(self, started: float) -> None:
        """Count the time since `started`, a value of time.perf_counter."""
        if self.started is None:
            self.started = started
        self.wait_s += time.perf_counter() - started

    def to_dict(self, seq_len: int) -> dict[str, Any]:
        elapsed_s = time.perf_counter() - self.started if self.started is not None else 0.0
        num_tokens = self.rows * seq_len
        return {
            "rows": self.rows,
            "batches": self.batches,
            "tokens": num_tokens,
            "tokens_per_s": num_tokens / elapsed_s if elapsed_s else 0.0,
            "wait_s": self.wait_s,
            "wait_share": self.wait_s / elapsed_s if elapsed_s else 0.0,
        }
