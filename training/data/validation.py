"""Loss on held-out documents: in total, by language and by bucket.

Documents are cut into windows of seq_len tokens. Windows share rows but do not attend to each
other, so the loss of a document does not depend on the other documents.

    rows of 8:  | A A A A A A A A |     document A has 11 labels, B has 4, C has 1
                | A A A B B B B C |     a token attends within its own window
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch._dynamo import maybe_mark_dynamic
from torch.distributed.fsdp import FSDPModule

from loader.reading.manifest_columns import read_manifest_columns
from loader.reading.shard_reader import ShardReader
from loader.storage import ReadSettings
from training.config import TrainConfig
from training.data.held_out import (
    GROUP_FIELDS,
    Ints,
    Window,
    group_documents,
    list_first_documents,
    list_training_tokenizers,
    pack_windows,
    read_window,
)
from training.errors import IncompatibleConfig
from training.model.attention import AttentionMask, make_document_mask
from training.model.loss import IGNORED_LABEL
from training.parallel.distributed import RankContext


class Validation:
    """A selection of held-out documents. Their tokens are read once and stay in memory."""

    def __init__(self, config: TrainConfig, context: RankContext) -> None:
        """Read the manifests, and the indexes of the shards that hold the documents.

        Raises:
            IncompatibleConfig: no validation section, a tokenizer that differs from that of the
                training data, or nothing to predict.
            ReadFailed, FormatError, ShardCorrupt: the dataset cannot be read.
        """
        if config.validation is None:
            raise IncompatibleConfig(
                "validation is null; set validation.manifest to the path of a held-out dataset"
            )
        self._context = context
        self._seq_len = config.data.seq_len
        self._rows_per_batch = config.data.micro_batch_rows
        self._uses_cu_seqlens = (
            context.device.type == "cuda" and config.precision.compute == "bf16"
        )
        self._reader = _open_reader(config, config.validation.manifest)
        self._locations = list_first_documents(self._reader, config.validation.documents)
        self._rows = pack_windows(self._locations, self._seq_len)
        if not self._rows:
            raise IncompatibleConfig(
                f"validation.manifest {config.validation.manifest}: none of the first "
                f"{len(self._locations)} documents has two tokens, so there is nothing to "
                f"predict; raise validation.documents, or use another dataset"
            )
        self._batches: list[_Batch] | None = None
        self._groups: dict[tuple[str, ...], Ints] = {}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the loss of the held-out documents. All ranks must call it at the same step.

        Losses are means over labels, in nats. The figures are the same on every rank and, apart
        from rounding, for every number of ranks.

        Returns:
            `validation/loss`, `validation/perplexity` and `validation/tokens`; the same three
            with `/<language>` and `/<bucket>` appended; `validation/loss/<language>/<bucket>`.

        Raises:
            ReadFailed, ShardCorrupt: documents cannot be read, in the first call.
        """
        if self._batches is None:
            self._groups = group_documents(self._reader, self._locations)
            self._batches = list(self._read_batches())
        document_losses = self._compute_document_losses(model, self._batches)
        num_labels = np.array(
            [max(0, at.num_tokens - 1) for at in self._locations], np.int64
        )
        figures: dict[str, float] = {}
        for group, members in self._groups.items():
            tokens = int(num_labels[members].sum())
            if not tokens:
                continue
            loss = float(document_losses[members].sum()) / tokens
            figures["/".join(["validation/loss", *group])] = loss
            if len(group) < len(GROUP_FIELDS):
                # Beyond 709 exp overflows a float.
                perplexity = math.exp(min(loss, 700.0))
                figures["/".join(["validation/perplexity", *group])] = perplexity
                figures["/".join(["validation/tokens", *group])] = tokens
        return figures

    def _compute_document_losses(
        self, model: nn.Module, batches: list[_Batch]
    ) -> NDArray[np.float64]:
        """Return (D,) the summed loss of each document, over all ranks.

        The sums are taken on the CPU in fp64 and in a fixed order, to be reproducible.
        """
        device = self._context.device
        losses_per_batch: list[Tensor] = []
        with torch.no_grad():
            for batch in batches:
                inputs = batch.input_ids.to(device, torch.int64)
                labels = batch.labels.to(device, torch.int64)
                mask = batch.make_mask(device, with_cu_seqlens=self._uses_cu_seqlens)
                _, losses_N = model(inputs, labels, mask)
                # Kept on the device: reading them here would make the CPU wait in every batch.
                losses_per_batch.append(losses_N)
        _release_gathered_weights(model)
        sums = np.zeros(len(self._locations))
        for batch, losses_N in zip(batches, losses_per_batch, strict=True):
            documents = batch.documents.flatten().numpy()
            values = losses_N.double().cpu().numpy()
            has_label = documents >= 0
            # (D,) A document may have windows in several rows and on several ranks.
            sums += np.bincount(
                documents[has_label], values[has_label], minlength=len(sums)
            )
        sums_on_device = torch.from_numpy(sums).to(device)
        return self._context.sum_over_data_ranks(sums_on_device).cpu().numpy()

    def _read_batches(self) -> Iterator[_Batch]:
        """Yield the batches of this rank.

        All ranks get the same number of batches, because sharded models need all ranks in every
        forward pass. The last batches may contain empty rows.
        """
        mesh, num_data_ranks = self._context.mesh, self._context.num_data_ranks
        # Row-major number in the mesh replicate x shard. Tensor-parallel ranks share a number.
        data_rank = mesh["replicate"].get_local_rank() * mesh["shard"].size()
        data_rank += mesh["shard"].get_local_rank()
        num_batches = math.ceil(len(self._rows) / (num_data_ranks * self._rows_per_batch))
        # Ranks take rows in turn, so their numbers of rows differ by at most one.
        own_rows = self._rows[data_rank::num_data_ranks]
        for number in range(num_batches):
            first = number * self._rows_per_batch
            batch = _Batch.make_empty(self._rows_per_batch, self._seq_len)
            for row, windows in enumerate(own_rows[first : first + self._rows_per_batch]):
                contents: list[tuple[Window, Ints]] = []
                for window in windows:
                    location = self._locations[window.document]
                    contents.append((window, read_window(self._reader, location, window)))
                batch.fill_row(row, contents)
            yield batch


