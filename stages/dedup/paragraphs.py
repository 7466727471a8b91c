r"""CCNet's paragraph deduplication, bit for bit: hash every line, find the repeated ones, take them out.

Promises: the hashes are those of `cc_net` (Wenzek et al. 2020, arXiv:1911.00359, section 3.1; the rule as its code has
it, `text_normalizer.normalize_for_dedup` and `dedup.compute_hashes`, which keep accents and ASCII punctuation where the
paper says that they go), at machine speed; `hash_paragraph` is that rule in plain Python and the judge of the rest.
Leaves to others: carrying hashes from documents to one place per hash range and the verdicts back, and the memory for
it: `duplicated` judges what it is given, all of a hash range at a time.

The work in three steps, where "Cookies?" stands on two pages:

    texts = pa.array(["Bread\nCookies?", "Cookies?\nWine\nWine"])
    offsets, hashes = hash_paragraphs(texts)                # [0, 2, 5] and five numbers
    documents = np.repeat([0, 1], np.diff(offsets))
    duplicated(hashes, documents, keep="drop_all_copies")              # [False, True, True, False, True]

and `ParagraphRemoval` makes "Bread" and "Wine" of the two texts, given the lines [1] and [0, 2].
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import ClassVar, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numba import njit
from numpy.typing import NDArray

from stages.contract import Outcome, Settings, Stage, drop_where, keep_all, with_columns
from stages.kernels import characters, line_hashes
from stages.kernels.compilation import compiled

_PUNCTUATION = "«´»–—’“”„…∶━►、。〈〉《》「」【】！％（），．１：；？～"
"""What `cc_net.text_normalizer.UNICODE_PUNCT` deletes, by code point (its １ is 0 before this is asked)."""
_DELETED = re.compile(f"[{_PUNCTUATION}\x00-\x1f\x7f-\x9f]")
_DIGIT = re.compile(r"\d")
_FINAL_SIGMA = "Σ"
"""The only character whose lower case depends on its neighbours (Unicode, SpecialCasing; str.lower in CPython)."""

_MAX_HASHES = (
    2**32 - 2
)  # row and document ranks are 32 bits wide, and two ranks mean something else
_HASHES_PER_PARTITION = (
    2**15
)  # with its table about 0.8 MB, which stays in the second-level cache of one core


def hash_paragraph(line: str) -> int:
    """The hash of one line: the rule in plain Python.

    Strip white space, lower-case, every decimal digit (Unicode Nd) to 0, delete 34 marks of punctuation and the control
    characters 0-31 and 127-159; of the SHA-1 of the UTF-8, the first 8 bytes as a little-endian uint64.
    """
    return int.from_bytes(
        hashlib.sha1(_normal_form(line).encode(), usedforsecurity=False).digest()[:8], "little"
    )


def _normal_form(line: str) -> str:
    return _DELETED.sub("", _DIGIT.sub("0", line.strip().lower()))


def hash_paragraphs(
    texts: pa.Array | pa.ChunkedArray,
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    r"""The hash of every line of every text.

    Args:
        texts: (n,) string or large_string. Lines are split at \n only; an empty text has one, empty line, a null none.

    Returns:
        offsets: (n + 1,) int64, where the lines of each text start in `hashes`.
        hashes: (offsets[n],) uint64, as `hash_paragraph` gives them.

    Raises:
        ValueError: a text is not UTF-8.
    """
    chunks = texts.chunks if isinstance(texts, pa.ChunkedArray) else [texts]
    offsets, hashes, num_lines = [np.zeros(1, np.int64)], [np.empty(0, np.uint64)], 0
    for chunk in chunks:
        firsts, chunk_hashes = _hash_chunk(chunk)
        offsets.append(firsts[1:] + num_lines)
        hashes.append(chunk_hashes)
        num_lines += len(chunk_hashes)
    return np.concatenate(offsets), np.concatenate(hashes)


def _hash_chunk(texts: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    utf8, offsets, is_valid = _raw(texts)
    firsts = line_hashes.count_lines(utf8, offsets, is_valid)
    hashes, exact = line_hashes.hash_lines(utf8, offsets, firsts, _characters())
    for line, start, end in exact:
        try:
            hashes[line] = hash_paragraph(utf8[start:end].tobytes().decode())
        except UnicodeDecodeError as error:
            text = int(np.searchsorted(firsts, line, "right")) - 1
            raise ValueError(
                f"text {text}, line {line - firsts[text]}: not UTF-8 at byte {error.start} of the line "
                f"({error.reason}); decode what comes from outside with errors='replace'"
            ) from error
    return firsts, hashes


def _raw(texts: pa.Array) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.bool_]]:
    """The bytes of all texts, where each starts in them, (n + 1,), and which are not null, (n,)."""
    texts = texts.cast(pa.large_string())
    _, offsets, utf8 = texts.buffers()
    no_text = np.zeros(1, np.int64)  # an array of length 0 may come without buffers
    text_offsets = (
        np.frombuffer(offsets, np.int64, len(texts) + 1, 8 * texts.offset)
        if len(texts)
        else no_text
    )
    return (
        _read_only(np.frombuffer(utf8 or b"", np.uint8)),
        _read_only(text_offsets),
        _read_only(texts.is_valid().to_numpy(zero_copy_only=False)),
    )


def _read_only(values: np.ndarray) -> np.ndarray:
    """A read-only, contiguous view: numba compiles anew for every kind of array, so there is one kind."""
    view = np.ascontiguousarray(values).view()
    view.flags.writeable = False
    return view


@cache
def _characters() -> characters.CharacterTable:
    """The rule of `hash_paragraph` per character, asked of this Python's own Unicode (0.1 s, 60 kB)."""
    return characters.build_character_table(
        _action, lambda text: text.split() == [text] and _normal_form(text) == text
    )


