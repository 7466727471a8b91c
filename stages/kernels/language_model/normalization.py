"""Normalize texts for a language model: CCNet's rules and SentencePiece's in one pass.

Both rules replace characters one by one, with few exceptions. The table has the outcome of both for
each code point:

    " "     one U+2581, if the last character was not a space
    "É"     "e"
    U+0301  deleted
    "한"    a character of a run: three letters by CCNet's rules. SentencePiece has rules for several
            characters, which make one of them. They are applied to all characters of the run.
    "Σ"     depends on its neighbours: the text is left to the libraries.

Source: `Normalizer::Normalize` in normalizer.cc of SentencePiece 0.2.3.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from functools import cache
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from stages.kernels import characters
from stages.kernels.characters import (
    NUM_CODE_POINTS,
    PLANES,
    decode_character,
    join_characters,
    list_combining,
)
from stages.kernels.compilation import compiled
from stages.stored_tables import TableKey, load_or_build
from stages.string_buffers import make_read_only

UNSUPPORTED = -1

# An action is one of these numbers, or 1 to 4 bytes of UTF-8 to write, first byte lowest.
_DELETE = 0
_SPACE = ord(" ")
# Action of character i of the characters of runs: _FIRST_RUN + i. No UTF-8 has such a fourth byte.
_FIRST_RUN = 0xC0000000
_EXACT = 0xFFFFFFFF

# Code points of one call of the normalizing function.
_BLOCK = 4096
# CCNet's rules leave these characters as they are.
_SEPARATORS = "\ue000", "\uf8ff"
# Its lower case depends on its neighbours.
_SIGMA = "Σ"

_NONZERO_BYTES = np.arange(1, 256)
_CONTINUATION_BYTES = np.arange(0x80, 0xC0)

# An entry of a Darts double array: the byte that leads to it, and where its children start. The value
# of a node that ends a source is the child for byte 0.
_LABEL = np.uint32(0x800000FF)
_HAS_VALUE = np.uint32(0x100)
_IS_FAR = np.uint32(0x200)
_FAR_SHIFT = np.uint32(6)
_OFFSET_SHIFT = np.uint32(10)
_VALUE = np.uint32(0x7FFFFFFF)

# SentencePiece's sign for a space: U+2581.
_SIGN = 0xE2, 0x96, 0x81
# The most rules that SentencePiece considers at one position.
_MAX_RULES = 32
# Bytes of a normal form per byte of the text. Longer ones are left to the libraries.
MAX_GROWTH = 8


class Normalization(NamedTuple):
    """What to do with each character."""

    actions: NDArray[np.uint32]  # (0x110000,) by code point
    # Characters of runs by CCNet's rules: number i is run_utf8[run_starts[i]:run_starts[i + 1]].
    run_utf8: NDArray[np.uint8]
    run_starts: NDArray[np.int64]
    # SentencePiece's rules: a Darts double array of their sources, and their targets, which end
    # with a zero byte.
    trie: NDArray[np.uint32]
    targets: NDArray[np.uint8]
    spaces: NDArray[np.int64]  # the code points that `str.strip` removes


@cache
def load_normalization(charsmap: bytes, normalize: Callable[[str], str]) -> Normalization:
    """Return the table of `build_normalization`, which is stored on this machine.

    Args:
        charsmap: see `build_normalization`.
        normalize: the same. Its source file must contain all of its rules.
    """
    sources = [__file__, characters.__file__, inspect.getfile(normalize)]
    key = TableKey("normalization", sources, charsmap)
    table = load_or_build(
        key, Normalization, lambda: build_normalization(charsmap, normalize)
    )
    return Normalization(*map(make_read_only, table))


def build_normalization(charsmap: bytes, normalize: Callable[[str], str]) -> Normalization:
    """Return the table for `normalize` and the rules of a SentencePiece model. Takes 0.1 s.

    Args:
        charsmap: `precompiled_charsmap` of the model, can be empty.
        normalize: strips a text, then replaces each character by itself, except for final sigmas
            and the canonical order of combining characters. Leaves private characters as they are.
    """
    trie, targets = _split_charsmap(charsmap)
    changed = _find_changed(normalize)
    is_written = np.ones(NUM_CODE_POINTS, np.bool_)
    is_written[[*map(ord, changed)]] = False
    is_written[[*map(ord, "".join(changed.values()))]] = True
    starts, is_in_run = _read_rules(trie, is_written)
    content = targets.tobytes()
    rules: dict[str, bytes] = {}
    for code in np.flatnonzero(starts >= 0).tolist():
        rules[chr(code)] = content[starts[code] : content.index(b"\0", starts[code])]
    in_runs = set(map(chr, np.flatnonzero(is_in_run).tolist()))
    actions, runs = _choose_actions(changed, rules, in_runs)
    return Normalization(
        make_read_only(actions),
        make_read_only(np.frombuffer(b"".join(runs), np.uint8)),
        make_read_only(np.cumsum([0, *map(len, runs)])),
        make_read_only(trie),
        make_read_only(targets),
        make_read_only(np.array([*map(ord, _find_spaces())])),
    )


def _choose_actions(
    changed: dict[str, str], rules: dict[str, bytes], in_runs: set[str]
) -> tuple[NDArray[np.uint32], list[bytes]]:
    """Return `Normalization.actions` and the UTF-8 of the characters of runs.

    Args:
        changed: CCNet's rules.
        rules: SentencePiece's rules for single characters.
        in_runs: the characters of its rules for several characters.
    """
    actions = _pack_utf8()
    runs: list[bytes] = []
    combining = set(list_combining())
    # 20,000 characters: the common cases come first, and calls are few.
    for character in {*changed, *rules, *in_runs, *combining}:
        code, text = ord(character), changed.get(character, character)
        if character == _SIGMA or not combining.isdisjoint(text):
            actions[code] = _EXACT
            continue
        if in_runs.isdisjoint(text):
            utf8 = b"".join([rules[c] if c in rules else c.encode() for c in text])
            if utf8 == b" " or (len(utf8) <= 4 and min(utf8, default=33) > _SPACE):
                actions[code] = int.from_bytes(utf8, "little")
                continue
        content = text.encode()
        if len(content) <= MAX_GROWTH * len(character.encode()):
            actions[code] = _FIRST_RUN + len(runs)
            runs.append(content)
        else:
            actions[code] = _EXACT
    return actions, runs


def _split_charsmap(charsmap: bytes) -> tuple[NDArray[np.uint32], NDArray[np.uint8]]:
    """Return `trie` and `targets` of a `Normalization`."""
    if not charsmap:
        return np.zeros(256, np.uint32), np.zeros(1, np.uint8)
    num_bytes = int.from_bytes(charsmap[:4], "little")
    trie = np.frombuffer(charsmap, np.uint32, num_bytes // 4, 4)
    return trie, np.frombuffer(charsmap, np.uint8, offset=4 + num_bytes)


def _find_changed(normalize: Callable[[str], str]) -> dict[str, str]:
    """Return the replacements of the characters that `normalize` changes."""
    changed: dict[str, str] = {}
    for first in chain.from_iterable(range(p.start, p.stop, _BLOCK) for p in PLANES):
        block = join_characters(first, first + _BLOCK)
        separator = _SEPARATORS[_SEPARATORS[0] in block]
        joined = separator.join(["", *block, ""])
        replaced = normalize(joined)
        if replaced == joined:
            continue
        texts = replaced.split(separator)[1:-1]
        pairs = zip(block, texts, strict=True)
        changed.update((character, text) for character, text in pairs if text != character)
    return changed


def _find_spaces() -> list[str]:
    """Return the characters that `str.strip` removes."""
    return re.findall(r"\s", _join_planes())


def _join_planes() -> str:
    return "".join(join_characters(plane.start, plane.stop) for plane in PLANES)


def _pack_utf8() -> NDArray[np.uint32]:
    """Return (0x110000,) the UTF-8 of each code point, first byte lowest."""
    codes = np.arange(NUM_CODE_POINTS, dtype=np.uint32)
    one, two, three, four = np.split(codes, [0x80, 0x800, 0x10000])
    packed = [
        one,
        (two >> 6 | 0xC0) | _pack_rest(two) << 8,
        (three >> 12 | 0xE0) | _pack_rest(three >> 6) << 8 | _pack_rest(three) << 16,
        (four >> 18 | 0xF0)
        | _pack_rest(four >> 12) << 8
        | _pack_rest(four >> 6) << 16
        | _pack_rest(four) << 24,
    ]
    return np.concatenate(packed).astype(np.uint32, copy=False)


def _pack_rest(codes: NDArray[np.integer[Any]]) -> NDArray[np.uint32]:
    """Return the continuation byte that holds the last six bits."""
    return ((codes & 0x3F) | 0x80).astype(np.uint32, copy=False)


@compiled
def _read_rules(
    trie: NDArray[np.uint32], is_written: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Read SentencePiece's rules whose sources have only characters that CCNet's rules write.

    Returns:
        starts: (0x110000,) where the target of the rule for the code point alone starts, or -1.
        is_in_run: (0x110000,) whether rules for several characters have the code point.
    """
    starts = np.full(len(is_written), -1, np.int64)
    is_in_run = np.zeros(len(is_written), np.bool_)
    # Each entry is a prefix of a source: where its children are, the first character if it is
    # complete or else -1, the code point of the last, and how many of its bytes are missing.
    stack = [(np.int64(_find_children(trie[0])), np.int64(-1), np.int64(0), np.int64(0))]
    while stack:
        node, first, prefix, prefix_missing = stack.pop()
        for byte in _CONTINUATION_BYTES if prefix_missing else _NONZERO_BYTES:
            child = node ^ byte
            if child >= len(trie) or trie[child] & _LABEL != byte:
                continue
            code, missing = _add_byte(prefix, prefix_missing, byte)
            first_here = first
            if missing == 0:
                if not is_written[code]:
                    continue
                if first == -1:
                    first_here = code
                else:
                    is_in_run[first] = is_in_run[code] = True
            children = child ^ np.int64(_find_children(trie[child]))
            if first == -1 and missing == 0 and trie[child] & _HAS_VALUE:
                starts[code] = trie[children] & _VALUE
            stack.append((children, first_here, code, missing))
    return starts, is_in_run


