"""Loss and bits per byte on held-out documents: in total, by language and by bucket.

Documents are cut into windows of seq_len tokens, of which each sees only its own tokens. Bits per
byte compare models with different tokenizers: the loss per byte of text instead of per token
(Gao et al. 2020, The Pile, section 3.1). The labels of special tokens, which are no text, count in
the loss per token, but not in the bits per byte.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from loader.reading.dataset import Dataset
from loader.reading.manifest_columns import read_manifest_columns
from loader.storage import ReadSettings
from terminal_output import format_count
from training.config import TrainConfig
from training.data.tokenizer import count_token_bytes, open_tokenizer
from training.errors import IncompatibleConfig
from training.evaluation.held_out import (
    GROUP_FIELDS,
    Ints,
    check_tokenizer,
    cut_windows,
    group_documents,
    list_first_documents,
    read_window,
)
from training.evaluation.packed_losses import PackedLosses, Piece
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
        self._reader = _open_reader(config, config.validation.manifest)
        self._locations = list_first_documents(self._reader, config.validation.documents)
        self._windows = cut_windows(self._locations, config.data.seq_len)
        if not self._windows:
            raise IncompatibleConfig(
                f"validation.manifest {config.validation.manifest}: of "
                f"{format_count(len(self._locations), 'document')} none has two tokens, so there is nothing to "
                f"predict; raise validation.documents, or use another dataset"
            )
        num_docs = len(self._locations)
        self._token_bytes, self._is_special = _describe_tokens(config, self._reader)
        # (D,) bytes of text of the labels that this rank has read, later of those of all ranks
        self._num_bytes = np.zeros(num_docs, np.int64)
        self._losses = PackedLosses(
            [window.num_labels for window in self._windows],
            self._read_piece,
            2 * num_docs,
            config=config,
            context=context,
        )
        self._groups: dict[tuple[str, ...], Ints] | None = None

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        """Return the loss of the held-out documents. All ranks must call it at the same step.

        Losses are means over labels, in nats. The figures are the same on every rank and, apart
        from rounding, for every number of ranks.

        Returns:
            `validation/loss`, `validation/perplexity` and `validation/tokens`; the same three
            with `/<language>` and `/<bucket>` appended; `validation/loss/<language>/<bucket>`.
            With data.tokenizer also `validation/bits_per_byte`, as the loss, and
            `validation/bytes`, as the tokens.

        Raises:
            ReadFailed, ShardCorrupt: documents cannot be read, in the first call.
        """
        if self._groups is None:
            self._groups = group_documents(self._reader, self._locations)
            self._losses.read()
            num_bytes = torch.from_numpy(self._num_bytes).to(self._context.device)
            self._num_bytes = self._context.sum_over_data_ranks(num_bytes).cpu().numpy()
        # (2, D) summed loss of each document: of text, and of special tokens
        text_losses, special_losses = self._losses.compute(model).reshape(2, -1)
        figures: dict[str, float] = {}
        for group, members in self._groups.items():
            # Of each document, all tokens but the first are labels.
            num_labels = sum(max(0, self._locations[d].num_tokens - 1) for d in members)
            if num_labels:
                loss = float((text_losses + special_losses)[members].sum()) / num_labels
                bits = float(text_losses[members].sum()) / math.log(2)
                num_bytes = int(self._num_bytes[members].sum())
                figures |= _name_figures(group, loss, num_labels, bits, num_bytes)
        return figures

    def _read_piece(self, number: int) -> Piece:
        """Read a window, and count its bytes of text."""
        window = self._windows[number]
        tokens = read_window(self._reader, self._locations[window.document], window)
        labels = tokens[1:]
        if self._token_bytes is not None:
            self._num_bytes[window.document] += self._token_bytes[labels].sum()
        # The sums of text come before those of special tokens.
        return Piece(
            tokens, window.document + len(self._locations) * self._is_special[labels]
        )


def _name_figures(
    group: tuple[str, ...], loss: float, num_labels: int, bits: float, num_bytes: int
) -> dict[str, float]:
    """Return the figures of a group of documents under their names."""
    values: dict[str, float] = {"loss": loss}
    if num_bytes:
        values["bits_per_byte"] = bits / num_bytes
    if len(group) < len(GROUP_FIELDS):
        # Beyond 709 exp overflows a float.
        values |= {"perplexity": math.exp(min(loss, 700.0)), "tokens": num_labels}
        if num_bytes:
            values["bytes"] = num_bytes
    return {"/".join(["validation", name, *group]): value for name, value in values.items()}


def _describe_tokens(
    config: TrainConfig, reader: Dataset
) -> tuple[Ints | None, NDArray[np.int64]]:
    """Return (V,) the bytes of each token, if a tokenizer is given, and (V,) 1 for special ones."""
    entry = reader.manifest.tokenizer
    is_special = np.zeros(entry.vocab_size, np.int64)
    is_special[[entry.end_of_document, *entry.special_ids.values()]] = 1
    if config.data.tokenizer is None:
        return None, is_special
    tokenizer = open_tokenizer(config.data.tokenizer).tokenizer
    token_bytes = count_token_bytes(tokenizer, entry.vocab_size)
    return np.where(is_special, 0, token_bytes), is_special


def _open_reader(config: TrainConfig, manifest: str) -> Dataset:
    """Open the held-out dataset; refuse another tokenizer than that of the training data."""
    settings = ReadSettings()
    columns = read_manifest_columns(manifest, settings)
    what = f"validation.manifest {manifest} ({columns.tokenizer.name!r})"
    check_tokenizer(config.data, columns.tokenizer.sha256, what)
    # seq_len=1, because only whole samples are read here, never rows.
    return Dataset(columns, settings=settings)
