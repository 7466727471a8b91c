"""Rows for the step, from the loader or from instructions, as what the model takes.

Promises: step s ends with the first micro-batches that reach `s * global_batch_rows` rows of the global order. Where
the ranks' micro-batches divide global_batch_rows, that is the same number in every step; where they do not (a run goes
on with 7 ranks of 8), steps differ by less than one round of micro-batches, and no row is left out or seen twice.
Leaves to others: order and resume (loader), text (instructions.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch._dynamo import maybe_mark_dynamic

from loader import Mixture, TokenLoader
from loader.storage import ReadSettings
from training.config import DataConfig, TrainConfig
from training.model.attention import Mask, document_mask
from training.model.loss import IGNORED_LABEL
from training.parallel.distributed import IncompatibleConfig, Ranks


@dataclass(frozen=True)
class MicroBatch:
    """Rows of one forward pass: input_ids, labels (B, T) int64 on the device; num_labels: those that count."""

    input_ids: Tensor
    labels: Tensor
    mask: Mask
    num_labels: Tensor


class RowSource(Protocol):
    """What rows come from: TokenLoader, or instructions."""

    def __next__(self) -> dict[str, Any]:
        """As TokenLoader's."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """As TokenLoader's."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """As TokenLoader's."""
        ...

    def stats(self) -> dict[str, Any]:
        """As TokenLoader's."""
        ...


class Rows:
    """The micro-batches of each step on this rank."""

    def __init__(self, source: RowSource, config: DataConfig, device: torch.device) -> None:
        self._source, self._config, self._device = source, config, device

    def micro_batches(self, step: int) -> list[MicroBatch]:
        """Those of step 0, 1, ...; steps are asked for in order.

        Raises:
            ReadFailed, ShardCorrupt: the dataset cannot be read.
        """
        micro_batches: list[MicroBatch] = []
        while self.position < (step + 1) * self._config.global_batch_rows:
            micro_batches.append(self._on_device(next(self._source)))
        return micro_batches

    @property
    def position(self) -> int:
        """Rows of the global order dealt out so far."""
        return int(self._source.state_dict()["position"])

    def state_dict(self) -> dict[str, Any]:
        """The loader's state, behind the last micro-batch: small and of plain values."""
        return self._source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on behind it; raises ResumeMismatch for that of another stream."""
        self._source.load_state_dict(state)

    def stats(self) -> dict[str, Any]:
        """What the loader says of itself."""
        return self._source.stats()

    def _on_device(self, batch: Mapping[str, Any]) -> MicroBatch:
        tensors = {
            name: value.to(self._device)
            for name, value in batch.items()
            if isinstance(value, Tensor)
        }
        if "cu_seqlens" in tensors:
            mask = Mask(cu_seqlens=tensors["cu_seqlens"])
            maybe_mark_dynamic(
                tensors["cu_seqlens"], 0
            )  # documents per batch vary: no reason to compile again
        elif "document_ids" in tensors:
            mask = document_mask(tensors["document_ids"])
        else:
            mask = Mask()
        labels = tensors["labels"]
        return MicroBatch(tensors["input_ids"], labels, mask, (labels != IGNORED_LABEL).sum())


def open_rows(config: TrainConfig, ranks: Ranks) -> tuple[Rows, int]:
    """The rows of this rank, and how many ids their tokenizer has.

    Raises:
        IncompatibleConfig: fewer rows in a step than the ranks take at a time.
        ReadFailed, FormatError, ShardCorrupt: what can be known of the dataset before it is read.
    """
    data = config.data
    rows_at_a_time = ranks.num_data_ranks * data.micro_batch_rows
    if rows_at_a_time > data.global_batch_rows:
        raise IncompatibleConfig(
            f"data.global_batch_rows is {data.global_batch_rows}, but {ranks.num_data_ranks} data-parallel ranks of "
            f"{data.micro_batch_rows} rows (data.micro_batch_rows) take {rows_at_a_time} at a time; raise the one or "
            f"lower the other"
        )
    if data.instructions is not None:
        from training.data.instructions import open_instructions

        source, vocab_size = open_instructions(
            data, ranks, documents=document_form(config, ranks.device)
        )
        return Rows(source, data, ranks.device), vocab_size
    loader = TokenLoader(
        _datasets(data),
        seq_len=data.seq_len,
        global_batch_rows=rows_at_a_time,
        mesh=ranks.data_mesh,
        seed=data.seed,
        documents=document_form(config, ranks.device),
        device=ranks.device if ranks.device.type == "cuda" else None,
        settings=ReadSettings(on_corrupt=data.on_corrupt),
    )
    return Rows(loader, data, ranks.device), loader.tokenizer.vocab_size


def document_form(config: TrainConfig, device: torch.device) -> tuple[Any, ...]:
    """How the model wants to be told of documents: lengths for the flash kernel, else ids for a mask."""
    if not config.data.document_masks:
        return ()
    return (
        ("cu_seqlens",)
        if device.type == "cuda" and config.precision.compute == "bf16"
        else ("document_ids",)
    )


def _datasets(data: DataConfig) -> str | Mixture:
    if data.mixture is None:
        assert data.manifest is not None
        return data.manifest
    return Mixture(
        {name: source.manifest for name, source in data.mixture.items()},
        weights={name: source.weight for name, source in data.mixture.items()},
    )