@njit(nogil=True)
def _add_byte(
    code: np.int64, missing: np.int64, byte: np.int64
) -> tuple[np.int64, np.int64]:
    """Return the code point of a character with one more byte, and how many are missing."""
    if missing:
        return code << 6 | byte & 0x3F, missing - 1
    if byte < 0x80:
        return byte, np.int64(0)
    if byte < 0xE0:
        return byte & 0x1F, np.int64(1)
    if byte < 0xF0:
        return byte & 0x0F, np.int64(2)
    return byte & 0x07, np.int64(3)


@njit(nogil=True)
def _find_children(entry: np.uint32) -> np.uint32:
    """Return where the children of an entry are, relative to it."""
    return entry >> _OFFSET_SHIFT << ((entry & _IS_FAR) >> _FAR_SHIFT)


@compiled
def normalize_text(
    text: NDArray[np.uint8],
    table: Normalization,
    out: NDArray[np.uint8],
    run: NDArray[np.uint8],
) -> int:
    """Write the normal form of a text.

    Args:
        text: UTF-8.
        table: the rules.
        out: for the normal form, `measure_normal_form(len(text))` bytes.
        run: for the current run, of the same size.

    Returns:
        The number of bytes, or UNSUPPORTED if only the libraries can normalize the text.
    """
    # A table as an argument of a function costs 20 ns: numba counts references to its arrays.
    actions = table.actions
    i, end = _strip(text, table.spaces)
    # SentencePiece starts a line with a space, and then expects no second one.
    size = _write_sign(out, 0)
    after_space = True
    run_size = 0
    while i < end:
        action, width = _find_action(text, i, actions)
        if action == _EXACT:
            return UNSUPPORTED
        if action >= _FIRST_RUN:
            run_size = _extend_run(run, run_size, np.int64(action - _FIRST_RUN), table)
        elif action != _DELETE:
            if run_size:
                # This much is free: each character before this one needs MAX_GROWTH per byte.
                room = out[: measure_normal_form(i)]
                size, after_space = _apply_rules(
                    run[:run_size], table, room, size, after_space
                )
                run_size = 0
                if size == UNSUPPORTED:
                    return UNSUPPORTED
            size = _write_action(out, size, action, after_space)
            after_space = action == _SPACE
        i += width
    if run_size:
        size, after_space = _apply_rules(run[:run_size], table, out, size, after_space)
        if size == UNSUPPORTED:
            return UNSUPPORTED
    return _trim_signs(out, size)


