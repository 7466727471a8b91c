"""The memory of Arrow's string arrays, in the form that the kernels take."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def read_string_buffers(
    texts: pa.Array | pa.ChunkedArray,
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return the bytes of all texts, and the start of each text in them.

    Args:
        texts: (n,) string or large_string. A null counts as an empty text.

    Returns:
        utf8: read-only, possibly with bytes of texts outside of a sliced array.
        offsets: (n + 1,) read-only. Text i is `utf8[offsets[i] : offsets[i + 1]]`.
    """
    array = texts.combine_chunks() if isinstance(texts, pa.ChunkedArray) else texts
    array = array.cast(pa.large_string())
    if array.null_count:
        array = pc.fill_null(array, "")  # a null may have any bytes
    _, offsets, utf8 = array.buffers()
    starts = np.zeros(1, np.int64)  # an array of length 0 can have no buffers
    if len(array):
        starts = np.frombuffer(offsets, np.int64, len(array) + 1, 8 * array.offset)
    return make_read_only(np.frombuffer(utf8 or b"", np.uint8)), make_read_only(starts)


def make_read_only(values: np.ndarray) -> np.ndarray:
    """Return a read-only, contiguous view.

    numba compiles a function again for each kind of array, so all callers pass this kind.
    """
    view = np.ascontiguousarray(values).view()
    view.flags.writeable = False
    return view
