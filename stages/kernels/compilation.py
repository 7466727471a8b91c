"""How kernels are compiled: decorators, and the address of an array for vector instructions."""

from __future__ import annotations

import contextlib
import hashlib
import shutil
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from numba import config, njit
from numba.core import cgutils
from numba.core.caching import InTreeCacheLocator

from stages.cache_folder import cache_folder

_P = ParamSpec("_P")
_R = TypeVar("_R")

_settings: Any = config  # numba ships no types for them

# Machine code of source files that have changed since is deleted after this time.
MAX_AGE_S = 30 * 24 * 3600


def compiled(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Compile a function without the GIL at its first call, and store the machine code.

    All folders with the same source files share it, such as those of the jobs of a cluster: compiling
    takes a minute. It is in the folder NUMBA_CACHE_DIR, else in the cache of models. Where that is
    read-only, each process compiles for itself.
    """
    # numba has no other way to choose a locator for one function.
    default, _settings.CACHE_LOCATOR_CLASSES = _settings.CACHE_LOCATOR_CLASSES, _LOCATOR
    try:
        return njit(nogil=True, cache=True)(function)
    except RuntimeError:
        return njit(nogil=True)(function)
    finally:
        _settings.CACHE_LOCATOR_CLASSES = default


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


class KernelCacheLocator(InTreeCacheLocator):
    """Tells numba to store machine code in a folder for this content of the source files.

    Machine code contains functions and constants of other kernels: the folder's name depends on all
    of them. numba itself compares the processor.
    """

    def __init__(self, py_func: Any, py_file: str) -> None:
        """Choose the folder of a function and its source file; the names are numba's."""
        super().__init__(py_func, py_file)
        source = Path(py_file)
        digest = hashlib.sha256(_digest_kernels() + source.read_bytes()).hexdigest()
        root = Path(_settings.CACHE_DIR or cache_folder() / "kernels")
        folder = root / f"{source.stem}-{digest[:16]}"
        self._cache_path = str(folder)
        if not folder.exists():
            _delete_old_folders(folder)

    def get_source_stamp(self) -> bytes:
        """Return nothing: the name of the folder has the digest."""
        return b""


_LOCATOR = f"{KernelCacheLocator.__module__}.{KernelCacheLocator.__qualname__}"


def _delete_old_folders(folder: Path) -> None:
    """Delete machine code of other content of a source file that was compiled MAX_AGE_S ago."""
    for other in folder.parent.glob(f"{folder.name.rpartition('-')[0]}-*"):
        with contextlib.suppress(OSError):  # deleted by another process, or read-only
            if time.time() - other.stat().st_mtime > MAX_AGE_S:
                shutil.rmtree(other)


@cache
def _digest_kernels() -> bytes:
    sources = sorted(Path(__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).digest()
