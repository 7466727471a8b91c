"""SHA-1 of every line of a batch of texts, in CCNet's normal form.

For each line the result equals `stages.dedup.paragraph_hashes.hash_paragraph`. Lines whose normal form
depends on more than one character (final sigma) or that are not valid UTF-8 are returned to the
caller, which hashes them in Python. Example of one line:

    "  Año 7…"   strip     find the first and the last character that are not white space
                 map       A -> a   ñ -> itself   7 -> 0   … -> nothing
    "año 0"      SHA-1     the first 8 bytes, little-endian
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels.characters import (
    DELETE_SPACE,
    EXACT,
    KEEP,
    KEEP_SPACE,
    CharacterTable,
    decode_character,
    look_up_action,
)
from stages.kernels.compilation import compiled
from stages.kernels.line_cleaning import find_line_end
from stages.kernels.sha1 import SLACK_BYTES, sha1_prefixes
from stages.kernels.utf8 import find_longest

_LINE_FEED = 0x0A
# Normal forms that are hashed together, unless a text is longer. They fit into the second-level
# cache, and leave few lanes of `sha1_prefixes` empty.
_BUFFER_BYTES = 1 << 18


@compiled
def count_lines(
    utf8: NDArray[np.uint8], offsets: NDArray[np.int64], is_valid: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the index of each text's first line in the list of all lines, (n + 1,).

    A text has one line more than it has line feeds. A null (`is_valid` is false) has none.
    """
    first_lines = np.zeros(len(offsets), np.int64)
    for t in range(len(offsets) - 1):
        num_lines = 0
        if is_valid[t]:
            num_lines = 1
            for byte in utf8[offsets[t] : offsets[t + 1]]:
                num_lines += byte == _LINE_FEED
        first_lines[t + 1] = first_lines[t] + num_lines
    return first_lines


@compiled
def hash_lines(
    utf8: NDArray[np.uint8],
    offsets: NDArray[np.int64],
    first_lines: NDArray[np.int64],
    table: CharacterTable,
) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Hash every line.

    Args:
        utf8: the bytes of all texts.
        offsets: (n + 1,) where each text starts in `utf8`.
        first_lines: (n + 1,) as `count_lines` returns it.
        table: the action for each character.

    Returns:
        hashes: (first_lines[n],) undefined for the lines listed in `exact`.
        exact: (k, 3) index, start and end in `utf8` of each line that the caller must hash.
    """
    num_lines = first_lines[-1]
    hashes = np.empty(num_lines, np.uint64)
    # Most rows stay unused. They cost nothing: the operating system maps memory at the first write.
    exact = np.empty((num_lines, 3), np.int64)
    num_exact = 0
    starts, ends = np.empty(num_lines, np.int64), np.empty(num_lines, np.int64)
    # An action writes at most 4 bytes for at least 2 bytes read (ASCII: 1 for 1).
    capacity = max(2 * find_longest(offsets), _BUFFER_BYTES)
    messages = np.empty(capacity + SLACK_BYTES, np.uint8)
    first, num_written = 0, 0  # line from which on normal forms wait, and their bytes
    for t in range(len(first_lines) - 1):
        start, line = offsets[t], first_lines[t]
        if num_written + 2 * (offsets[t + 1] - start) > capacity:
            sha1_prefixes(
                messages, starts[first:line], ends[first:line], hashes[first:line]
            )
            first, num_written = line, 0
        for line in range(first_lines[t], first_lines[t + 1]):
            end = find_line_end(utf8, start, offsets[t + 1])
            num_bytes = _normalize(utf8, start, end, table, messages[num_written:])
            if num_bytes < 0:
                exact[num_exact, 0], exact[num_exact, 1] = line, start
                exact[num_exact, 2] = end
                num_exact += 1
            starts[line] = num_written
            num_written += max(num_bytes, 0)
            ends[line] = num_written
            start = end + 1
    sha1_prefixes(messages, starts[first:], ends[first:], hashes[first:])
    return hashes, exact[:num_exact].copy()


@njit(nogil=True)
def _normalize(
    utf8: NDArray[np.uint8],
    start: int,
    end: int,
    table: CharacterTable,
    message: NDArray[np.uint8],
) -> int:
    """Write the normal form of a line into `message`.

    Returns:
        The number of bytes written, or -1 if the line must be normalized in Python.
    """
    i, end = _strip(utf8, start, end, table)
    num_written = 0
    while i < end:
        # ASCII, most of the text: one table look-up without a branch. A deleted character writes
        # a 0 that the next one overwrites.
        if utf8[i] < 0x80:
            message[num_written] = table.ascii[utf8[i]]
            num_written += message[num_written] != 0
            i += 1
            continue
        code_point, width = decode_character(utf8, i, end)
        if width == 0:
            return -1
        action = look_up_action(table, code_point)
        if action in (KEEP, KEEP_SPACE):
            for k in range(width):
                message[num_written + k] = utf8[i + k]
            num_written += width
        elif action == EXACT:
            return -1
        elif action != DELETE_SPACE:
            # A replacement, first byte lowest. DELETE is 0 and writes nothing.
            while action:
                message[num_written] = action & 0xFF
                action >>= 8
                num_written += 1
        i += width
    return num_written


@njit(nogil=True)
def _strip(
    utf8: NDArray[np.uint8], start: int, end: int, table: CharacterTable
) -> tuple[int, int]:
    """Return the part of utf8[start:end] without white space at its ends."""
    while start < end:
        code_point, width = decode_character(utf8, start, end)
        if width == 0 or not _is_space(code_point, table):
            break
        start += width
    while start < end:
        # Step back over continuation bytes (0b10xxxxxx) to the start of the last character.
        last = end - 1
        while last > start and utf8[last] & 0xC0 == 0x80:
            last -= 1
        code_point, width = decode_character(utf8, last, end)
        if width != end - last or not _is_space(code_point, table):
            break
        end = last
    return start, end


@njit(nogil=True)
def _is_space(code_point: np.int64, table: CharacterTable) -> bool:
    return look_up_action(table, code_point) in (KEEP_SPACE, DELETE_SPACE)
