"""Read the rows of a file with one JSON object per line: gzip, zstd, lz4 or uncompressed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

from stages.settings.warc import TextColumns
from stages.text_records.fields import MAX_TEXT_BYTES, MISSING, BrokenRow, Values
from stages.warc.input_content import InputContent
from stages.warc.stream_window import StreamWindow

# The longest line that is held in memory.
MAX_LINE_BYTES = MAX_TEXT_BYTES
# Python's objects for values take up to 25 times the bytes of the line.
_MAX_VALUES = 1 << 21

_BLANK_LINES = re.compile(rb"(?:[ \t\r]*+\n)++")
# A string, which may be cut off, or a character that precedes a value.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[\[{,]', re.DOTALL)

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_QUOTE = ord('"')
_SHOWN_BYTES = 32


class _Line(NamedTuple):
    position: int
    content: bytes | None  # without its end; None: longer than MAX_LINE_BYTES
    num_bytes: int


def read_rows(
    content: InputContent, names: TextColumns, start: int = 0, stop: int | None = None
) -> Iterator[Values | BrokenRow]:
    """Yield the rows in the order of the file. Empty lines are no rows.

    Args:
        content: the file.
        names: the columns to read.
        start: in an uncompressed file, the byte from which on lines begin.
        stop: the byte from which on lines belong to the next part; None: the end of the file.

    Raises:
        OSError: the file cannot be read (never because of its content).
    """
    window = StreamWindow.open(
        content, max_item_bytes=MAX_LINE_BYTES, offset=max(0, start - 1)
    )
    window.begin_item()
    if start:
        _read_line(window)  # up to the end of the line that begins before this part
    number = 0
    while (line := _next_line(window, number, stop)) is not None:
        is_blank = line.content is not None and not line.content.strip()
        if is_blank:
            number += _skip_blank_lines(window)
        window.begin_item()
        number += 1
        if line.content is None:
            detail = f"the line has {line.num_bytes:,} bytes"
            yield BrokenRow(line.position, "text.row_too_large", detail, line.num_bytes)
        elif not is_blank:
            yield parse_line(line.content, line.position, names)
    if (fault := window.fault) is not None:
        is_cut = fault.cause == "warc.truncated"
        cause = "text.truncated" if is_cut else "text.compression_corrupt"
        yield BrokenRow(number, cause, fault.detail, fault.lost_bytes)


def parse_line(line: bytes, position: int, names: TextColumns) -> Values | BrokenRow:
    """Return the values of a line."""
    if _has_too_many_values(line):
        detail = f"the line has more than {_MAX_VALUES:,} values"
        return BrokenRow(position, "text.row_too_large", detail, len(line))
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return BrokenRow(position, "text.not_utf8", error.reason, len(line))
    except (ValueError, RecursionError) as error:
        detail = f"{error}; the line begins {line[:_SHOWN_BYTES]!r}"
        return BrokenRow(position, "text.not_json", detail, len(line))
    if not isinstance(row, dict):
        detail = f"the line is a {type(row).__name__}, wanted an object"
        return BrokenRow(position, "text.not_json", detail, len(line))
    return Values(position, {name: _find(row, name) for name in names.names})


def _has_too_many_values(line: bytes) -> bool:
    if len(line) <= _MAX_VALUES or sum(map(line.count, (b"[", b"{", b","))) <= _MAX_VALUES:
        return False
    marks = (token for token in _TOKEN.finditer(line) if line[token.start()] != _QUOTE)
    return next(islice(marks, _MAX_VALUES, None), None) is not None


def list_columns(line: bytes) -> list[str]:
    """Return the names of the columns of a line, as `metadata.url` for {"metadata": {"url": ...}}.

    Empty: the line is not a JSON object.
    """
    if _has_too_many_values(line):
        return []
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return []
    found: list[str] = []
    for name, value in row.items() if isinstance(row, dict) else ():
        if isinstance(value, dict):
            found += [f"{name}.{inner}" for inner in value]
        else:
            found.append(name)
    return found


def _find(row: dict[str, Any], name: str) -> Any:
    """Return the value of a column, also `a.b` in {"a": {"b": ...}}."""
    if name in row:
        return row[name]
    value: Any = row
    for part in name.split("."):
        if not isinstance(value, dict) or part not in value:
            return MISSING
        value = value[part]
    return value


def _next_line(window: StreamWindow, number: int, stop: int | None) -> _Line | None:
    """Return the next line of the part; None if there is none, or if it is cut off."""
    if not window.available and not window.read_more():
        return None
    position = number
    if window.is_stored:
        offset, _ = window.locate()
        assert offset is not None
        position = offset
        if stop is not None and position >= stop:
            return None
    content, num_bytes = _read_line(window)
    if window.fault is not None:
        return None
    if number == 0 and content is not None:
        content = content.removeprefix(_BYTE_ORDER_MARK)
    return _Line(position, content, num_bytes)


def _skip_blank_lines(window: StreamWindow) -> int:
    """Consume the blank lines in the buffer, which may be millions; return their number."""
    blank = _BLANK_LINES.match(window.buffer, window.position)
    if blank is None:
        return 0
    num_lines = window.buffer.count(b"\n", blank.start(), blank.end())
    window.advance(blank.end() - blank.start())
    return num_lines


def _read_line(window: StreamWindow) -> tuple[bytes | None, int]:
    """Consume a line; return its content without its end, and its length in bytes."""
    num_searched = 0
    while True:
        end = window.buffer.find(b"\n", window.position + num_searched)
        if end >= 0:
            content = bytes(window.buffer[window.position : end])
            window.advance(len(content) + 1)
            return content, len(content)
        num_searched = window.available
        if num_searched > MAX_LINE_BYTES:
            return None, _skip_line(window)
        if not window.read_more():
            content = bytes(window.buffer[window.position :])
            window.advance(window.available)
            return content, len(content)


def _skip_line(window: StreamWindow) -> int:
    """Consume a line without holding it; return its length in bytes."""
    num_bytes = 0
    while True:
        end = window.buffer.find(b"\n", window.position)
        if end >= 0:
            return num_bytes + window.advance(end + 1 - window.position)
        num_bytes += window.advance(window.available)
        window.begin_item()  # a long line is no decompression bomb: it is not held
        if not window.read_more():
            return num_bytes
