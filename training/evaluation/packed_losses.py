"""Sums of losses over pieces of text, which are packed into rows and distributed over ranks.

Pieces share rows but do not attend to each other, so the loss of a piece does not depend on the
others.

    rows of 8:  | A A A A A A A A |     piece A has 8 labels, B has 4, C has 1
                | B B B B C       |     a token attends within its own piece
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from loader.reading.packing import compute_sequence_lengths
from training.config import TrainConfig
from training.data.packing import pack_first_fit
from training.model.attention import (
    AttentionMask,
    MaskForm,
    make_mask,
    select_mask_form,
)
from training.model.loss import IGNORED_LABEL
from training.parallel.distributed import RankContext

Ints = NDArray[np.int64]


class Piece(NamedTuple):
    """Tokens that attend to each other.

    Attributes:
        tokens: (n + 1,) inputs, and the label of the last one.
        sums: (n,) number of the sum to which the loss of each label is added; -1 adds it to none.
    """

    tokens: Ints
    sums: Ints


class PackedLosses:
    """Pieces of text whose losses are summed. They are read once and stay in memory.

    Each rank reads and computes its share of the rows.
    """

    def __init__(
        self,
        num_labels: Sequence[int],
        read_piece: Callable[[int], Piece],
        num_sums: int,
        *,
        config: TrainConfig,
        context: RankContext,
    ) -> None:
        """Pack the pieces into rows, without reading them.

        Args:
            num_labels: labels of each piece, 1 .. seq_len.
            read_piece: returns the piece with this number.
            num_sums: number of sums.
            config: the run; rows and batches have its sizes.
            context: this rank.
        """
        self._context, self._seq_len = context, config.data.seq_len
        self._rows_per_batch = config.data.micro_batch_rows
        self._mask_form: MaskForm = select_mask_form(config.precision, context.device)
        self._read_piece, self._num_sums = read_piece, num_sums
        self._rows = pack_rows(num_labels, self._seq_len)
        self._batches: list[_Batch] | None = None

    def read(self) -> None:
        """Read the pieces of this rank, unless they were read before."""
        if self._batches is None:
            self._batches = list(self._read_batches())

    def compute(self, model: nn.Module) -> NDArray[np.float64]:
        """Return the (num_sums,) sums over all ranks, in nats. All ranks must call it together.

        The sums are taken on the CPU in fp64 and in a fixed order, to be reproducible.
        """
        self.read()
        assert self._batches is not None
        device = self._context.device
        losses_per_batch: list[Tensor] = []
        with torch.no_grad():
            for batch in self._batches:
                inputs = batch.input_ids.to(device, torch.int64)
                labels = batch.labels.to(device, torch.int64)
                mask = batch.make_mask(device, self._mask_form)
                _, losses_N = model(inputs, labels, mask)
                # Kept on the device: reading them here would make the CPU wait in every batch.
                losses_per_batch.append(losses_N)
        _release_gathered_weights(model)
        totals = np.zeros(self._num_sums)
        for batch, losses_N in zip(self._batches, losses_per_batch, strict=True):
            sums = batch.sums.flatten().numpy()
            values = losses_N.double().cpu().numpy()
            is_counted = sums >= 0
            totals += np.bincount(
                sums[is_counted], values[is_counted], minlength=self._num_sums
            )
        totals_on_device = torch.from_numpy(totals).to(device)
        return self._context.sum_over_data_ranks(totals_on_device).cpu().numpy()

    def _read_batches(self) -> Iterator[_Batch]:
        """Yield the batches of this rank.

        All ranks get the same number of batches, because sharded models need all ranks in every
        forward pass. The last batches may contain empty rows.
        """
        data_rank, num_data_ranks = self._context.data_rank, self._context.num_data_ranks
        num_batches = math.ceil(len(self._rows) / (num_data_ranks * self._rows_per_batch))
        # Ranks take rows in turn, so their numbers of rows differ by at most one.
        own_rows = self._rows[data_rank::num_data_ranks]
        for number in range(num_batches):
            first = number * self._rows_per_batch
            batch = _Batch.make_empty(self._rows_per_batch, self._seq_len)
            for row, pieces in enumerate(own_rows[first : first + self._rows_per_batch]):
                batch.fill_row(row, [self._read_piece(piece) for piece in pieces])
            yield batch


def pack_rows(num_labels: Sequence[int], seq_len: int) -> list[list[int]]:
    """Return the pieces of each row, for pieces of 1 .. seq_len labels; the longest come first."""
    if not num_labels:
        return []
    lengths = np.array(num_labels, np.int64)
    order = np.argsort(-lengths, kind="stable")
    numbers = pack_first_fit(lengths[order], seq_len)
    rows: list[list[int]] = [[] for _ in range(int(numbers.max()) + 1)]
    for piece, row in zip(order.tolist(), numbers.tolist(), strict=True):
        rows[row].append(piece)
    return rows


def _release_gathered_weights(model: nn.Module) -> None:
    """Free whole weights: zero2 keeps them from forward to backward, and here is no backward."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@dataclass(frozen=True)
class _Batch:
    """Rows of packed pieces, on the CPU; each tensor is (B, T) int32.

    Attributes:
        input_ids: tokens, 0 in empty slots.
        labels: next tokens, or IGNORED_LABEL.
        sums: sum to which the loss of each label is added, -1 where there is none.
        pieces: number of the piece in its row.
    """

    input_ids: Tensor
    labels: Tensor
    sums: Tensor
    pieces: Tensor

    @classmethod
    def make_empty(cls, num_rows: int, seq_len: int) -> _Batch:
        """Return a batch of empty rows."""
        shape = num_rows, seq_len
        zeros = torch.zeros(shape, dtype=torch.int32)
        labels = torch.full(shape, IGNORED_LABEL, dtype=torch.int32)
        sums = torch.full(shape, -1, dtype=torch.int32)
        return cls(zeros, labels, sums, zeros.clone())

    def fill_row(self, row: int, pieces: Sequence[Piece]) -> None:
        """Put pieces one after another into a row, in place.

        The rest of the row becomes one more piece, without labels.
        """
        start = 0
        for number, piece in enumerate(pieces):
            slots = slice(start, start + len(piece.sums))
            ids = torch.from_numpy(piece.tokens)
            sums = torch.from_numpy(piece.sums)
            self.input_ids[row, slots] = ids[:-1].int()
            self.labels[row, slots] = ids[1:].masked_fill(sums < 0, IGNORED_LABEL).int()
            self.sums[row, slots] = sums.int()
            self.pieces[row, slots] = number
            start = slots.stop
        self.pieces[row, start:] = len(pieces)

    def make_mask(self, device: torch.device, form: MaskForm) -> AttentionMask:
        """Return a mask that separates the pieces."""
        if form != "cu_seqlens":
            return make_mask({"document_ids": self.pieces.to(device)}, form)
        begins = torch.ones_like(self.pieces, dtype=torch.bool)  # each row begins a piece
        begins[:, 1:] = self.pieces[:, 1:] != self.pieces[:, :-1]
        starts, _ = compute_sequence_lengths(begins.numpy())
        return make_mask({"cu_seqlens": torch.from_numpy(starts).to(device)}, form)
