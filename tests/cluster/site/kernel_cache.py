"""Where the machines find compiled kernels. They import this module by itself, from PYTHONPATH."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from numba.core import config
from numba.core.caching import UserProvidedCacheLocator


class ByModule(UserProvidedCacheLocator):
    """Caches kernels in NUMBA_CACHE_DIR, in a folder named after their module.

    Ray unpacks the packages of each job into another folder, and Numba otherwise names its
    folders after the path of the source. Numba compares the content of the source.
    """

    def __init__(self, py_func: Callable[..., Any], py_file: str) -> None:
        super().__init__(py_func, py_file)
        self._cache_path = os.path.join(config.CACHE_DIR, py_func.__module__)
