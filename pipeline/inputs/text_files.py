"""The files of `input.text`, and the parts of them that tasks read.

A file of `PART_BYTES` and more is cut into parts: a Parquet file between row groups, an
uncompressed JSONL file at fixed bytes, where the next line begins the next part. A compressed
JSONL file cannot be cut, and remote files are not: planning does not read them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from config_files.reader import ConfigError
from pipeline.config import TextInput
from pipeline.inputs.file_types import TEXT_FILES
from pipeline.inputs.input_files import FilePart, InputFile, find_files
from stages.settings.warc import TextColumns
from stages.text_records.parquet import MAGIC, list_columns, open_parquet
from storage.settings import StorageSettings

# Uncompressed text of a part: as much as a WET file of a recent snapshot has.
PART_BYTES = 200_000_000

# Uncompressed bytes of text per byte of gzip, in WET files. Estimates count compressed bytes.
_COMPRESSION = 2.7

_MAGIC_NUMBERS = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18")


def find_text_files(config: TextInput, storage: StorageSettings) -> list[InputFile]:
    """Return the files, or parts of files, in input order.

    Raises:
        ConfigError: an entry gives no file, or a Parquet file does not have one of the columns.
    """
    found: list[InputFile] = []
    for file in find_files(config.files, storage, TEXT_FILES):
        parts = [] if file.is_remote else list(_cut(file, config))
        found += [replace(file, part=part) for part in parts] or [file]
    return found


def _cut(file: InputFile, names: TextColumns) -> Iterator[FilePart]:
    """Yield the parts of a local file; none if it is read as a whole."""
    path = Path(file.location)
    with path.open("rb") as opened:
        magic = opened.read(4)
    if magic == MAGIC:
        yield from _cut_parquet(path, names)
    elif not magic.startswith(_MAGIC_NUMBERS):
        assert file.num_bytes is not None
        yield from _cut_lines(file.num_bytes)


def _cut_lines(num_bytes: int) -> Iterator[FilePart]:
    """Yield parts of an uncompressed JSONL file."""
    for start in range(0, num_bytes, PART_BYTES):
        stop = min(start + PART_BYTES, num_bytes)
        yield FilePart(start, stop, int((stop - start) / _COMPRESSION))


def _cut_parquet(path: Path, names: TextColumns) -> Iterator[FilePart]:
    """Yield parts of whole row groups."""
    try:
        file = open_parquet(path)
    except (pa.ArrowException, OSError):
        return  # damaged: its task will quarantine it
    with file:
        _check_columns(file, path, names)
        start = text_bytes = packed_bytes = 0
        for group in range(file.num_row_groups):
            plain, packed = _measure(file.metadata.row_group(group), names.text)
            if text_bytes and text_bytes + plain > PART_BYTES:
                yield FilePart(start, group, packed_bytes)
                start, text_bytes, packed_bytes = group, 0, 0
            text_bytes, packed_bytes = text_bytes + plain, packed_bytes + packed
        yield FilePart(start, file.num_row_groups, packed_bytes)


def _check_columns(file: pq.ParquetFile, path: Path, names: TextColumns) -> None:
    known = list_columns(file.schema_arrow)
    missing = [name for name in names.names if name not in known]
    if missing:
        fault = f"{path} has no column {', '.join(map(repr, missing))}"
        raise ConfigError([f"input.text: {fault}; found {', '.join(known)}"])


def _measure(group: pq.RowGroupMetaData, name: str) -> tuple[int, int]:
    """Return the bytes of a column in a row group, uncompressed and compressed."""
    for index in range(group.num_columns):
        column = group.column(index)
        if column.path_in_schema == name:
            return column.total_uncompressed_size, column.total_compressed_size
    return group.total_byte_size, group.total_byte_size
