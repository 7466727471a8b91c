"""The outputs of one phase of a run, on a disk or in an object store.

A file under its final name is complete. A task's done-record is written after all outputs that it
names. So resuming a run means to run the tasks that have no record.

    folder = PhaseFolder(open_store("s3://bucket/runs/ccnet").child("extract-0f3a"))
    with folder.commit("000007") as output:
        pq.write_table(table, output.path("000007.documents.parquet"))
        output.record = {"counters": counters.to_json()}
    folder.record("000007")["outputs"]["000007.documents.parquet"]["sha256"]
    pq.read_table(folder.open("000007.documents.parquet"))
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import socket
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from storage import Store

# In a run folder: the config, the folders of the phases and the input splits of the run.
RUN_FILE = "run.json"

_DONE = "done"
_COMPLETE = "phase.json"
_ATTEMPTS = ".attempts"

K = TypeVar("K")
T = TypeVar("T")


@dataclass
class PendingOutput:
    """The outputs of one task while they are being written.

    Attributes:
        folder: A local folder for the outputs.
        record: What the done-record will hold besides the outputs' sizes and digests.
    """

    folder: Path
    record: dict[str, Any] = field(default_factory=dict[str, Any])

    def path(self, name: str) -> Path:
        """Return the local path at which to write the output of that name."""
        return self.folder / name


@dataclass(frozen=True)
class PhaseFolder:
    """The outputs of one phase with one fingerprint."""

    root: Store

    # ---- reading outputs ----

    def path(self, name: str) -> Path:
        """Return the path of an output. Only for run folders on a disk."""
        path = self.root.get_local_path(name)
        if path is None:
            raise ValueError(
                f"{self.root.locate(name)} has no path on this machine; use open()"
            )
        return path

    def open(self, name: str) -> pa.NativeFile:
        """Open an output, to read ranges of it.

        Raises:
            FileNotFoundError: there is no such output.
        """
        path = self.root.get_local_path(name)
        if path is None:
            return pa.PythonFile(self.root.open(name), mode="r")
        return pa.OSFile(str(path))

    def map(self, name: str) -> pa.NativeFile:
        """Open an output as a memory map if it is on a disk: Arrow data is then not copied.

        Raises:
            FileNotFoundError: there is no such output.
        """
        path = self.root.get_local_path(name)
        return self.open(name) if path is None else pa.memory_map(str(path))

    def each(self, items: Iterable[K], read: Callable[[K], T]) -> list[T]:
        """Return `read(item)` of each item, in order. Remote reads run several at a time."""
        return list(self.root.read_each(items, read))

    # ---- done-records ----

    def done(self) -> frozenset[str]:
        """Return the ids of the tasks that have a done-record."""
        names = self.root.child(_DONE).list_names()
        return frozenset(name.removesuffix(".json") for name in names)

    def record(self, task_id: str) -> dict[str, Any]:
        """Return the done-record of a task.

        Raises:
            FileNotFoundError: the task is not done.
        """
        return json.loads(self.root.read_bytes(f"{_DONE}/{task_id}.json"))

    def records(self, task_ids: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield the done-records of tasks, in order. There can be tens of thousands.

        Raises:
            FileNotFoundError: a task is not done.
        """
        return self.root.read_each(task_ids, self.record)

    def complete(self) -> bool:
        """Whether the phase is finished: all tasks are done and `finish` was called."""
        return self.root.exists(_COMPLETE)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Mark the phase as finished, with the sum of its records."""
        self.root.put(_COMPLETE, to_json(summary))

    def summary(self) -> dict[str, Any]:
        """Return the summary that `finish` stored.

        Raises:
            FileNotFoundError: the phase is not finished.
        """
        return json.loads(self.root.read_bytes(_COMPLETE))

    # ---- running tasks ----

    def begin(self) -> None:
        """Create the folder and delete what interrupted tasks left.

        One process calls this before any task starts. Attempts are counted anew.
        """
        done, attempts = self.root.child(_DONE), self.root.child(_ATTEMPTS)
        done.make_folder()
        attempts.delete_all()
        attempts.make_folder()
        self.root.delete_unfinished()
        done.delete_unfinished()

    def attempt(self, task_id: str) -> int:
        """Count an attempt at a task; return the number of attempts since `begin`, with this one.

        An attempt is a file, because an object store cannot append to one.

        Raises:
            FileNotFoundError: this machine does not see the folder that `begin` made.
        """
        attempts, number = self.root.child(_ATTEMPTS), 1
        try:
            while attempts.create(f"{task_id}.{number}", uuid.uuid4().bytes) is None:
                number += 1
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{self.root} is not on {socket.gethostname()}: the run folder must be on storage "
                "that all machines share, under one path"
            ) from error
        return number

    def attempts(self, task_id: str) -> int:
        """Return how many attempts at a task were counted since `begin`."""
        attempts, number = self.root.child(_ATTEMPTS), 0
        while attempts.exists(f"{task_id}.{number + 1}"):
            number += 1
        return number

    @contextlib.contextmanager
    def commit(self, task_id: str) -> Generator[PendingOutput]:
        """Collect the outputs of a task. If the block succeeds, store them, then the done-record.

        Two processes may run the same task at the same time. Both write the same bytes, and each
        rename or upload is atomic.
        """
        with self.root.staging_folder(task_id) as folder:
            output = PendingOutput(folder)
            yield output
            files = sorted(folder.iterdir())
            outputs = {file.name: _describe(file) for file in files}
            for file in files:
                self.root.move_in(file, file.name)
            record = {"task_id": task_id, "outputs": outputs, **output.record}
            self.root.put(f"{_DONE}/{task_id}.json", to_json(record))


def to_json(value: Any) -> bytes:
    """Return JSON that is the same for equal values."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1)
    return f"{text}\n".encode()


def _describe(file: Path) -> dict[str, Any]:
    """Return the size and digest of a finished file. Its content is on disk afterwards."""
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
        os.fsync(opened.fileno())
    return {"bytes": file.stat().st_size, "sha256": digest}
