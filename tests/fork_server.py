"""Processes that need no time for imports, because they are forked from one that has imported.

multiprocessing has one such fork server per Python process. What the trainer and what the
pipeline need takes long to load, and most Python processes need only one of them: the server is
replaced when a test wants the other.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.context import ForkServerProcess
from typing import Any

_CONTEXT = multiprocessing.get_context("forkserver")

# Imported last: forked processes do not scan the other modules for garbage.
_LAST = "tests.frozen_modules"


class Preload:
    """Modules that the server imports when it starts.

    The server starts with the first process of a Python process, and again when processes with
    other modules are wanted. Those of the old server must have ended by then.
    """

    _current: Preload | None = None

    def __init__(self, *modules: str) -> None:
        self._modules = modules

    def start_process(
        self, work: Callable[..., None], *arguments: Any
    ) -> ForkServerProcess:
        """Start a process that calls a function."""
        if Preload._current is not self:
            # A test that switches between servers has no public way to end one.
            forkserver._forkserver._stop()  # pyright: ignore[reportAttributeAccessIssue]
            _CONTEXT.set_forkserver_preload([*self._modules, _LAST])
            Preload._current = self
        process = _CONTEXT.Process(target=work, args=arguments)
        process.start()
        return process
