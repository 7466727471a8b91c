"""Loss on held-out documents: of all, and by language and bucket, as the documents' metadata name them.

Promises: each document is predicted by itself, as if it stood alone: cut into pieces of seq_len tokens, which share
rows but do not see each other. Figures are the same on every rank, and on any number of ranks but for the rounding of
the model itself; ranks run as many forward passes, which sharded models need. Without metadata there are only totals.
Leaves to others: when (trainer.py), the datasets' bytes (loader).

    rows of 8:  | A A A A A A A A |     document A has 11 tokens to predict, B 4, C 1
                | A A A B B B B C |     a token attends within its own piece
"""

from __future__ import annotations

import bisect
import hashlib
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from loader.reading.manifest_columns import read_manifest_columns
from loader.reading.metadata import read_metadata
from loader.reading.shard_reader import ShardReader
from loader.storage import ReadSettings
from training.config import DataConfig, TrainConfig
from training.model.attention import Mask, document_mask
from training.model.loss import IGNORED_LABEL
from training.parallel.distributed import IncompatibleConfig, Ranks

Ints = NDArray[np.int64]
_FIELDS = ("language", "bucket")


@dataclass(frozen=True)
class _Piece:
    """Inputs first .. first + num_labels - 1 of a document, each with the token behind it as label."""

    document: int
    first: int
    num_labels: int


@dataclass(frozen=True)
class _Place:
    """Where a document lies: its shard, its number in the shard, and how many tokens it has."""

    shard: int
    number: int
    num_tokens: int


class Validation:
    """Held-out documents, chosen and checked when opened, read at the first run; their tokens stay in memory."""

    def __init__(self, config: TrainConfig, ranks: Ranks) -> None:
        """Reads manifests, and the indexes of the shards that the documents are in.

        Raises:
            IncompatibleConfig: no validation section, another tokenizer than the training data's, or nothing to predict.
            ReadFailed, FormatError, ShardCorrupt: the dataset cannot be read.
        """
        if config.validation is None:
            raise IncompatibleConfig(
                "validation is null: give validation.manifest, the path of a held-out dataset"
            )
        self._ranks, self._seq_len, self._rows_at_a_time = (
            ranks,
            config.data.seq_len,
            config.data.micro_batch_rows,
        )
        self._uses_lengths = ranks.device.type == "cuda" and config.precision.compute == "bf16"
        self._settings = ReadSettings()
        catalogue = read_manifest_columns(config.validation.manifest, self._settings)
        for where, sha256 in _tokenizers(config.data, self._settings):
            if sha256 != catalogue.tokenizer.sha256:
                raise IncompatibleConfig(
                    f"validation.manifest {config.validation.manifest} was made with tokenizer "
                    f"{catalogue.tokenizer.name!r} (sha256 {catalogue.tokenizer.sha256[:12]}...), {where} with another "
                    f"({sha256[:12]}...): losses would mean nothing; make both with one tokenizer"
                )
        self._reader = ShardReader(catalogue, seq_len=1, settings=self._settings)
        self._places = list(_first_documents(self._reader, config.validation.documents))
        self._rows = _pack(self._places, self._seq_len)
        if not self._rows:
            raise IncompatibleConfig(
                f"validation.manifest {config.validation.manifest}: none of the first {len(self._places)} documents "
                f"has two tokens, so there is nothing to predict; raise validation.documents, or take another dataset"
            )
        self._batches: list[_Batch] | None = None
        self._groups: dict[tuple[str, ...], Ints] = {}

    def run(self, model: nn.Module) -> dict[str, float]:
        """`validation/loss`, `validation/perplexity`, `validation/tokens`, and the same `/<language>` and `/<bucket>`.

        `validation/loss/<language>/<bucket>` is given alone. Losses are means over predicted tokens, in nats. Every
        rank has to call this at the same step.

        Raises:
            ReadFailed, ShardCorrupt: documents cannot be read, the first time.
        """
        if self._batches is None:
            self._groups = _groups(self._reader, self._places)
            self._batches = list(self._read_batches())
        document_losses = self._document_losses(model, self._batches)
        num_labels = np.array([max(0, place.num_tokens - 1) for place in self._places], np.int64)
        figures: dict[str, float] = {}
        for group, members in self._groups.items():
            tokens = int(num_labels[members].sum())
            if not tokens:
                continue
            loss = float(document_losses[members].sum()) / tokens
            figures["/".join(["validation/loss", *group])] = loss
            if len(group) < len(_FIELDS):
                # e ** 710 is no float
                figures["/".join(["validation/perplexity", *group])] = math.exp(min(loss, 700.0))
                figures["/".join(["validation/tokens", *group])] = tokens
        return figures

    def _document_losses(self, model: nn.Module, batches: list[_Batch]) -> NDArray[np.float64]:
        """(D,) sum over each document's labels; summed on the processor in fp64, in one order."""
        device, sums = self._ranks.device, np.zeros(len(self._places))
        losses: list[Tensor] = []
        with torch.no_grad():
            for batch in batches:
                inputs, labels = (
                    ids.to(device, torch.int64) for ids in (batch.input_ids, batch.labels)
                )
                _, losses_N = model(
                    inputs, labels, batch.mask(device, with_lengths=self._uses_lengths)
                )
                losses.append(losses_N)
        for module in model.modules():
            if isinstance(
                module, FSDPModule
            ):  # without backward, zero2 would keep the whole weights
                module.reshard()
        for batch, losses_N in zip(batches, losses, strict=True):
            places = batch.documents.flatten().numpy()
            values = losses_N.double().cpu().numpy()
            sums += np.bincount(places[places >= 0], values[places >= 0], minlength=len(sums))
        return self._ranks.sum(torch.from_numpy(sums).to(device)).cpu().numpy()

    def _read_batches(self) -> Iterator[_Batch]:
        """The rows of this rank; the last batches may have rows of nothing, so that all ranks have as many."""
        mesh, stride = self._ranks.mesh, self._ranks.num_data_ranks
        data_rank = (
            mesh["replicate"].get_local_rank() * mesh["shard"].size()
            + mesh["shard"].get_local_rank()
        )
        num_batches = math.ceil(len(self._rows) / (stride * self._rows_at_a_time))
        mine = self._rows[data_rank::stride]
        for first in range(0, num_batches * self._rows_at_a_time, self._rows_at_a_time):
            batch = _Batch.empty(self._rows_at_a_time, self._seq_len)
            for row, pieces in enumerate(mine[first : first + self._rows_at_a_time]):
                batch.fill(
                    row,
                    [
                        (piece, _tokens(self._reader, self._places[piece.document], piece))
                        for piece in pieces
                    ],
                )
            yield batch


