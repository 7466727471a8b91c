"""Inner loops, compiled with numba. They read Arrow's UTF-8 buffers.

No Python string is created per document.

Every kernel takes a batch of texts in Arrow's layout of a string column without nulls:

    utf8     (num_bytes,) uint8        the bytes of all texts, one after the other
    offsets  (num_texts + 1,) int64    text i is utf8[offsets[i] : offsets[i + 1]]
"""
