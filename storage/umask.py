"""Permissions of new files: the umask of this process."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager

PRIVATE = 0o077


def read_umask() -> int:
    """Return the umask of this process, which Linux reports only when it is set."""
    umask = os.umask(PRIVATE)
    os.umask(umask)
    return umask


@contextmanager
def private_umask() -> Generator[None]:
    """Let only this user read the files that are created in the block.

    Processes that start in the block keep this umask. It holds for all threads of this
    process, so the block must be short.
    """
    umask = os.umask(PRIVATE)
    try:
        yield
    finally:
        os.umask(umask)
