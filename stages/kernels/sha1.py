"""SHA-1 (FIPS 180-4) of many messages, 16 at a time, each in one lane of vector registers.

Each of SHA-1's 80 steps needs the result of the one before, so one message leaves most of a core
idle: a block of 64 bytes takes 103 ns. 16 blocks together take 195 ns with AVX-512. LLVM translates
the vectors to instructions of the processor, of any width.

Most n-grams and many lines have one block. They have separate code, which starts from constants and
keeps the state in registers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic
from numpy.typing import NDArray

from stages.kernels.compilation import find_values

BLOCK_BYTES = 64  # FIPS 180-4, section 5.2.1
# Bytes that must follow the last message, with any content: whole blocks are read.
SLACK_BYTES = BLOCK_BYTES

_LANES = 16
# Messages are hashed in groups of 16 with the same number of blocks. Those of more blocks than
# this are rare, so their groups mix numbers of blocks: a lane is idle after the end of its message.
_MAX_BLOCKS = 16
_LENGTH_BYTES = 8  # of the message's length, at the end of its last block
# Messages of at most that many bytes have one block: a byte 0x80 and the length follow.
_MAX_SHORT = BLOCK_BYTES - _LENGTH_BYTES - 1
_NUM_STEPS = 80
# Initial hash value (section 5.3.1), and the constant of each 20 steps (section 4.2.1).
_INITIAL_STATE = (0x67452301, 0xEFCDAB89, 0x98BADCFE, 0x10325476, 0xC3D2E1F0)
_CONSTANTS = (0x5A827999, 0x6ED9EBA1, 0x8F1BBCDC, 0xCA62C1D6)

_WORD = ir.IntType(32)
_WORDS = ir.VectorType(_WORD, _LANES)  # a word of each message, or a block of one
_BYTES = ir.VectorType(ir.IntType(8), BLOCK_BYTES)


class _Lanes(NamedTuple):
    """The next block of each of 16 messages, and their states."""

    starts: NDArray[np.int64]  # (16,) where the block starts
    # (16,) bytes of the message in it: 0 to 64, -1 if it ended before
    sizes: NDArray[np.int64]
    # (16,) of the whole message if this is its last block, else 0
    num_bits: NDArray[np.uint32]
    masks: NDArray[np.uint32]  # (16,) all ones if the message has this block, else 0
    state: NDArray[np.uint32]  # (5, 16)


class _ShortMessages(NamedTuple):
    """Up to 16 messages of one block each."""

    messages: NDArray[np.int64]  # (16,)
    starts: NDArray[np.int64]  # (16,)
    sizes: NDArray[np.int64]  # (16,) bytes
    prefixes: NDArray[np.uint64]  # (16,) the results


def _list_short_paddings() -> NDArray[np.uint8]:
    """Return the padding of a block after 0 to `_MAX_SHORT` bytes of a message, (n, 64)."""
    paddings = np.zeros((_MAX_SHORT + 1, BLOCK_BYTES), np.uint8)
    for size in range(len(paddings)):
        paddings[size, size] = 0x80
        paddings[size, -2:] = divmod(8 * size, 256)
    return paddings


_SHORT_PADDINGS = _list_short_paddings()


@njit(nogil=True)
def sha1_prefixes(
    utf8: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    hashes: NDArray[Any],
) -> None:
    """Write the first 8 bytes of the SHA-1 of each utf8[start:end], read as little-endian.

    Args:
        utf8: the bytes of all messages, and SLACK_BYTES more.
        starts: (n,) of the messages.
        ends: (n,) of the messages.
        hashes: (n,) uint64, receives the hashes. One of uint32 receives the first 4 bytes.
    """
    short, num_short = _make_short(), np.uint64(0)
    longer = np.empty(len(starts), np.int64)
    num_longer = 0
    for message in range(len(starts)):
        size = ends[message] - starts[message]
        if size > _MAX_SHORT:
            longer[num_longer] = message
            num_longer += 1
            continue
        # Unsigned indexes save numba's test for negative ones.
        short.messages[num_short] = message
        short.starts[num_short], short.sizes[num_short] = starts[message], size
        num_short += np.uint64(1)
        if num_short == _LANES:
            _hash_short_messages(utf8, short, _LANES, hashes)
            num_short = np.uint64(0)
    if num_short:
        _hash_short_messages(utf8, short, int(num_short), hashes)
    if num_longer:
        _hash_longer_messages(utf8, starts, ends, longer[:num_longer], hashes)


@njit(nogil=True)
def _make_short() -> _ShortMessages:
    return _ShortMessages(
        np.empty(_LANES, np.int64),
        np.empty(_LANES, np.int64),
        np.empty(_LANES, np.int64),
        np.empty(_LANES, np.uint64),
    )


@njit(nogil=True)
def _hash_short_messages(
    utf8: NDArray[np.uint8], short: _ShortMessages, num_short: int, hashes: NDArray[Any]
) -> None:
    """Hash up to 16 messages of one block each."""
    for lane in range(num_short, _LANES):  # a lane without a message repeats the first one
        short.messages[lane] = short.messages[0]
        short.starts[lane], short.sizes[lane] = short.starts[0], short.sizes[0]
    _hash_single_blocks(utf8, short.starts, short.sizes, _SHORT_PADDINGS, short.prefixes)
    for lane in range(_LANES):
        hashes[short.messages[lane]] = short.prefixes[lane]


@njit(nogil=True)
def _hash_longer_messages(
    utf8: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    messages: NDArray[np.int64],
    hashes: NDArray[Any],
) -> None:
    """Hash messages of any number of blocks, 16 of the same number together."""
    # Messages of more than _MAX_BLOCKS have row 0.
    waiting = np.empty((_MAX_BLOCKS + 1, _LANES), np.int64)
    num_waiting = np.zeros(_MAX_BLOCKS + 1, np.int64)
    lanes = _Lanes(
        np.empty(_LANES, np.int64),
        np.empty(_LANES, np.int64),
        np.empty(_LANES, np.uint32),
        np.empty(_LANES, np.uint32),
        np.empty((len(_INITIAL_STATE), _LANES), np.uint32),
    )
    for k in range(len(messages)):
        message = int(messages[k])
        row = _count_blocks(ends[message] - starts[message])
        if row > _MAX_BLOCKS:
            row = 0
        waiting[row, num_waiting[row]] = message
        num_waiting[row] += 1
        if num_waiting[row] == _LANES:
            _hash_lanes(utf8, starts, ends, waiting[row], lanes, hashes)
            num_waiting[row] = 0
    for row in range(_MAX_BLOCKS + 1):
        if num_waiting[row]:
            last = waiting[row, : num_waiting[row]]
            _hash_lanes(utf8, starts, ends, last, lanes, hashes)


@njit(nogil=True)
def _count_blocks(num_bytes: int) -> int:
    """Return the number of blocks of a message with its padding (section 5.1.1)."""
    return (num_bytes + _LENGTH_BYTES) // BLOCK_BYTES + 1


@njit(nogil=True)
def _hash_lanes(
    utf8: NDArray[np.uint8],
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    messages: NDArray[np.int64],
    lanes: _Lanes,
    hashes: NDArray[Any],
) -> None:
    """Hash up to 16 messages."""
    longest = 0
    for lane in range(len(messages)):
        message = messages[lane]
        longest = max(longest, int(ends[message] - starts[message]))
    for word in range(len(_INITIAL_STATE)):
        lanes.state[word] = _INITIAL_STATE[word]
    for block in range(_count_blocks(longest)):
        for lane in range(_LANES):  # a lane without a message repeats the first one
            message = messages[lane if lane < len(messages) else 0]
            _set_lane(lanes, lane, int(starts[message]), int(ends[message]), block)
        _add_blocks(
            lanes.state, utf8, lanes.starts, lanes.sizes, lanes.num_bits, lanes.masks
        )
    for lane in range(len(messages)):
        first, second = lanes.state[0, lane], lanes.state[1, lane]
        prefix = _swap_bytes(first) | _swap_bytes(second) << np.uint64(32)
        hashes[messages[lane]] = prefix


@njit(nogil=True)
def _set_lane(lanes: _Lanes, lane: int, start: int, end: int, block: int) -> None:
    size = end - start - block * BLOCK_BYTES
    # A block of padding only can start after the bytes that can be read.
    lanes.starts[lane] = end - size if size > 0 else start
    lanes.sizes[lane] = min(max(size, -1), BLOCK_BYTES)
    has_block = size >= -_LENGTH_BYTES
    is_last = has_block and size < BLOCK_BYTES - _LENGTH_BYTES
    lanes.num_bits[lane] = 8 * (end - start) if is_last else 0
    lanes.masks[lane] = 0xFFFFFFFF if has_block else 0


@njit(nogil=True)
def _swap_bytes(x: np.uint32) -> np.uint64:
    swapped = np.uint64(0)
    for i in range(4):
        swapped |= np.uint64(x >> np.uint32(8 * i) & np.uint32(0xFF)) << np.uint64(
            24 - 8 * i
        )
    return swapped


# --- Vector code: functions that emit LLVM instructions with the builder `b` ---


def _declare_add_blocks(
    context: Any, state: Any, utf8: Any, starts: Any, sizes: Any, num_bits: Any, masks: Any
) -> Any:
    """Add a block of each message to its state (section 6.1.2). The arrays are those of `_Lanes`."""
    del context
    kinds = state, utf8, starts, sizes, num_bits, masks

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        del signature
        state, utf8, starts, sizes, num_bits, masks = (
            find_values(context, b, kind, argument)
            for kind, argument in zip(kinds, arguments, strict=True)
        )
        rows = [
            _emit_block(b, utf8, _load(b, starts, i), _load(b, sizes, i))
            for i in range(_LANES)
        ]
        words = _emit_transpose(b, rows)
        words[-1] = b.or_(words[-1], _load_words(b, num_bits, 0))
        _emit_compress(b, state, words, _load_words(b, masks, 0))
        return context.get_dummy_value()

    return types.void(*kinds), generate


_add_blocks: Any = intrinsic(_declare_add_blocks)


def _declare_hash_single_blocks(
    context: Any, utf8: Any, starts: Any, sizes: Any, paddings: Any, prefixes: Any
) -> Any:
    """Hash 16 messages of one block. The arrays are those of `_ShortMessages`."""
    del context
    kinds = utf8, starts, sizes, paddings, prefixes

    def generate(context: Any, b: Any, signature: Any, arguments: Any) -> Any:
        del signature
        utf8, starts, sizes, paddings, prefixes = (
            find_values(context, b, kind, argument)
            for kind, argument in zip(kinds, arguments, strict=True)
        )
        rows = [
            _emit_short_block(b, utf8, paddings, _load(b, starts, i), _load(b, sizes, i))
            for i in range(_LANES)
        ]
        initial = [_fill(_WORDS, word) for word in _INITIAL_STATE]
        registers = _emit_steps(b, initial, _emit_transpose(b, rows))
        first, second = (
            _emit_swap(b, b.bitcast(b.add(registers[i], initial[i]), _BYTES))
            for i in range(2)
        )
        pairs = [k + i * _LANES for k in range(_LANES) for i in range(2)]
        order = ir.VectorType(_WORD, 2 * _LANES)(pairs)
        both = b.shuffle_vector(first, second, order)
        b.store(both, b.bitcast(prefixes, both.type.as_pointer()), align=8)
        return context.get_dummy_value()

    return types.void(*kinds), generate


_hash_single_blocks: Any = intrinsic(_declare_hash_single_blocks)


def _load(b: Any, array: Any, index: int) -> Any:
    return b.load(b.gep(array, [ir.Constant(_WORD, index)]))


def _locate_words(b: Any, array: Any, row: int) -> Any:
    """Return the address of a row of 16 words."""
    start = b.gep(array, [ir.Constant(_WORD, row * _LANES)])
    return b.bitcast(start, _WORDS.as_pointer())


def _load_words(b: Any, array: Any, row: int) -> Any:
    return b.load(_locate_words(b, array, row), align=4)


def _emit_block(b: Any, utf8: Any, start: Any, size: Any) -> Any:
    """Load a block with its padding (section 5.1.1), as words."""
    address = b.bitcast(b.gep(utf8, [start]), _BYTES.as_pointer())
    row = b.load(address, align=1)
    position = ir.Constant(_BYTES, list(range(BLOCK_BYTES)))
    end = _emit_splat(b, b.trunc(size, _BYTES.element))
    row = b.select(b.icmp_signed("<", position, end), row, _fill(_BYTES, 0))
    row = b.select(b.icmp_signed("==", position, end), _fill(_BYTES, 0x80), row)
    return _emit_swap(b, row)


def _emit_short_block(b: Any, utf8: Any, paddings: Any, start: Any, size: Any) -> Any:
    """Load the only block of a message with its padding, as words."""
    row = b.load(b.bitcast(b.gep(utf8, [start]), _BYTES.as_pointer()), align=1)
    offset = b.mul(size, ir.Constant(size.type, BLOCK_BYTES))
    padding = b.load(b.bitcast(b.gep(paddings, [offset]), _BYTES.as_pointer()), align=1)
    position = ir.Constant(_BYTES, list(range(BLOCK_BYTES)))
    end = _emit_splat(b, b.trunc(size, _BYTES.element))
    return _emit_swap(b, b.select(b.icmp_signed("<", position, end), row, padding))


def _emit_swap(b: Any, row: Any) -> Any:
    """Return the words of 64 bytes, read as big-endian."""
    order = ir.VectorType(_WORD, BLOCK_BYTES)([i ^ 3 for i in range(BLOCK_BYTES)])
    return b.bitcast(b.shuffle_vector(row, row, order), _WORDS)


def _emit_splat(b: Any, value: Any) -> Any:
    """Return a vector of 64 equal bytes."""
    undefined, first = ir.Constant(_BYTES, ir.Undefined), ir.Constant(_WORD, 0)
    row = b.insert_element(undefined, value, first)
    return b.shuffle_vector(row, row, _fill(ir.VectorType(_WORD, BLOCK_BYTES), 0))


def _emit_transpose(b: Any, rows: list[Any]) -> list[Any]:
    """Return vectors of the same word of all messages: four perfect shuffles of the 16 rows."""
    half = _LANES // 2
    order: list[int] = []
    for k in range(_LANES):
        order += [k, _LANES + k]
    masks = _WORDS(order[:_LANES]), _WORDS(order[_LANES:])
    for _ in range(_LANES.bit_length() - 1):
        shuffled: list[Any] = []
        for one, other in zip(rows[:half], rows[half:], strict=True):
            shuffled += [b.shuffle_vector(one, other, mask) for mask in masks]
        rows = shuffled
    return rows


def _emit_compress(b: Any, state: Any, words: list[Any], masks: Any) -> None:
    """Run the 80 steps, and add the result to the states where `masks` has ones."""
    before = [_load_words(b, state, row) for row in range(len(_INITIAL_STATE))]
    for row, value in enumerate(_emit_steps(b, before, words)):
        after = b.add(before[row], b.and_(value, masks))
        b.store(after, _locate_words(b, state, row), align=4)


def _emit_steps(b: Any, registers: list[Any], words: list[Any]) -> list[Any]:
    """Run the 80 steps, and return the registers after them."""
    w = list(words)  # names as in the standard
    for t in range(_NUM_STEPS):
        if t >= len(words):
            parity = b.xor(b.xor(w[t - 3], w[t - 8]), b.xor(w[t - 14], w[t - 16]))
            w.append(_emit_rotate(b, parity, 1))
        va, vb, vc, vd, ve = registers
        terms = b.add(b.add(ve, w[t]), _fill(_WORDS, _CONSTANTS[t // 20]))
        terms = b.add(terms, _emit_function(b, t, vb, vc, vd))
        registers = [
            b.add(_emit_rotate(b, va, 5), terms),
            va,
            _emit_rotate(b, vb, 30),
            vc,
            vd,
        ]
    return registers


def _emit_function(b: Any, t: int, x: Any, y: Any, z: Any) -> Any:
    """Return the function of step t (section 4.1.1)."""
    if t < 20:  # "choose", with one operation less than in the standard
        return b.xor(z, b.and_(x, b.xor(y, z)))
    if 40 <= t < 60:  # "majority"
        return b.or_(b.and_(x, y), b.and_(z, b.or_(x, y)))
    return b.xor(x, b.xor(y, z))  # "parity"


def _emit_rotate(b: Any, x: Any, bits: int) -> Any:
    left, right = b.shl(x, _fill(_WORDS, bits)), b.lshr(x, _fill(_WORDS, 32 - bits))
    return b.or_(left, right)


def _fill(kind: Any, value: int) -> Any:
    return kind([value] * kind.count)
