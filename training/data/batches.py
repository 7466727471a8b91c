"""Micro-batches of each training step, from the loader or from instruction data."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from loader import TokenLoader
from loader.batches.batch_builder import DocumentOutput
from loader.storage import ReadSettings
from training.config import DataConfig, TrainConfig
from training.data.synthetic import SyntheticRows
from training.errors import IncompatibleConfig
from training.model.attention import (
    AttentionMask,
    MaskForm,
    make_mask,
    select_mask_form,
)
from training.model.loss import IGNORED_LABEL
from training.parallel.distributed import RankContext


@dataclass(frozen=True)
class MicroBatch:
    """The rows of one forward pass, on the device.

    Attributes:
        input_ids: (B, T) int64.
        labels: (B, T) int64; the next token, or IGNORED_LABEL.
        mask: limits attention to documents.
        num_labels: scalar tensor; labels that are not ignored.
    """

    input_ids: Tensor
    labels: Tensor
    mask: AttentionMask
    num_labels: Tensor


class RowSource(Protocol):
    """An endless iterator of batches with a resumable state: TokenLoader, InstructionRows or
    SyntheticRows.
    """

    def __next__(self) -> dict[str, Any]:
        """Return the next micro-batch of this rank, as TokenLoader does."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last batch."""
        ...

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue after the batch at which the state was taken."""
        ...

    def stats(self) -> dict[str, Any]:
        """Return counters by name."""
        ...


class StepBatches:
    """Groups the micro-batches of this rank into steps.

    Step s ends with the first micro-batches that reach `(s + 1) * global_batch_rows` rows of the
    global order. If the ranks' micro-batches do not divide global_batch_rows (7 ranks after a
    resume, say), steps differ by less than one micro-batch of every rank. No row is skipped or
    read twice.

    Attributes:
        skipped_steps: steps whose rows were left out by rewinds. Step s has the rows of step
            s + skipped_steps.
    """

    def __init__(
        self,
        source: RowSource,
        config: DataConfig,
        device: torch.device,
        mask_form: MaskForm = "matrix",
    ) -> None:
        self._source, self._config, self._device = source, config, device
        self._mask_form: MaskForm = mask_form
        self.skipped_steps = 0

    def read_step(self, step: int) -> list[MicroBatch]:
        """Return the micro-batches of a step. Call it for consecutive steps.

        Raises:
            IncompatibleConfig: the run was resumed with fewer rows per step than it has read.
            ReadFailed, ShardCorrupt: the dataset cannot be read.
        """
        micro_batches: list[MicroBatch] = []
        # The bound follows from the step alone, so a resumed run on other ranks ends its steps at
        # the same rows.
        end = (step + 1 + self.skipped_steps) * self._config.global_batch_rows
        if self.position >= end:
            raise IncompatibleConfig(
                f"data.global_batch_rows is {self._config.global_batch_rows}, so step {step + 1} "
                f"ends at row {end}, but {self.position} rows were read before it: the run began "
                f"with larger steps. Set it to the earlier value, or give another run_dir"
            )
        while self.position < end:
            micro_batches.append(self._move_to_device(next(self._source)))
        return micro_batches

    @property
    def position(self) -> int:
        """Rows of the global order that were read so far, by all ranks."""
        return int(self._source.state_dict()["position"])

    def state_dict(self) -> dict[str, Any]:
        """Return the source's state after the last micro-batch: a small dict of plain values."""
        return self._source.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the given state; raises ResumeMismatch for the state of other rows."""
        self._source.load_state_dict(state)

    def stats(self) -> dict[str, Any]:
        """Return the counters of the source."""
        return self._source.stats()

    def _move_to_device(self, batch: Mapping[str, Any]) -> MicroBatch:
        tensors: dict[str, Tensor] = {}
        for name, value in batch.items():
            # max_seqlen is an int. It is not needed: attention uses the row length as the bound.
            if isinstance(value, Tensor):
                tensors[name] = value.to(self._device, non_blocking=True)
        mask = make_mask(tensors, self._mask_form)
        labels = tensors["labels"]
        return MicroBatch(
            tensors["input_ids"], labels, mask, (labels != IGNORED_LABEL).sum()
        )


def count_rows_at_a_time(data: DataConfig, num_data_ranks: int) -> int:
    """Return the rows of a micro-batch of all ranks.

    Raises:
        IncompatibleConfig: a step has fewer rows.
    """
    rows = num_data_ranks * data.micro_batch_rows
    if rows > data.global_batch_rows:
        raise IncompatibleConfig(
            f"data.global_batch_rows is {data.global_batch_rows}, but {num_data_ranks} "
            f"(data-parallel ranks) x {data.micro_batch_rows} (data.micro_batch_rows) = {rows} "
            f"rows are read at a time; raise the one or lower the other"
        )
    return rows


def open_batches(config: TrainConfig, context: RankContext) -> tuple[StepBatches, int]:
    """Open the training data for this rank.

    Returns:
        The batches, and the number of ids of their tokenizer.

    Raises:
        IncompatibleConfig: a step has fewer rows than the ranks read at a time.
        ReadFailed, FormatError, ShardCorrupt: the dataset cannot be opened.
    """
    data = config.data
    rows_at_a_time = count_rows_at_a_time(data, context.num_data_ranks)
    documents = select_document_fields(config, context.device)
    mask_form = select_mask_form(config.precision, context.device)
    if data.instructions is not None:
        from training.data.instructions import open_instructions

        rows, vocab_size = open_instructions(data, context, documents=documents)
        return StepBatches(rows, data, context.device, mask_form), vocab_size
    if data.synthetic:
        vocab_size = config.model.vocab_size
        assert vocab_size is not None  # checked with the config
        synthetic = SyntheticRows(data, vocab_size, context, documents)
        return StepBatches(synthetic, data, context.device, mask_form), vocab_size
    # The loader's step is one micro-batch of every rank. StepBatches groups them into steps.
    loader = _open_loader(data, context, rows_at_a_time, documents)
    batches = StepBatches(loader, data, context.device, mask_form)
    return batches, loader.tokenizer.vocab_size


def _open_loader(
    data: DataConfig,
    context: RankContext,
    global_batch_rows: int,
    documents: Collection[DocumentOutput],
) -> TokenLoader:
    """Open the dataset or mixture of the config for this rank."""
    datasets = data.manifest if data.mixture is None else data.make_mixture()
    assert datasets is not None  # checked with the config
    return TokenLoader(
        datasets,
        seq_len=data.seq_len,
        global_batch_rows=global_batch_rows,
        # Ranks of a tensor-parallel group have the same coordinate here, so they read the same
        # rows.
        mesh=context.data_mesh,
        seed=data.seed,
        packing=data.packing or None,
        documents=documents,
        device=context.device if context.device.type == "cuda" else None,
        settings=ReadSettings(on_corrupt=data.on_corrupt),
    )


def select_document_fields(
    config: TrainConfig, device: torch.device
) -> tuple[DocumentOutput, ...]:
    """Return the document fields that the loader must add to batches."""
    if not config.data.document_masks:
        return ()
    form = select_mask_form(config.precision, device)
    return ("cu_seqlens",) if form == "cu_seqlens" else ("document_ids",)
