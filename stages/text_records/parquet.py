"""Read the rows of a Parquet file, or of some of its row groups."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from stages.settings.warc import TextColumns
from stages.text_records.fields import BrokenRow, OtherType, Values

MAGIC = b"PAR1"

# Rows that are decoded at a time: a row group may have a million.
_BATCH_ROWS = 256

# Arrow reports damage by errors of several classes.
_ERRORS = (pa.ArrowException, OSError, ValueError, KeyError)


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a Parquet file. Raises one of several errors of Arrow if it is damaged.

    Nothing is read ahead: a thread of Arrow that still reads when Python exits aborts the process.
    """
    return pq.ParquetFile(path, pre_buffer=False)


def list_columns(schema: pa.Schema) -> list[str]:
    """Return the names of all columns; those in a struct as `metadata.url`."""
    found: list[str] = []
    for field in schema:
        if pa.types.is_struct(field.type):
            inner = list_columns(pa.schema(list(field.type)))
            found += [f"{field.name}.{name}" for name in inner]
        else:
            found.append(field.name)
    return found


def read_rows(
    path: Path, names: TextColumns, start: int = 0, stop: int | None = None
) -> Iterator[Values | BrokenRow]:
    """Yield the rows of the row groups start..stop-1, in order.

    Raises:
        OSError: the file cannot be opened.
    """
    with path.open("rb"):  # an error of the disk, not of the content
        pass
    try:
        file = open_parquet(path)
    except _ERRORS as error:
        yield BrokenRow(0, "text.parquet_corrupt", str(error), path.stat().st_size)
        return
    with file:
        known = list_columns(file.schema_arrow)
        if missing := [name for name in names.names if name not in known]:
            detail = f"there is no {', '.join(missing)}; found {', '.join(known)}"
            yield BrokenRow(0, "text.column_missing", detail, path.stat().st_size)
            return
        end = file.num_row_groups if stop is None else stop
        position = sum(_count_rows(file, group) for group in range(start))
        for group in range(start, end):
            yield from _read_row_group(file, group, names, position)
            position += _count_rows(file, group)


def _count_rows(file: pq.ParquetFile, group: int) -> int:
    return file.metadata.row_group(group).num_rows


def _read_row_group(
    file: pq.ParquetFile, group: int, names: TextColumns, position: int
) -> Iterator[Values | BrokenRow]:
    """Yield the rows of a row group whose first row has the number `position`."""
    batches = file.iter_batches(
        _BATCH_ROWS, row_groups=[group], columns=list(names.names), use_threads=False
    )
    try:
        for batch in batches:
            columns = {name: _to_values(batch, name) for name in names.names}
            for index in range(batch.num_rows):
                row = {name: values[index] for name, values in columns.items()}
                yield Values(position, row)
                position += 1
    except _ERRORS as error:
        num_bytes = file.metadata.row_group(group).total_byte_size
        yield BrokenRow(position, "text.parquet_corrupt", str(error), num_bytes)


def _to_values(batch: pa.RecordBatch, name: str) -> list[Any]:
    """Return a column: strings as bytes, times as ISO 8601 in UTC, numbers as they are.

    No value raises an error, so an unusual one costs at most its own row: strings may be no UTF-8,
    and times may be outside of Python's years 1..9999 or in a zone that Python does not know.
    """
    if name in batch.schema.names:
        column = batch.column(name)
    else:
        top, *inner = name.split(".")
        column = pc.struct_field(batch.column(top), inner)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    elif isinstance(column.type, pa.BaseExtensionType) and column.type != pa.uuid():
        column = column.storage
    kind = column.type
    if pa.types.is_date(kind) or pa.types.is_timestamp(kind):
        return _format_times(column)
    if pa.types.is_nested(kind) or pa.types.is_temporal(kind):
        is_valid = column.is_valid().to_pylist()
        return [OtherType(str(kind)) if valid else None for valid in is_valid]
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        column = column.cast(pa.large_binary())
    elif pa.types.is_string_view(kind):
        column = column.cast(pa.large_string()).cast(pa.large_binary())
    return column.to_pylist()


def _format_times(column: pa.Array) -> list[str | None]:
    """Return times to the second, dates to the day. numpy has no limits to years."""
    is_date = pa.types.is_date(column.type)
    # Arrow holds times with a zone in UTC.
    zone = "" if is_date or column.type.tz is None else "Z"
    times = column.to_numpy(zero_copy_only=False)
    times = times.astype("datetime64[D]" if is_date else "datetime64[s]")
    texts = np.datetime_as_string(times).tolist()
    return [None if text == "NaT" else text + zone for text in texts]
