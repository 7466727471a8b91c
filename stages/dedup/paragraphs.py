r"""CCNet's paragraph deduplication: hash every line, find duplicate lines, remove them from texts.

Hashes are equal to those of `cc_net`, bit for bit (Wenzek et al. 2020, arXiv:1911.00359, section 3.1).
They follow its code (`text_normalizer.normalize_for_dedup`, `dedup.compute_hashes`), which keeps accents
and ASCII punctuation, unlike the paper. `hash_paragraph` is the reference in plain Python.

The three steps, where "Cookies?" occurs on two pages:

    texts = pa.array(["Bread\nCookies?", "Cookies?\nWine\nWine"])
    offsets, hashes = hash_paragraphs(texts)                # [0, 2, 5] and five hashes
    documents = np.repeat([0, 1], np.diff(offsets))
    find_duplicates(hashes, documents, keep="drop_all_copies")    # [False, True, True, False, True]

`ParagraphRemoval` then removes lines [1] and [0, 2], which leaves "Bread" and "Wine".
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
"""The marks that `cc_net.text_normalizer.UNICODE_PUNCT` deletes, except １, which is 0 by then."""
_DELETED = re.compile(f"[{_PUNCTUATION}\x00-\x1f\x7f-\x9f]")
_DIGIT = re.compile(r"\d")
_FINAL_SIGMA = "Σ"
"""The only character whose lower case depends on its neighbours (Unicode, SpecialCasing; str.lower in CPython)."""

_MAX_HASHES = 2**32 - 2  # ranks of rows and documents have 32 bits, and two are reserved
_HASHES_PER_PARTITION = 2**15  # 0.8 MB with its table: fits into the L2 cache of a core


def hash_paragraph(line: str) -> int:
    """Return the hash of one line: the reference in plain Python.

    Strip white space, lower-case, replace each decimal digit (Unicode Nd) by 0, delete 34
    punctuation marks and the control characters 0-31 and 127-159. The hash is the first 8 bytes of
    the SHA-1 of the UTF-8, as a little-endian uint64.
    """
    return int.from_bytes(
        hashlib.sha1(_normal_form(line).encode(), usedforsecurity=False).digest()[:8], "little"
    )


def _normal_form(line: str) -> str:
    return _DELETED.sub("", _DIGIT.sub("0", line.strip().lower()))


def hash_paragraphs(
    texts: pa.Array | pa.ChunkedArray,
) -> tuple[NDArray[np.int64], NDArray[np.uint64]]:
    r"""Compute the hash of every line of every text.

    Args:
        texts: (n,) string or large_string. Lines end at \n only. An empty text has one empty line, a
            null text has none.

    Returns:
        offsets: (n + 1,) int64, the start of each text in `hashes`.
        hashes: (offsets[n],) uint64, equal to those of `hash_paragraph`.

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
    """Return the UTF-8 of all texts, the offset of each, (n + 1,), and whether it is not null, (n,)."""
    texts = texts.cast(pa.large_string())
    _, offsets, utf8 = texts.buffers()
    no_text = np.zeros(1, np.int64)  # an array of length 0 can have no buffers
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
    """Return a read-only, contiguous view. numba compiles for each kind of array: use one kind."""
    view = np.ascontiguousarray(values).view()
    view.flags.writeable = False
    return view


@cache
def _characters() -> characters.CharacterTable:
    """Return the rule of `hash_paragraph` for every character, from this Python's Unicode tables (0.1 s, 60 kB)."""
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


