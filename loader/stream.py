"""One dataset or a mixture of several, as a stream of rows by position.

Promises: everything that the order depends on is checked and held here, and says of itself what a checkpoint needs.
Leaves to others: the arithmetic (`order`, `mixture`), bytes (`reader`), who takes which positions (`deal`).

    stream = open_stream("/data/web", seq_len=2048, seed=0, settings=ReadSettings())
    sources, shards, rows = stream.locate(np.arange(8))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from loader.manifest_columns import Catalogue, read_catalogue
from loader.mixture import Interleaving, Mixture
from loader.order import DEFAULT_WINDOW_ROWS, ORDER_VERSION, Ints, RowOrder, default_lanes
from loader.state import LoaderState
from loader.storage import ReadSettings
from shardwriter.format import FormatError, Manifest

Source = str | Path | Manifest


@dataclass(frozen=True, eq=False)
class RowStream:
    """Rows by position. names, catalogues and orders are of the sources; interleaving is None for one dataset alone."""

    seq_len: int
    seed: int
    names: tuple[str, ...]
    catalogues: tuple[Catalogue, ...]
    orders: tuple[RowOrder, ...]
    segments: dict[int, tuple[float, ...]]
    interleaving: Interleaving | None

    def locate(self, positions: Ints) -> tuple[Ints, Ints, Ints]:
        """(n,) source, shard and row of each position."""
        if self.interleaving is None:
            return np.zeros_like(positions), *self.orders[0].locate(positions)
        sources, in_source = self.interleaving.locate(positions)
        shards, rows = np.empty_like(positions), np.empty_like(positions)
        for source, order in enumerate(self.orders):
            here = sources == source
            if here.any():
                shards[here], rows[here] = order.locate(in_source[here])
        return sources, shards, rows

    def epochs(self, position: int) -> dict[str, float]:
        """How many epochs of each source came before this position; 1.25 is a quarter into the second."""
        given = (
            [position] if self.interleaving is None else self.interleaving.given(position).tolist()
        )
        counts = zip(self.names, given, self.orders, strict=True)
        return {name: rows / order.epoch_rows for name, rows, order in counts}

    def end(self, epochs: int | None) -> int | None:
        """The position behind so many epochs; a mixture has no epoch of its own."""
        if epochs is None:
            return None
        if epochs < 1:
            raise ValueError(
                f"epochs is {epochs}, must be at least 1, or None for a stream without end"
            )
        if self.interleaving is not None:
            raise ValueError(
                f"epochs is {epochs}, but a mixture has none of its own; stop after a number of steps"
            )
        return epochs * self.orders[0].epoch_rows

    def state(self, position: int, **rest: int) -> LoaderState:
        """The state at a position; `rest` is global_batch_rows, carried_rows and skipped_rows."""
        past = tuple(
            (first, weights)
            for first, weights in self.segments.items()
            if first == 0 or first < position
        )
        return LoaderState(
            sources=tuple(catalogue.digest for catalogue in self.catalogues),
            seq_len=self.seq_len,
            seed=self.seed,
            lanes=tuple(order.lanes for order in self.orders),
            window_rows=self.orders[0].window_rows,
            position=position,
            weights=past if self.interleaving is not None else (),
            order_version=ORDER_VERSION,
            **rest,
        )


def open_stream(
    source: Source | Mixture,
    *,
    seq_len: int,
    seed: int,
    settings: ReadSettings,
    lanes: int | None = None,
    window_rows: int = DEFAULT_WINDOW_ROWS,
) -> RowStream:
    """Read the manifests and lay the rows out.

    Raises:
        ReadFailed, FormatError: as `read_catalogue`; also where sources of a mixture had different tokenizers.
        ValueError: no row in a dataset, or fewer than lanes.
    """
    mixture = source if isinstance(source, Mixture) else None
    names = tuple(mixture.sources) if mixture else ("",)
    places: list[Source] = (
        list(source.sources.values()) if isinstance(source, Mixture) else [source]
    )
    catalogues = tuple(read_catalogue(place, settings) for place in places)
    _refuse_other_tokenizers(names, catalogues)
    orders: list[RowOrder] = []
    for catalogue in catalogues:
        rows = catalogue.shard_rows(seq_len)
        orders.append(RowOrder(rows, seed, lanes or default_lanes(int(rows.sum())), window_rows))
    segments = mixture.segments if mixture else {}
    interleaving = Interleaving(segments, seed) if mixture else None
    return RowStream(seq_len, seed, names, catalogues, tuple(orders), segments, interleaving)


def _refuse_other_tokenizers(names: Sequence[str], catalogues: Sequence[Catalogue]) -> None:
    def made_by(catalogue: Catalogue) -> tuple[Any, ...]:
        tokenizer = catalogue.tokenizer
        return tokenizer.name, tokenizer.sha256, tokenizer.vocab_size, tokenizer.end_of_document

    for name, catalogue in zip(names, catalogues, strict=True):
        if made_by(catalogue) != made_by(catalogues[0]):
            found, wanted = (
                f"{made_by(catalogue)}",
                f"{made_by(catalogues[0])} as of source {names[0]!r}",
            )
            remedy = "mix datasets that one tokenizer made"
            raise FormatError(
                f"source {name!r} at {catalogue.address}: tokenizer", found, wanted, remedy
            )
