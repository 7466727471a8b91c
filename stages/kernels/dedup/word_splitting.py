"""Split texts into the words of `stages.dedup.minhash.split_ngrams`, 64 ASCII bytes at a time.

Vector instructions find the blanks and the punctuation of a block, as the bits of two numbers.
Arithmetic on these finds the ends of words, and one instruction removes what is in no word:

    text        "Der Hund, der"
    is_space     ...#.....#...
    is_deleted   ........#....
    is_end       ...#.....#...      a space after a word, with or without punctuation between
    written     "der hund der"

Other characters are looked up one by one. LLVM translates the vectors to instructions of the
processor, of any width.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic
from numpy.typing import NDArray

from stages.kernels.characters import (
    ALONE,
    DELETE,
    FIRST_REPLACEMENT,
    KEEP_SPACE,
    PAGE,
    CharacterTable,
    decode_character,
    look_up_action,
)
from stages.kernels.compilation import find_values

_BLOCK_BYTES = 64
# Bytes that `letters` must have after the words of a text: whole blocks are written.
SLACK_BYTES = _BLOCK_BYTES

_BLANK = 32
_CASE_BIT = 0x20  # of ASCII letters: 1 in lower case
_ZERO, _ONE, _ALL = np.uint64(0), np.uint64(1), np.uint64(2**64 - 1)

_BYTES = ir.VectorType(ir.IntType(8), _BLOCK_BYTES)
_BOOLS = ir.VectorType(ir.IntType(1), _BLOCK_BYTES)
_INDEX = ir.IntType(64)


@njit(nogil=True)
def split_words(
    utf8: NDArray[np.uint8],
    start: int,
    end: int,
    table: CharacterTable,
    letters: NDArray[np.uint8],
    bounds: NDArray[np.int64],
) -> int:
    """Write the words of utf8[start:end] into `letters`, a blank after each.

    Args:
        utf8: the bytes of all texts.
        start: of the text.
        end: of the text.
        table: the actions for characters other than ASCII.
        letters: receives the words.
        bounds: receives where each word starts, and where the next one would start.

    Returns:
        The number of words.
    """
    num_words, num_written, in_word = 0, 0, _ZERO
    bounds[0] = 0
    masks = np.empty(3, np.uint64)
    i = start
    last_block = len(utf8) - _BLOCK_BYTES
    while i < end:
        if i <= last_block and _starts_block(utf8, i):
            num_bytes, num_words, num_written, in_word = _split_block(
                utf8, i, end, masks, letters, bounds, num_words, num_written, in_word
            )
            i += num_bytes
        else:
            i, num_words, num_written, in_word = _split_characters(
                utf8, i, end, table, letters, bounds, num_words, num_written, in_word
            )
    if in_word:
        num_words, _ = _end_word(num_words, num_written, letters, bounds)
    return num_words


@njit(nogil=True)
def _starts_block(utf8: NDArray[np.uint8], i: int) -> bool:
    """Return whether two ASCII characters follow. A block takes longer than one of them."""
    return utf8[np.uint64(i)] | utf8[np.uint64(i + 1)] < PAGE


@njit(nogil=True)
def _split_block(
    utf8: NDArray[np.uint8],
    i: int,
    end: int,
    masks: NDArray[np.uint64],
    letters: NDArray[np.uint8],
    bounds: NDArray[np.int64],
    num_words: int,
    num_written: int,
    in_word: np.uint64,
) -> tuple[int, int, int, np.uint64]:
    """Split at most 64 ASCII characters. Return the bytes read, and the last three values."""
    _classify(utf8, i, masks)
    num_bytes = min(_count_trailing_zeros(masks[2]), end - i)
    is_read = _ALL if num_bytes == _BLOCK_BYTES else (_ONE << np.uint64(num_bytes)) - _ONE
    is_space, is_deleted = masks[0] & is_read, masks[1] & is_read
    is_letter = is_read ^ is_space ^ is_deleted
    # The carries of an addition run from each letter on through deleted bytes to the next space.
    no_space = is_letter | is_deleted
    total = is_letter + no_space + in_word
    after_word = total ^ is_letter ^ no_space
    is_end = is_space & after_word
    is_kept = is_letter | is_end
    blanks = _write_block(utf8, i, is_kept, letters, num_written)
    num_kept = _count_ones(is_kept)
    if num_kept < _BLOCK_BYTES:
        blanks &= (_ONE << np.uint64(num_kept)) - _ONE
    while blanks:
        num_words += 1
        place = num_written + _count_trailing_zeros(blanks)
        bounds[np.uint64(num_words)] = place + 1
        blanks &= blanks - _ONE
    if num_bytes < _BLOCK_BYTES:
        in_word = after_word >> np.uint64(num_bytes) & _ONE
    else:  # the carry out of the highest bit
        in_word = (is_letter | (no_space & ~total)) >> np.uint64(_BLOCK_BYTES - 1)
    return num_bytes, num_words, num_written + num_kept, in_word


@njit(nogil=True)
def _split_characters(
    utf8: NDArray[np.uint8],
    i: int,
    end: int,
    table: CharacterTable,
    letters: NDArray[np.uint8],
    bounds: NDArray[np.int64],
    num_words: int,
    num_written: int,
    in_word: np.uint64,
) -> tuple[int, int, int, np.uint64]:
    """Read characters until a block can start. Return its start, and the last three values."""
    last_block = len(utf8) - _BLOCK_BYTES
    while True:
        code_point, width = decode_character(utf8, i, end)
        # Bytes that are not UTF-8 (no Arrow string has any) are skipped one by one.
        action = np.uint32(DELETE)
        if width > 0:
            action = look_up_action(table, code_point)
        # White space ends a word. So does a character that is a word by itself.
        if action in (KEEP_SPACE, ALONE) and in_word:
            num_words, num_written = _end_word(num_words, num_written, letters, bounds)
            in_word = _ZERO
        if action not in (KEEP_SPACE, DELETE):
            replacement = np.uint32(action)
            if action < FIRST_REPLACEMENT:
                replacement = _pack_character(utf8, i, width)
            # Four stores without a branch: the next character overwrites what is too much.
            for k in range(4):
                letters[num_written + k] = replacement >> np.uint32(8 * k) & np.uint32(0xFF)
            num_written += _count_bytes(replacement)
            in_word = _ONE
        if action == ALONE:
            num_words, num_written = _end_word(num_words, num_written, letters, bounds)
            in_word = _ZERO
        i += max(width, 1)
        if i >= end or (i <= last_block and _starts_block(utf8, i)):
            return i, num_words, num_written, in_word


@njit(nogil=True)
def _pack_character(utf8: NDArray[np.uint8], i: int, width: int) -> np.uint32:
    """Return the bytes of a character as a number, the first one lowest."""
    packed = np.uint32(0)
    for k in range(width):
        packed |= np.uint32(utf8[i + k]) << np.uint32(8 * k)
    return packed


@njit(nogil=True)
def _count_bytes(packed: np.uint32) -> int:
    return 1 + int(packed > 0xFF) + int(packed > 0xFFFF) + int(packed > 0xFFFFFF)


@njit(nogil=True)
def _end_word(
    num_words: int, num_written: int, letters: NDArray[np.uint8], bounds: NDArray[np.int64]
) -> tuple[int, int]:
    """Write the blank after a word and return the new numbers of words and of bytes."""
    letters[np.uint64(num_written)] = _BLANK
    bounds[np.uint64(num_words + 1)] = num_written + 1
    return num_words + 1, num_written + 1


# --- Vector code: functions that emit LLVM instructions with the builder `b` ---


def _list_ranges(characters: Iterable[str]) -> list[tuple[int, int]]:
    """Return first and last code of each range of consecutive ASCII characters."""
    ranges: list[tuple[int, int]] = []
    for code in sorted(map(ord, characters)):
        first = code
        if ranges and ranges[-1][1] == code - 1:
            first, _ = ranges.pop()
        ranges.append((first, code))
    return ranges


_SPACES = _list_ranges(filter(str.isspace, map(chr, range(PAGE))))
_DELETED = _list_ranges(string.punctuation)
_CAPITALS = _list_ranges(string.ascii_uppercase)


def _declare_classify(context: Any, utf8: Any, start: Any, masks: Any) -> Any:
    """Write the bits of spaces, of deleted characters and of bytes that are not ASCII."""
    del context
    kinds = utf8, start, masks

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        del signature
        row = _load_block(b, find_values(context, b, utf8, arguments[0]), arguments[1])
        masks_data = find_values(context, b, masks, arguments[2])
        is_other = b.icmp_signed("<", row, _fill(0))
        found = _emit_is_in(b, row, _SPACES), _emit_is_in(b, row, _DELETED), is_other
        for k, bits in enumerate(found):
            address = b.gep(masks_data, [ir.Constant(_INDEX, k)])
            b.store(b.bitcast(bits, _INDEX), address)
        return context.get_dummy_value()

    return types.void(*kinds), generate


def _declare_write_block(
    context: Any, utf8: Any, start: Any, is_kept: Any, letters: Any, place: Any
) -> Any:
    """Write the bytes of a block that are kept, and return the bits of the written blanks."""
    del context
    kinds = utf8, start, is_kept, letters, place

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        del signature
        row = _load_block(b, find_values(context, b, utf8, arguments[0]), arguments[1])
        lower = b.or_(row, _fill(_CASE_BIT))
        row = b.select(_emit_is_in(b, row, _CAPITALS), lower, row)
        row = b.select(_emit_is_in(b, row, _SPACES), _fill(_BLANK), row)
        kind = ir.FunctionType(_BYTES, [_BYTES, _BOOLS, _BYTES])
        name = f"llvm.experimental.vector.compress.v{_BLOCK_BYTES}i8"
        compress = cgutils.get_or_insert_function(b.module, kind, name)
        keep = b.bitcast(arguments[2], _BOOLS)
        row = b.call(compress, [row, keep, ir.Constant(_BYTES, ir.Undefined)])
        address = b.gep(find_values(context, b, letters, arguments[3]), [arguments[4]])
        b.store(row, b.bitcast(address, _BYTES.as_pointer()), align=1)
        return b.bitcast(b.icmp_unsigned("==", row, _fill(_BLANK)), _INDEX)

    return types.uint64(*kinds), generate


def _declare_count_trailing_zeros(context: Any, bits: Any) -> Any:
    """Return the place of the lowest 1, or 64 if there is none."""
    del context

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return b.cttz(arguments[0], ir.Constant(ir.IntType(1), 0))

    return types.int64(bits), generate


def _declare_count_ones(context: Any, bits: Any) -> Any:
    del context

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        del context, signature
        return b.ctpop(arguments[0])

    return types.int64(bits), generate


_classify: Any = intrinsic(_declare_classify)
_write_block: Any = intrinsic(_declare_write_block)
_count_trailing_zeros: Any = intrinsic(_declare_count_trailing_zeros)
_count_ones: Any = intrinsic(_declare_count_ones)


def _load_block(b: Any, data: Any, start: Any) -> Any:
    address = b.bitcast(b.gep(data, [start]), _BYTES.as_pointer())
    return b.load(address, align=1)


def _emit_is_in(b: Any, row: Any, ranges: list[tuple[int, int]]) -> Any:
    """Return for each byte whether it is in one of the ranges."""
    is_in = ir.Constant(_BOOLS, [0] * _BLOCK_BYTES)
    for first, last in ranges:
        # below `first`, the difference wraps around to a large number
        distance = b.sub(row, _fill(first))
        is_in = b.or_(is_in, b.icmp_unsigned("<=", distance, _fill(last - first)))
    return is_in


def _fill(value: int) -> Any:
    return ir.Constant(_BYTES, [value] * _BLOCK_BYTES)
