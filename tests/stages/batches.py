"""Batches of documents for the tests of stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa


def make_batch(
    texts: Sequence[str | None], columns: Mapping[str, Any] | None = None
) -> pa.Table:
    """Return a batch of documents with these texts, numbered from 0, and with further columns."""
    return pa.table(
        {
            "doc_id": pa.array(range(len(texts)), pa.uint64()),
            "text": pa.array(texts, pa.large_string()),
            **(columns or {}),
        }
    )
