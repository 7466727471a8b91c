"""A chunk: the rows of some consecutive steps of one rank."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from loader.order.permutation import BoolArray
from loader.order.rank_batches import Step
from loader.reading.rows import StoredRows, Tokens
from loader.retraction.tombstones import TokenRanges

if TYPE_CHECKING:
    import torch


@dataclass(eq=False)
class Chunk:
    """The rows of some steps on this rank: n rows of T + 1 tokens.

    steps:       the steps, in order
    rows:        the rows, checked but not copied
    tokens:      (n, T + 1) copy of the rows that a thread made, or None
    is_whole:    (n,) bool, false for damaged rows
    num_damaged: number of damaged rows
    marks:       (n, T) bool, document starts, or None if they were not requested
    ignored:     tokens that must not be labels, or None; see `RowMarks`
    on_device:   the same tokens on a CUDA device, or None
    copied:      CUDA event after which `on_device` is valid
    """

    steps: list[Step]
    rows: StoredRows
    tokens: Tokens | None
    is_whole: BoolArray
    num_damaged: int
    marks: BoolArray | None
    ignored: TokenRanges | None = None
    on_device: torch.Tensor | None = None
    copied: Any = None

    def join(self, rows: slice) -> Tokens:
        """Return the tokens of some rows, (B, T + 1). They may share memory with the chunk."""
        return self.rows.join(rows) if self.tokens is None else self.tokens[rows]
