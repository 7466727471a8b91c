r"""CCNet's paragraph deduplication: hash every line, find duplicate lines, remove them from texts.

The three steps, where "Cookies?" occurs on two pages:

    texts = pa.array(["Bread\nCookies?", "Cookies?\nWine\nWine"])
    offsets, hashes = hash_paragraphs(texts)                # [0, 2, 5] and five hashes
    documents = np.repeat([0, 1], np.diff(offsets))
    find_duplicates(hashes, documents, keep="drop_all_copies")    # [False, True, True, False, True]

`ParagraphRemoval` then removes lines [1] and [0, 2], which leaves "Bread" and "Wine".
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.contract import Outcome, Settings, Stage, drop_where, keep_all, with_columns
from stages.dedup.paragraph_hashes import hash_paragraphs, read_validity
from stages.kernels import line_hashes
from stages.kernels.compilation import compiled
from stages.kernels.line_cleaning import find_line_end
from stages.string_buffers import make_read_only, read_string_buffers


class ParagraphHashes(Stage[Settings]):
    """Adds the hash of every line, and the length of the text before removal. Drops nothing."""

    name = "paragraphs"
    version = 2
    needs: ClassVar[pa.Schema] = pa.schema([pa.field("text", pa.large_string())])
    adds: ClassVar[pa.Schema] = pa.schema(
        [
            pa.field("original_num_chars", pa.int64()),  # code points
            pa.field("original_num_lines", pa.int64()),
            pa.field("paragraph_hashes", pa.large_list(pa.uint64())),  # one per line
        ]
    )

    def apply(self, batch: pa.Table) -> Outcome:
        """Add hashes and lengths."""
        texts = batch.column("text")
        offsets, hashes = hash_paragraphs(texts)
        hash_lists = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(hashes))
        added = {
            "original_num_chars": _count_chars(texts),
            "original_num_lines": pa.array(np.diff(offsets)),
            "paragraph_hashes": hash_lists,
        }
        return keep_all(batch, added)


def _count_chars(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return pc.cast(pc.fill_null(pc.utf8_length(texts), 0), pa.int64())


class ParagraphRemoval(Stage[Settings]):
    """Removes `duplicate_lines` from texts, and drops documents without text after that.

    `duplicate_lines` contains increasing indices of lines; null or empty removes nothing. The column
    itself is removed. A document with only white space left counts as empty, because CCNet's rule
    can keep a blank line: all blank lines have the same hash, which one document alone can have.

    Raises:
        ValueError: an index is beyond the lines of its text, or the indices do not increase.
    """

    name = "paragraphs"
    version = 1
    needs: ClassVar[pa.Schema] = pa.schema(
        [
            pa.field("text", pa.large_string()),
            pa.field("duplicate_lines", pa.list_(pa.uint32())),
        ]
    )
    adds: ClassVar[pa.Schema] = pa.schema(
        [
            pa.field("num_chars", pa.int64()),  # code points
            pa.field("num_lines", pa.int64()),
            # indices into the lines before removal
            pa.field("kept_lines", pa.list_(pa.uint32())),
        ]
    )
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "paragraphs.none_left": "No line with text is left after removal of duplicate lines; the "
            "value is the number of lines before."
        }
    )

    def apply(self, batch: pa.Table) -> Outcome:
        """Replace the text, add the columns, drop documents without text."""
        texts, kept_lines, num_lines_before = _remove_lines(batch)
        shorter = with_columns(
            batch.drop_columns("duplicate_lines"),
            {
                "text": texts,
                "num_chars": _count_chars(texts),
                "num_lines": pc.cast(pc.list_value_length(kept_lines), pa.int64()),
                "kept_lines": kept_lines,
            },
        )
        # utf8_is_space equals str.isspace for every character, and is False for the empty string.
        has_no_text = pc.or_(pc.utf8_is_space(texts), pc.equal(pc.binary_length(texts), 0))
        return drop_where(
            shorter,
            has_no_text,
            "paragraphs.none_left",
            value=pa.array(num_lines_before),
            limit=0,
        )


def _remove_lines(batch: pa.Table) -> tuple[pa.Array, pa.Array, NDArray[np.int64]]:
    """Return new texts (large_string), kept lines (list of uint32), and number of lines before."""
    texts = batch.column("text").combine_chunks()
    utf8, offsets = read_string_buffers(texts)
    # A null list can have any offsets, so its end is computed from its length, 0.
    removed = batch.column("duplicate_lines").combine_chunks().cast(pa.list_(pa.uint32()))
    starts = removed.offsets.to_numpy()[:-1].astype(np.int64)
    ends = starts + pc.fill_null(pc.list_value_length(removed), 0).to_numpy()
    firsts = line_hashes.count_lines(utf8, offsets, read_validity(texts))
    new_utf8, new_offsets, kept, kept_offsets, fault = _copy_kept_lines(
        utf8,
        offsets,
        firsts,
        make_read_only(removed.values.to_numpy()),
        make_read_only(starts),
        make_read_only(ends),
    )
    if fault >= 0:
        doc_id = batch.column("doc_id")[fault]
        num_lines = firsts[fault + 1] - firsts[fault]
        raise ValueError(
            f"document {doc_id}: duplicate_lines is {removed[fault].as_py()}, must be increasing "
            f"indices into the {num_lines} lines of its text; were they made for another text?"
        )
    new_texts = pa.LargeStringArray.from_buffers(
        len(new_offsets) - 1, pa.py_buffer(new_offsets), pa.py_buffer(new_utf8)
    )
    kept_lines = pa.ListArray.from_arrays(
        pa.array(kept_offsets, pa.int32()), pa.array(kept)
    )
    return new_texts, kept_lines, np.diff(firsts)


@compiled
def _copy_kept_lines(
    utf8: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    firsts: NDArray[np.int64],
    removed: NDArray[np.uint32],
    removed_starts: NDArray[np.int64],
    removed_ends: NDArray[np.int64],
) -> tuple[
    NDArray[np.uint8], NDArray[np.int64], NDArray[np.uint32], NDArray[np.int64], int
]:
    """Copy the lines that are not removed.

    `firsts` (n + 1,) is the number of lines before each text. The indices of text t to remove are
    `removed[removed_starts[t] : removed_ends[t]]`.

    Returns the new texts (bytes, offsets), the indices of the kept lines (values, offsets), and the
    first text whose indices are wrong, or -1.
    """
    new_utf8 = np.empty(offsets[-1] - offsets[0], np.uint8)  # no text grows
    kept = np.empty(firsts[-1], np.uint32)
    new_offsets, kept_offsets = np.zeros_like(firsts), np.zeros_like(firsts)
    num_bytes, num_kept = 0, 0
    for t in range(len(firsts) - 1):
        start, r = offsets[t], removed_starts[t]
        for line in range(firsts[t + 1] - firsts[t]):
            end = find_line_end(utf8, start, offsets[t + 1])
            if r < removed_ends[t] and removed[r] == line:
                r += 1
            else:
                if num_kept > kept_offsets[t]:
                    new_utf8[num_bytes] = 10  # between two kept lines of a text
                    num_bytes += 1
                new_utf8[num_bytes : num_bytes + end - start] = utf8[start:end]
                num_bytes += end - start
                kept[num_kept] = line
                num_kept += 1
            start = end + 1
        # An index that was never reached is too large, or not above the one before.
        if r < removed_ends[t]:
            return new_utf8, new_offsets, kept, kept_offsets, t
        new_offsets[t + 1], kept_offsets[t + 1] = num_bytes, num_kept
    return new_utf8[:num_bytes], new_offsets, kept[:num_kept], kept_offsets, -1
