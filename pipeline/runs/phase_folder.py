"""Folders of a run, on a disk or in a bucket: atomic commits and done-records.

Promises: a file under its final name is whole; a done-record exists only after all the outputs it names are whole and
stored; what an interrupted task left behind is never taken for a result. So resuming is a set difference: do what has
no record. In a bucket the same names hold the same bytes, so that two tasks may do the same work there too.
Leaves to others: what the outputs hold (phases/), what is to be done (plan.py), how objects are asked for (s3.py).

    folder = PhaseFolder(place("s3://bucket/runs/ccnet") / "extract-0f3a")     # or place("runs/ccnet")
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
import tempfile
import uuid
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from stages.contract import Counters
from storage.object_store import BY_ENVIRONMENT, SCHEME, S3Path, StorageSettings, fetch_each

RUN_FILE = "run.json"
"""In a run folder: which folders of phases belong together, and of which units (ledger.py:record_run)."""

_ASIDE = ".aside"
_DONE = "done"
_COMPLETE = "phase.json"
_ATTEMPTS = ".attempts"

Location = Path | S3Path
"""A file or a folder of a run: both kinds know /, name, parent, exists, read_bytes, iterdir and unlink."""

K = TypeVar("K")
T = TypeVar("T")


def parse_location(address: str | Path, settings: StorageSettings = BY_ENVIRONMENT) -> Location:
    """The place at a path, or at s3://bucket/key.

    Raises:
        StorageError: the address names no bucket, or S3's extra is not installed.
    """
    text = str(address)
    return S3Path.of(text, settings) if text.startswith(SCHEME) else Path(address)


@dataclass
class PendingOutput:
    """The outputs of one piece of work while they are being written, aside."""

    folder: Path
    record: dict[str, Any] = field(default_factory=dict[str, Any])

    def path(self, name: str) -> Path:
        """Where to write the output of that name: on this machine, wherever it goes from there."""
        return self.folder / name


@dataclass(frozen=True)
class PhaseFolder:
    """The outputs of one phase under one fingerprint."""

    root: Location

    def path(self, name: str) -> Location:
        """Where a finished output lies."""
        return self.root / name

    def open(self, name: str) -> pa.NativeFile:
        """A finished output, to be read by range.

        Raises:
            FileNotFoundError: there is none of that name.
        """
        return _open(self.root / name)

    def map(self, name: str) -> pa.NativeFile:
        """The same, for parts of it that are used where they lie: they are not copied, and read when they are touched.

        Raises:
            FileNotFoundError: there is none of that name.
        """
        return (
            _open(self.root / name)
            if isinstance(self.root, S3Path)
            else pa.memory_map(str(self.root / name))
        )

    def each(self, items: Iterable[K], read: Callable[[K], T]) -> list[T]:
        """What `read` makes of each item, in their order, where it reads outputs: a bucket's, several at a time."""
        return (
            list(fetch_each(items, read))
            if isinstance(self.root, S3Path)
            else [read(item) for item in items]
        )

    def done(self) -> frozenset[str]:
        """Names of the work that has a record."""
        with contextlib.suppress(FileNotFoundError):
            names = (entry.name for entry in (self.root / _DONE).iterdir())
            return frozenset(
                name.removesuffix(".json") for name in names if not name.startswith(".")
            )
        return frozenset()

    def record(self, task_id: str) -> dict[str, Any]:
        """The done-record of one piece of work.

        Raises:
            FileNotFoundError: it is not done.
        """
        return json.loads((self.root / _DONE / f"{task_id}.json").read_bytes())

    def records(self, task_ids: Iterable[str]) -> Iterator[dict[str, Any]]:
        """The done-records of these pieces of work, in their order, one after another: tens of thousands, maybe.

        Raises:
            FileNotFoundError: one of them is not done.
        """
        return (
            fetch_each(task_ids, self.record)
            if isinstance(self.root, S3Path)
            else map(self.record, task_ids)
        )

    def counters(self, task_ids: Iterable[str]) -> Counters:
        """The sum of what these pieces of work have counted."""
        return Counters.sum(
            Counters.from_json(record["counters"]) for record in self.records(task_ids)
        )

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
        return json.loads((self.root / _COMPLETE).read_bytes())

    def begin(self) -> None:
        """Make the folder and clear away what interrupted tasks left; by one process, before any task is started."""
        if isinstance(self.root, S3Path):
            (self.root / _ATTEMPTS).remove_tree()
            return
        (self.root / _DONE).mkdir(parents=True, exist_ok=True)
        for leftover in (_ASIDE, _ATTEMPTS):
            shutil.rmtree(self.root / leftover, ignore_errors=True)
        for folder in (self.root, self.root / _DONE):
            for unfinished in folder.glob(".*"):  # of write_atomically, killed before its rename
                unfinished.unlink(missing_ok=True)

    def attempt(self, task_id: str) -> int:
        """Count an attempt at a piece of work and return how many there were, this one included, since `begin`.

        Raises:
            FileNotFoundError: what `begin` made on the driver's machine is not on this one.
        """
        attempts = self.root / _ATTEMPTS
        if isinstance(
            attempts, S3Path
        ):  # where nothing can be appended to: as many objects as attempts
            count = 1
            while (attempts / f"{task_id}.{count}").create(uuid.uuid4().bytes) is None:
                count += 1
            return count
        try:
            attempts.mkdir(exist_ok=True)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{self.root} is not on {socket.gethostname()}: the run's folder must lie on storage that all machines "
                f"share, under one path"
            ) from error
        with (attempts / task_id).open("ab") as file:
            file.write(b".")
            file.flush()
            return file.tell()

    def attempts(self, task_id: str) -> int:
        """How many attempts at a piece of work were counted since `begin`."""
        attempts = self.root / _ATTEMPTS
        if isinstance(attempts, S3Path):
            count = 0
            while (attempts / f"{task_id}.{count + 1}").exists():
                count += 1
            return count
        try:
            return (attempts / task_id).stat().st_size
        except FileNotFoundError:
            return 0

    @contextlib.contextmanager
    def commit(self, task_id: str) -> Generator[PendingOutput]:
        """Write outputs aside; when the block ends well, move them into place and record that the work is done.

        Two processes may do the same work at once: both write the same bytes, and each rename, or upload, is whole.
        """
        aside = _spool(self.root.settings) if isinstance(self.root, S3Path) else self.root / _ASIDE
        output = PendingOutput(aside / f"{task_id}-{os.getpid()}-{uuid.uuid4().hex}")
        output.folder.mkdir(parents=True)
        try:
            yield output
            outputs = {path.name: _describe(path) for path in sorted(output.folder.iterdir())}
            for name in outputs:
                _move(output.folder / name, self.root / name)
            record = {"task_id": task_id, "outputs": outputs, **output.record}
            write_atomically(self.root / _DONE / f"{task_id}.json", to_json(record))
        finally:
            shutil.rmtree(output.folder, ignore_errors=True)


