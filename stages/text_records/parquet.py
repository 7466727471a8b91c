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
# Of a longer value, the rows of a batch share one copy.
_LONG_BYTES = 1 << 20

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
            yield from _read_row_group(path, file, group, names, position)
            position += _count_rows(file, group)


def _count_rows(file: pq.ParquetFile, group: int) -> int:
    return file.metadata.row_group(group).num_rows


def _read_row_group(
    path: Path, file: pq.ParquetFile, group: int, names: TextColumns, position: int
) -> Iterator[Values | BrokenRow]:
    """Yield the rows of a row group whose first row has the number `position`."""
    try:
        long = _find_long_columns(path, file, group, names)
        with _open_by_dictionary(path, file, long) as reader:
            batches = reader.iter_batches(
                _BATCH_ROWS,
                row_groups=[group],
                columns=list(names.names),
                use_threads=False,
            )
            for batch in batches:
                columns = {name: _read_column(batch, name) for name in names.names}
                for index in range(batch.num_rows):
                    row = {name: values[index] for name, values in columns.items()}
                    yield Values(position, row)
                    position += 1
    except _ERRORS as error:
        num_bytes = file.metadata.row_group(group).total_byte_size
        yield BrokenRow(position, "text.parquet_corrupt", str(error), num_bytes)


def _find_long_columns(
    path: Path, file: pq.ParquetFile, group: int, names: TextColumns
) -> list[str]:
    """Return the columns of which the dictionary may have long values.

    A file of 2 kB can refer to a text of 60 MB in each row: Arrow would copy it 256 times.
    """
    chunks = file.metadata.row_group(group)
    columns = [chunks.column(index) for index in range(chunks.num_columns)]
    coded = [
        column.path_in_schema
        for column in columns
        if column.path_in_schema in names.names
        and column.physical_type == "BYTE_ARRAY"
        and column.has_dictionary_page
    ]
    if not coded:
        return []
    with _open_by_dictionary(path, file, coded) as reader:
        batches = reader.iter_batches(
            1, row_groups=[group], columns=coded, use_threads=False
        )
        batch = next(batches, None)
    return [] if batch is None else [name for name in coded if _is_long(batch, name)]


def _is_long(batch: pa.RecordBatch, name: str) -> bool:
    """Return whether to read a column by its dictionary, of which the batch has one row.

    Without a dictionary before the first row, the dictionary consists of the value of this row.
    """
    column = _get_column(batch, name)
    if not pa.types.is_dictionary(column.type):
        return False
    values = column.dictionary
    if len(values) <= 1:
        return True
    return pc.max(pc.binary_length(values.cast(pa.large_binary()))).as_py() > _LONG_BYTES


def _open_by_dictionary(
    path: Path, file: pq.ParquetFile, columns: list[str]
) -> pq.ParquetFile:
    """Open the file again, so that these columns become indices into their dictionaries."""
    return pq.ParquetFile(
        path,
        metadata=file.metadata,
        read_dictionary=columns,
        buffer_size=_LONG_BYTES,
        pre_buffer=False,
    )


def _get_column(batch: pa.RecordBatch, name: str) -> pa.Array:
    if name in batch.schema.names:
        return batch.column(name)
    top, *inner = name.split(".")
    return pc.struct_field(batch.column(top), inner)


def _read_column(batch: pa.RecordBatch, name: str) -> list[Any]:
    """Return a column as values; equal ones of a dictionary are the same object."""
    column = _get_column(batch, name)
    if not pa.types.is_dictionary(column.type):
        return _to_values(column)
    used = column.indices.drop_null().unique()
    values = dict(
        zip(used.to_pylist(), _to_values(column.dictionary.take(used)), strict=True)
    )
    return [values.get(index) for index in column.indices.to_pylist()]


def _to_values(column: pa.Array) -> list[Any]:
    """Return values: strings as bytes, times as ISO 8601 in UTC, numbers as they are.

    No value raises an error, so an unusual one costs at most its own row: strings may be no UTF-8,
    and times may be outside of Python's years 1..9999 or in a zone that Python does not know.
    """
    if isinstance(column.type, pa.BaseExtensionType) and column.type != pa.uuid():
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