def _action(character: str) -> int:
    if character == _FINAL_SIGMA:
        return characters.EXACT
    becomes = _DELETED.sub("", _DIGIT.sub("0", character.lower()))
    if character.isspace():
        return characters.KEEP_SPACE if becomes else characters.DELETE_SPACE
    if not becomes:
        return characters.DELETE
    return characters.KEEP if becomes == character else characters.pack_replacement(becomes)


def duplicated(
    hashes: NDArray[np.uint64],
    documents: NDArray[np.uint32] | NDArray[np.uint64],
    keep: Literal["drop_all_copies", "keep_first"],
) -> NDArray[np.bool_]:
    """Which paragraphs must go.

    `keep="drop_all_copies"` is CCNet's rule: a hash that occurs in two or more documents loses every copy; of one that occurs in a
    single document the first copy stays (`cc_net.dedup.DuplicatesRemover`, `finalize_doc`). `keep="keep_first"`: the first
    copy of all stays. The hash 0 always goes: it is CCNet's mark of a line that was removed before.

    Memory: 17 bytes per hash, the answer counted, and a table of 12 bytes x 4/3 to 8/3 for each hash of the largest
    partition: under 2 MB as a rule, 32 bytes more per hash where nearly all paragraphs are the same one.

    Args:
        hashes: (n,) in the order of the input, n under 2**32 - 2.
        documents: (n,) the document of each, never decreasing.
        keep: which copy survives.

    Returns:
        (n,) True where the paragraph must go.

    Raises:
        ValueError: lengths differ, `documents` decreases, `keep` is unknown, or there are too many hashes.
    """
    if keep not in ("drop_all_copies", "keep_first"):
        raise ValueError(
            f"keep is {keep!r}, must be 'drop_all_copies' (CCNet's rule) or 'keep_first'"
        )
    if len(hashes) != len(documents):
        raise ValueError(
            f"{len(hashes)} hashes for {len(documents)} documents: there must be one document per hash"
        )
    if len(hashes) >= _MAX_HASHES:
        raise ValueError(
            f"{len(hashes)} hashes, must be under {_MAX_HASHES}: cut the hashes into more partitions"
        )
    bits = max(1, (len(hashes) // _HASHES_PER_PARTITION).bit_length())
    hashes, documents = _read_only(hashes), _read_only(documents)
    records, starts, decrease = _partition(hashes, documents, bits)
    if decrease:
        raise ValueError(
            f"documents[{decrease}] is {documents[decrease]} after {documents[decrease - 1]}: the hashes must come in "
            f"the order of the input, or the wrong copy survives; sort them by document"
        )
    must_go = np.ones(len(hashes), np.bool_)
    (_mark_later if keep == "keep_first" else _mark_shared)(records, starts, bits, must_go)
    return must_go


_MIX = np.uint64(
    0x9E3779B97F4A7C15
)  # 2**64 / golden ratio: Knuth, The Art of Computer Programming 3, section 6.4
_MANY = np.uint32(2**32 - 1)  # in place of a rank: the hash is in two or more documents
_KEPT = np.uint32(2**32 - 2)  # in place of a rank: the one copy that stays has passed


@compiled
def _partition(
    hashes: NDArray[np.uint64], documents: NDArray[np.uint32] | NDArray[np.uint64], bits: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64], int]:
    """Group hashes that may be equal, so that each group's table fits in a cache; 0 is left out.

    The group is the top of the hash *times a constant*: all hashes of one call may share their own top bits.

    Returns:
        records: (m, 2) hash, and rank of its document << 32 | its row, in input order within each partition.
        starts: (2**bits + 1,) where each partition starts.
        decrease: the first row whose document is below the one before; 0 where there is none.
    """
    shift = np.uint64(64 - bits)
    starts = np.zeros(2**bits + 1, np.int64)
    for h in hashes:
        starts[np.int64(h * _MIX >> shift) + 1] += h != 0
    starts = np.cumsum(starts)
    records = np.empty((starts[-1], 2), np.uint64)
    ends = starts[:-1].copy()
    rank = 0
    for row in range(len(hashes)):
        if row > 0 and documents[row] != documents[row - 1]:
            if documents[row] < documents[row - 1]:
                return records, starts, row
            rank += 1
        h = hashes[row]
        if h != 0:
            p = np.int64(h * _MIX >> shift)
            records[ends[p], 0] = h
            records[ends[p], 1] = np.uint64(rank) << np.uint64(32) | np.uint64(row)
            ends[p] += 1
    return records, starts, 0


@njit(nogil=True)
def _num_slots(num_hashes: int) -> int:
    """A power of two that `num_hashes` fill to between 3/8 and 3/4."""
    num_slots = 2
    while 3 * num_slots < 4 * num_hashes:
        num_slots *= 2
    return num_slots


@njit(nogil=True)
def _slot(keys: NDArray[np.uint64], h: np.uint64, bits: int) -> np.int64:
    """Where `h` is, or is to be put (linear probing; 0 is free): the bits of the product below the partition's."""
    last = len(keys) - 1
    slot = np.int64(h * _MIX << np.uint64(bits) >> np.uint64(32)) & last
    while keys[slot] != 0 and keys[slot] != h:
        slot = (slot + 1) & last
    return slot


@compiled
def _mark_later(
    records: NDArray[np.uint64], starts: NDArray[np.int64], bits: int, must_go: NDArray[np.bool_]
) -> None:
    """keep="keep_first": write False where a hash occurs for the first time."""
    table = np.empty(_num_slots(np.diff(starts).max()), np.uint64)
    for p in range(len(starts) - 1):
        keys = table[: _num_slots(starts[p + 1] - starts[p])]
        keys[:] = 0
        for k in range(starts[p], starts[p + 1]):
            slot = _slot(keys, records[k, 0], bits)
            if keys[slot] == 0:
                keys[slot] = records[k, 0]
                must_go[np.int64(records[k, 1] & np.uint64(0xFFFFFFFF))] = False


@compiled
def _mark_shared(
    records: NDArray[np.uint64], starts: NDArray[np.int64], bits: int, must_go: NDArray[np.bool_]
) -> None:
    """keep="drop_all_copies": write False where a hash that only one document has occurs for the first time."""
    largest = _num_slots(np.diff(starts).max())
    table, table_ranks = np.empty(largest, np.uint64), np.empty(largest, np.uint32)
    for p in range(len(starts) - 1):
        num_slots = _num_slots(starts[p + 1] - starts[p])
        keys, ranks = table[:num_slots], table_ranks[:num_slots]
        keys[:] = 0
        for k in range(starts[p], starts[p + 1]):
            slot, rank = _slot(keys, records[k, 0], bits), np.uint32(records[k, 1] >> np.uint64(32))
            if keys[slot] == 0:
                keys[slot], ranks[slot] = records[k, 0], rank
            elif ranks[slot] != rank:
                ranks[slot] = _MANY
            records[k, 0] = slot  # spares the second look the search
        for k in range(starts[p], starts[p + 1]):
            slot = np.int64(records[k, 0])
            if ranks[slot] < _KEPT:
                ranks[slot] = _KEPT
                must_go[np.int64(records[k, 1] & np.uint64(0xFFFFFFFF))] = False


class ParagraphHashesSettings(Settings):
    """Nothing to set: the rule is CCNet's."""


class ParagraphHashes(Stage[ParagraphHashesSettings]):
    """Add the hash of every line, and how long the text was before any line is removed. Drops nothing."""

    name = "paragraphs"
    version = 1
    needs: ClassVar[pa.Schema] = pa.schema([pa.field("text", pa.large_string())])
    adds: ClassVar[pa.Schema] = pa.schema(
        [
            pa.field("original_num_chars", pa.int64()),  # code points
            pa.field("original_num_lines", pa.int64()),
            pa.field("paragraph_hashes", pa.large_list(pa.uint64())),  # one per line
        ]
    )

    def apply(self, batch: pa.Table) -> Outcome:
        """Annotate: see the class."""
        offsets, hashes = hash_paragraphs(batch.column("text"))
        return keep_all(
            batch,
            {
                "original_num_chars": _num_chars(batch.column("text")),
                "original_num_lines": pa.array(np.diff(offsets)),
                "paragraph_hashes": pa.LargeListArray.from_arrays(
                    pa.array(offsets), pa.array(hashes)
                ),
            },
        )


def _num_chars(texts: pa.Array | pa.ChunkedArray) -> pa.Array | pa.ChunkedArray:
    return pc.cast(pc.fill_null(pc.utf8_length(texts), 0), pa.int64())


class ParagraphRemovalSettings(Settings):
    """Nothing to set: which lines go was decided by `duplicated`."""


class ParagraphRemoval(Stage[ParagraphRemovalSettings]):
    """Take the lines named in `duplicate_lines` out of the text, and drop what then has no text.

    `duplicate_lines` holds indices of lines, rising; null or empty takes nothing out. It is not in what comes out.
    A document with nothing but white space left counts as empty: CCNet keeps the first blank line of a document whose
    blank lines occur nowhere else, and such a document is no text either.

    Raises:
        ValueError: an index is beyond the lines of its text, or the indices do not rise.
    """

    name = "paragraphs"
    version = 1
    needs: ClassVar[pa.Schema] = pa.schema(
        [pa.field("text", pa.large_string()), pa.field("duplicate_lines", pa.list_(pa.uint32()))]
    )
    adds: ClassVar[pa.Schema] = pa.schema(
        [
            pa.field("num_chars", pa.int64()),  # code points
            pa.field("num_lines", pa.int64()),
            pa.field("kept_lines", pa.list_(pa.uint32())),  # indices into the lines before removal
        ]
    )
    reasons: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "paragraphs.none_left": "No line with text is left without the repeated ones; the value is the number of "
            "lines before."
        }
    )

    def apply(self, batch: pa.Table) -> Outcome:
        """Replace the text, annotate, drop: see the class."""
        texts, kept_lines, num_lines_before = _remove_lines(batch)
        shorter = with_columns(
            batch.drop_columns("duplicate_lines"),
            {
                "text": texts,
                "num_chars": _num_chars(texts),
                "num_lines": pc.cast(pc.list_value_length(kept_lines), pa.int64()),
                "kept_lines": kept_lines,
            },
        )
        # utf8_is_space is str.isspace, character for character, and False for the empty string.
        has_no_text = pc.or_(pc.utf8_is_space(texts), pc.equal(pc.binary_length(texts), 0))
        return drop_where(
            shorter, has_no_text, "paragraphs.none_left", value=pa.array(num_lines_before), limit=0
        )


