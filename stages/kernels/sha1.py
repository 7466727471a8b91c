"""SHA-1 of every line of a batch of texts, in CCNet's normal form, compiled: no Python string is made.

Promises: for each line the same number as `stages.paragraphs.hash_paragraph`, except for the lines that it hands back
as `exact`, where the answer depends on more than one character (final sigma) or the bytes are not UTF-8.
Leaves to others: what each character becomes (the `CharacterTable` is an argument) and the exact lines.

How a line is read, one step per character:

    "  Año 7…"   strip     find the first and the last character that are not white space
                 map       A -> a   ñ -> itself   7 -> 0   … -> nothing
    "año 0"      SHA-1     the first 8 bytes, little-endian

Everything that is compiled into `hash_lines` stands in this file: numba's cache on disk looks for changes only in the
file of the function that was compiled, and would go on using a stale copy of what came from another one. `decode` and
`sha1_prefix` are compiled into stages/kernels/minhash.py and stages/kernels/overlap.py too: whoever changes them touches those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, ParamSpec, TypeAlias, TypeVar

import numpy as np
from numba import njit
from numpy.typing import NDArray

# What becomes of a character: one of these, or else the 1 to 4 bytes of UTF-8 that replace it, first byte lowest.
# Control characters are always deleted, so no replacement can be mistaken for one of these numbers.
DELETE, KEEP, EXACT, KEEP_SPACE, DELETE_SPACE = 0, 1, 2, 3, 4

PAGE_BITS = 7
PAGE = 1 << PAGE_BITS
"""Code points per page of a `CharacterTable`: ASCII is the first page."""
NUM_PAGES = 0x110000 // PAGE

_U32 = np.uint32
_State: TypeAlias = tuple[np.uint32, np.uint32, np.uint32, np.uint32, np.uint32]
_BLOCK = 64  # bytes; FIPS 180-4, section 5.2.1
_PADDING = 2 * _BLOCK  # the 0x80, the zeros and the 8 bytes of length never take more

_P = ParamSpec("_P")
_R = TypeVar("_R")


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Numba's njit without the GIL: compiled at the first call, and kept on disk where any folder can be written.

    Numba tries NUMBA_CACHE_DIR, the folder of the source file, then the user's cache, and refuses where all are
    read-only (a locked container): there each process compiles for itself, some 4 s.
    """
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:
        return njit(nogil=True)(function)


class CharacterTable(NamedTuple):
    """What becomes of each code point: `actions[pages[code_point // PAGE], code_point % PAGE]`."""

    pages: NDArray[np.uint16]  # (NUM_PAGES,)
    actions: NDArray[np.uint32]  # (number of different pages, PAGE)
    ascii: NDArray[
        np.uint8
    ]  # (PAGE,) the byte that each byte of the first page becomes, 0 where it is deleted


def character_table(
    action: Callable[[str], int], is_unchanged: Callable[[str], bool]
) -> CharacterTable:
    """Ask for every code point once, and store equal pages once, so that the table stays in the fastest cache.

    Args:
        action: what becomes of one character.
        is_unchanged: whether every character of a string has the action `KEEP` (spares a million calls of `action`).
    """
    pages = np.empty(NUM_PAGES, np.uint16)
    numbers: dict[tuple[int, ...], int] = {}
    for page in range(NUM_PAGES):
        actions = _page_actions(page * PAGE, action, is_unchanged)
        pages[page] = numbers.setdefault(actions, len(numbers))
    distinct = np.array(list(numbers), np.uint32)
    ascii_actions = distinct[pages[0]]
    is_kept = (ascii_actions == KEEP) | (ascii_actions == KEEP_SPACE)
    is_deleted = (ascii_actions == DELETE) | (ascii_actions == DELETE_SPACE)
    becomes = np.where(is_kept, np.arange(PAGE), np.where(is_deleted, 0, ascii_actions))
    return CharacterTable(pages, distinct, becomes.astype(np.uint8))


def _page_actions(
    first: int, action: Callable[[str], int], is_unchanged: Callable[[str], bool]
) -> tuple[int, ...]:
    if 0xD800 <= first < 0xE000:  # surrogates are not characters: no valid UTF-8 holds one
        return (EXACT,) * PAGE
    characters = [chr(c) for c in range(first, first + PAGE)]
    if is_unchanged("".join(characters)):
        return (KEEP,) * PAGE
    return tuple(action(c) for c in characters)


