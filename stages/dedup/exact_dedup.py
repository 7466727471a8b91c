"""Exact copies of documents: numbers that are equal where content is, and the filter that drops all but the first.

Promises: two documents have the same number by text if and only if their lines have the same hashes in the same order
(stages/dedup/paragraphs.py: CCNet's normal form, so case, digits and some punctuation do not count), and by digest if the
record's own digests are equal; but for collisions of 64 bits, of which a billion documents have 0.03.
Leaves to others: bringing equal numbers together over the whole crawl (pipeline/phases/exact_dedup.py).

    text_hashes(hashes, records, lines, num_records=2)      # (2,) uint64, from what extract has stored
    digest_hashes(pa.array(["sha1:AAAA", None]))            # the same from digests, and which documents have one
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.contract import Outcome, Settings, Stage, chain, drop_where


def text_hashes(
    hashes: NDArray[np.uint64],
    records: NDArray[np.uint32],
    lines: NDArray[np.uint32],
    num_records: int,
) -> NDArray[np.uint64]:
    """The number of every document's text.

    Args:
        hashes: (n,) of lines, in any order.
        records: (n,) the document of each line, under `num_records`.
        lines: (n,) its place in the document.
        num_records: how many documents there may be.

    Returns:
        (num_records,), 0 for a document without lines.
    """
    numbers = np.zeros(num_records, np.uint64)
    # A sum takes its terms in any order; the place is mixed in, so that texts of other order differ.
    np.add.at(numbers, records, _mixed(hashes ^ _mixed(lines.astype(np.uint64))))
    return _mixed(numbers)


def digest_hashes(
    digests: pa.Array | pa.ChunkedArray,
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """The number of every digest, (n,), and which there are, (n,)."""
    found = digests.to_pylist()
    numbers = [
        int.from_bytes(hashlib.sha1(d.encode(), usedforsecurity=False).digest()[:8]) if d else 0
        for d in found
    ]
    return np.array(numbers, np.uint64), np.array([bool(d) for d in found], np.bool_)


def _mixed(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser (Steele, Lea and Flood 2014, figure 17), a bijection that leaves 0 as it is."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


class ExactDedupFilterSettings(Settings):
    """Nothing to set: who has to go was decided by the phase `copies`."""


class ExactDedupFilter(Stage[ExactDedupFilterSettings]):
    """Drops the documents of which an earlier one is a copy: `copy_by` says in what, null that there is none."""

    name = "exact_dedup"
    version = 1
    needs: ClassVar[pa.Schema] = pa.schema([pa.field("copy_by", pa.string())])
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "exact_dedup.same_digest": "An earlier record has the same digest; `explain` names it.",
            "exact_dedup.same_text": "An earlier document has the same lines, in CCNet's normal form; `explain` names it.",
        }
    )

    def apply(self, batch: pa.Table) -> Outcome:
        """Keep the documents without an earlier copy."""
        outcome = drop_where(batch, _is(batch, "digest"), "exact_dedup.same_digest")
        return chain(
            outcome, drop_where(outcome.kept, _is(outcome.kept, "text"), "exact_dedup.same_text")
        )


def _is(batch: pa.Table, by: str) -> pa.ChunkedArray:
    return pc.fill_null(pc.equal(batch.column("copy_by"), by), False)