def find_duplicates(
    hashes: NDArray[np.uint64],
    documents: NDArray[np.uint32] | NDArray[np.uint64],
    keep: Literal["drop_all_copies", "keep_first"],
) -> NDArray[np.bool_]:
    """Find the paragraphs to remove.

    `keep="drop_all_copies"` is CCNet's rule (`cc_net.dedup.DuplicatesRemover`, `finalize_doc`): if a
    hash occurs in two or more documents, all copies are removed; if it occurs in one document only,
    its first copy is kept. `keep="keep_first"` keeps the first copy of each hash. The hash 0 is always
    removed: CCNet uses it for lines that were removed before.

    Memory: 17 bytes per hash including the result, and a table of 16 to 32 bytes per hash of the
    largest partition. The table is usually under 2 MB; it is large if nearly all paragraphs are equal.

    Args:
        hashes: (n,) in the order of the input, with n below 2**32 - 2.
        documents: (n,) the document of each hash, in non-decreasing order.
        keep: the copies to keep.

    Returns:
        (n,) bool: True where the paragraph must be removed.

    Raises:
        ValueError: lengths differ, `documents` decreases, `keep` is unknown, or there are too many hashes.
    """
    if keep not in ("drop_all_copies", "keep_first"):
        raise ValueError(
            f"keep is {keep!r}, must be 'drop_all_copies' (CCNet's rule) or 'keep_first'"
        )
    if len(hashes) != len(documents):
        raise ValueError(
            f"{len(hashes)} hashes for {len(documents)} documents: there must be one document per "
            f"hash"
        )
    if len(hashes) >= _MAX_HASHES:
        raise ValueError(f"{len(hashes)} hashes, must be under {_MAX_HASHES}: use more partitions")
    bits = max(1, (len(hashes) // _HASHES_PER_PARTITION).bit_length())
    hashes, documents = _read_only(hashes), _read_only(documents)
    records, starts, decrease = _partition(hashes, documents, bits)
    if decrease:
        raise ValueError(
            f"documents[{decrease}] is {documents[decrease]} after {documents[decrease - 1]}: the "
            f"hashes must be in the order of the input, or the wrong copy is kept; sort them by "
            f"document"
        )
    must_go = np.ones(len(hashes), np.bool_)
    (_mark_later if keep == "keep_first" else _mark_shared)(records, starts, bits, must_go)
    return must_go


# 2**64 / golden ratio: Knuth, The Art of Computer Programming 3, section 6.4.
_MIX = np.uint64(0x9E3779B97F4A7C15)
# Reserved ranks of documents.
_MANY = np.uint32(2**32 - 1)  # the hash occurs in two or more documents
_KEPT = np.uint32(2**32 - 2)  # the copy to keep has been seen


@compiled
def _partition(
    hashes: NDArray[np.uint64], documents: NDArray[np.uint32] | NDArray[np.uint64], bits: int
) -> tuple[NDArray[np.uint64], NDArray[np.int64], int]:
    """Partition the hashes, so that the table of each partition fits into a cache. Omits hash 0.

    The partition is given by the top bits of the hash *times a constant*, because all hashes of one
    call can have the same top bits.

    Returns:
        records: (m, 2) hash, and rank of its document << 32 | row, in input order in each partition.
        starts: (2**bits + 1,) the start of each partition.
        decrease: the first row whose document is lower than the one before, or 0.
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
    """Return a power of two of slots, of which `num_hashes` fill 3/8 to 3/4."""
    num_slots = 2
    while 3 * num_slots < 4 * num_hashes:
        num_slots *= 2
    return num_slots


@njit(nogil=True)
def _slot(keys: NDArray[np.uint64], h: np.uint64, bits: int) -> np.int64:
    """Return the slot of `h`, or the free slot for it (linear probing; 0 is free)."""
    # The bits of the product below those of the partition.
    last = len(keys) - 1
    slot = np.int64(h * _MIX << np.uint64(bits) >> np.uint64(32)) & last
    while keys[slot] != 0 and keys[slot] != h:
        slot = (slot + 1) & last
    return slot


@compiled
def _mark_later(
    records: NDArray[np.uint64], starts: NDArray[np.int64], bits: int, must_go: NDArray[np.bool_]
) -> None:
    """keep="keep_first": write False at the first occurrence of each hash."""
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
    """keep="drop_all_copies": write False at the first occurrence of hashes of one document only."""
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
            records[k, 0] = slot  # so the second loop needs no search
        for k in range(starts[p], starts[p + 1]):
            slot = np.int64(records[k, 0])
            if ranks[slot] < _KEPT:
                ranks[slot] = _KEPT
                must_go[np.int64(records[k, 1] & np.uint64(0xFFFFFFFF))] = False


class ParagraphHashesSettings(Settings):
    """No settings: the rule is CCNet's."""


class ParagraphHashes(Stage[ParagraphHashesSettings]):
    """Adds the hash of every line, and the length of the text before removal. Drops nothing."""

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
        """Add hashes and lengths."""
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
    """No settings: the phase paragraph_dedup has found the duplicate lines."""


class ParagraphRemoval(Stage[ParagraphRemovalSettings]):
    """Removes `duplicate_lines` from texts, and drops documents without text after that.

    `duplicate_lines` contains increasing indices of lines; null or empty removes nothing. The column
    itself is removed. A document with only white space left counts as empty: CCNet keeps the first
    blank line of a document if its blank lines occur nowhere else.

    Raises:
        ValueError: an index is beyond the lines of its text, or the indices do not increase.
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
                "num_chars": _num_chars(texts),
                "num_lines": pc.cast(pc.list_value_length(kept_lines), pa.int64()),
                "kept_lines": kept_lines,
            },
        )
        # utf8_is_space equals str.isspace for every character, and is False for the empty string.
        has_no_text = pc.or_(pc.utf8_is_space(texts), pc.equal(pc.binary_length(texts), 0))
        return drop_where(
            shorter, has_no_text, "paragraphs.none_left", value=pa.array(num_lines_before), limit=0
        )


def _remove_lines(batch: pa.Table) -> tuple[pa.Array, pa.Array, NDArray[np.int64]]:
    """Return new texts (large_string), kept lines (list of uint32), and number of lines before."""
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
            f"document {batch.column('doc_id')[fault]}: duplicate_lines is {removed[fault].as_py()}, must be "
            f"increasing indices into the {firsts[fault + 1] - firsts[fault]} lines of its text; were they made for another text?"
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
    """Return texts and indices of kept lines, each with offsets; and the first wrong text, or -1."""
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
