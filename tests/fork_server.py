"""The process from which tests fork others, so that these need no time for imports.

multiprocessing has one such process per Python process. It starts with the first fork.
"""

from __future__ import annotations

import multiprocessing

CONTEXT = multiprocessing.get_context("forkserver")

_preloaded: list[str] = []

# Imported last: forked processes do not scan the other modules for garbage.
_LAST = "tests.frozen_modules"


def preload(*modules: str) -> None:
    """Let the process import these modules when it starts, besides those of other callers."""
    _preloaded.extend(modules)
    CONTEXT.set_forkserver_preload([*_preloaded, _LAST])
