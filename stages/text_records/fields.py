"""Make a document of the values of a row."""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import UUID

from stages.settings.warc import TextColumns
from stages.warc.documents import Row, Skipped

# A value of a row that has no such column. None is a null.
MISSING = object()

# The longest text that is held in memory.
MAX_TEXT_BYTES = 64 << 20


class OtherType(NamedTuple):
    """Stands for a value of a type that is neither a string, a number nor a time."""

    name: str  # of the type


class BrokenRow(NamedTuple):
    """A row, or a stretch of a file, that cannot become a document."""

    position: int
    cause: str  # one of stages.text_records.causes.CAUSES
    detail: str
    skipped_bytes: int


class Values(NamedTuple):
    """The values of one row.

    Attributes:
        position: the row's byte in an uncompressed JSONL file, else its number, from 0.
        columns: column of `TextColumns.names` -> value, or MISSING.
    """

    position: int
    columns: dict[str, Any]


class _WrongValue(Exception):
    """A value cannot be used; the arguments are cause and detail."""


def make_row(
    values: Values, names: TextColumns, number: int, file: str
) -> Row | Skipped | BrokenRow:
    """Return the document of a row.

    Args:
        values: of the row.
        names: its columns.
        number: of the record in the input split.
        file: name of the file, for the name of a document without URL and id.
    """
    text = values.columns[names.text]
    if text is None:
        return Skipped("text_null")
    try:
        content = _to_content(text, names.text)
        url = _read(values, names.url) or _read(values, names.id)
        date_text, title = _read(values, names.date), _read(values, names.title)
    except _WrongValue as error:
        cause, detail = error.args
        num_bytes = len(text) if isinstance(text, str | bytes) else 0
        return BrokenRow(values.position, cause, detail, num_bytes)
    return Row(
        record=number,
        offset=values.position,
        url=url or f"{file}#{values.position}",
        date=date_text,
        digest=None,
        title=title or "",
        content=content,
        num_undecodable=0,
        is_cut=False,
        is_stored_decoded=False,
    )


def _to_content(text: Any, name: str) -> bytes:
    if text is MISSING:
        raise _WrongValue("text.column_missing", f"there is no {name!r}")
    if not isinstance(text, str | bytes):
        raise _WrongValue(
            "text.wrong_type", f"{name!r} has {_describe(text)}, wanted a string"
        )
    if len(text) > MAX_TEXT_BYTES:
        raise _WrongValue("text.row_too_large", f"{name!r} has {len(text):,} bytes")
    try:
        content = text.encode() if isinstance(text, str) else text
        content.decode()
    except (UnicodeEncodeError, UnicodeDecodeError) as error:
        raise _WrongValue("text.not_utf8", f"{name!r}: {error.reason}") from error
    if b"\r" in content:
        content = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return content


def _read(values: Values, name: str | None) -> str | None:
    """Return the value of a column as text; None if it is null, missing, NaN or infinite."""
    value = None if name is None else values.columns[name]
    if value is None or value is MISSING:
        return None
    if isinstance(value, float) and not math.isfinite(value):
        return None  # pandas writes a missing value as NaN
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, str):
        # Half of a surrogate pair cannot be stored.
        return value.encode(errors="replace").decode()
    if isinstance(value, int | float | Decimal | UUID):
        return str(value)
    raise _WrongValue(
        "text.wrong_type", f"{name!r} has {_describe(value)}, wanted a string"
    )


def _describe(value: Any) -> str:
    kind = value.name if isinstance(value, OtherType) else type(value).__name__
    return f"a value of the type {kind}"
