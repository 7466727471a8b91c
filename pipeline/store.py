"""Folders of a run: atomic commits and done-records.

Promises: a file under its final name is whole; a done-record exists only after all the outputs it names are whole and
on disk; what an interrupted task left behind is never taken for a result. So resuming is a set difference: do what has
no record.
Leaves to others: what the outputs hold (phases/), and what is to be done (plan.py).

    folder = PhaseFolder(run_dir / "extract-0f3a")
    with folder.commit("000007") as task:
        pq.write_table(table, task.path("000007.documents.parquet"))
        task.record = {"tally": tally.to_json()}
    folder.record("000007")["outputs"]["000007.documents.parquet"]["sha256"]
    pq.read_table(folder.open("000007.documents.parquet"))
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import socket
import uuid
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

RUN_FILE = "run.json"
"""In a run folder: which folders of phases belong together, and of which units (ledger.py:record_run)."""

_ASIDE = ".aside"
_DONE = "done"
_COMPLETE = "phase.json"
_ATTEMPTS = ".attempts"


@dataclass
class Task:
    """The outputs of one piece of work while they are being written, aside."""

    folder: Path
    record: dict[str, Any] = field(default_factory=dict[str, Any])

    def path(self, name: str) -> Path:
        """Where to write the output of that name."""
        return self.folder / name


@dataclass(frozen=True)
class PhaseFolder:
    """The outputs of one phase under one fingerprint."""

    root: Path

    def path(self, name: str) -> Path:
        """Where a finished output lies."""
        return self.root / name

    def open(self, name: str) -> pa.NativeFile:
        """A finished output, to be read by range.

        Raises:
            FileNotFoundError: there is none of that name.
        """
        return pa.OSFile(str(self.root / name))

    def map(self, name: str) -> pa.NativeFile:
        """The same, for parts of it that are used where they lie: they are not copied, and read when they are touched.

        Raises:
            FileNotFoundError: there is none of that name.
        """
        return pa.memory_map(str(self.root / name))

    def done(self) -> frozenset[str]:
        """Names of the work that has a record."""
        with contextlib.suppress(FileNotFoundError):
            names = (entry.name for entry in os.scandir(self.root / _DONE))
            return frozenset(name.removesuffix(".json") for name in names if not name.startswith("."))
        return frozenset()

    def record(self, work: str) -> dict[str, Any]:
        """The done-record of one piece of work.

        Raises:
            FileNotFoundError: it is not done.
        """
        return json.loads((self.root / _DONE / f"{work}.json").read_text(encoding="utf-8"))

    def records(self, works: Iterable[str]) -> list[dict[str, Any]]:
        """The done-records of these pieces of work, in their order.

        Raises:
            FileNotFoundError: one of them is not done.
        """
        return [self.record(work) for work in works]

    def complete(self) -> bool:
        """Whether all the phase's work is done and summed up."""
        return (self.root / _COMPLETE).exists()

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Say that all the phase's work is done, with the sum of its records."""
        write_atomically(self.root / _COMPLETE, to_json(summary))

    def summary(self) -> dict[str, Any]:
        """What `finish` was given.

        Raises:
            FileNotFoundError: the phase is not complete.
        """
        return json.loads((self.root / _COMPLETE).read_text(encoding="utf-8"))

    def begin(self) -> None:
        """Make the folder and clear away what interrupted tasks left; by one process, before any task is started."""
        (self.root / _DONE).mkdir(parents=True, exist_ok=True)
        for leftover in (_ASIDE, _ATTEMPTS):
            shutil.rmtree(self.root / leftover, ignore_errors=True)
        for folder in (self.root, self.root / _DONE):
            for unfinished in folder.glob(".*"):  # of write_atomically, killed before its rename
                unfinished.unlink(missing_ok=True)

    def attempt(self, work: str) -> int:
        """Count an attempt at a piece of work and return how many there were, this one included, since `begin`.

        Raises:
            FileNotFoundError: what `begin` made on the driver's machine is not on this one.
        """
        try:
            (self.root / _ATTEMPTS).mkdir(exist_ok=True)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{self.root} is not on {socket.gethostname()}: the run's folder must lie on storage that all machines "
                f"share, under one path"
            ) from error
        with (self.root / _ATTEMPTS / work).open("ab") as file:
            file.write(b".")
            file.flush()
            return file.tell()

    def attempts(self, work: str) -> int:
        """How many attempts at a piece of work were counted since `begin`."""
        try:
            return (self.root / _ATTEMPTS / work).stat().st_size
        except FileNotFoundError:
            return 0

    @contextlib.contextmanager
    def commit(self, work: str) -> Generator[Task]:
        """Write outputs aside; when the block ends well, move them into place and record that the work is done.

        Two processes may do the same work at once: both write the same bytes, and each rename is whole.
        """
        task = Task(self.root / _ASIDE / f"{work}-{uuid.uuid4().hex}")
        task.folder.mkdir(parents=True)
        try:
            yield task
            outputs = {path.name: _describe(path) for path in sorted(task.folder.iterdir())}
            for name in outputs:
                (task.folder / name).replace(self.root / name)
            record = {"work": work, "outputs": outputs, **task.record}
            write_atomically(self.root / _DONE / f"{work}.json", to_json(record))
        finally:
            shutil.rmtree(task.folder, ignore_errors=True)


def to_json(value: Any) -> bytes:
    """JSON that is the same for equal values."""
    return (json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1) + "\n").encode()


def write_atomically(path: Path, content: bytes) -> None:
    """Write a small file whole or not at all."""
    aside = path.with_name(f".{path.name}-{uuid.uuid4().hex}")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def point(link: Path, target: str) -> None:
    """Let a relative symbolic link lead to `target`, in one step for whoever follows it meanwhile."""
    aside = link.with_name(f".{link.name}-{uuid.uuid4().hex}")
    aside.symlink_to(target)
    aside.replace(link)


def _describe(path: Path) -> dict[str, Any]:
    """Size and digest of a finished file, which is on disk when this returns."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    return {"bytes": path.stat().st_size, "sha256": digest}
