"""The outputs of one phase of a run, on a disk or in an object store.

A file under its final name is complete. A task's done-record is written after all outputs that it
names. So resuming a run means to run the tasks that have no record.

    folder = PhaseFolder(open_store("s3://bucket/runs/ccnet").child("extract-0f3a"))
    with folder.commit("000007") as output:
        pq.write_table(table, output.path("000007.documents.parquet"))
        output.record = {"counters": counters.to_json()}
    folder.record("000007")["outputs"]["000007.documents.parquet"]["sha256"]
    read_table(folder.open("000007.documents.parquet"))
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import pyarrow as pa

from pipeline.runs.done_records import (
    dump_record,
    dump_summary,
    parse_record,
    parse_summary,
)
from pipeline.runs.output_digests import OutputDigests
from pipeline.runs.verified_file import Damage, DamagedOutput, StoredOutput, VerifiedFile
from storage import Store
from storage.errors import DamagedFile

log = logging.getLogger(__name__)

# In a run folder: the config, the folders of the phases and the input splits of the run.
RUN_FILE = "run.json"

_DONE = "done"
# Marks a phase as finished.
SUMMARY_FILE = "phase.json"
_ATTEMPTS = ".attempts"

# In a phase folder: damaged files, which were set aside.
DAMAGED = "damaged"

K = TypeVar("K")
T = TypeVar("T")


@dataclass
class PendingOutput:
    """The outputs of one task while they are being written.

    Attributes:
        folder: A local folder for the outputs.
        record: What the done-record will hold besides the outputs' sizes and digests.
        segments: name of an output -> the places of its segments (exchange.py).
    """

    folder: Path
    record: dict[str, Any] = field(default_factory=dict[str, Any])
    segments: dict[str, str] = field(default_factory=dict[str, str])

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
        """Open an output, to read it or ranges of it. What is read is verified.

        Raises:
            FileNotFoundError: the task that writes it is not done.
            DamagedOutput: the file is missing or has another size. Reading raises it too, if the
                content is not what the task wrote.
        """
        return pa.PythonFile(VerifiedFile(self.output(name)), mode="r")

    def output(self, name: str) -> StoredOutput:
        """Return an output with its digests.

        Raises:
            FileNotFoundError: the task that writes it is not done.
        """
        task_id = get_task_id(name)
        return StoredOutput(
            self.root,
            name,
            read_digests(self, task_id)[name],
            lambda: OutputDigests.from_json(self.record(task_id)["outputs"][name]),
        )

    def read_each(self, items: Iterable[K], read: Callable[[K], T]) -> list[T]:
        """Return `read(item)` of each item, in order. Remote reads run several at a time.

        The first item to be read is drawn by lot: the tasks of a phase start at the same time, and read the same
        objects.
        """
        items = list(items)
        first = uuid.uuid4().int % max(1, len(items))
        found = list(self.root.read_each(items[first:] + items[:first], read))
        return found[len(items) - first :] + found[: len(items) - first]

    # ---- done-records ----

    def list_done(self) -> frozenset[str]:
        """Return the ids of the tasks that have a done-record."""
        names = self.root.child(_DONE).list_names()
        return frozenset(name.removesuffix(".json") for name in names)

    def is_done(self, task_id: str) -> bool:
        """Return whether a task has a done-record."""
        return self.root.exists(self.record_file(task_id))

    def record(self, task_id: str) -> dict[str, Any]:
        """Return the done-record of a task.

        Raises:
            FileNotFoundError: the task is not done.
            DamagedOutput: the record has been changed since it was written, or is missing
                although the phase is complete.
        """
        file = self.record_file(task_id)
        try:
            return parse_record(self.root.read_bytes(file), task_id, self.root.name)
        except DamagedFile as error:
            place = error.where.removeprefix(": ")
            damage = Damage(str(self.root), file, error.found, error.wanted, place)
            raise DamagedOutput(damage) from error
        except FileNotFoundError as error:
            if not self.is_complete():
                raise
            damage = Damage(str(self.root), file, "no file", "the record of a done task")
            raise DamagedOutput(damage) from error

    def delete_records(self) -> None:
        """Delete the done-records of all tasks."""
        self.root.child(_DONE).delete_all()

    def record_file(self, task_id: str) -> str:
        """Return the file of the done-record of a task."""
        return f"{_DONE}/{task_id}.json"

    def records(self, task_ids: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield the done-records of tasks, in order. There can be tens of thousands.

        Raises:
            FileNotFoundError: a task is not done.
        """
        return self.root.read_each(task_ids, self.record)

    def intact_records(self, task_ids: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield the done-records of tasks that are not damaged; name the others in a warning.

        Raises:
            FileNotFoundError: a task is not done.
        """
        for record in self.root.read_each(task_ids, self._try_record):
            if isinstance(record, DamagedFile):
                _warn_once(str(record))
            else:
                yield record

    def set_aside_damaged_records(self) -> list[str]:
        """Move damaged done-records into a subfolder. Then their tasks are not done.

        Returns:
            The ids of these tasks.
        """
        task_ids = sorted(self.list_done())
        damaged: list[str] = []
        for task_id, record in zip(
            task_ids, self.root.read_each(task_ids, self._try_record), strict=True
        ):
            if isinstance(record, DamagedFile):
                log.warning("%s", record)
                self.set_aside(self.record_file(task_id))
                damaged.append(task_id)
        return damaged

    def _try_record(self, task_id: str) -> dict[str, Any] | DamagedFile:
        """Return the done-record of a task, or its fault."""
        try:
            return self.record(task_id)
        except DamagedFile as fault:
            return fault

    def set_aside(self, file: str) -> str | None:
        """Move a damaged file into the subfolder DAMAGED, under a name that is not in use.

        Returns:
            Its new address; None: there was no such file.
        """
        if not self.root.exists(file):
            return None
        aside = self.root.child(DAMAGED)
        aside.make_folder()
        name = wanted = PurePosixPath(file).name
        number = 1
        while aside.exists(name):
            number += 1
            name = f"{wanted}.{number}"
        self.root.rename(file, f"{DAMAGED}/{name}")
        return aside.locate(name)

    def is_complete(self) -> bool:
        """Whether the phase is finished: all tasks are done and `finish` was called.

        A phase with a damaged summary is not complete. The next run writes the summary again.
        """
        try:
            self.summary()
        except FileNotFoundError:
            return False
        except DamagedFile as fault:
            _warn_once(str(fault))
            return False
        return True

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Mark the phase as finished, with the sum of its records, and delete what only running tasks need."""
        self.root.child(_ATTEMPTS).delete_all()
        self.root.delete_unfinished()
        self.root.put(SUMMARY_FILE, dump_summary(summary, self.root.name))

    def unfinish(self) -> None:
        """Mark the phase as not finished. The next run does the tasks that have no record."""
        self.root.delete(SUMMARY_FILE)

    def summary(self) -> dict[str, Any]:
        """Return the summary that `finish` stored.

        Raises:
            FileNotFoundError: the phase is not finished.
            DamagedFile: the summary has been changed since it was written.
        """
        content = self.root.read_bytes(SUMMARY_FILE)
        return parse_summary(content, self.root.name, self.root.locate(SUMMARY_FILE))

    # ---- running tasks ----

    def begin(self) -> None:
        """Create the folder, delete what interrupted tasks left, and set aside damaged records.

        One process calls this before any task starts. Attempts are counted anew.
        """
        done, attempts = self.root.child(_DONE), self.root.child(_ATTEMPTS)
        self.make_folders()
        attempts.delete_all()
        attempts.make_folder()
        self.root.delete_unfinished()
        done.delete_unfinished()
        self.set_aside_damaged_records()

    def make_folders(self) -> None:
        """Create the folder for outputs and done-records."""
        self.root.child(_DONE).make_folder()

    def count_attempt(self, task_id: str) -> int:
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

    def get_num_attempts(self, task_id: str) -> int:
        """Return how many attempts at a task were counted since `begin`."""
        attempts, number = self.root.child(_ATTEMPTS), 0
        while attempts.exists(f"{task_id}.{number + 1}"):
            number += 1
        return number

    def scratch(self, name: str) -> contextlib.AbstractContextManager[Path]:
        """Provide an empty local folder for a task, which is deleted afterwards."""
        return self.root.staging_folder(f"{name}.scratch")

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
            outputs = {file.name: self._describe(file) for file in files}
            for name, places in output.segments.items():
                outputs[name]["segments"] = places
            for file in files:
                self.root.move_in(file, file.name)
            record = {"task_id": task_id, "outputs": outputs, **output.record}
            self.root.put(self.record_file(task_id), dump_record(record, self.root.name))

    def replace_output(self, task_id: str, file: Path, name: str) -> None:
        """Replace an output of a done task by a file of a staging folder, and note its digests.

        After a crash in between, the output differs from the record: call this again.
        """
        record = self.record(task_id)
        record["outputs"][name] = self._describe(file)
        self.root.move_in(file, name)
        self.root.put(self.record_file(task_id), dump_record(record, self.root.name))
        read_digests.cache_clear()

    def _describe(self, file: Path) -> dict[str, Any]:
        """Return the size and digests of a finished file.

        On a disk, its content must be there before it gets its name. An object store needs no
        fsync of the local copy, which is deleted after the upload.
        """
        with file.open("rb") as opened:
            digests = OutputDigests.compute(opened)
            if not self.root.is_remote:
                os.fsync(opened.fileno())
        return digests.to_json()


@functools.lru_cache(maxsize=100)
def _warn_once(message: str) -> None:
    # A command may ask several times whether a phase is complete.
    log.warning("%s", message)


def get_task_id(file: str) -> str:
    """Return the id of the task that writes a file of a phase folder, or its done-record."""
    return PurePosixPath(file).name.split(".", maxsplit=1)[0]


# Without it, each task of a phase would read the records of all input splits again. An entry has
# 4 bytes per block of the task's outputs, which is 8 kB for the documents of a WET file.
@functools.lru_cache(maxsize=1024)
def read_digests(folder: PhaseFolder, task_id: str) -> Mapping[str, OutputDigests]:
    """Return the digests in a done-record, by the names of the files."""
    outputs = folder.record(task_id)["outputs"]
    return {name: OutputDigests.from_json(value) for name, value in outputs.items()}
