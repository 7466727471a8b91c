"""List the rows of a fastText model that belong to a word, with a cache of frequent words.

A word between white space stands for its own row, if the dictionary has it, and for the rows of its
character n-grams. With `min_chars` 2 and `max_chars` 3:

    ok  ->  row of "ok", then of <o <ok ok ok> k>

Source: `Dictionary::getLine` and `computeSubwords` of fastText 0.9.3.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stages.kernels.compilation import compiled, inlined
from stages.kernels.fasttext.vectors import (
    FIRST_STATE,
    LANES,
    PRIME,
    Divisor,
    hash_lanes,
    prefetch,
)

_FIRST_STATE = np.uint32(FIRST_STATE)
_PRIME = np.uint32(PRIME)
_BEGIN, _END = ord("<"), ord(">")
_PREFIX = tuple(b"__label__")
# fastText ends each line with this word.
_END_OF_LINE = tuple(b"</s>")
_NEWLINE = 10

# A word that looks like a label adds nothing to its line.
IS_LABEL = -1

# A slot of the cache has the number of bytes, up to 31 bytes, the number of rows, and up to 23 rows,
# in two cache lines. Longer words and words with more rows are seldom repeated.
SLOT_BYTES = 128
_SLOT_ROWS = 32  # the same size in int32
_FIRST_ROW = 8  # where the number of rows is
# Words that are read at once, while the processor loads their slots.
BLOCK_WORDS = 16
_CACHE_LINE = 64
_WORD_BITS = np.uint32(64)
# 1 MB. With 512 KB, documents of many languages take 5 % longer; 2 MB are as fast.
_NUM_SLOTS = 1 << 13


class Dictionary(NamedTuple):
    """The dictionary of a model, in the form that the kernels read."""

    content: NDArray[np.uint8]  # with the texts of all entries
    starts: NDArray[np.int64]  # (num_entries,) where each text starts
    ends: NDArray[np.int64]  # (num_entries,)
    slots: NDArray[np.int64]  # hash table: 31 bits of hash, 32 of entry; or -1
    num_words: int  # entries from here on are labels
    min_chars: int
    max_chars: int
    num_buckets: Divisor
    is_pruned: bool
    # If pruned, a bit per bucket, 1 if it has a row, and the number of rows of the buckets before
    # each 64 bits. Most n-grams of a text are pruned, so both must stay in the second-level cache.
    bucket_bits: NDArray[np.uint64]
    bucket_ranks: NDArray[np.int32]


class WordMemory(NamedTuple):
    """Memory to work in, for the next words of a line.

    A row of `words` has the start of a word in `utf8` and `chars`, and its length, number of
    characters and hash.
    """

    utf8: NDArray[np.uint8]  # (memory_size,)
    chars: NDArray[np.int64]  # (memory_size,)
    words: NDArray[np.int64]  # (BLOCK_WORDS, 4)
    buckets: NDArray[np.uint32]  # (16 * (longest line + 8),) of `hash_lanes`


class Word(NamedTuple):
    """A word of a line in brackets, `<word>`. Both arrays are longer than it."""

    utf8: NDArray[np.uint8]  # (length + 2,)
    chars: NDArray[np.int64]  # (num_chars + 1,) where each character begins, and the end
    length: int  # in bytes, without the brackets
    num_chars: int  # with the brackets
    state: np.uint32  # its hash


class WordCache(NamedTuple):
    """A direct-mapped cache of the rows of words.

    A word is compared as a whole, so equal hashes cannot give wrong rows. Both arrays are the same
    memory.
    """

    words: NDArray[np.uint8]  # (num_slots * SLOT_BYTES,)
    rows: NDArray[np.int32]  # (num_slots * _SLOT_ROWS,)


def make_word_cache() -> WordCache:
    """Return an empty cache. It belongs to one model and to one thread."""
    words = make_aligned(np.zeros(_NUM_SLOTS * SLOT_BYTES, np.uint8))
    return WordCache(words, words.view(np.int32))


def make_aligned(values: np.ndarray) -> np.ndarray:
    """Return a copy that starts at a cache line, so that a short row is in one line, not two."""
    memory = np.empty(values.nbytes + _CACHE_LINE, np.uint8)
    first = -memory.ctypes.data % _CACHE_LINE
    copy = memory[first : first + values.nbytes].view(values.dtype).reshape(values.shape)
    copy[...] = values
    return copy


@compiled
def build_slots(
    content: NDArray[np.uint8], starts: NDArray[np.int64], ends: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the hash table of a dictionary. Of equal entries the last one is found."""
    num_slots = 16
    while num_slots < 2 * len(starts):
        num_slots *= 2
    slots = np.full(num_slots, -1, np.int64)
    for entry in range(len(starts)):
        first, length = starts[entry], ends[entry] - starts[entry]
        state = _FIRST_STATE
        for at in range(first, first + length):
            state = hash_byte(state, content[at])
        slot = _find_slot(content, starts, ends, slots, content, first, length, state)
        slots[slot] = np.int64(state >> np.uint32(1)) << 32 | entry
    return slots