@njit(nogil=True)
def _trim_signs(out: NDArray[np.uint8], size: int) -> int:
    """Return the size without SentencePiece's signs for spaces at the end."""
    while size >= 3 and _is_sign(out, size - 3):
        size -= 3
    return size


@njit(nogil=True)
def _find_action(
    text: NDArray[np.uint8], i: int, actions: NDArray[np.uint32]
) -> tuple[np.uint32, int]:
    """Return the action of the character at `i` and its width, _EXACT if it is no UTF-8."""
    lead = np.int64(text[i])
    if lead < 0x80:
        return actions[lead], 1
    code, width = decode_character(text, i, len(text))
    return (actions[code], width) if width else (np.uint32(_EXACT), 0)


@njit(nogil=True)
def measure_normal_form(num_bytes: int) -> int:
    """Return the largest size of the normal form of that many bytes."""
    return MAX_GROWTH * num_bytes + len(_SIGN)


@njit(nogil=True)
def _strip(text: NDArray[np.uint8], spaces: NDArray[np.int64]) -> tuple[int, int]:
    """Return the start and the end of the text without white space around it."""
    start, end = 0, len(text)
    while start < end:
        code, width = decode_character(text, start, end)
        if not _contains(spaces, code):
            break
        start += width
    while start < end:
        last = end - 1
        while last > start and text[last] & 0xC0 == 0x80:
            last -= 1
        code, _ = decode_character(text, last, end)
        if not _contains(spaces, code):
            break
        end = last
    return start, end


