"""Tables that a machine computes once and stores in its cache.

Tables of all characters take 0.05 to 0.15 CPU seconds each, and are the same in each process.

    key = TableKey("letters", [__file__])
    load_or_build(key, Letters, build)      # the NamedTuple of arrays that `build` returns
"""

from __future__ import annotations

import io
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from stages.cache_folder import CachedResult

_T = TypeVar("_T", bound="tuple[Any, ...]")


class TableKey(CachedResult):
    """The file of a table: equal keys mean equal tables."""

    def __init__(self, name: str, sources: Iterable[str], content: bytes = b"") -> None:
        """Compute the key.

        Args:
            name: of the table, the first part of its file's name.
            sources: the source files whose code determines the table. Their content is part of the
                key, and so is the version of Python, with its tables of Unicode.
            content: what else the table depends on.
        """
        files = [*map(Path, sources)]
        inputs = [name.encode(), platform.python_version().encode(), content]
        for file in files:
            inputs += [file.name.encode(), file.read_bytes()]
        super().__init__(f"tables/{name}-", inputs)


def load_or_build(key: TableKey, kind: type[_T], build: Callable[[], _T]) -> _T:
    """Return a stored table; build and store it if there is none, or its file is damaged.

    Args:
        key: of the table.
        kind: a NamedTuple of arrays.
        build: computes the table.

    Returns:
        Its arrays can be written to.
    """
    stored = key.read()
    if stored is not None:
        stream = io.BytesIO(stored)
        fields: Any = kind
        return kind(*[np.load(stream) for _ in fields._fields])
    table = build()
    stream = io.BytesIO()
    for array in table:
        np.save(stream, array)
    key.write(stream.getvalue())
    return table
