"""Threads do not survive os.fork(): a loader that needs them must be opened in the new process."""

from __future__ import annotations

import os


class ForkCheck:
    """Remembers the process that created it."""

    def __init__(self) -> None:
        self._process = os.getpid()

    def __call__(self) -> None:
        """Raise RuntimeError in another process: it would wait for threads that it does not have."""
        if os.getpid() != self._process:
            raise RuntimeError(
                "the loader was opened before os.fork(), and this process does not have its "
                "threads: open a loader in this process, and load the state of the other one"
            )
