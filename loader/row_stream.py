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
class StreamSource:
    """A dataset of a stream.

    name:     its name in a mixture; "" for a single dataset
    manifest: its manifest
    order:    the order of its rows
    packing:  its packing, or None for plain rows
    """

    name: str
    manifest: ManifestColumns
    order: RowOrder
    packing: PackingIndex | None


@dataclass(frozen=True, eq=False)
class RowStream:
    """The rows of one or more sources by position.

    sources:       the datasets
    segments:      weights of a mixture: first position -> weights, in the order of the sources; else
                   empty
    mixture_order: order of a mixture's sources, or None for a single dataset
    """

    seq_len: int
    seed: int
    sources: tuple[StreamSource, ...]
    segments: dict[int, tuple[float, ...]]
    mixture_order: MixtureOrder | None

    @property
    def num_rows(self) -> int:
        """Number of rows of all sources."""
        return sum(source.order.num_rows for source in self.sources)

    @property
    def tokenizer(self) -> TokenizerEntry:
        """The tokenizer of all sources."""
        return self.sources[0].manifest.tokenizer

    @property
    def ignored_entry(self) -> str | None:
        """Name of the entry of stored batches that marks tokens which are no labels, or None."""
        if self.sources[0].packing is not None:
            return "is_ignored"
        if any(source.manifest.tombstones is not None for source in self.sources):
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
            return np.zeros_like(positions), *self.sources[0].order.locate(positions)
        numbers, in_source = self.mixture_order.locate(positions)
        shards, rows = np.empty_like(positions), np.empty_like(positions)
        for number, source in enumerate(self.sources):
            chosen = numbers == number
            # A small batch may contain no row of a source with a small weight.
            if chosen.any():
                shards[chosen], rows[chosen] = source.order.locate(in_source[chosen])
        return numbers, shards, rows

    def count_epochs(self, position: int) -> dict[str, float]:
        """Return how many epochs of each source are before this position.

        1.25 means a quarter of the second epoch.
        """
        if self.mixture_order is None:
            rows_before = [position]
        else:
            rows_before = self.mixture_order.count_rows_before(position).tolist()
        epochs: dict[str, float] = {}
        for source, num_rows in zip(self.sources, rows_before, strict=True):
            epochs[source.name] = num_rows / source.order.epoch_rows
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
        return epochs * self.sources[0].order.epoch_rows

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
            sources=tuple(source.manifest.current_digest for source in self.sources),
            seq_len=self.seq_len,
            seed=self.seed,
            interleave_depths=tuple(
                source.order.interleave_depth for source in self.sources
            ),
            window_rows=self.sources[0].order.window_rows,
            global_batch_rows=global_batch_rows,
            position=position,
            carried_rows=carried_rows,
            skipped_rows=skipped_rows,
            weights=tuple(weights),
            order_version=ORDER_VERSION,
            packings=tuple(
                source.packing.head.digest for source in self.sources if source.packing
            ),
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
            lineages = [source.manifest.lineage for source in self.sources]
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
    addresses = dict(source.sources) if isinstance(source, Mixture) else {"": source}
    segments = source.segments if isinstance(source, Mixture) else {}
    mixture_order = MixtureOrder(segments, seed) if segments else None
    manifests: dict[str, ManifestColumns] = {}
    for name, address in addresses.items():
        manifests[name] = read_manifest_columns(address, settings)
    _check_tokenizers(manifests)
    locations = _list_packings(packing, list(manifests))
    sources: list[StreamSource] = []
    for name, manifest in manifests.items():
        opened = None
        if locations:
            opened = open_packing(
                locations[name], manifest, seq_len=seq_len, settings=settings
            )
            shard_rows = opened.head.shard_rows
        else:
            shard_rows = manifest.count_shard_rows(seq_len)
        depth = interleave_depth or choose_interleave_depth(int(shard_rows.sum()))
        order = RowOrder(shard_rows, seed, depth, window_rows)
        sources.append(StreamSource(name, manifest, order, opened))
    return RowStream(seq_len, seed, tuple(sources), segments, mixture_order)


def _list_packings(
    packing: Packing | None, names: Sequence[str]
) -> Mapping[str, PackingSource]:
    """Return where the packing of each source is; nothing for plain rows.

    Raises:
        ValueError: a mixture has a single address, or the names are not those of the sources.
    """
    if packing is None:
        return {}
    if packing is True:
        return dict.fromkeys(names, True)
    if isinstance(packing, Mapping):
        if set(packing) != set(names):
            raise ValueError(
                f"packing is given for {sorted(packing)}, but the sources are {sorted(names)}; "
                f"name each source, or give packing=True"
            )
        return packing
    if names != [""]:
        raise ValueError(
            f"packing is {str(packing)!r} for {len(names)} sources; give packing=True, or "
            f"a mapping from the name of each source to its packing"
        )
    return {"": packing}


def _check_tokenizers(manifests: Mapping[str, ManifestColumns]) -> None:
    """Raise FormatError if the sources of a mixture were not tokenized alike."""
    first_name, first = next(iter(manifests.items()))
    wanted = _describe_tokenizer(first.tokenizer)
    for name, manifest in manifests.items():
        found = _describe_tokenizer(manifest.tokenizer)
        if found != wanted:
            raise FormatError(
                f"source {name!r} at {manifest.address}: tokenizer",
                f"{found}",
                f"{wanted} as in source {first_name!r}",
                "mix only datasets that were made with the same tokenizer",
            )


def _describe_tokenizer(tokenizer: TokenizerEntry) -> tuple[str, str, int, int]:
    return tokenizer.name, tokenizer.sha256, tokenizer.vocab_size, tokenizer.end_of_document
