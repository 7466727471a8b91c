"""How kernels are compiled: decorators, and the address of an array for vector instructions."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from numba import njit
from numba.core import cgutils

_P = ParamSpec("_P")
_R = TypeVar("_R")


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a function without the GIL at its first call and cache the machine code on disk.

    Numba tries the folder in NUMBA_CACHE_DIR, the folder of the source file, then the user's cache
    folder. If all are read-only (a locked container), it refuses to cache. Each process then
    compiles for itself, which takes about 4 s.
    """
    _discard_stale_index(function)
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:
        return njit(nogil=True)(function)


def inlined(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a function that only kernels call and that allocates no memory.

    It counts no references to the arrays of its arguments: an atomic operation for each took 12 %
    of the time of language identification.
    """
    # numba's name for its reference counts: "NumPy runtime". Its type stubs leave the option out.
    options: Any = {"nogil": True, "_nrt": False}
    return njit(**options)(function)


def find_values(context: Any, builder: Any, kind: Any, array: Any) -> Any:
    """Return the address of an array's first value, for an intrinsic that emits LLVM code."""
    return cgutils.create_struct_proxy(kind)(context, builder, value=array).data


def _discard_stale_index(function: Callable[..., object]) -> None:
    """Delete the cache index of a function if a kernel source file is newer.

    Numba compares only the file of the cached function. Its machine code also contains the
    functions and constants that it uses from other kernel modules, so an edit there (or a
    `git pull`) would leave old code in use.
    """
    try:
        source = Path(inspect.getfile(function))
    except (
        OSError,
        TypeError,
    ):  # defined by exec: numba cannot cache it next to a file either
        return
    prefix = f"{source.stem}.{function.__qualname__}-"
    for index in _list_indexes(source.parent):
        if not index.name.startswith(prefix):
            continue
        # deleted by another process, or a read-only folder
        with contextlib.suppress(OSError):
            if index.stat().st_mtime_ns < _newest_kernel_source_ns():
                index.unlink()


@cache
def _list_indexes(folder: Path) -> list[Path]:
    """Return the index files of numba's cache, in the __pycache__ of a source folder.

    They are listed once per process: those that it writes later are not stale.
    """
    return list((folder / "__pycache__").glob("*.nbi"))


@cache
def _newest_kernel_source_ns() -> int:
    sources = Path(__file__).parent.rglob("*.py")
    return max(source.stat().st_mtime_ns for source in sources)
