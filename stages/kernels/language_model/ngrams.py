"""Look n-grams up in the hash tables of a KenLM binary file.

KenLM's `probing` format, version 5, in the byte order of x86. Every number is a multiple of four
bytes from the start of the file, so tables are read as uint32 and as float32:

    header          88 bytes, parameters, one uint64 count per order
    vocabulary      8 bytes, then a table of (uint64 hash of the word, uint32 word)
    unigrams        (float32 log10 p, float32 backoff) of each word, and one more
    middle orders   a table each of (uint64 hash of the n-gram, float32 log10 p, float32 backoff)
    highest order   a table of (uint64 hash of the n-gram, float32 log10 p)

Source: lm/binary_format.cc, lm/vocab.cc, lm/search_hashed.hh, lm/model.cc of KenLM (4cb443e).
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

MAX_ORDER = 6  # of the `kenlm` package

_MAGIC = b"mmap lm http://kheafield.com/code format version 5\n\0".ljust(56, b"\0")
# Magic, then numbers by which KenLM recognises another byte order or other sizes of types.
_SANITY = _MAGIC + struct.pack("<3f3IQ", 0.0, 1.0, -0.5, 1, 0xFFFFFFFF, 0, 1)
# order, probing multiplier, kind of model, whether the words follow the tables, version
_PARAMETERS = struct.Struct("<B3xfI?3xI")
_PROBING = 0

# Sizes of table entries in elements of four bytes.
_VOCABULARY_ENTRY = 3
_UNIGRAM = 2
_MIDDLE_ENTRY = 4
_LONGEST_ENTRY = 3
_KEY = 2

# Words whose n-grams are looked up together.
_BLOCK = 256

# Backoff of an n-gram that no longer n-gram begins with: -0.0.
_NO_EXTENSION = np.uint32(0x80000000)
_SIGN = np.uint32(0x80000000)

_LOW_HALF = np.uint64(0xFFFFFFFF)
_NGRAM_MULTIPLIER = np.uint64(8978948897894561157)
_WORD_MULTIPLIER = np.uint64(17894857484156487943)
_MURMUR_MULTIPLIER = np.uint64(0xC6A4A7935BD1E995)


class NgramTables(NamedTuple):
    """The tables of a KenLM binary file, mapped into memory."""

    words: NDArray[np.uint32]  # the file up to the end of the tables
    floats: NDArray[np.float32]  # the same bytes
    # (order + 1, 2) first element and number of entries of each table: vocabulary, unigrams, ...
    tables: NDArray[np.int64]


def map_ngram_tables(file: Path) -> NgramTables | None:
    """Map the tables of a KenLM binary file, or return None for any other format of KenLM.

    Raises:
        ValueError: the file is damaged.
    """
    with file.open("rb") as opened:
        header = opened.read(len(_SANITY) + _PARAMETERS.size + 8 * 255)
    if not header.startswith(_SANITY) or len(header) < len(_SANITY) + _PARAMETERS.size:
        return None
    order, multiplier, kind, has_words, version = _PARAMETERS.unpack_from(
        header, len(_SANITY)
    )
    counts_start = len(_SANITY) + _PARAMETERS.size
    if (kind, version) != (_PROBING, 0) or not 2 <= order <= MAX_ORDER:
        return None
    counts = struct.unpack_from(f"<{order}Q", header, counts_start)
    header_bytes = -(-(counts_start + 8 * order) // 8) * 8
    tables = _locate_tables(counts, multiplier, header_bytes // 4)
    num_elements = int(tables[-1, 0] + _LONGEST_ENTRY * tables[-1, 1])
    _check_size(file, 4 * num_elements, has_words)
    words = np.memmap(file, np.uint32, "r", shape=(num_elements,)).view(np.ndarray)
    _check_vocabulary(file, words, tables)
    return NgramTables(words, words.view(np.float32), tables)


def _locate_tables(
    counts: tuple[int, ...], multiplier: float, start: int
) -> NDArray[np.int64]:
    """Return `NgramTables.tables`."""
    sizes = [
        _VOCABULARY_ENTRY,
        _UNIGRAM,
        *[_MIDDLE_ENTRY] * (len(counts) - 2),
        _LONGEST_ENTRY,
    ]
    tables = np.empty((len(sizes), 2), np.int64)
    start += 2  # version and number of words
    for i, entry_size in enumerate(sizes):
        count = counts[max(i - 1, 0)]
        # KenLM computes the number of buckets in float32.
        scaled = int(np.float32(multiplier) * np.float32(count))
        num_entries = count + 1 if i == 1 else max(count + 1, scaled)
        tables[i] = start, num_entries
        start += entry_size * num_entries
    return tables


def _check_size(file: Path, num_bytes: int, has_words: bool) -> None:
    found = file.stat().st_size
    if found < num_bytes:
        raise ValueError(
            f"{file}: {found:,} bytes, but its header describes {num_bytes:,}; "
            "the file is cut short: copy it again"
        )
    if not has_words:
        return
    with file.open("rb") as opened:
        opened.seek(num_bytes)
        first_word = opened.read(6)
    if first_word != b"<unk>\0":
        raise ValueError(
            f"{file}: found {first_word!r} at byte {num_bytes:,}, wanted the list of words, which "
            "starts with '<unk>'; the file is damaged: copy it again"
        )


def _check_vocabulary(
    file: Path, words: NDArray[np.uint32], tables: NDArray[np.int64]
) -> None:
    """Check that every word has a unigram, because kernels do not check indexes."""
    start, num_entries = tables[0]
    largest = words[start + 2 : start + _VOCABULARY_ENTRY * num_entries : 3].max()
    if largest >= tables[1, 1]:
        raise ValueError(
            f"{file}: the vocabulary has word {largest}, but there are {tables[1, 1]} unigrams; "
            "the file is damaged: copy it again"
        )


@njit(nogil=True)
def find_word(text: NDArray[np.uint8], ngrams: NgramTables) -> np.uint32:
    """Return the number of a word, 0 if it is unknown."""
    start, num_entries = ngrams.tables[0, 0], ngrams.tables[0, 1]
    key = _hash_word(text)
    at = start + np.int64(key % np.uint64(num_entries)) * _VOCABULARY_ENTRY
    end = start + num_entries * _VOCABULARY_ENTRY
    at = _probe(ngrams.words, start, end, _VOCABULARY_ENTRY, key, at)
    return ngrams.words[at + _KEY] if at >= 0 else np.uint32(0)


@njit(nogil=True)
def _hash_word(text: NDArray[np.uint8]) -> np.uint64:
    """Return MurmurHash64A of the bytes with seed 0."""
    size = len(text)
    state = np.uint64(size) * _MURMUR_MULTIPLIER
    num_blocks = size // 8
    for block in range(num_blocks):
        value = np.uint64(0)
        for i in range(8):
            value |= np.uint64(text[8 * block + i]) << np.uint64(8 * i)
        value *= _MURMUR_MULTIPLIER
        value ^= value >> np.uint64(47)
        value *= _MURMUR_MULTIPLIER
        state = (state ^ value) * _MURMUR_MULTIPLIER
    if size % 8:
        for i in range(size % 8):
            state ^= np.uint64(text[8 * num_blocks + i]) << np.uint64(8 * i)
        state *= _MURMUR_MULTIPLIER
    state = (state ^ (state >> np.uint64(47))) * _MURMUR_MULTIPLIER
    return state ^ (state >> np.uint64(47))


@njit(nogil=True)
def _probe(
    words: NDArray[np.uint32],
    start: int,
    end: int,
    entry_size: int,
    key: np.uint64,
    at: int,
) -> int:
    """Return the first element of the entry with that key from `at` on, or -1: linear probing.

    Args:
        words: the file.
        start: the first element of the table.
        end: the end of the table.
        entry_size: elements of an entry.
        key: the hash.
        at: where the hash points to.
    """
    low, high = np.uint32(key & _LOW_HALF), np.uint32(key >> np.uint64(32))
    # A table always has a free entry, with key 0. The bound is for a damaged file.
    last = at
    while True:
        if words[at] == low and words[at + 1] == high:
            return at
        if words[at] == 0 and words[at + 1] == 0:
            return -1
        at += entry_size
        if at == end:
            at = start
        if at == last:
            return -1


class _Ngrams(NamedTuple):
    """The n-grams that end with each word of a block."""

    # (_BLOCK, MAX_ORDER + 1) first element of the entry, by number of words
    entries: NDArray[np.int64]
    # (_BLOCK + 1,) number of words of the longest n-gram; first that of the word before the block
    longest: NDArray[np.int64]
    # Of the words for which a longer n-gram may exist, the first elements of:
    positions: NDArray[np.int64]  # (_BLOCK,) in the block
    keys: NDArray[np.uint64]  # (_BLOCK,) hash of the n-gram
    slots: NDArray[np.int64]  # (_BLOCK,) first element of the entry where the search starts
    low_halves: NDArray[np.uint32]  # (_BLOCK,) half of the key of that entry


@njit(nogil=True)
def score_words(words: NDArray[np.uint32], ngrams: NgramTables) -> float:
    """Return log10 p of words[1:], given words[0]. Source: `FullScore` in lm/model.cc."""
    raw, floats, tables = ngrams
    max_order = len(tables) - 1
    found = _Ngrams(
        np.empty((_BLOCK, MAX_ORDER + 1), np.int64),
        np.empty(_BLOCK + 1, np.int64),
        np.empty(_BLOCK, np.int64),
        np.empty(_BLOCK, np.uint64),
        np.empty(_BLOCK, np.int64),
        np.empty(_BLOCK, np.uint32),
    )
    # The backoffs of the n-grams that end with the previous word, unigram first. KenLM's context
    # ends before an n-gram with which no longer one begins.
    backoffs = np.empty(MAX_ORDER, np.float32)
    next_backoffs = np.empty(MAX_ORDER, np.float32)
    backoffs[0] = floats[tables[1, 0] + _UNIGRAM * np.int64(words[0]) + 1]
    context = 1
    total = np.float32(0)  # KenLM adds in float32 too
    for first in range(1, len(words), _BLOCK):
        end = min(first + _BLOCK, len(words))
        _find_ngrams(words, first, end, ngrams, found)
        for i in range(end - first):
            order = min(found.longest[i + 1], context + 1)
            at = found.entries[i, order] + (0 if order == 1 else _KEY)
            # Below the highest order the sign is a flag, and log10 p is never positive.
            log_prob = floats[at] if order == max_order else -abs(floats[at])
            for j in range(order - 1, context):
                log_prob += backoffs[j]
            total += log_prob
            context = 0
            for j in range(1, min(order, max_order - 1) + 1):
                at = found.entries[i, j] + (0 if j == 1 else _KEY) + 1
                next_backoffs[j - 1] = floats[at]
                if raw[at] != _NO_EXTENSION:
                    context = j
            backoffs, next_backoffs = next_backoffs, backoffs
    return float(total)


@njit(nogil=True)
def _find_ngrams(
    words: NDArray[np.uint32], first: int, end: int, ngrams: NgramTables, found: _Ngrams
) -> None:
    """Fill `entries` and `longest` for words[first:end].

    An n-gram is searched only if a longer n-gram ends with its last n - 1 words, and if its first
    n - 1 words were found. Otherwise it is not used: the context is no longer than what was found.
    """
    raw, tables = ngrams.words, ngrams.tables
    entries, longest, positions, keys, slots = found[:5]
    max_order = len(tables) - 1
    longest[0] = longest[_BLOCK] if first > 1 else 1
    num_open = 0
    for i in range(end - first):
        at = tables[1, 0] + _UNIGRAM * np.int64(words[first + i])
        entries[i, 1] = at
        longest[i + 1] = 1
        positions[num_open] = i
        keys[num_open] = np.uint64(words[first + i])
        num_open += int(raw[at] < _SIGN)
    for order in range(2, max_order + 1):
        entry_size = _LONGEST_ENTRY if order == max_order else _MIDDLE_ENTRY
        num_tried = 0
        for a in range(num_open):
            positions[num_tried] = positions[a]
            keys[num_tried] = keys[a]
            num_tried += int(longest[positions[a]] >= order - 1)
        _locate(words, first - order + 1, num_tried, order, entry_size, ngrams, found)
        start = tables[order, 0]
        table_end = start + tables[order, 1] * entry_size
        num_open = 0
        for a in range(num_tried):
            i, key = positions[a], keys[a]
            at = slots[a]
            low, high = np.uint32(key & _LOW_HALF), np.uint32(key >> np.uint64(32))
            # Most searches end here. A call of a function costs a tenth of this loop.
            if raw[at] != low or raw[at + 1] != high:
                at = _probe(raw, start, table_end, entry_size, key, at)
                if at < 0:
                    continue
            entries[i, order] = at
            longest[i + 1] = order
            positions[num_open] = i
            keys[num_open] = key
            num_open += int(raw[at + _KEY] < _SIGN)


@njit(nogil=True)
def _locate(
    words: NDArray[np.uint32],
    leftmost: int,
    num_open: int,
    order: int,
    entry_size: int,
    ngrams: NgramTables,
    found: _Ngrams,
) -> None:
    """Extend the open n-grams by one word to the left and read where their search starts.

    The tables of a real model have gigabytes, and each read is a cache miss. This loop has no
    branch that waits for a read, so the processor does many at once.
    """
    start, num_entries = ngrams.tables[order, 0], np.uint64(ngrams.tables[order, 1])
    raw = ngrams.words
    positions, keys, slots, low_halves = found[2:]
    for a in range(num_open):
        word = np.uint64(words[leftmost + positions[a]]) + np.uint64(1)
        key = (keys[a] * _NGRAM_MULTIPLIER) ^ (word * _WORD_MULTIPLIER)
        at = start + np.int64(key % num_entries) * entry_size
        keys[a] = key
        slots[a] = at
        low_halves[a] = raw[at]