def packed(replacement: str) -> int:
    """The action that writes `replacement` (not empty); `EXACT` where it is too long to be packed."""
    utf8 = replacement.encode()
    return int.from_bytes(utf8, "little") if len(utf8) <= 4 else EXACT


@compiled
def count_lines(
    utf8: NDArray[np.uint8], offsets: NDArray[np.int64], is_valid: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Where the lines of each text start in the list of all lines, (n + 1,): newlines + 1 for each, 0 for null."""
    firsts = np.zeros(len(offsets), np.int64)
    for t in range(len(offsets) - 1):
        num_lines = 0
        if is_valid[t]:
            num_lines = 1
            for byte in utf8[offsets[t] : offsets[t + 1]]:
                num_lines += byte == 10
        firsts[t + 1] = firsts[t] + num_lines
    return firsts


@compiled
def hash_lines(
    utf8: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    firsts: NDArray[np.int64],
    table: CharacterTable,
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """The hash of every line, and the lines that it must leave to the caller.

    Args:
        utf8: (bytes,) of all texts.
        offsets: (n + 1,) where each text starts in `utf8`.
        firsts: (n + 1,) as `count_lines` gives them.
        table: what becomes of each character.

    Returns:
        hashes: (firsts[n],).
        exact: (k, 3) line, start and end in `utf8` of each line without a hash.
    """
    num_lines = firsts[-1]
    hashes = np.empty(num_lines, np.uint64)
    exact = np.empty((num_lines, 3), np.int64)  # memory that is not written to is never taken
    num_exact = 0
    # An action writes at most 4 bytes, for at least 2 read (ASCII: 1 for 1).
    message = np.empty(2 * _longest(offsets) + _PADDING, np.uint8)
    schedule = np.empty(80, np.uint32)
    for t in range(len(firsts) - 1):
        start = offsets[t]
        for line in range(firsts[t], firsts[t + 1]):
            end = _line_end(utf8, start, offsets[t + 1])
            num_bytes = _normalise(utf8, start, end, table, message)
            if num_bytes >= 0:
                hashes[line] = sha1_prefix(message, num_bytes, schedule)
            else:
                exact[num_exact, 0], exact[num_exact, 1], exact[num_exact, 2] = line, start, end
                num_exact += 1
            start = end + 1
    return hashes, exact[:num_exact].copy()


@njit(nogil=True)
def _longest(offsets: NDArray[np.int64]) -> int:
    longest = 0
    for t in range(len(offsets) - 1):
        longest = max(longest, offsets[t + 1] - offsets[t])
    return longest


@njit(nogil=True)
def _line_end(utf8: NDArray[np.uint8], start: int, end: int) -> int:
    for i in range(start, end):
        if utf8[i] == 10:
            return i
    return end


@njit(nogil=True)
def decode(utf8: NDArray[np.uint8], i: int, end: int) -> tuple[np.int64, int]:
    """Code point and width in bytes of the character at `i`; a width of 0 where there is none (Unicode, table 3-7)."""
    lead = np.int64(utf8[i])
    if lead < 0x80:
        return lead, 1
    if lead < 0xE0:
        width, least, code_point = 2, 0x80, lead & 0x1F
    elif lead < 0xF0:
        width, least, code_point = 3, 0x800, lead & 0x0F
    else:
        width, least, code_point = 4, 0x10000, lead & 0x0F
    if lead < 0xC2 or lead > 0xF4 or i + width > end:
        return np.int64(0), 0
    for k in range(1, width):
        follower = np.int64(utf8[i + k])
        if follower & 0xC0 != 0x80:
            return np.int64(0), 0
        code_point = code_point << 6 | follower & 0x3F
    if code_point < least or code_point > 0x10FFFF:
        return np.int64(0), 0
    return code_point, width


@njit(nogil=True)
def _is_space(code_point: np.int64, table: CharacterTable) -> bool:
    action = table.actions[table.pages[code_point >> PAGE_BITS], code_point & (PAGE - 1)]
    return action in (KEEP_SPACE, DELETE_SPACE)


@njit(nogil=True)
def _strip(utf8: NDArray[np.uint8], start: int, end: int, table: CharacterTable) -> tuple[int, int]:
    while start < end:
        code_point, width = decode(utf8, start, end)
        if width == 0 or not _is_space(code_point, table):
            break
        start += width
    while start < end:
        last = end - 1
        while last > start and utf8[last] & 0xC0 == 0x80:
            last -= 1
        code_point, width = decode(utf8, last, end)
        if width != end - last or not _is_space(code_point, table):
            break
        end = last
    return start, end


@njit(nogil=True)
def _normalise(
    utf8: NDArray[np.uint8],
    start: int,
    end: int,
    table: CharacterTable,
    message: NDArray[np.uint8],
) -> int:
    """Write the normal form of a line into `message`; the number of bytes, or -1 where it needs the exact way."""
    i, end = _strip(utf8, start, end, table)
    j = 0
    while i < end:
        if utf8[i] < 0x80:
            message[j] = table.ascii[utf8[i]]
            j += message[j] != 0
            i += 1
            continue
        code_point, width = decode(utf8, i, end)
        if width == 0:
            return -1
        action = table.actions[table.pages[code_point >> PAGE_BITS], code_point & (PAGE - 1)]
        if action in (KEEP, KEEP_SPACE):
            for k in range(width):
                message[j + k] = utf8[i + k]
            j += width
        elif action == EXACT:
            return -1
        elif action != DELETE_SPACE:
            while action:
                message[j] = action & 0xFF
                action >>= 8
                j += 1
        i += width
    return j


@njit(nogil=True)
def sha1_prefix(
    message: NDArray[np.uint8], num_bytes: int, schedule: NDArray[np.uint32]
) -> np.uint64:
    """Pad the message in place (FIPS 180-4, section 5.1.1), hash it, read the first 8 bytes as little-endian."""
    num_blocks = (num_bytes + 8) // _BLOCK + 1
    message[num_bytes] = 0x80
    for i in range(num_bytes + 1, num_blocks * _BLOCK - 8):
        message[i] = 0
    for i in range(8):
        message[num_blocks * _BLOCK - 1 - i] = (num_bytes * 8) >> (8 * i) & 0xFF
    state = _U32(0x67452301), _U32(0xEFCDAB89), _U32(0x98BADCFE), _U32(0x10325476), _U32(0xC3D2E1F0)
    for block in range(num_blocks):
        state = _compress(state, message, block * _BLOCK, schedule)
    return np.uint64(_swap(state[0])) | np.uint64(_swap(state[1])) << np.uint64(32)


@njit(nogil=True)
def _rotate(x: np.uint32, bits: int) -> np.uint32:
    return _U32(x << _U32(bits) | x >> _U32(32 - bits))


@njit(nogil=True)
def _swap(x: np.uint32) -> np.uint32:
    return _U32(_rotate(x, 8) & _U32(0x00FF00FF) | _rotate(x, 24) & _U32(0xFF00FF00))


@njit(nogil=True)
def _compress(
    state: _State, message: NDArray[np.uint8], start: int, w: NDArray[np.uint32]
) -> _State:
    """One block of 64 bytes (FIPS 180-4, section 6.1.2); `w` is the message schedule, (80,)."""
    block = message[start : start + _BLOCK]
    for t in range(16):
        i = 4 * t
        w[t] = (
            _U32(block[i]) << 24
            | _U32(block[i + 1]) << 16
            | _U32(block[i + 2]) << 8
            | _U32(block[i + 3])
        )
    for t in range(16, 80):
        w[t] = _rotate(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1)
    a, b, c, d, e = state
    for t in range(20):
        f = d ^ b & (c ^ d)
        a, b, c, d, e = (
            _U32(_rotate(a, 5) + f + e + _U32(0x5A827999) + w[t]),
            a,
            _rotate(b, 30),
            c,
            d,
        )
    for t in range(20, 40):
        f = b ^ c ^ d
        a, b, c, d, e = (
            _U32(_rotate(a, 5) + f + e + _U32(0x6ED9EBA1) + w[t]),
            a,
            _rotate(b, 30),
            c,
            d,
        )
    for t in range(40, 60):
        f = b & c | d & (b | c)
        a, b, c, d, e = (
            _U32(_rotate(a, 5) + f + e + _U32(0x8F1BBCDC) + w[t]),
            a,
            _rotate(b, 30),
            c,
            d,
        )
    for t in range(60, 80):
        f = b ^ c ^ d
        a, b, c, d, e = (
            _U32(_rotate(a, 5) + f + e + _U32(0xCA62C1D6) + w[t]),
            a,
            _rotate(b, 30),
            c,
            d,
        )
    return (
        _U32(state[0] + a),
        _U32(state[1] + b),
        _U32(state[2] + c),
        _U32(state[3] + d),
        _U32(state[4] + e),
    )