def to_json(value: Any) -> bytes:
    """JSON that is the same for equal values."""
    return (json.dumps(value, sort_keys=True, ensure_ascii=False, indent=1) + "\n").encode()


def write_atomically(target: Location, content: bytes) -> None:
    """Write a small file whole or not at all."""
    if isinstance(target, S3Path):
        target.write_bytes(content)
        return
    aside = target.with_name(f".{target.name}-{uuid.uuid4().hex}")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def set_latest_link(link: Location, target: str) -> None:
    """Let a name lead to its neighbour `target`, in one step for whoever follows it meanwhile.

    On a disk it is a relative symbolic link. A bucket has none: there it is an object that holds the neighbour's name,
    which the loader follows (docs/data-format.md).
    """
    if isinstance(link, S3Path):
        link.write_bytes(target.encode())
        return
    aside = link.with_name(f".{link.name}-{uuid.uuid4().hex}")
    aside.symlink_to(target)
    aside.replace(link)


def _open(source: Location) -> pa.NativeFile:
    return (
        pa.PythonFile(source.open(), mode="r")
        if isinstance(source, S3Path)
        else pa.OSFile(str(source))
    )


def _move(file: Path, target: Location) -> None:
    if isinstance(target, S3Path):
        target.upload(file)
    else:
        file.replace(target)


def _spool(settings: StorageSettings) -> Path:
    """Where this machine's tasks write before they upload, rid of what tasks left there that were killed."""
    spool = Path(settings.spool or tempfile.gettempdir()) / f"corpusmill-spool-{os.getuid()}"
    spool.mkdir(parents=True, exist_ok=True, mode=0o700)
    for leftover in spool.iterdir():
        pid = leftover.name.split("-")[-2]
        if not is_alive(int(pid)):
            shutil.rmtree(leftover, ignore_errors=True)
    return spool


def is_alive(pid: int) -> bool:
    """Whether there is a process of that number on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _describe(path: Path) -> dict[str, Any]:
    """Size and digest of a finished file, which is on disk when this returns."""
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
    return {"bytes": path.stat().st_size, "sha256": digest}
