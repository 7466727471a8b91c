"""Parquet outputs are read as pyarrow reads them, in the thread of the caller."""

from __future__ import annotations

import gc
import io
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.runs.split_output import (
    ROWS_PER_GROUP,
    RowGroups,
    read_matching_rows,
    read_row_groups,
    read_table,
)
from pipeline.runs.split_output import write_parquet as write_table

SMALL = st.none() | st.integers(0, 5)


class Recorder(io.BytesIO):
    """A file that records which threads read it."""

    def __init__(self, content: bytes) -> None:
        super().__init__(content)
        self.threads: set[int] = set()

    def read(self, size: int | None = -1, /) -> bytes:
        self.threads.add(threading.get_ident())
        return super().read(size)


def write_parquet(rows: pa.Table, rows_per_group: int = 2) -> bytes:
    target = io.BytesIO()
    pq.write_table(rows, target, row_group_size=rows_per_group)
    return target.getvalue()


@given(st.lists(SMALL, max_size=9), st.integers(0, 5), st.integers(1, 4))
def test_matching_rows_are_those_that_pyarrow_finds(
    values: list[int | None], value: int, rows_per_group: int
) -> None:
    """With row groups of any size. The column itself may be left out of the result."""
    rows = pa.table(
        {
            "key": pa.array(values, pa.uint64()),
            "text": [str(i) for i in range(len(values))],
        },
        schema=pa.schema([("key", pa.uint64()), ("text", pa.string())]),
    )
    content = write_parquet(rows, rows_per_group)
    for columns in (None, ["text"]):
        source = pa.PythonFile(io.BytesIO(content), mode="r")
        found = read_matching_rows(source, "key", value, columns)
        wanted = pq.read_table(
            io.BytesIO(content), columns=columns, filters=[("key", "==", value)]
        )
        assert found.to_pylist() == wanted.to_pylist()
        assert found.schema == wanted.schema


@pytest.mark.parametrize(
    "read",
    [
        read_table,
        lambda source: read_matching_rows(source, "key", 3),
    ],
    ids=["table", "rows"],
)
def test_no_other_thread_holds_the_file(read: Callable[[pa.NativeFile], object]) -> None:
    """A thread that released it while Python exits would abort the process."""
    rows = pa.table({name: list(range(9)) for name in ("key", "a", "b", "c")})
    recorder = Recorder(write_parquet(rows))
    threads, file = recorder.threads, weakref.ref(recorder)
    read(pa.PythonFile(recorder, mode="r"))
    del recorder
    gc.collect()
    assert threads == {threading.get_ident()}
    assert file() is None


def test_only_strings_that_repeat_have_a_dictionary(tmp_path: Path) -> None:
    """Dictionaries of texts cost CPU and save no space."""
    columns = {
        "doc_id": [1, 2],
        "text": ["a", "b"],
        "url": ["c", "d"],
        "language": ["en"] * 2,
    }
    write_table(pa.table(columns), tmp_path / "documents.parquet")
    group = pq.read_metadata(tmp_path / "documents.parquet").row_group(0)
    chunks = [group.column(i) for i in range(group.num_columns)]
    coded = [chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page]
    assert coded == ["language"]


def test_a_file_does_not_depend_on_the_tables_that_are_added(tmp_path: Path) -> None:
    """Row groups have rows of several tables, or a part of one."""
    num_rows = 3 * ROWS_PER_GROUP + 7
    texts = [f"text {i} " * (i % 50) for i in range(num_rows)]
    rows = pa.table({"id": range(num_rows), "text": pa.array(texts, pa.large_string())})
    contents: set[bytes] = set()
    for rows_per_table in (num_rows, 100, ROWS_PER_GROUP, ROWS_PER_GROUP + 1, 1_200):
        path = tmp_path / f"{rows_per_table}.parquet"
        with RowGroups(path) as file:
            for start in range(0, num_rows, rows_per_table):
                file.add(rows.slice(start, rows_per_table))
        contents.add(path.read_bytes())
        with pa.OSFile(str(path)) as source:
            assert pa.concat_tables(read_row_groups(source)).equals(rows)
    assert len(contents) == 1
