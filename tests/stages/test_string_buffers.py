"""Kernels get the bytes and offsets of a string array, however it is stored."""

from __future__ import annotations

from itertools import pairwise

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.string_buffers import read_string_buffers

TEXTS = st.lists(st.none() | st.text(max_size=5), max_size=6)


def read_texts(texts: pa.Array | pa.ChunkedArray) -> list[str]:
    utf8, offsets = read_string_buffers(texts)
    assert len(offsets) == len(texts) + 1
    return [utf8[start:end].tobytes().decode() for start, end in pairwise(offsets)]


@given(chunks=st.lists(TEXTS, max_size=3), start=st.integers(0, 5))
@pytest.mark.parametrize("type_", [pa.string(), pa.large_string()])
def test_chunks_and_slices_have_the_bytes_of_their_texts(
    type_: pa.DataType, chunks: list[list[str | None]], start: int
) -> None:
    """Nulls are empty texts. Arrays without texts have one offset."""
    array = pa.chunked_array(chunks, type_).slice(start)
    wanted = [text or "" for text in array.to_pylist()]
    assert read_texts(array) == wanted
    assert read_texts(pa.array(array.to_pylist(), type_)) == wanted
    assert read_texts(array.combine_chunks()) == wanted


def test_bytes_of_nulls_are_left_out() -> None:
    """Arrow allows a null to have any bytes."""
    offsets, utf8 = pa.array([0, 1, 3, 4], pa.int64()), pa.py_buffer(b"abbc")
    buffers = [pa.py_buffer(b"\x05"), offsets.buffers()[1], utf8]
    array = pa.Array.from_buffers(pa.large_string(), 3, buffers)
    assert array.to_pylist() == ["a", None, "c"]
    assert read_texts(array) == ["a", "", "c"]


def test_buffers_are_read_only() -> None:
    """Numba compiles a kernel for one kind of array."""
    for texts in ([], ["a"], ["a", None]):
        for buffer in read_string_buffers(pa.array(texts, pa.string())):
            assert not buffer.flags.writeable
            assert buffer.flags.c_contiguous