def _remove_lines(batch: pa.Table) -> tuple[pa.Array, pa.Array, NDArray[np.int64]]:
    """New texts (large_string, no nulls), kept lines (list of uint32), number of lines before."""
    utf8, offsets, is_valid = _raw(batch.column("text").combine_chunks())
    removed = batch.column("duplicate_lines").combine_chunks().cast(pa.list_(pa.uint32()))
    starts = removed.offsets.to_numpy()[:-1].astype(np.int64)
    ends = starts + pc.fill_null(pc.list_value_length(removed), 0).to_numpy()
    firsts = line_hashes.count_lines(utf8, offsets, is_valid)
    new_utf8, new_offsets, kept, kept_offsets, fault = _copy_kept_lines(
        utf8,
        offsets,
        firsts,
        _read_only(removed.values.to_numpy()),
        _read_only(starts),
        _read_only(ends),
    )
    if fault >= 0:
        raise ValueError(
            f"document {batch.column('doc_id')[fault]}: duplicate_lines is {removed[fault].as_py()}, must be rising "
            f"indices into the {firsts[fault + 1] - firsts[fault]} lines of its text; were they made for another text?"
        )
    texts = pa.LargeStringArray.from_buffers(
        len(new_offsets) - 1, pa.py_buffer(new_offsets), pa.py_buffer(new_utf8)
    )
    return (
        texts,
        pa.ListArray.from_arrays(pa.array(kept_offsets, pa.int32()), pa.array(kept)),
        np.diff(firsts),
    )