@inlined
def hash_byte(state: np.uint32, byte: np.uint8) -> np.uint32:
    """Add one byte, as a signed number, to the state of the hash."""
    return np.uint32((state ^ np.uint32(np.int32(np.int8(byte)))) * _PRIME)


@inlined
def read_words(
    utf8: NDArray[np.uint8],
    at: int,
    end: int,
    dictionary: Dictionary,
    cache: WordCache,
    memory: WordMemory,
) -> tuple[int, int, bool]:
    """Write the next words of utf8[at:end] to `memory`, up to BLOCK_WORDS and the end of the line.

    Where a word may be in the cache and in the dictionary is only known with its hash. The load of
    both starts here and has ended when the word's turn comes. Without it, documents of 60 languages
    take 26 % longer; without the second cache line of the slot, 7 %.

    Returns:
        num_words: number of words, with the mark of the end of the line.
        at: where the rest of the line begins.
        is_end: whether the line ends after these words.
    """
    num_words, start, is_end = 0, 0, False
    while num_words < BLOCK_WORDS and not is_end:
        words = memory.words[num_words]
        utf8_from, chars_from = memory.utf8[start:], memory.chars[start:]
        length, num_chars, state, at = _read_word(utf8, at, end, utf8_from, chars_from)
        words[0], words[1], words[2], words[3] = start, length, num_chars, np.int64(state)
        is_end = _is_end_of_line(utf8_from, length)
        slot = _choose_slot(cache.words, state) * SLOT_BYTES
        prefetch(cache.words, slot)
        prefetch(cache.words, slot + _CACHE_LINE)
        prefetch(dictionary.slots, int(state) & (len(dictionary.slots) - 1))
        start += length + 3
        num_words += 1
    return num_words, at, is_end


@inlined
def get_word(memory: WordMemory, index: int) -> Word:
    """Return a word that `read_words` has written."""
    start, length = memory.words[index, 0], memory.words[index, 1]
    num_chars, state = memory.words[index, 2], np.uint32(memory.words[index, 3])
    return Word(memory.utf8[start:], memory.chars[start:], length, num_chars, state)


@inlined
def _read_word(
    utf8: NDArray[np.uint8],
    at: int,
    end: int,
    word: NDArray[np.uint8],
    chars: NDArray[np.int64],
) -> tuple[int, int, np.uint32, int]:
    """Write the next word of utf8[at:end], or the mark of the end of the line, as a `Word` has it.

    Newlines are left out. Words are separated by blanks, NUL, and tab to carriage return. A
    character is a byte and the UTF-8 continuation bytes after it.

    Returns:
        length, num_chars, state: of the word.
        at: where the rest of the line begins.
    """
    word[0] = _BEGIN
    chars[0] = 0
    state, length, num_chars = _FIRST_STATE, 0, 1
    while at < end:
        byte = utf8[np.uint64(at)]
        at += 1
        if byte <= 32 and (byte == 32 or byte == 0 or 9 <= byte <= 13):
            if length == 0 or byte == _NEWLINE:
                continue
            break
        state = hash_byte(state, byte)
        length += 1
        word[np.uint64(length)] = byte
        # The processor does this while it waits for the hash. The next character overwrites it.
        chars[np.uint64(num_chars)] = length
        num_chars += not _is_continuation(byte)
    if length == 0:
        for byte in _END_OF_LINE:
            state = hash_byte(state, np.uint8(byte))
            length += 1
            word[length] = byte
    word[length + 1] = _END
    chars[num_chars] = length + 1
    chars[num_chars + 1] = length + 2
    return length, num_chars + 1, state, at


@inlined
def _is_end_of_line(word: NDArray[np.uint8], length: int) -> bool:
    """Whether a word is the mark of the end of a line. It ends the line inside a text too."""
    return length == len(_END_OF_LINE) and _starts_with(word, _END_OF_LINE)


