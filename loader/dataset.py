"""The same rows as a map-style dataset, for torch.utils.data.DataLoader and the trainers that insist on it.

Promises: item p is the row at global position p of the stream that TokenLoader reads with the same arguments, and the
states of sampler and loader are the same: a run may change from one to the other.
Leaves to others: batches, workers and pinning (DataLoader); speed (TokenLoader is several times faster).

    dataset = TokenDataset("/data/web", seq_len=2048, seed=7)
    sampler = dataset.sampler(global_batch_rows=512)
    for step, batch in enumerate(DataLoader(dataset, batch_sampler=sampler, num_workers=2), start=1):
        ...
        state = sampler.state_dict(batches=step)          # counted by who trains: workers have asked for more already
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from loader.loader import IGNORED_LABEL, RowReader
from loader.mixture import Mixture
from loader.order import DEFAULT_WINDOW_ROWS
from loader.rank_batches import Deal, Uneven
from loader.rank_discovery import Mesh, resolve
from loader.state import LoaderState
from loader.storage import ReadSettings
from loader.stream import RowStream, Source, open_stream

if TYPE_CHECKING:
    import torch


class TokenDataset:
    """Rows by global position: {"input_ids": (T,) int64, "labels": (T,) int64}. Positions beyond one epoch go on."""

    def __init__(
        self,
        source: Source | Mixture,
        *,
        seq_len: int,
        seed: int = 0,
        epochs: int = 1,
        lanes: int | None = None,
        window_rows: int = DEFAULT_WINDOW_ROWS,
        settings: ReadSettings | None = None,
    ) -> None:
        """As TokenLoader's. `len` is the rows of `epochs` epochs; of a mixture, of its first source alone."""
        self._settings = settings or ReadSettings()
        self.stream = open_stream(
            source,
            seq_len=seq_len,
            seed=seed,
            settings=self._settings,
            lanes=lanes,
            window_rows=window_rows,
        )
        self._num_rows = epochs * self.stream.orders[0].epoch_rows
        self._rows: RowReader | None = None

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, position: int) -> dict[str, torch.Tensor]:
        return self.__getitems__([position])[0]

    def __getitems__(self, positions: Sequence[int]) -> list[dict[str, torch.Tensor]]:
        """The rows at several positions, read together: what DataLoader calls."""
        import torch

        if positions and not 0 <= min(positions) <= max(positions) < len(self):
            raise IndexError(
                f"positions {min(positions)}..{max(positions)}, must lie in 0..{len(self) - 1}"
            )
        if self._rows is None:
            self._rows = RowReader(self.stream, self._settings)
        tokens = np.empty((len(positions), self.stream.seq_len + 1), self._rows.token_dtype)
        is_whole, _ = self._rows.read(np.array(positions, np.int64), tokens)
        widened = torch.from_numpy(tokens.astype(np.int64))
        rows = [{"input_ids": row[:-1].clone(), "labels": row[1:].clone()} for row in widened]
        for row in np.flatnonzero(~is_whole).tolist():
            rows[row]["labels"].fill_(IGNORED_LABEL)
        return rows

    def __getstate__(self) -> dict[str, Any]:
        """Workers open files of their own."""
        return {**self.__dict__, "_rows": None}

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
        """The batches of positions of this rank, for DataLoader's `batch_sampler`; arguments are TokenLoader's."""
        deal = Deal(
            global_batch_rows, *resolve(rank, world_size, mesh), uneven, len(self), drop_last
        )
        return PositionSampler(self.stream, deal, allow_mismatch=allow_mismatch)


class PositionSampler:
    """Lists of positions, one per step; each `iter` goes from the loaded state to the end."""

    def __init__(self, stream: RowStream, deal: Deal, *, allow_mismatch: bool) -> None:
        self._stream, self._deal, self._allow_mismatch = stream, deal, allow_mismatch
        self._first = self._at = 0, 0  # position and carried rows

    def __iter__(self) -> Iterator[list[int]]:
        self._at = self._first
        while step := self._deal.step(*self._at):
            self._at = step.position, step.carried_rows
            yield step.positions.tolist()

    def __len__(self) -> int:
        at, steps = self._first, 0
        if (
            at[1] == 0
            and self._deal.global_batch_rows % self._deal.world_size == 0
            and self._deal.end is not None
        ):
            whole, rest = divmod(self._deal.end - at[0], self._deal.global_batch_rows)
            return whole + (not self._deal.drop_last and rest >= self._deal.world_size)
        while step := self._deal.step(*at):
            at, steps = (step.position, step.carried_rows), steps + 1
        return steps

    def state_dict(self, batches: int | None = None) -> dict[str, Any]:
        """The state behind so many batches from the loaded state on; None: behind the last one that was drawn."""
        position, carried_rows = self._at
        if batches is not None:
            position, carried_rows = self._first
            for _ in range(batches):
                step = self._deal.step(position, carried_rows)
                if step is None:
                    raise ValueError(
                        f"batches is {batches}, but the stream ends at position {position}"
                    )
                position, carried_rows = step.position, step.carried_rows
        rows = {"global_batch_rows": self._deal.global_batch_rows, "carried_rows": carried_rows}
        return self._stream.state(position, **rows).to_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Begin at a state of TokenLoader or of a sampler; raises ResumeMismatch as TokenLoader does."""
        state = LoaderState.from_dict(state_dict)
        here = self._stream.state(state.position, global_batch_rows=self._deal.global_batch_rows)
        if not self._allow_mismatch:
            state.refuse_other_stream(here)
        self._first = self._at = state.position, state.carried_rows