@njit(nogil=True)
def _contains(values: NDArray[np.int64], wanted: np.int64) -> bool:
    for value in values:  # noqa: SIM110 (numba compiles no generators)
        if value == wanted:
            return True
    return False


@njit(nogil=True)
def _write_action(
    out: NDArray[np.uint8], size: int, action: np.uint32, after_space: bool
) -> int:
    """Write a replacement, but no space after a space. Return the size after it."""
    if action != _SPACE:
        return _write_packed(out, size, action)
    return size if after_space else _write_sign(out, size)


@njit(nogil=True)
def _write_packed(out: NDArray[np.uint8], size: int, packed: np.uint32) -> int:
    """Write a replacement. Return the size after it."""
    while packed:
        out[size] = packed & np.uint32(0xFF)
        packed >>= np.uint32(8)
        size += 1
    return size


@njit(nogil=True)
def _write_sign(out: NDArray[np.uint8], size: int) -> int:
    """Write SentencePiece's sign for a space. Return the size after it."""
    for i in range(3):
        out[size + i] = _SIGN[i]
    return size + 3


@njit(nogil=True)
def _is_sign(utf8: NDArray[np.uint8], i: int) -> bool:
    return utf8[i] == _SIGN[0] and utf8[i + 1] == _SIGN[1] and utf8[i + 2] == _SIGN[2]


@njit(nogil=True)
def _extend_run(
    run: NDArray[np.uint8], size: int, number: np.int64, table: Normalization
) -> int:
    """Append character `number` of the characters of runs. Return the size after it."""
    for i in range(table.run_starts[number], table.run_starts[number + 1]):
        run[size] = table.run_utf8[i]
        size += 1
    return size


@njit(nogil=True)
def _apply_rules(
    run: NDArray[np.uint8],
    table: Normalization,
    out: NDArray[np.uint8],
    size: int,
    after_space: bool,
) -> tuple[int, bool]:
    """Write a run by SentencePiece's rules, the longest first.

    Returns:
        The size of `out`, or UNSUPPORTED if it is too small, and whether it ends with a space.
    """
    i = 0
    while i < len(run):
        length, target = _find_rule(run[i:], table.trie)
        if length:
            source, first = table.targets, target
            last = first
            while source[last]:
                last += 1
        else:
            _, length = decode_character(run, i, len(run))
            source, first, last = run, i, i + length
        while after_space and first < last and source[first] == _SPACE:
            first += 1
        for j in range(first, last):
            # KenLM takes some of the bytes below a space for spaces.
            if size + len(_SIGN) > len(out) or source[j] < _SPACE:
                return UNSUPPORTED, after_space
            after_space = source[j] == _SPACE
            if after_space:
                size = _write_sign(out, size)
            else:
                out[size] = source[j]
                size += 1
        i += length
    return size, after_space


@njit(nogil=True)
def _find_rule(text: NDArray[np.uint8], trie: NDArray[np.uint32]) -> tuple[int, np.int64]:
    """Return the length of the longest source at the start of the text, and its target."""
    length, target = 0, np.int64(0)
    num_rules = 0
    node = _find_children(trie[0])
    for i in range(len(text)):
        node ^= np.uint32(text[i])
        entry = trie[node]
        if entry & _LABEL != text[i]:
            break
        node ^= _find_children(entry)
        if entry & _HAS_VALUE and num_rules < _MAX_RULES:
            num_rules += 1
            length, target = i + 1, np.int64(trie[node] & _VALUE)
    return length, target
