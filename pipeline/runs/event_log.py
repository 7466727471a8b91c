"""The log of a run: what its drivers did, event by event, with times. The one output that is not the same twice.

Promises: an event that was added can be read from any machine, on a disk at once, in a bucket FLUSH_S later at the
latest, while its driver lives; events of several drivers come in the order in which these were started. What a driver
that was killed had half written is left out.
Leaves to others: what the events are (engine.py).

    with keep(run_dir) as add:
        add({"event": "PhaseStarted", "phase": "extract"})
    for event in events(run_dir):
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

from pipeline.runs.phase_folder import Location
from storage.object_store import S3Path, fetch_each

LOG, LOG_PARTS = "log.jsonl", "log"

FLUSH_S = 5.0
"""How far the log in a bucket may lag behind."""

PART_BYTES = 1 << 20
"""A bucket cannot append: the last part of the log is written anew until it has this size, then the next is begun."""

LONGEST_LINE_BYTES = 1 << 20
"""So far from its end a file is searched for the end of a line."""

Add = Callable[[Mapping[str, Any]], None]


@contextlib.contextmanager
def keep(run_dir: Location) -> Generator[Add]:
    """A function that adds an event, with the time, to the log of the run."""
    if isinstance(run_dir, Path):
        _cut_half_a_line(run_dir / LOG)
        with (run_dir / LOG).open("a", encoding="utf-8") as file:

            def add(event: Mapping[str, Any]) -> None:
                file.write(_line(event))
                file.flush()

            yield add
        return
    parts = _Parts(run_dir / LOG_PARTS)
    try:
        yield parts.add
    finally:
        parts.close()


def events(run_dir: Location) -> Iterator[dict[str, Any]]:
    """The events so far, oldest first; none where there is no log."""
    if isinstance(run_dir, Path):
        with contextlib.suppress(FileNotFoundError), (run_dir / LOG).open(encoding="utf-8") as log:
            for line in log:
                if line.endswith("\n"):  # the last one may be half written
                    yield json.loads(line)
        return
    for part in fetch_each((run_dir / LOG_PARTS).iterdir(), S3Path.read_bytes):
        yield from map(json.loads, part.splitlines())


def _cut_half_a_line(path: Path) -> None:
    """A driver that is killed, or finds the disk full, may leave a last line without an end: the next would join it."""
    if path.exists():
        with path.open("rb+") as file:
            start = file.seek(max(0, path.stat().st_size - LONGEST_LINE_BYTES))
            file.truncate(start + file.read().rfind(b"\n") + 1)


def _line(event: Mapping[str, Any]) -> str:
    return json.dumps({"time": time.time(), **event}) + "\n"


class _Parts:
    """A folder of objects, the names of which are in the order of their events."""

    def __init__(self, folder: S3Path) -> None:
        driver = f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{uuid.uuid4().hex[:8]}"
        self._folder, self._driver, self._number = folder, driver, 0
        self._part, self._num_written = bytearray(), 0
        self._lock, self._stop = threading.Lock(), threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def add(self, event: Mapping[str, Any]) -> None:
        with self._lock:
            self._part += _line(event).encode()

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        self._flush()

    def _keep(self) -> None:
        while not self._stop.wait(FLUSH_S):
            with contextlib.suppress(OSError):  # the next time, or at the end
                self._flush()

    def _flush(self) -> None:
        """Write the part that is being filled, if something was added to it."""
        with self._lock:
            part = bytes(self._part)
        if len(part) == self._num_written:
            return
        (self._folder / f"{self._driver}-{self._number:06d}.jsonl").write_bytes(part)
        self._num_written = len(part)
        if len(part) >= PART_BYTES:
            with self._lock:
                del self._part[: len(part)]
            self._number, self._num_written = self._number + 1, 0
