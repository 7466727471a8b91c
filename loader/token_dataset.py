"""TokenDataset: the rows of a stream as a map-style dataset for torch.utils.data.DataLoader.

Item p is the row at position p of the stream that `TokenLoader` reads with the same arguments. The
states of `TokenLoader` and of the sampler are interchangeable. `TokenLoader` is several times
faster.

    dataset = TokenDataset("/data/web", seq_len=2048, seed=7)
    sampler = dataset.sampler(global_batch_rows=512)
    batches = DataLoader(dataset, batch_sampler=sampler, collate_fn=dataset.collate)
    for step, batch in enumerate(batches, start=1):
        ...
        state = sampler.state_dict(batches=step)

Give the number of batches to `state_dict`: worker processes have already drawn later ones.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from loader.batches.batch_builder import IGNORED_LABEL, split_inputs_and_labels
from loader.batches.rows_ahead import RowsAhead
from loader.batches.torch_use import import_torch
from loader.order.mixture import Mixture
from loader.order.rank_batches import RankBatches, Uneven
from loader.order.row_order import DEFAULT_WINDOW_ROWS
from loader.rank_discovery import Mesh, resolve_rank
from loader.row_reader import RowReader
from loader.row_stream import Packing, RowStream, Source, open_row_stream
from loader.storage import ReadSettings

if TYPE_CHECKING:
    import torch


class TokenDataset:
    """Rows by global position: {"input_ids": (T,) int64, "labels": (T,) int64}.

    labels[t] is the token after input_ids[t]. With `labels_are_shifted=False` it is input_ids[t], for
    the Trainer of Hugging Face and other users of models that shift labels themselves.

    Positions continue from epoch to epoch.
    """

    def __init__(
        self,
        source: Source | Mixture,
        *,
        seq_len: int,
        seed: int = 0,
        epochs: int = 1,
        interleave_depth: int | None = None,
        window_rows: int = DEFAULT_WINDOW_ROWS,
        packing: Packing | None = None,
        labels_are_shifted: bool = True,
        settings: ReadSettings | None = None,
    ) -> None:
        """Read the manifest.

        The arguments and errors are those of `TokenLoader`, except that `epochs` sets the length of
        the dataset; for a mixture, it counts epochs of the first source.
        """
        self._settings = settings or ReadSettings()
        self._labels_are_shifted = labels_are_shifted
        self.stream = open_row_stream(
            source,
            seq_len=seq_len,
            seed=seed,
            settings=self._settings,
            interleave_depth=interleave_depth,
            window_rows=window_rows,
            packing=packing,
        )
        self._num_rows = epochs * self.stream.sources[0].order.epoch_rows
        self._rows: RowsAhead | None = None
        self._torch: Any = None

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, position: int) -> dict[str, torch.Tensor]:
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> RowBatch:
        """Return the rows at several positions, read together. DataLoader calls this method."""
        if positions and not 0 <= min(positions) <= max(positions) < len(self):
            raise IndexError(
                f"positions {min(positions)}..{max(positions)}, must be in 0..{len(self) - 1}"
            )
        # Opened on first use, which is inside the worker process.
        if self._rows is None:
            self._torch = import_torch("TokenDataset")
            self._rows = RowsAhead(RowReader(self.stream, self._settings), len(self))
        tokens, marks = self._rows.read(positions)
        input_ids, labels = split_inputs_and_labels(
            tokens, marks.ignored, labels_are_shifted=self._labels_are_shifted
        )
        labels[~marks.is_whole] = IGNORED_LABEL
        convert = self._torch.from_numpy
        return RowBatch({"input_ids": convert(input_ids), "labels": convert(labels)})

    @staticmethod
    def collate(rows: RowBatch) -> dict[str, torch.Tensor]:
        """Return a batch {"input_ids": (B, T) int64, "labels": (B, T) int64}.

        As `collate_fn` of DataLoader, it passes on the tensors that were read. DataLoader's own
        function gives the same batch, but takes the rows apart and copies them into new tensors.
        """
        return rows.batch

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the open files: each worker process opens its own."""
        return {**self.__dict__, "_rows": None, "_torch": None}

    def sampler(
        self,
        *,
        global_batch_rows: int,
        rank: int | None = None,
        world_size: int | None = None,
        mesh: Mesh | None = None,
        uneven: Uneven = "refuse",
        drop_last: bool = False,
        allow_mismatch: bool = False,
    ) -> PositionSampler:
        """Return the batches of this rank for DataLoader's `batch_sampler`.

        The arguments are those of `TokenLoader`.
        """
        rank, world_size = resolve_rank(rank, world_size, mesh)
        rank_batches = RankBatches(
            global_batch_rows, rank, world_size, uneven, len(self), drop_last
        )
        return PositionSampler(self.stream, rank_batches, allow_mismatch=allow_mismatch)


