"""Token batches for entrants without a loader, drawn as those of the dataset are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

NUM_BATCHES = 4


def draw_token_batches(spec: Mapping[str, Any]) -> Tensor:
    """Return (NUM_BATCHES, B, T + 1) int64 ids by Zipf's law; the last column is only a label."""
    shape = (NUM_BATCHES, spec["micro_batch_rows"], spec["seq_len"] + 1)
    drawn = np.random.default_rng(2).zipf(1.2, shape)
    return torch.from_numpy(np.minimum(drawn, spec["vocab_size"] - 1).astype(np.int64))