def _open_reader(config: TrainConfig, manifest: str) -> ShardReader:
    """Open the held-out dataset; refuse another tokenizer than that of the training data."""
    settings = ReadSettings()
    columns = read_manifest_columns(manifest, settings)
    for source, sha256 in list_training_tokenizers(config.data, settings):
        if sha256 != columns.tokenizer.sha256:
            raise IncompatibleConfig(
                f"validation.manifest {manifest} was made with tokenizer "
                f"{columns.tokenizer.name!r} (sha256 {columns.tokenizer.sha256[:12]}...), "
                f"{source} with another ({sha256[:12]}...). The losses would mean nothing; make "
                f"both with one tokenizer"
            )
    # seq_len=1, because only whole samples are read here, never rows.
    return ShardReader(columns, seq_len=1, settings=settings)


def _release_gathered_weights(model: nn.Module) -> None:
    """Free whole weights: zero2 keeps them from forward to backward, and here is no backward."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


@dataclass(frozen=True)
class _Batch:
    """Rows of packed windows, on the CPU; each tensor is (B, T) int32.

    Attributes:
        input_ids: tokens, 0 in empty slots.
        labels: next tokens, or IGNORED_LABEL.
        documents: document of each label, -1 where there is none.
        windows: number of the window in its row.
    """

    input_ids: Tensor
    labels: Tensor
    documents: Tensor
    windows: Tensor

    @classmethod
    def make_empty(cls, num_rows: int, seq_len: int) -> _Batch:
        """Return a batch of empty rows."""
        shape = num_rows, seq_len
        zeros = torch.zeros(shape, dtype=torch.int32)
        labels = torch.full(shape, IGNORED_LABEL, dtype=torch.int32)
        documents = torch.full(shape, -1, dtype=torch.int32)
        return cls(zeros, labels, documents, zeros.clone())

    def fill_row(self, row: int, contents: list[tuple[Window, Ints]]) -> None:
        """Put windows and their tokens one after another into a row, in place.

        The rest of the row becomes one more window, without labels.
        """
        start = 0
        for number, (window, tokens) in enumerate(contents):
            slots = slice(start, start + window.num_labels)
            ids = torch.from_numpy(tokens)
            self.input_ids[row, slots] = ids[:-1]
            self.labels[row, slots] = ids[1:]
            self.documents[row, slots] = window.document
            self.windows[row, slots] = number
            start = slots.stop
        self.windows[row, start:] = len(contents)

    def make_mask(self, device: torch.device, *, with_cu_seqlens: bool) -> AttentionMask:
        """Return a mask that separates the windows, for the flash kernel or as a matrix."""
        if not with_cu_seqlens:
            return make_document_mask(self.windows.to(device))
        begins = torch.ones_like(self.windows, dtype=torch.bool)  # each row begins a window
        begins[:, 1:] = self.windows[:, 1:] != self.windows[:, :-1]
        starts = begins.flatten().nonzero().flatten()
        cu_seqlens = torch.cat([starts, torch.tensor([begins.numel()])]).to(
            device, torch.int32
        )
        # The number of windows varies; without the mark, torch.compile would compile for each.
        maybe_mark_dynamic(cu_seqlens, 0)
        return AttentionMask(cu_seqlens=cu_seqlens)