@compiled
def _copy_kept_lines(
    utf8: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    firsts: NDArray[np.int64],
    removed: NDArray[np.uint32],
    removed_starts: NDArray[np.int64],
    removed_ends: NDArray[np.int64],
) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.uint32], NDArray[np.int64], int]:
    """Texts and indices of the lines that stay, each with offsets; the first text whose `removed` is wrong, or -1."""
    num_texts = len(firsts) - 1
    new_utf8 = np.empty(offsets[-1] - offsets[0], np.uint8)
    kept = np.empty(firsts[-1], np.uint32)
    new_offsets, kept_offsets = np.zeros(num_texts + 1, np.int64), np.zeros(num_texts + 1, np.int64)
    num_bytes, num_kept = 0, 0
    for t in range(num_texts):
        start, r = offsets[t], removed_starts[t]
        for line in range(firsts[t + 1] - firsts[t]):
            end = start
            while end < offsets[t + 1] and utf8[end] != 10:
                end += 1
            if r < removed_ends[t] and removed[r] == line:
                r += 1
            else:
                if num_kept > kept_offsets[t]:
                    new_utf8[num_bytes] = 10
                    num_bytes += 1
                new_utf8[num_bytes : num_bytes + end - start] = utf8[start:end]
                num_bytes += end - start
                kept[num_kept] = line
                num_kept += 1
            start = end + 1
        if r < removed_ends[t]:
            return new_utf8, new_offsets, kept, kept_offsets, t
        new_offsets[t + 1], kept_offsets[t + 1] = num_bytes, num_kept
    return new_utf8[:num_bytes], new_offsets, kept[:num_kept], kept_offsets, -1
