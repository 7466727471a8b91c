"""Noticing that Ray died: its processes, its errors, and the thread that may wait for it forever."""

from __future__ import annotations

import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pipeline.processes import Process, list_descendants

T = TypeVar("T")

# How often the processes are checked.
CHECK_S = 0.5

# The processes without which a local Ray cannot go on: the start of the program's name, as of
# /proc/PID/stat, and how messages call it. A raylet whose agent dies ends itself.
_PROCESSES = {
    "gcs_server": "control store (GCS)",
    "raylet": "raylet",
    "ray::DashboardA": "dashboard agent",
    "ray::RuntimeEnv": "runtime environment agent",
}


def list_ray_processes() -> list[Process]:
    """Return the control store, raylet and agents of a Ray that this process has started."""
    return [process for process in list_descendants() if process.name in _PROCESSES]


def name_processes(processes: Sequence[Process]) -> str:
    """Return `raylet (process 7) and dashboard agent (process 8)`."""
    parts = [f"{_PROCESSES[process.name]} (process {process.pid})" for process in processes]
    return " and ".join(parts)


def find_log_folder() -> Path:
    """Return the folder of the logs of the latest Ray that this process has started."""
    # `session_latest` may belong to another process. Names begin with the time of the start.
    sessions = list(_find_ray_folder().glob(f"session_*_{os.getpid()}"))
    return max(sessions, default=_find_ray_folder() / "session_latest") / "logs"


def read_raylet_errors(driver: int, since: float) -> bytes:
    """Return what the raylet of a local Ray wrote on stderr; empty if there was none.

    Args:
        driver: id of the process that started Ray. Names of Ray's session folders end with it.
        since: time of the oldest file that is read, as of time.time().
    """
    found = b""
    for path in _find_ray_folder().glob(f"session_*_{driver}/logs/raylet.err"):
        if path.stat().st_mtime >= since:
            found += path.read_bytes()
    return found


def _find_ray_folder() -> Path:
    return Path(os.environ.get("RAY_TMPDIR", tempfile.gettempdir())) / "ray"


def describe_failure(error: BaseException) -> str | None:
    """Return what failed, in one line, if Ray itself failed; None if our code raised."""
    from ray.exceptions import RayError, RayTaskError

    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, RayError) and not isinstance(cause, RayTaskError):
            lines = str(cause).strip().splitlines() or ["no message"]
            return f"Ray failed with {type(cause).__name__}: {lines[0]}"
        cause = cause.__cause__ or cause.__context__
    return None


def iterate_in_thread(
    rows: Iterable[T], check: Callable[[], Iterable[T]], pause_s: float = CHECK_S
) -> Iterator[T]:
    """Yield rows that a thread reads. Call `check` after each pause, and yield what it returns.

    When Ray dies, reading may wait forever. The thread then stays until Ray is shut down.
    """
    found: queue.SimpleQueue[tuple[str, Any]] = queue.SimpleQueue()

    def read() -> None:
        try:
            for row in rows:
                found.put(("row", row))
        except BaseException as error:  # noqa: BLE001 - it is raised in the other thread
            found.put(("error", error))
        else:
            found.put(("end", None))

    threading.Thread(target=read, name="iterate", daemon=True).start()
    next_check_s = time.monotonic() + pause_s
    while True:
        if (left_s := next_check_s - time.monotonic()) <= 0:
            yield from check()
            next_check_s = time.monotonic() + pause_s
            continue
        try:
            kind, value = found.get(timeout=left_s)
        except queue.Empty:
            continue
        if kind == "row":
            yield value
        elif kind == "error":
            raise value
        else:
            return
