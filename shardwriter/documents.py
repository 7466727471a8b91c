"""The documents of one shard, as columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Documents:
    """The documents of one shard in their final order: D documents with N tokens.

    tokens:         (N,) any integer dtype, or a memory map; the documents end to end
    doc_num_tokens: (D,) integers of at least 1, with the sum N
    doc_ids:        (D,) uint64, all different
    metadata:       D JSON objects, as mappings or as encoded UTF-8, or None; encoded objects are
                    written unchanged

    Raises:
        ValueError: the columns contradict each other.
    """

    tokens: NDArray[np.integer[Any]]
    doc_num_tokens: NDArray[np.integer[Any]]
    doc_ids: NDArray[np.uint64]
    metadata: Sequence[Mapping[str, Any] | bytes] | None = None

    def __post_init__(self) -> None:
        self._check_dtypes()
        self._check_num_entries()
        self._check_num_tokens()
        self._check_doc_ids()

    def _check_dtypes(self) -> None:
        for name, array in (
            ("tokens", self.tokens),
            ("doc_num_tokens", self.doc_num_tokens),
        ):
            if array.ndim != 1 or array.dtype.kind not in "iu":
                raise ValueError(
                    f"documents: {name} is {_describe(array)}, must be a 1-D array of integers"
                )
        if self.doc_ids.ndim != 1 or self.doc_ids.dtype != np.uint64:
            raise ValueError(
                f"documents: doc_ids is {_describe(self.doc_ids)}, must be a 1-D array of uint64"
            )

    def _check_num_entries(self) -> None:
        num_docs = len(self.doc_num_tokens)
        for name in ("doc_ids", "metadata"):
            column = getattr(self, name)
            if column is not None and len(column) != num_docs:
                raise ValueError(
                    f"documents: {name} has {len(column)} entries for {num_docs} documents"
                )

    def _check_num_tokens(self) -> None:
        if len(self.doc_num_tokens) and self.doc_num_tokens.min() < 1:
            doc = int(self.doc_num_tokens.argmin())
            raise ValueError(
                f"documents: document {doc} (doc_id {self.doc_ids[doc]}) has "
                f"{self.doc_num_tokens[doc]} tokens, must have at least its end-of-document token"
            )
        total = int(self.doc_num_tokens.sum(dtype=np.int64))
        if total != len(self.tokens):
            raise ValueError(
                f"documents: doc_num_tokens adds up to {total}, but there are "
                f"{len(self.tokens)} tokens"
            )

    def _check_doc_ids(self) -> None:
        # np.sort, because np.unique is 150 times slower in numpy 2.4.
        ids = np.sort(self.doc_ids)
        repeated = ids[1:][ids[1:] == ids[:-1]]
        if len(repeated):
            raise ValueError(
                f"documents: doc_id {repeated[0]} occurs more than once; give each document once"
            )

    def describe_doc(self, shard: int, doc: int) -> str:
        """Return the place of a document, for error messages."""
        return f"shard {shard}, document {doc} (doc_id {self.doc_ids[doc]})"


def _describe(array: NDArray[Any]) -> str:
    return f"a {array.ndim}-D array of {array.dtype}"