@inlined
def find_cached(words: NDArray[np.uint8], word: Word) -> int:
    """Return the slot of a word in a cache, or -1."""
    slot = _choose_slot(words, word.state)
    base = slot * SLOT_BYTES
    if words[base] != word.length:
        return -1
    for at in range(1, word.length + 1):
        if words[base + at] != word.utf8[at]:
            return -1
    return slot


@inlined
def copy_cached(cache: WordCache, slot: int, rows: NDArray[np.int32], n: int) -> int:
    """Append the rows of a slot to `rows[n:]` and return the new `n`."""
    first = slot * _SLOT_ROWS + _FIRST_ROW
    num_rows = cache.rows[first]
    for i in range(num_rows):
        rows[n + i] = cache.rows[first + 1 + i]
    return n + num_rows


@inlined
def store_word(
    cache: WordCache, word: Word, rows: NDArray[np.int32], start: int, stop: int
) -> None:
    """Replace a slot by a word with rows[start:stop], unless they do not fit."""
    num_rows = stop - start
    if word.length >= 4 * _FIRST_ROW or num_rows >= _SLOT_ROWS - _FIRST_ROW:
        return
    words, cached_rows = cache
    slot = _choose_slot(words, word.state)
    words[slot * SLOT_BYTES] = word.length
    for at in range(1, word.length + 1):
        words[slot * SLOT_BYTES + at] = word.utf8[at]
    first = slot * _SLOT_ROWS + _FIRST_ROW
    cached_rows[first] = num_rows
    for n in range(num_rows):
        cached_rows[first + 1 + n] = rows[start + n]


@inlined
def _choose_slot(words: NDArray[np.uint8], state: np.uint32) -> int:
    num_slots = len(words) // SLOT_BYTES
    return int(state ^ (state >> np.uint32(15))) & (num_slots - 1)


@inlined
def list_rows(
    word: Word,
    dictionary: Dictionary,
    buckets: NDArray[np.uint32],
    rows: NDArray[np.int32],
    n: int,
) -> int:
    """Append the rows of a word to `rows[n:]` and return the new `n`, or IS_LABEL.

    Args:
        word: of `get_word`.
        dictionary: of the model.
        buckets: memory to work in.
        rows: long enough, see `count_max_rows`.
        n: number of rows before.
    """
    slots = dictionary.slots
    content, starts, ends = dictionary.content, dictionary.starts, dictionary.ends
    utf8, length = word.utf8, word.length
    slot = _find_slot(content, starts, ends, slots, utf8, 1, length, word.state)
    entry = -1 if slots[slot] < 0 else slots[slot] & 0xFFFFFFFF
    is_label = entry < 0 and length >= len(_PREFIX) and _starts_with(utf8, _PREFIX)
    if entry >= dictionary.num_words or is_label:
        return IS_LABEL
    if entry >= 0:
        rows[n] = entry
        n += 1
    if dictionary.max_chars > 0 and not _is_end_of_line(utf8, length):
        n = _add_character_ngrams(word, dictionary, buckets, rows, n)
    return n


@inlined
def count_max_rows(num_bytes: int, dictionary: Dictionary, word_ngrams: int) -> int:
    """Return the largest number of rows that a line can have."""
    num_words = num_bytes // 2 + 2  # with the mark of the end of the line
    num_chars = num_bytes + len(_END_OF_LINE) + 2 * num_words  # with all brackets
    num_starts = min(max(dictionary.max_chars, 0), num_chars)
    return num_words * max(1, min(word_ngrams, num_words)) + num_chars * num_starts


@inlined
def _find_slot(
    content: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    slots: NDArray[np.int64],
    word: NDArray[np.uint8],
    first: int,
    length: int,
    state: np.uint32,
) -> int:
    """Return the slot of the entry word[first : first + length], or its empty slot."""
    slot = int(state) & (len(slots) - 1)
    while slots[slot] >= 0:
        if slots[slot] >> 32 == np.int64(state >> np.uint32(1)):
            entry = slots[slot] & 0xFFFFFFFF
            start, at = starts[entry], 0
            if ends[entry] - start == length:
                while at < length and content[start + at] == word[first + at]:
                    at += 1
                if at == length:
                    return slot
        slot = (slot + 1) & (len(slots) - 1)
    return slot


@inlined
def _starts_with(word: NDArray[np.uint8], prefix: tuple[int, ...]) -> bool:
    at = 0
    while at < len(prefix) and word[1 + at] == prefix[at]:
        at += 1
    return at == len(prefix)


