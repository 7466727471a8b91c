"""Packs conversations into rows, in a new order in every epoch, and describes documents in rows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

import numpy as np
import torch

from loader.order.permutation import Int64Array, derive_keys, permute
from loader.reading.packing import (
    BoolArray,
    compute_document_ids,
    compute_position_ids,
    compute_sequence_lengths,
)

# Newest rows that are searched for room. This keeps the time linear, and wastes no more
# padding than searching all rows in practice.
OPEN_ROWS = 64

# Purpose of the permutation's keys. loader/order uses 1 and 2, and 3 for mixtures, which
# cannot be combined with instruction data.
_SHUFFLE_KEY = 3


class PackedEpoch(NamedTuple):
    """The rows of an epoch: row r holds conversations[starts[r] : starts[r + 1]]."""

    conversations: Int64Array
    starts: Int64Array

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(self.starts) - 1


def make_document_fields(marks: BoolArray, documents: Collection[str]) -> dict[str, Any]:
    """Return fields about documents, as those of TokenLoader.

    Args:
        marks: (B, T) whether a token begins a document.
        documents: names of the fields.
    """
    fields: dict[str, Any] = {}
    if "position_ids" in documents:
        fields["position_ids"] = torch.from_numpy(compute_position_ids(marks))
    if "document_ids" in documents:
        fields["document_ids"] = torch.from_numpy(compute_document_ids(marks))
    if "cu_seqlens" in documents:
        cu_seqlens, fields["max_seqlen"] = compute_sequence_lengths(marks)
        fields["cu_seqlens"] = torch.from_numpy(cu_seqlens)
    return fields


def pack_epoch(
    num_slots: Int64Array, *, seq_len: int, seed: int, epoch: int
) -> PackedEpoch:
    """Shuffle the conversations by (seed, epoch) and pack them into rows.

    Args:
        num_slots: (C,) inputs of each conversation, 1 .. seq_len.
        seq_len: inputs per row.
        seed: seed of the order.
        epoch: number of the epoch, from 0.
    """
    num = len(num_slots)
    order = permute(np.arange(num), num, derive_keys(seed, epoch, _SHUFFLE_KEY))
    rows = pack_first_fit(num_slots[order], seq_len)
    # Stable: inside a row, conversations stay in the shuffled order.
    by_row = np.argsort(rows, kind="stable")
    # The start of each row, and the end of the last one: num_rows + 1 values.
    starts = np.searchsorted(rows[by_row], np.arange(int(rows.max()) + 2))
    return PackedEpoch(order[by_row], starts)


def pack_first_fit(num_slots: Int64Array, seq_len: int) -> Int64Array:
    """Return the row of each conversation: the first open row with room, otherwise a new row.

    Args:
        num_slots: (C,) inputs of each conversation in packing order, 1 .. seq_len.
        seq_len: inputs per row.

    Returns:
        (C,) row numbers; all numbers from 0 to the highest occur.
    """
    rows = np.empty(len(num_slots), np.int64)
    # (C,) inputs that are still free in each row; there are at most C rows
    room = np.full(len(num_slots), seq_len, np.int64)
    num_rows = 0
    for index, wanted in enumerate(num_slots.tolist()):
        first_open = max(0, num_rows - OPEN_ROWS)
        fits = np.flatnonzero(room[first_open:num_rows] >= wanted)
        row = first_open + int(fits[0]) if len(fits) else num_rows
        num_rows = max(num_rows, row + 1)
        room[row] -= wanted
        rows[index] = row
    return rows
