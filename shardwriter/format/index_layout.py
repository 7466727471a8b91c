"""Check the arrays of an index against the rules of docs/data-format.md, "Index".

The checksum of an index shows that its bytes are those that were written. Only these checks show
that a reader can use them as positions: a program with a bug, or a forged dataset, can write any
numbers with a correct checksum.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from shardwriter.format.errors import REWRITE, FormatError
from shardwriter.format.index import ShardIndex
from shardwriter.format.members import NPY_HEADER_BYTES, TAR_BLOCK_BYTES

# Before the raw tokens of a sample there are at least their tar header and .npy header.
_HEADER_BYTES = TAR_BLOCK_BYTES + NPY_HEADER_BYTES

# Raw tokens start at a multiple of this: tar blocks and .npy headers have such sizes.
_ALIGNMENT = 128


def check_layout(index: ShardIndex, where: str) -> None:
    """Raise FormatError for the first rule of the format that the arrays break."""
    # Offsets are checked with differences of starts, so the starts come first.
    for fault in find_start_faults(index, where) or find_offset_faults(index, where):
        raise fault


def find_start_faults(index: ShardIndex, where: str) -> list[FormatError]:
    """Check that starts rise strictly from 0, and that every sample starts with a document."""
    faults: list[FormatError] = []
    for name, starts in (
        ("sample_starts", index.sample_starts),
        ("doc_starts", index.doc_starts),
    ):
        first_fault = _find_first_fall(starts)
        if first_fault is not None:
            place, found = f"{where}: {name}[{first_fault}]", f"{starts[first_fault]}"
            wanted = "0 first, then rising numbers"
            faults.append(FormatError(place, found, wanted, REWRITE))
    # Sorted also if they are damaged. A sort of sorted numbers takes little time.
    doc_starts = np.sort(index.doc_starts, kind="stable")
    places = np.searchsorted(doc_starts, index.sample_starts)
    found_starts = doc_starts[np.minimum(places, len(doc_starts) - 1)]
    inside_document = np.flatnonzero(found_starts != index.sample_starts)
    if len(inside_document):
        sample = inside_document[0]
        found = f"token {index.sample_starts[sample]}, inside a document"
        place = f"{where}: sample_starts[{sample}]"
        faults.append(FormatError(place, found, "the start of a document", REWRITE))
    return faults


def _find_first_fall(starts: NDArray[np.int64]) -> int | None:
    """Return the index of the first start that does not rise from 0, or None."""
    if starts[0] != 0:
        return 0
    # Compared, not subtracted: differences of arbitrary int64 numbers overflow.
    falls = np.flatnonzero(starts[1:] <= starts[:-1])
    return int(falls[0]) + 1 if len(falls) else None


def find_offset_faults(index: ShardIndex, where: str) -> list[FormatError]:
    """Check that the tokens of the samples are inside the tar, in order, without overlap.

    The index must have no fault of `find_start_faults`.
    """
    token_bytes = index.token_dtype.itemsize
    if index.num_tokens * token_bytes > index.shard_bytes:
        found = f"{index.num_tokens} tokens of {token_bytes} bytes"
        wanted = f"tokens that fit into the {index.shard_bytes} bytes of the tar"
        return [FormatError(f"{where}: num_tokens", found, wanted, REWRITE)]
    offsets = index.sample_offsets
    # (S,) end of each sample's tokens. Offsets beyond the tar can overflow here; they are faults.
    stops = offsets + np.diff(index.sample_starts) * token_bytes
    # (S,) first byte at which the tokens of each sample can start
    earliest = np.concatenate([np.zeros(1, np.int64), stops[:-1]])[: len(offsets)]
    is_in_tar = (offsets <= index.shard_bytes) & (stops <= index.shard_bytes)
    is_in_order = offsets - _HEADER_BYTES >= earliest
    is_right = is_in_tar & is_in_order & (offsets % _ALIGNMENT == 0)
    if is_right.all():
        return []
    sample = int(np.argmin(is_right))
    wanted = (
        f"a multiple of {_ALIGNMENT}, behind the sample before it, "
        f"within the {index.shard_bytes} bytes of the tar"
    )
    place, found = f"{where}: sample_offsets[{sample}]", f"{offsets[sample]}"
    return [FormatError(place, found, wanted, REWRITE)]
