"""Less work at the start of a run.

A small run takes 4 CPU seconds; most of them are imports and models.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Generator
from importlib.abc import MetaPathFinder


@contextlib.contextmanager
def postpone_garbage_collection() -> Generator[None]:
    """Disable the garbage collector in the block, and exclude the block's objects from it.

    Modules and models live as long as the process. Python examines them again and again
    while they are loaded, which takes 0.6 CPU seconds.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def skip_pandas() -> None:
    """Keep Arrow from importing pandas when the first array is made. Saves 0.3 CPU seconds.

    Arrow looks for pandas to recognize data frames in arguments. Its conversions to pandas
    import it nevertheless. Only for processes without Ray, which gives data frames to Arrow.
    """
    import pyarrow as pa

    with _hide("pandas"):
        pa.array([""])


@contextlib.contextmanager
def _hide(module: str) -> Generator[None]:
    """Make imports of a module fail in the block, unless it is imported already."""
    finder = _MissingModule(module)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


class _MissingModule(MetaPathFinder):
    """Reports that a module is not installed."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, fullname: str, *_: object) -> None:
        """Raise ModuleNotFoundError for the module; leave others to the other finders."""
        if fullname == self._name:
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