class RowBatch(Sequence["dict[str, torch.Tensor]"]):
    """The rows of a batch. Item k is row k: {"input_ids": (T,) int64, "labels": (T,) int64}.

    batch: all rows, as {"input_ids": (B, T) int64, "labels": (B, T) int64}
    """

    def __init__(self, batch: dict[str, torch.Tensor]) -> None:
        self.batch = batch

    def __len__(self) -> int:
        return len(self.batch["input_ids"])

    def __getitem__(self, row: Any) -> Any:
        return self._rows[row]

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return iter(self._rows)

    @functools.cached_property
    def _rows(self) -> list[dict[str, torch.Tensor]]:
        """The rows of the tensors. They are not copied."""
        names = list(self.batch)
        columns = (self.batch[name].unbind() for name in names)
        return [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]


class PositionSampler:
    """Iterable over the positions of each step of one rank.

    Each `iter` starts at the loaded state, or at position 0.
    """

    def __init__(
        self, stream: RowStream, rank_batches: RankBatches, *, allow_mismatch: bool
    ) -> None:
        self._stream, self._rank_batches = stream, rank_batches
        self._allow_mismatch = allow_mismatch
        # Each is (position, carried_rows).
        self._start = self._current = 0, 0

    def __iter__(self) -> Iterator[list[int]]:
        self._current = self._start
        for step in self._rank_batches.iterate(*self._start):
            self._current = step.end
            yield step.positions.tolist()

    def __len__(self) -> int:
        position, carried_rows = self._start
        batches = self._rank_batches
        # All steps are equal then, so the length is a division. Otherwise the steps are counted.
        is_divisible = batches.global_batch_rows % batches.world_size == 0
        if carried_rows == 0 and is_divisible and batches.end is not None:
            num_full, rest = divmod(batches.end - position, batches.global_batch_rows)
            has_smaller_last = not batches.drop_last and rest >= batches.world_size
            return num_full + has_smaller_last
        return sum(1 for _ in batches.iterate(position, carried_rows))

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """Return the state after `batches` batches, counted from the loaded state.

        Args:
            batches: None for the state after the last batch that was drawn.

        Raises:
            ValueError: the stream has fewer batches.
        """
        position, carried_rows = self._current if batches is None else self._start
        if batches is not None:
            num_steps = 0
            for step in islice(self._rank_batches.iterate(*self._start), batches):
                position, carried_rows = step.end
                num_steps += 1
            if num_steps < batches:
                raise ValueError(
                    f"batches is {batches}, but the stream ends at position {position}"
                )
        state = self._stream.make_state(
            position,
            global_batch_rows=self._rank_batches.global_batch_rows,
            carried_rows=carried_rows,
        )
        return state.to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Start at a state of a `TokenLoader` or of a sampler.

        Raises:
            ResumeMismatch, FormatError, ValueError: as `TokenLoader.load_state_dict`.
        """
        state = self._stream.read_state(
            state_dict, self._rank_batches, allow_mismatch=self._allow_mismatch
        )
        self._start = self._current = state.position, state.carried_rows