@inlined
def _add_character_ngrams(
    word: Word,
    dictionary: Dictionary,
    buckets: NDArray[np.uint32],
    rows: NDArray[np.int32],
    n: int,
) -> int:
    """Append the rows of all character n-grams of a word to `rows[n:]`; return the new `n`."""
    stop = _list_buckets(word, dictionary, buckets, rows, n)
    if not dictionary.is_pruned:
        for at in range(n, stop):
            rows[np.uint64(at)] += dictionary.num_words
        return stop
    num_rows = n
    # One short loop over all n-grams of a word, so that their look-ups overlap. Indexes are unsigned
    # here, because numba checks signed ones for negative values.
    for at in range(n, stop):
        bucket = np.uint32(rows[np.uint64(at)])
        # The next bucket overwrites a pruned one: a branch would be mispredicted.
        rows[np.uint64(num_rows)] = bucket
        num_rows += _has_row(dictionary, bucket)
    for at in range(n, num_rows):
        rows[np.uint64(at)] = _locate_bucket(dictionary, np.uint32(rows[np.uint64(at)]))
    return num_rows


@inlined
def _list_buckets(
    word: Word,
    dictionary: Dictionary,
    buckets: NDArray[np.uint32],
    rows: NDArray[np.int32],
    n: int,
) -> int:
    """Append the buckets of all character n-grams of a word to `rows[n:]`; return the new `n`.

    A bracket alone is no n-gram. The n-grams that begin in the same 16 bytes are hashed together.
    """
    chars, num_chars = word.chars, word.num_chars
    min_chars, max_chars = dictionary.min_chars, dictionary.max_chars
    base, hashed_until = 0, 0
    for first in range(num_chars):
        start = chars[np.uint64(first)]
        if start >= hashed_until:
            base, hashed_until = start, start + LANES
            num_steps = _count_steps(word, first, max_chars)
            hash_lanes(word.utf8, base, num_steps, dictionary.num_buckets, buckets)
        is_bracket = first == 0 or first == num_chars - 1
        shortest = max(min_chars, 2 if is_bracket else 1)
        longest = min(max_chars, num_chars - first)
        for size in range(shortest, longest + 1):
            num_bytes = chars[np.uint64(first + size)] - start
            lane = LANES * (num_bytes - 1) + start - base
            rows[np.uint64(n)] = buckets[np.uint64(lane)]
            n += 1
    return n


@inlined
def _count_steps(word: Word, first: int, max_chars: int) -> int:
    """Return the bytes of the longest n-gram that begins within 16 bytes from a character on."""
    chars, num_chars = word.chars, word.num_chars
    num_bytes, char = 0, first
    while char < num_chars and chars[char] < chars[first] + LANES:
        end = chars[min(char + max_chars, num_chars)]
        num_bytes = max(num_bytes, end - chars[char])
        char += 1
    return num_bytes


@inlined
def add_bucket(
    bucket: np.uint32, dictionary: Dictionary, rows: NDArray[np.int32], n: int
) -> int:
    """Write the row of a bucket to `rows[n]`, if it has one; return the new `n`."""
    if dictionary.is_pruned and not _has_row(dictionary, bucket):
        return n
    rows[n] = _locate_bucket(dictionary, bucket)
    return n + 1


@inlined
def _has_row(dictionary: Dictionary, bucket: np.uint32) -> int:
    """Return 1 if a bucket of a pruned model has a row, else 0."""
    bits = dictionary.bucket_bits[bucket // _WORD_BITS]
    return int(np.int64(bits >> np.uint64(bucket % _WORD_BITS) & np.uint64(1)))


@inlined
def _locate_bucket(dictionary: Dictionary, bucket: np.uint32) -> int:
    """Return the row of a bucket that has one."""
    if not dictionary.is_pruned:
        return dictionary.num_words + int(np.int64(bucket))
    word = bucket // _WORD_BITS
    mask = (np.uint64(1) << np.uint64(bucket % _WORD_BITS)) - np.uint64(1)
    before = dictionary.bucket_bits[word] & mask
    row = dictionary.num_words + int(dictionary.bucket_ranks[word])
    while before:  # LLVM makes one instruction of it
        before &= before - np.uint64(1)
        row += 1
    return row


@inlined
def _is_continuation(byte: np.uint8) -> bool:
    return (byte & 0xC0) == 0x80
