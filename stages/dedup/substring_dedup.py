r"""Windows of words, and the removal of spans of words that an earlier document has.

The phases substring_hashes and substring_dedup find the spans. Here texts are cut:

    offsets, hashes = hash_windows(pa.array(["a b c d"]), 3)     # [0, 2] and hashes of two windows
    cut_spans(batch)                                              # "b c" of "a b c d" cut: "a d"

Words are those of near-duplicate n-grams (stages/dedup/minhash.py), so spans that differ in case, accents,
punctuation or white space are equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import ClassVar, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from stages.contract import Outcome, Settings, Stage, chain, drop_where, keep_all
from stages.counters import Counters
from stages.dedup.minhash import get_characters
from stages.kernels.dedup import word_windows as kernel
from stages.string_buffers import make_read_only, read_string_buffers

SPANS = pa.field("repeated_spans", pa.list_(pa.uint32()))
# Whether a document with a repeated span is dropped.
DROP = pa.field("drop_repeated", pa.bool_())
LINES = pa.field("duplicate_lines", pa.list_(pa.uint32()))


def hash_windows(
    texts: pa.Array | pa.ChunkedArray, num_words: int
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    """Compute the hashes of all windows of `num_words` words of every text.

    Two unequal windows have equal hashes with a probability of 2^-122, so n windows have about
    n^2 / 2^123 such pairs: 10^-11 among 10^13 windows. Texts made on purpose can have more.

    Args:
        texts: (n,) string or large_string; a null counts as empty.
        num_words: words per window. A shorter text has no window.

    Returns:
        offsets: (n + 1,) the start of each text in `hashes`.
        hashes: (2, offsets[n]) two hashes of 64 bits of each window.
    """
    if len(texts) == 0:
        return np.zeros(1, np.int64), np.empty((2, 0), np.uint64)
    buffers = read_string_buffers(texts)
    return kernel.hash_windows(*buffers, get_characters(), num_words)


def find_words(text: str) -> list[str]:
    """Return the words of a text as they are written, with their punctuation."""
    utf8, offsets = read_string_buffers(pa.array([text], pa.large_string()))
    bounds = kernel.find_words(utf8, offsets, get_characters())
    return [utf8[start:end].tobytes().decode() for start, end in bounds]


class CutTexts(NamedTuple):
    """Texts without their repeated spans.

    Attributes:
        texts: (n,) large_string, with as many lines as before.
        num_words: (n,) the words that were cut.
        emptied: text << 32 | line of the lines that have only blanks left, sorted.
    """

    texts: pa.Array
    num_words: NDArray[np.int64]
    emptied: NDArray[np.uint64]


def cut_spans(texts: pa.Array, spans: pa.Array) -> CutTexts:
    """Cut spans of words out of texts.

    Args:
        texts: (n,) large_string.
        spans: (n,) lists of first word and end of each span: [4, 60, 90, 150]. They increase.

    Raises:
        ValueError: the spans do not increase, or are beyond the words of their text.
    """
    utf8, offsets = read_string_buffers(texts)
    sizes = pc.fill_null(pc.list_value_length(spans), 0).to_numpy()
    starts = np.append(0, np.cumsum(sizes)).astype(np.int64)
    values = make_read_only(pc.list_flatten(spans).to_numpy().astype(np.uint32))
    new_utf8, new_offsets, num_words, emptied, fault = kernel.cut_words(
        utf8, offsets, get_characters(), values, starts
    )
    if fault >= 0:
        raise ValueError(
            f"text {fault}: repeated_spans is {spans[fault].as_py()}, must be increasing places of "
            "words in it; were they made for another text?"
        )
    buffers = (pa.py_buffer(new_offsets), pa.py_buffer(new_utf8))
    new_texts = pa.LargeStringArray.from_buffers(len(texts), *buffers)
    return CutTexts(new_texts, num_words, emptied)


class RepeatedSpans(Stage[Settings]):
    """Cuts `repeated_spans` out of texts; drops documents with spans where `drop_repeated` is true.

    `repeated_spans` holds first word and end of each span. Lines with only blanks left are added to
    `duplicate_lines`, and so are removed with those.
    """

    name = "substring_dedup"
    version = 2
    needs: ClassVar[pa.Schema] = pa.schema(
        [pa.field("text", pa.large_string()), SPANS, DROP, LINES]
    )
    adds: ClassVar[pa.Schema] = pa.schema(
        [
            pa.field("text", pa.large_string()),
            LINES,
            pa.field("repeated_words", pa.int64()),  # cut out of the text
        ]
    )
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "substring_dedup.repeated_span": "A span of words of the document occurs in an earlier "
            "document; the value is the number of repeated words, and `explain` names the spans."
        }
    )
    counters: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "repeated_words": "Words cut because an earlier document has them",
            "repeated_chars": "Characters cut with them",
        }
    )

    def apply(self, batch: pa.Table) -> Outcome:
        """Drop documents, and cut the spans out of the others."""
        num_words = _count_words(batch.column(SPANS.name).combine_chunks())
        is_dropped = pc.and_(batch.column(DROP.name), pa.array(num_words > 0))
        dropped = drop_where(
            batch,
            is_dropped,
            "substring_dedup.repeated_span",
            value=pa.array(num_words),
            limit=0,
        )
        return chain(dropped, _cut(dropped.kept))


def _cut(batch: pa.Table) -> Outcome:
    """Cut the spans out of all texts."""
    texts = batch.column("text").combine_chunks()
    cut = cut_spans(texts, batch.column(SPANS.name).combine_chunks())
    lines = batch.column(LINES.name).combine_chunks()
    added = {
        "text": cut.texts,
        LINES.name: _add_lines(lines, cut.emptied),
        "repeated_words": pa.array(cut.num_words),
    }
    num_before = pc.sum(pc.utf8_length(texts)).as_py() or 0
    num_left = pc.sum(pc.utf8_length(cut.texts)).as_py() or 0
    counters = Counters()
    counters.add("repeated_words", int(cut.num_words.sum()))
    counters.add("repeated_chars", num_before - num_left)
    return keep_all(batch, added, counters)


def _count_words(spans: pa.ListArray) -> NDArray[np.int64]:
    """Return the number of words in the spans of each document."""
    values = pc.list_flatten(spans).to_numpy().astype(np.int64)
    documents = pc.list_parent_indices(spans).to_numpy()[::2]
    num_words = np.zeros(len(spans), np.int64)
    np.add.at(num_words, documents, values[1::2] - values[::2])
    return num_words


def _add_lines(lines: pa.ListArray, more: NDArray[np.uint64]) -> pa.ListArray:
    """Return the lists with further line numbers, given as row << 32 | line."""
    rows = pc.list_parent_indices(lines).to_numpy().astype(np.uint64)
    numbers = pc.list_flatten(lines).to_numpy().astype(np.uint64)
    every = np.union1d(rows << np.uint64(32) | numbers, more)
    ends = np.arange(len(lines) + 1, dtype=np.uint64) << np.uint64(32)
    offsets = np.searchsorted(every, ends).astype(np.int32)
    values = pa.array(every.astype(np.uint32))
    return pa.ListArray.from_arrays(pa.array(offsets), values)
