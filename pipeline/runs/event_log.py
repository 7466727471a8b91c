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
import logging
import threading
import time
import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from storage import Store
from storage.json_schema import (
    Count,
    Mismatch,
    OpenJsonObject,
    Seconds,
    check_json,
    load_json,
)
from storage.local import append_line, name_full_disk

log = logging.getLogger(__name__)

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


class _Event(OpenJsonObject):
    """Other versions may write other kinds of events, and further fields."""

    time: Seconds
    event: str


class _RunEnded(_Event):
    why: str


class _PhaseStarted(_Event):
    phase: str
    num_tasks: Count
    num_done: Count


class _TaskFinished(_Event):
    phase: str
    task_id: str
    seconds: dict[str, Seconds]
    cpu_seconds: dict[str, Seconds]
    failed: str | None
    peak_mb: Seconds | None
    worker: str


class _PhaseFinished(_Event):
    phase: str
    was_complete: bool


_ANY_EVENT = TypeAdapter(_Event)
_KINDS = (_RunEnded, _PhaseStarted, _TaskFinished, _PhaseFinished)
_SCHEMAS = {kind.__name__.removeprefix("_"): TypeAdapter(kind) for kind in _KINDS}

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
    """Yield the events so far; those of an earlier driver come first. No log: no events.

    Damaged lines are left out, and a warning names the first one and their number. An
    incomplete last line is left out without a warning: its driver may be writing it.
    """
    num_damaged, first = 0, ""
    for place, line in _read_lines(run_folder):
        try:
            yield _parse_line(line)
        except Mismatch as mismatch:
            num_damaged += 1
            first = first or f"{place}: {mismatch}"
    if num_damaged:
        log.warning("%s; lines of the event log that are left out: %d", first, num_damaged)


def _parse_line(line: bytes) -> dict[str, Any]:
    """Return the event in a line; raise Mismatch if it is damaged."""
    event = load_json(line)
    check_json(event, _ANY_EVENT)
    check_json(event, _SCHEMAS.get(event["event"], _ANY_EVENT))
    return event


def _read_lines(run_folder: Store) -> Iterator[tuple[str, bytes]]:
    """Yield the place and the content of each complete line of the log."""
    path = run_folder.get_local_path(LOG)
    if path is not None:
        yield from _read_log_file(path)
        return
    parts = run_folder.child(LOG_PARTS)
    names = parts.list_names()
    contents = parts.read_each(names, parts.read_bytes)
    for name, content in zip(names, contents, strict=True):
        for number, line in enumerate(content.splitlines(), start=1):
            yield f"{parts.locate(name)}:{number}", line


@contextlib.contextmanager
def _open_log_file(path: Path) -> Generator[AddEvent]:
    _remove_partial_line(path)
    # Unbuffered: closing the file then writes nothing, and cannot fail on a full disk.
    with path.open("ab", buffering=0) as file:

        def add_event(event: Mapping[str, Any]) -> None:
            with name_full_disk(path):
                append_line(file, _format_line(event).encode())

        yield add_event


def _read_log_file(path: Path) -> Iterator[tuple[str, bytes]]:
    with contextlib.suppress(FileNotFoundError), path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.endswith(b"\n"):  # the last line may be incomplete
                yield f"{path}:{number}", line


def _remove_partial_line(path: Path) -> None:
    """Remove an incomplete last line, which a killed driver or a full disk can leave."""
    if path.exists():
        with path.open("rb+") as file:
            start = file.seek(max(0, path.stat().st_size - MAX_LINE_BYTES))
            file.truncate(start + file.read().rfind(b"\n") + 1)


def _format_line(event: Mapping[str, Any]) -> str:
    log.debug("event: %s", json.dumps(event))
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