# ------------------------------------------------------------------------------------------------------ what is chosen


def _tokenizers(data: DataConfig, settings: ReadSettings) -> Iterator[tuple[str, str]]:
    """What is trained on, and the sha256 of its tokenizer."""
    if data.manifest is not None:
        yield (
            f"data.manifest {data.manifest}",
            read_manifest_columns(data.manifest, settings).tokenizer.sha256,
        )
    for name, source in (data.mixture or {}).items():
        yield (
            f"data.mixture.{name} {source.manifest}",
            read_manifest_columns(source.manifest, settings).tokenizer.sha256,
        )
    if data.instructions is not None and data.tokenizer is not None:
        try:
            found = hashlib.sha256(Path(data.tokenizer).read_bytes()).hexdigest()
        except OSError as error:
            raise IncompatibleConfig(
                f"data.tokenizer {data.tokenizer} cannot be read ({error}); correct the path"
            ) from error
        yield f"data.tokenizer {data.tokenizer}", found


def _first_documents(reader: ShardReader, num: int | None) -> Iterator[_Place]:
    left = int(reader.manifest.num_docs.sum()) if num is None else num
    for shard in np.flatnonzero(reader.manifest.num_docs).tolist():
        lengths = np.diff(reader.load_index(shard).doc_starts)[:left].tolist()
        yield from (_Place(shard, number, length) for number, length in enumerate(lengths))
        left -= len(lengths)
        if not left:
            return


