"""The row stream: the rows of one dataset or of a mixture, addressed by position.

For example:

    stream = open_row_stream("/data/web", seq_len=2048, seed=0, settings=ReadSettings())
    sources, shards, rows = stream.locate(np.arange(8))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loader.order.mixture import Mixture, MixtureOrder
from loader.order.permutation import Int64Array
from loader.order.rank_batches import RankBatches
from loader.order.row_order import (
    DEFAULT_WINDOW_ROWS,
    ORDER_VERSION,
    RowOrder,
    choose_interleave_depth,
)
from loader.reading.manifest_columns import ManifestColumns, read_manifest_columns
from loader.state import LoaderState
from loader.storage import ReadSettings
from shardwriter.format import FormatError, Manifest, TokenizerEntry

Source = str | Path | Manifest


@dataclass(frozen=True, eq=False)
class RowStream:
    """The rows of one or more sources by position. All tuples are in the order of the sources.

    names:         names of the sources; ("",) for a single dataset
    manifests:     manifest of each source
    orders:        row order of each source
    segments:      weights of a mixture: first position -> weights; else empty
    mixture_order: order of a mixture's sources, or None for a single dataset
    """

    seq_len: int
    seed: int
    names: tuple[str, ...]
    manifests: tuple[ManifestColumns, ...]
    orders: tuple[RowOrder, ...]
    segments: dict[int, tuple[float, ...]]
    mixture_order: MixtureOrder | None

    @property
    def num_rows(self) -> int:
        """Number of rows of all sources."""
        return sum(order.num_rows for order in self.orders)

    def locate(self, positions: Int64Array) -> tuple[Int64Array, Int64Array, Int64Array]:
        """Return the source, shard and row at each position, each (n,) int64."""
        if self.mixture_order is None:
            return np.zeros_like(positions), *self.orders[0].locate(positions)
        sources, in_source = self.mixture_order.locate(positions)
        shards, rows = np.empty_like(positions), np.empty_like(positions)
        for source, order in enumerate(self.orders):
            chosen = sources == source
            # A small batch may contain no row of a source with a small weight.
            if chosen.any():
                shards[chosen], rows[chosen] = order.locate(in_source[chosen])
        return sources, shards, rows

    def count_epochs(self, position: int) -> dict[str, float]:
        """Return how many epochs of each source are before this position.

        1.25 means a quarter of the second epoch.
        """
        if self.mixture_order is None:
            rows_before = [position]
        else:
            rows_before = self.mixture_order.count_rows_before(position).tolist()
        epochs: dict[str, float] = {}
        for name, num_rows, order in zip(self.names, rows_before, self.orders, strict=True):
            epochs[name] = num_rows / order.epoch_rows
        return epochs

    def find_end(self, epochs: int | None) -> int | None:
        """Return the position after the last row of `epochs` epochs, or None for an endless stream.

        Raises:
            ValueError: `epochs` is below 1, or the stream is a mixture, which has no epochs.
        """
        if epochs is None:
            return None
        if epochs < 1:
            raise ValueError(
                f"epochs is {epochs}, must be at least 1, or None for an endless stream"
            )
        if self.mixture_order is not None:
            raise ValueError(
                f"epochs is {epochs}, but a mixture has no epochs; stop after a number of steps"
            )
        return epochs * self.orders[0].epoch_rows

    def make_state(
        self,
        position: int,
        *,
        global_batch_rows: int,
        carried_rows: int = 0,
        skipped_rows: int = 0,
    ) -> LoaderState:
        """Return the state of a loader that has read all positions before `position`."""
        weights: list[tuple[int, tuple[float, ...]]] = []
        if self.mixture_order is not None:
            # Later segments have had no effect yet, so a resumed run may change them.
            for first_position, segment_weights in self.segments.items():
                if first_position == 0 or first_position < position:
                    weights.append((first_position, segment_weights))
        return LoaderState(
            sources=tuple(manifest.digest for manifest in self.manifests),
            seq_len=self.seq_len,
            seed=self.seed,
            interleave_depths=tuple(order.interleave_depth for order in self.orders),
            window_rows=self.orders[0].window_rows,
            global_batch_rows=global_batch_rows,
            position=position,
            carried_rows=carried_rows,
            skipped_rows=skipped_rows,
            weights=tuple(weights),
            order_version=ORDER_VERSION,
        )

    def read_state(
        self, value: Any, rank_batches: RankBatches, *, allow_mismatch: bool
    ) -> LoaderState:
        """Return the state that a dict holds, after checking that it fits this stream.

        Args:
            value: what `state_dict` returned.
            rank_batches: of the loader that will continue.
            allow_mismatch: accept the state of another stream.

        Raises:
            ResumeMismatch: the state belongs to another stream.
            FormatError: it is not the state of a loader.
            ValueError: the position is behind the end of this stream.
        """
        state = LoaderState.from_dict(value)
        if not allow_mismatch:
            # The state's position, because the weights of a mixture are compared up to there.
            current = self.make_state(
                state.position, global_batch_rows=rank_batches.global_batch_rows
            )
            state.check_same_stream(current)
        end = rank_batches.end
        if end is not None and state.position > end:
            raise ValueError(
                f"the state has position {state.position}, but this stream ends at {end}; "
                f"set `epochs` to at least the value with which the state was saved"
            )
        return state


def open_row_stream(
    source: Source | Mixture,
    *,
    seq_len: int,
    seed: int,
    settings: ReadSettings,
    interleave_depth: int | None = None,
    window_rows: int = DEFAULT_WINDOW_ROWS,
) -> RowStream:
    """Read the manifests of the sources and set up their row order.

    Raises:
        ReadFailed: a manifest cannot be read.
        FormatError: a file is not a manifest, or the sources have different tokenizers.
        ValueError: a dataset has no rows, or fewer than `interleave_depth`.
    """
    if isinstance(source, Mixture):
        names = tuple(source.sources)
        locations: list[Source] = list(source.sources.values())
        segments = source.segments
        mixture_order = MixtureOrder(segments, seed)
    else:
        names, locations, segments, mixture_order = ("",), [source], {}, None
    manifests = tuple(read_manifest_columns(location, settings) for location in locations)
    _check_tokenizers(names, manifests)
    orders: list[RowOrder] = []
    for manifest in manifests:
        shard_rows = manifest.count_shard_rows(seq_len)
        depth = interleave_depth or choose_interleave_depth(int(shard_rows.sum()))
        orders.append(RowOrder(shard_rows, seed, depth, window_rows))
    return RowStream(
        seq_len, seed, names, manifests, tuple(orders), segments, mixture_order
    )


def _check_tokenizers(names: Sequence[str], manifests: Sequence[ManifestColumns]) -> None:
    """Raise FormatError if the sources of a mixture were not tokenized alike."""
    wanted = _describe_tokenizer(manifests[0].tokenizer)
    for name, manifest in zip(names, manifests, strict=True):
        found = _describe_tokenizer(manifest.tokenizer)
        if found != wanted:
            raise FormatError(
                f"source {name!r} at {manifest.address}: tokenizer",
                f"{found}",
                f"{wanted} as in source {names[0]!r}",
                "mix only datasets that were made with the same tokenizer",
            )


def _describe_tokenizer(tokenizer: TokenizerEntry) -> tuple[str, str, int, int]:
    return tokenizer.name, tokenizer.sha256, tokenizer.vocab_size, tokenizer.end_of_document
