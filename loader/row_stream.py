"""The row stream: the rows of one dataset or of a mixture, addressed by position.

For example:

    stream = open_row_stream("/data/web", seq_len=2048, seed=0, settings=ReadSettings())
    sources, shards, rows = stream.locate(np.arange(8))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from loader.packed.packing_index import PackingIndex, PackingSource, open_packing
from loader.reading.manifest_columns import ManifestColumns, read_manifest_columns
from loader.state import LoaderState
from loader.storage import ReadSettings
from shardwriter.format import FormatError, Manifest, TokenizerEntry

Source = str | Path | Manifest

# Where the packing of a dataset is; of a mixture, of each source by name, or True for all of them.
Packing = PackingSource | Mapping[str, PackingSource]


@dataclass(frozen=True, eq=False)
class RowStream:
    """The rows of one or more sources by position. All tuples are in the order of the sources.

    names:         names of the sources; ("",) for a single dataset
    manifests:     manifest of each source
    orders:        row order of each source
    segments:      weights of a mixture: first position -> weights; else empty
    mixture_order: order of a mixture's sources, or None for a single dataset
    packings:      packing of each source, or () for plain rows
    """

    seq_len: int
    seed: int
    names: tuple[str, ...]
    manifests: tuple[ManifestColumns, ...]
    orders: tuple[RowOrder, ...]
    segments: dict[int, tuple[float, ...]]
    mixture_order: MixtureOrder | None
    packings: tuple[PackingIndex, ...] = ()

    @property
    def num_rows(self) -> int:
        """Number of rows of all sources."""
        return sum(order.num_rows for order in self.orders)

    @property
    def ignored_entry(self) -> str | None:
        """Name of the entry of stored batches that marks tokens which are no labels, or None."""
        if self.packings:
            return "is_ignored"
        if any(manifest.tombstones is not None for manifest in self.manifests):
            return "is_retracted"
        return None

    def is_read_in_future(self, source: int) -> bool:
        """Whether a source has a weight at the end of the schedule; always for a single dataset."""
        if not self.segments:
            return True
        return self.segments[max(self.segments)][source] > 0

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
            sources=tuple(manifest.current_digest for manifest in self.manifests),
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
            packings=tuple(packing.head.digest for packing in self.packings),
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
            lineages = [manifest.lineage for manifest in self.manifests]
            state.check_same_stream(current, lineages)
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
    packing: Packing | None = None,
) -> RowStream:
    """Read the manifests of the sources and set up their row order.

    Args:
        source: a dataset, or a mixture.
        seq_len: tokens per row.
        seed: of the order.
        settings: how the files are read.
        interleave_depth: None: chosen from the number of rows.
        window_rows: rows that are permuted among each other.
        packing: None for plain rows.

    Raises:
        ReadFailed: a manifest or a packing cannot be read.
        FormatError: a file is not a manifest or not the packing of its dataset, or the sources have
            different tokenizers.
        ValueError: a dataset has no rows, or fewer than `interleave_depth`.
    """
    names, addresses = _list_sources(source)
    segments = source.segments if isinstance(source, Mixture) else {}
    mixture_order = MixtureOrder(segments, seed) if segments else None
    manifests = tuple(read_manifest_columns(address, settings) for address in addresses)
    _check_tokenizers(names, manifests)
    packings: tuple[PackingIndex, ...] = ()
    if packing is not None:
        locations = _list_packings(packing, names)
        packings = _open_packings(locations, manifests, seq_len, settings)
    orders: list[RowOrder] = []
    for shard_rows in _count_shard_rows(manifests, packings, seq_len):
        depth = interleave_depth or choose_interleave_depth(int(shard_rows.sum()))
        orders.append(RowOrder(shard_rows, seed, depth, window_rows))
    return RowStream(
        seq_len,
        seed,
        names,
        manifests,
        tuple(orders),
        segments,
        mixture_order,
        packings,
    )


def _list_sources(source: Source | Mixture) -> tuple[tuple[str, ...], list[Source]]:
    """Return the names of the sources and where they are; ("",) for a single dataset."""
    if isinstance(source, Mixture):
        return tuple(source.sources), list(source.sources.values())
    return ("",), [source]


def _count_shard_rows(
    manifests: Sequence[ManifestColumns], packings: Sequence[PackingIndex], seq_len: int
) -> list[Int64Array]:
    """Return the (S,) rows of each shard of each source."""
    if packings:
        return [packing.head.shard_rows for packing in packings]
    return [manifest.count_shard_rows(seq_len) for manifest in manifests]


def _open_packings(
    locations: Sequence[PackingSource],
    manifests: Sequence[ManifestColumns],
    seq_len: int,
    settings: ReadSettings,
) -> tuple[PackingIndex, ...]:
    """Open the packing of each source."""
    packings: list[PackingIndex] = []
    for location, manifest in zip(locations, manifests, strict=True):
        packings.append(
            open_packing(location, manifest, seq_len=seq_len, settings=settings)
        )
    return tuple(packings)


def _list_packings(packing: Packing, names: Sequence[str]) -> Sequence[PackingSource]:
    """Return where the packing of each source is.

    Raises:
        ValueError: a mixture has a single address, or the names are not those of the sources.
    """
    if packing is True:
        return [True for _ in names]
    if isinstance(packing, Mapping):
        if set(packing) != set(names):
            raise ValueError(
                f"packing is given for {sorted(packing)}, but the sources are {sorted(names)}; "
                f"name each source, or give packing=True"
            )
        return [packing[name] for name in names]
    if names != ("",):
        raise ValueError(
            f"packing is {str(packing)!r} for {len(names)} sources; give packing=True, or "
            f"a mapping from the name of each source to its packing"
        )
    return [packing]


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
