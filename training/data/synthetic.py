"""Random rows, for measurements without a dataset."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import torch

from loader.rank_discovery import resolve_rank
from training.config import DataConfig
from training.data.packing import make_document_fields
from training.parallel.distributed import RankContext

DOCUMENT_TOKENS = 1000


class SyntheticRows:
    """An endless iterator of random rows, cut into documents of equal length.

    A row depends only on the seed and its position, so other ranks read the same rows.
    """

    def __init__(
        self,
        data: DataConfig,
        vocab_size: int,
        context: RankContext,
        documents: Collection[str],
    ) -> None:
        """Set up the rows of this rank.

        Args:
            data: lengths and sizes.
            vocab_size: ids of the rows.
            context: this rank.
            documents: fields about documents to add to batches, as those of TokenLoader.
        """
        self._data, self._vocab_size, self._documents = data, vocab_size, documents
        self._rank, self._world_size = resolve_rank(mesh=context.data_mesh)
        self._position = 0
        # (B, T) whether a token begins a document
        marks = np.zeros((data.micro_batch_rows, data.seq_len), np.bool_)
        marks[:, ::DOCUMENT_TOKENS] = True
        self._marks = marks

    def __next__(self) -> dict[str, Any]:
        """Return the next micro-batch of this rank, as TokenLoader does."""
        data = self._data
        first = self._position + self._rank * data.micro_batch_rows
        rng = np.random.default_rng((data.seed, first))
        shape = data.micro_batch_rows, data.seq_len + 1
        tokens = torch.from_numpy(rng.integers(self._vocab_size, size=shape))
        self._position += self._world_size * data.micro_batch_rows
        return {
            "input_ids": tokens[:, :-1].contiguous(),
            "labels": tokens[:, 1:].contiguous(),
            **make_document_fields(self._marks, self._documents),
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the position after the last batch."""
        return {"position": self._position, "seq_len": self._data.seq_len}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue after the batch at which the state was taken."""
        self._position = state_dict["position"]

    def stats(self) -> dict[str, Any]:
        """Return no counters."""
        return {}
