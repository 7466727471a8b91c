"""The event log of a run: what its drivers did and when. The only output that differs between
two equal runs.

    with open_log(run_folder) as add_event:
        add_event({"event": "PhaseStarted", "phase": "extract"})
    for event in read_events(run_folder):
        event["time"], event["event"]       # seconds since the epoch
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from storage import Store

# The log on a disk.
LOG = "log.jsonl"

# The folder of the log's parts in an object store, which cannot append to an object.
LOG_PARTS = "log"

# Longest delay before an event can be read from an object store.
FLUSH_S = 5.0

# The last part is rewritten at each flush until it has this size; then a new part begins.
PART_BYTES = 1 << 20

# How far from its end a file is searched for the end of a line.
MAX_LINE_BYTES = 1 << 20

AddEvent = Callable[[Mapping[str, Any]], None]


@contextlib.contextmanager
def open_log(run_folder: Store) -> Generator[AddEvent]:
    """Open the log for appending.

    Yields:
        A function that adds an event with the current time.
    """
    path = run_folder.get_local_path(LOG)
    if path is not None:
        with _open_log_file(path) as add_event:
            yield add_event
        return
    parts = _LogParts(run_folder.child(LOG_PARTS))
    try:
        yield parts.add
    finally:
        parts.close()


def read_events(run_folder: Store) -> Iterator[dict[str, Any]]:
    """Yield the events so far; those of an earlier driver come first. No log: no events."""
    path = run_folder.get_local_path(LOG)
    if path is not None:
        yield from _read_log_file(path)
        return
    parts = run_folder.child(LOG_PARTS)
    for content in parts.read_each(parts.list_names(), parts.read_bytes):
        yield from map(json.loads, content.splitlines())


@contextlib.contextmanager
def _open_log_file(path: Path) -> Generator[AddEvent]:
    _remove_partial_line(path)
    with path.open("a", encoding="utf-8") as file:

        def add_event(event: Mapping[str, Any]) -> None:
            file.write(_format_line(event))
            file.flush()

        yield add_event


def _read_log_file(path: Path) -> Iterator[dict[str, Any]]:
    with contextlib.suppress(FileNotFoundError), path.open(encoding="utf-8") as file:
        for line in file:
            if line.endswith("\n"):  # the last line may be incomplete
                yield json.loads(line)


def _remove_partial_line(path: Path) -> None:
    """Remove an incomplete last line, which a killed driver or a full disk can leave."""
    if path.exists():
        with path.open("rb+") as file:
            start = file.seek(max(0, path.stat().st_size - MAX_LINE_BYTES))
            file.truncate(start + file.read().rfind(b"\n") + 1)


def _format_line(event: Mapping[str, Any]) -> str:
    return json.dumps({"time": time.time(), **event}) + "\n"


class _LogParts:
    """The log in an object store: objects whose names sort in the order of their events."""

    def __init__(self, folder: Store) -> None:
        started = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        self._driver = f"{started}-{uuid.uuid4().hex[:8]}"
        self._folder, self._part_number = folder, 0
        self._part, self._num_written = bytearray(), 0
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._flush_regularly, daemon=True)
        self._thread.start()

    def add(self, event: Mapping[str, Any]) -> None:
        with self._lock:
            self._part += _format_line(event).encode()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._flush()

    def _flush_regularly(self) -> None:
        while not self._stop.wait(FLUSH_S):
            with contextlib.suppress(OSError):  # the next flush, or `close`, tries again
                self._flush()

    def _flush(self) -> None:
        """Write the current part if events were added to it."""
        with self._lock:
            part = bytes(self._part)
        if len(part) == self._num_written:
            return
        self._folder.put(f"{self._driver}-{self._part_number:06d}.jsonl", part)
        self._num_written = len(part)
        if len(part) >= PART_BYTES:
            with self._lock:
                del self._part[: len(part)]
            self._part_number, self._num_written = self._part_number + 1, 0
