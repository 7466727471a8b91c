"""Starting Ray in a thread, while the driver plans the run and opens its models."""

from __future__ import annotations

import ctypes
import importlib
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

from pipeline.start_up import postpone_garbage_collection

# From <sched.h>, for unshare(2).
_CLONE_FS = 0x200


class StartThread:
    """A thread that starts Ray and lives until Ray is shut down.

    Linux kills the processes of a local Ray when the thread that has started them ends
    (PR_SET_PDEATHSIG in prctl(2)).
    """

    def __init__(self, start: Callable[[], None]) -> None:
        self._start = start
        self._has_started = False
        self._error: Exception | None = None
        self._is_tried = threading.Event()
        self._is_closed = threading.Event()
        threading.Thread(target=self._run, name="ray start", daemon=True).start()

    def wait(self) -> bool:
        """Wait for the start, and raise its error. Return whether the thread could try it."""
        self._is_tried.wait()
        if self._error is not None:
            raise self._error
        return self._has_started

    def close(self) -> None:
        """Let the thread end. Call it when Ray is shut down."""
        self._is_closed.set()

    def _run(self) -> None:
        try:
            # Ray starts with a umask that must not hold for files of the other threads.
            if unshare_umask():
                self._start()
                self._has_started = True
        except Exception as error:  # noqa: BLE001 - it is raised in the other thread
            self._error = error
        finally:
            self._is_tried.set()
        self._is_closed.wait()


def unshare_umask() -> bool:
    """Give this thread a umask and a working folder that the other threads do not share.

    Only Linux can, and some containers forbid it. Threads and processes that this thread starts
    inherit them.

    Returns:
        whether the thread has them.
    """
    return sys.platform == "linux" and ctypes.CDLL(None).unshare(_CLONE_FS) == 0


def start_workers(num_workers: int) -> None:
    """Let the workers of a local Ray import what they need, before the first task.

    One of them will dispatch tasks. When it does, Ray starts another one.
    """
    import ray

    task: Any = ray.remote(num_cpus=1)(_import_packages)
    for_tasks = ("pipeline.execution.on_ray.worker", "pipeline.phases.registry")
    started = [task.remote(for_tasks) for _ in range(num_workers - 1)]
    # Ray prefers the worker whose last task ended last.
    task.remote(["ray.data"], started)


def _import_packages(names: Sequence[str], wait_for: Sequence[Any] = ()) -> None:
    """Import packages, which takes up to 1 s of CPU, and wait for other Ray tasks."""
    with postpone_garbage_collection():
        for name in names:
            importlib.import_module(name)
    if wait_for:
        import ray

        ray.wait([*wait_for], num_returns=len(wait_for))
