"""Turn rows of stored tokens into batches of tensors.

torch is imported here only if tensors are made. `tokens="stored"` needs no torch and then
gives numpy arrays.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from loader.batches.chunk_reader import Chunk
from loader.batches.torch_use import find_torch, import_torch
from loader.order.permutation import Int64Array
from loader.reading.packing import (
    BoolArray,
    compute_document_ids,
    compute_position_ids,
    compute_sequence_lengths,
)
from loader.reading.rows import Tokens
from loader.retraction.tombstones import TokenRanges

if TYPE_CHECKING:
    import torch

# The default `ignore_index` of torch.nn.CrossEntropyLoss: the labels of damaged rows, of
# retracted documents and of padding.
IGNORED_LABEL = -100

TokenOutput = Literal["int64", "stored"]
DocumentOutput = Literal["position_ids", "document_ids", "cu_seqlens"]
DOCUMENT_OUTPUTS = ("position_ids", "document_ids", "cu_seqlens")


def split_inputs_and_labels(
    tokens: Tokens, ignored: TokenRanges | None, *, labels_are_shifted: bool
) -> tuple[Int64Array, Int64Array]:
    """Return the inputs of some rows, and their labels.

    Args:
        tokens: (B, T + 1) as stored.
        ignored: tokens that must not be labels, or None.
        labels_are_shifted: whether the label of an input is the next token, or the input itself.

    Returns:
        Two (B, T) int64.
    """
    # On one CPU core numpy widens twice as fast as torch.
    input_ids = tokens[:, :-1].astype(np.int64)
    labels = tokens[:, 1:].astype(np.int64) if labels_are_shifted else input_ids.copy()
    if ignored is not None:
        ignored.fill(labels, IGNORED_LABEL, offset=int(labels_are_shifted))
    return input_ids, labels


class BatchBuilder:
    """Builds batches of B rows of T tokens.

    Args:
        tokens: "int64" gives input_ids and labels (B, T) int64; "stored" gives tokens (B, T + 1) as
            uint16 or uint32.
        documents: further entries, see `DOCUMENT_OUTPUTS`.
        labels_are_shifted: with "int64", the label of an input is the next token. Otherwise it is the
            input itself.
        reports_damage: with "stored", add is_whole (B,) bool.
        device: device for the document entries, or None for the CPU.

    Raises:
        ImportError: tokens is "int64", but torch is not installed.
        ValueError: an argument has an unknown value.
    """

    def __init__(
        self,
        tokens: TokenOutput,
        documents: Collection[DocumentOutput],
        *,
        labels_are_shifted: bool,
        reports_damage: bool,
        device: torch.device | None,
    ) -> None:
        if tokens not in ("int64", "stored"):
            raise ValueError(f"tokens is {tokens!r}, must be 'int64' or 'stored'")
        if unknown := set(documents) - set(DOCUMENT_OUTPUTS):
            raise ValueError(
                f"documents has {sorted(unknown)}, which are unknown; "
                f"choose from {', '.join(DOCUMENT_OUTPUTS)}"
            )
        self._is_stored = tokens == "stored"
        self._documents = frozenset(documents)
        self._labels_are_shifted = labels_are_shifted
        self._reports_damage = reports_damage
        # With "stored", add the tokens that are no labels, (B, T + 1) bool, under this name. Known
        # when the dataset is open.
        self.ignored_entry: str | None = None
        self._device = device
        # Kept as an attribute: an import statement in each step costs more than slicing a batch.
        self._torch = find_torch() if self._is_stored else import_torch("tokens='int64'")

    @property
    def needs_marks(self) -> bool:
        """Whether chunks must have document starts."""
        return bool(self._documents)

    def build(self, chunk: Chunk, rows: slice) -> dict[str, Any]:
        """Return a batch of some rows of a chunk."""
        if self._is_stored:
            batch = self._build_stored(chunk, rows)
        else:
            batch = self._build_int64(chunk, rows)
        if chunk.marks.doc_starts is not None:
            self._add_documents(batch, chunk.marks.doc_starts[rows])
        return batch

    def _convert(self, array: NDArray[Any]) -> Any:
        """Return a tensor that shares the array's memory, or the array itself without torch."""
        return array if self._torch is None else self._torch.from_numpy(array)

    def _build_stored(self, chunk: Chunk, rows: slice) -> dict[str, Any]:
        if chunk.on_device is not None:
            batch: dict[str, Any] = {"tokens": chunk.on_device[rows]}
        else:
            batch = {"tokens": self._convert(chunk.join(rows))}
        if self._reports_damage:
            batch["is_whole"] = self._convert(chunk.marks.is_whole[rows].copy())
        if self.ignored_entry is not None:
            shape = tuple(batch["tokens"].shape)
            ignored = np.zeros(shape, np.bool_)
            if chunk.marks.ignored is not None:
                ignored = chunk.marks.ignored.select(rows).mark(*shape)
            batch[self.ignored_entry] = self._convert(ignored)
        return batch

    def _build_int64(self, chunk: Chunk, rows: slice) -> dict[str, Any]:
        ignored = chunk.marks.ignored and chunk.marks.ignored.select(rows)
        if chunk.on_device is not None:
            tokens = chunk.on_device[rows]
            # tokens is (B, T + 1).
            chosen = slice(1, None) if self._labels_are_shifted else slice(-1)
            input_ids = tokens[:, :-1].to(self._torch.int64)
            labels = tokens[:, chosen].to(self._torch.int64, copy=True)
            if ignored is not None and len(ignored.rows):
                # One copy to the device instead of one write for each range.
                marks = ignored.mark(*tokens.shape)[:, chosen]
                mask = self._convert(np.ascontiguousarray(marks)).to(labels.device)
                labels.masked_fill_(mask, IGNORED_LABEL)
        else:
            arrays = split_inputs_and_labels(
                chunk.join(rows), ignored, labels_are_shifted=self._labels_are_shifted
            )
            input_ids, labels = map(self._convert, arrays)
        # Damaged rows stay in the batch, so that all ranks keep equal batch shapes. Only their loss
        # is ignored.
        if chunk.num_damaged:
            labels[self._convert(~chunk.marks.is_whole[rows])] = IGNORED_LABEL
        return {"input_ids": input_ids, "labels": labels}

    def _add_documents(self, batch: dict[str, Any], marks: BoolArray) -> None:
        arrays: dict[str, NDArray[np.int32]] = {}
        if "position_ids" in self._documents:
            arrays["position_ids"] = compute_position_ids(marks)
        if "document_ids" in self._documents:
            arrays["document_ids"] = compute_document_ids(marks)
        if "cu_seqlens" in self._documents:
            arrays["cu_seqlens"], batch["max_seqlen"] = compute_sequence_lengths(marks)
        for name, array in arrays.items():
            batch[name] = self._convert(array)
            if self._device is not None:
                # non_blocking has an effect only for pinned memory.
                batch[name] = batch[name].pin_memory().to(self._device, non_blocking=True)