def _pack(places: list[_Place], seq_len: int) -> list[list[_Piece]]:
    """Rows of pieces: the longest first, each into the fullest row that has room for it (best fit decreasing)."""
    pieces = [
        _Piece(document, first, min(seq_len, place.num_tokens - 1 - first))
        for document, place in enumerate(places)
        for first in range(0, place.num_tokens - 1, seq_len)
    ]
    rows: list[list[_Piece]] = []
    room: list[tuple[int, int]] = []  # (labels that still fit, row), sorted
    for piece in sorted(pieces, key=lambda piece: -piece.num_labels):
        found = bisect.bisect_left(room, (piece.num_labels, -1))
        if found == len(room):
            left, row = seq_len, len(rows)
            rows.append([])
        else:
            left, row = room.pop(found)
        rows[row].append(piece)
        if left > piece.num_labels:
            bisect.insort(room, (left - piece.num_labels, row))
    return rows


def _groups(reader: ShardReader, places: list[_Place]) -> dict[tuple[str, ...], Ints]:
    """Documents of each group, by its labels: () all, ("en",), ("head",), ("en", "head")."""
    members: dict[tuple[str, ...], list[int]] = defaultdict(list)
    num_of_shard = {place.shard: place.number + 1 for place in places}
    document = 0
    for shard, num in num_of_shard.items():
        for about in _abouts(reader, shard, num):
            labels = [str(about[field]) for field in _FIELDS if about.get(field) is not None]
            groups = {(), *((label,) for label in labels), tuple(labels)}
            for group in groups:
                members[group].append(document)
            document += 1
    assert document == len(places)
    return {group: np.array(members[group], np.int64) for group in sorted(members)}


def _abouts(reader: ShardReader, shard: int, num: int) -> Iterator[dict[str, Any]]:
    """Of the first documents of a shard what is known of them; nothing where there is no metadata."""
    index = reader.load_index(shard)
    num_docs = np.diff(np.searchsorted(index.doc_starts, index.sample_starts)).tolist()
    for sample, about in enumerate(read_metadata(reader, shard)):
        found = about if about is not None else [{}] * num_docs[sample]
        yield from found[:num]
        num -= len(found)
        if num <= 0:
            return


# ------------------------------------------------------------------------------------------------------------- batches


def _tokens(reader: ShardReader, place: _Place, piece: _Piece) -> Ints:
    """(num_labels + 1,) inputs of a piece and the label of the last."""
    index = reader.load_index(place.shard)
    start = int(index.doc_starts[place.number]) + piece.first
    sample = int(np.searchsorted(index.sample_starts, start, side="right")) - 1
    begin = start - int(index.sample_starts[sample])
    return reader.read_sample(place.shard, sample)[begin : begin + piece.num_labels + 1].astype(
        np.int64
    )


@dataclass(frozen=True)
class _Batch:
    """Each (B, T) int32: documents: of each label, -1 where there is none; pieces: numbered in their row."""

    input_ids: Tensor
    labels: Tensor
    documents: Tensor
    pieces: Tensor

    @classmethod
    def empty(cls, rows: int, seq_len: int) -> _Batch:
        """Rows of nothing."""
        shape = rows, seq_len
        zeros, labels, documents = (
            torch.full(shape, fill, dtype=torch.int32) for fill in (0, IGNORED_LABEL, -1)
        )
        return cls(zeros, labels, documents, zeros.clone())

    def fill(self, row: int, pieces: list[tuple[_Piece, Ints]]) -> None:
        """Lay pieces, each with its tokens, end to end into a row; what is left of it is a piece of nothing."""
        start = 0
        for number, (piece, tokens) in enumerate(pieces):
            stop = start + piece.num_labels
            found = torch.from_numpy(tokens)
            self.input_ids[row, start:stop], self.labels[row, start:stop] = found[:-1], found[1:]
            self.documents[row, start:stop], self.pieces[row, start:stop] = piece.document, number
            start = stop
        self.pieces[row, start:] = len(pieces)

    def mask(self, device: torch.device, *, with_lengths: bool) -> Mask:
        """Pieces apart; by their lengths for the flash kernel, else by a matrix."""
        if not with_lengths:
            return document_mask(self.pieces.to(device))
        begins = torch.ones_like(self.pieces, dtype=torch.bool)
        begins[:, 1:] = self.pieces[:, 1:] != self.pieces[:, :-1]
        starts = torch.cat([begins.flatten().nonzero().flatten(), torch.tensor([begins.numel()])])
        cu_seqlens = starts.to(device, torch.int32)
        mark = torch._dynamo.maybe_mark_dynamic  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
        mark(cu_seqlens, 0)  # pieces per batch vary
        return Mask(cu_seqlens=cu_seqlens)
