"""Every cause of a quarantined row of JSONL and Parquet files, and every reason of a skipped one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

# Cause of a quarantine entry -> description.
CAUSES: Mapping[str, str] = MappingProxyType(
    {
        "text.empty_file": "The file has no bytes.",
        "text.not_json": "A line is not a JSON object.",
        "text.not_utf8": "A line or a text is not UTF-8, or has half of a surrogate pair.",
        "text.column_missing": "A row, or a Parquet file, does not have a column of input.text.",
        "text.wrong_type": (
            "A text is not a string, or another column is a list, an object or a duration."
        ),
        "text.row_too_large": (
            "A line or a text is longer than 64 MiB, or a line has more than 2,097,152 values."
        ),
        "text.compression_corrupt": "Decompression fails; the rest of the file was not read.",
        "text.truncated": "The file ends inside its compressed data.",
        "text.parquet_corrupt": (
            "A Parquet file or one of its row groups cannot be read; the row group was not read "
            "from there on."
        ),
        "text.too_many_faults": (
            "More than 1,000 rows and a tenth of all rows are broken; the rest of the file was not "
            "read."
        ),
    }
)

# Reason -> description, for intact rows that do not become documents.
SKIPPED: Mapping[str, str] = MappingProxyType(
    {
        "text_null": "The text of the row is null.",
        "no_rows": "The file is intact and has no rows.",
    }
)
