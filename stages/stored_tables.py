"""Tables that a machine computes once and stores in its cache.

Tables of all characters take 0.05 to 0.15 CPU seconds each, and are the same in each process.

    key = TableKey("letters", [__file__])
    load_or_build(key, Letters, build)      # the NamedTuple of arrays that `build` returns
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import platform
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from stages.cache_folder import cache_folder

_T = TypeVar("_T", bound="tuple[Any, ...]")


class TableKey:
    """Identifies a table: equal keys mean equal tables."""

    def __init__(self, name: str, sources: Iterable[str], content: bytes = b"") -> None:
        """Compute the key.

        Args:
            name: of the table, the first part of its file's name.
            sources: the source files whose code determines the table. Their content is part of the
                key, and so is the version of Python, with its tables of Unicode.
            content: what else the table depends on.
        """
        files = [*map(Path, sources)]
        parts = [name.encode(), platform.python_version().encode(), content]
        parts += [
            part for file in files for part in (file.name.encode(), file.read_bytes())
        ]
        digests = [hashlib.sha256(part).hexdigest() for part in parts]
        digest = hashlib.sha256(json.dumps(digests).encode()).hexdigest()
        self.path = cache_folder() / "tables" / f"{name}-{digest[:32]}.tables"


def load_or_build(key: TableKey, kind: type[_T], build: Callable[[], _T]) -> _T:
    """Return a stored table; build and store it if there is none, or its file is damaged.

    Args:
        key: of the table.
        kind: a NamedTuple of arrays.
        build: computes the table.

    Returns:
        Its arrays can be written to.
    """
    table = _read(key.path, kind)
    if table is None:
        table = build()
        with contextlib.suppress(OSError):  # a cache that cannot be written costs only time
            _write(key.path, table)
    return table


# A file has the SHA-256 of what follows: the arrays in numpy's format, one after another.
_DIGEST_BYTES = 32


def _read(path: Path, kind: type[_T]) -> _T | None:
    """Return the table; None if there is none, or its file is damaged."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    arrays = content[_DIGEST_BYTES:]
    if hashlib.sha256(arrays).digest() != content[:_DIGEST_BYTES]:
        return None
    stream = io.BytesIO(arrays)
    fields: Any = kind
    return kind(*[np.load(stream) for _ in fields._fields])


def _write(path: Path, table: tuple[Any, ...]) -> None:
    stream = io.BytesIO()
    for array in table:
        np.save(stream, array)
    arrays = stream.getvalue()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Not renamed into place: readers recognize a half-written file by its digest.
    path.write_bytes(hashlib.sha256(arrays).digest() + arrays)
