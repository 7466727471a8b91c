"""The run lock: one driver at a time writes to a run folder.

Two drivers at a time would do no harm to committed outputs, because a name always gets the same
bytes. The lock saves duplicate work.

    with hold(open_store("s3://bucket/runs/ccnet")) as run_lock:
        run_lock.check()      # raises HeldByAnother after the lock was lost
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
import uuid
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Annotated, Any

import filelock
from pydantic import Field, TypeAdapter

from pipeline.errors import RunAborted
from pipeline.runs.done_records import to_json
from storage import Store
from storage.errors import DamagedFile
from storage.json_schema import Count, JsonObject, parse_json
from storage.local import is_alive

log = logging.getLogger(__name__)

# How often the holder renews a lock in an object store.
RENEW_S = 15.0

# Age at which another driver may take over a lock in an object store.
EXPIRE_S = 60.0

_LOCK = ".lock"


class _Holder(JsonObject):
    """The content of a lock in an object store."""

    machine: str
    pid: Annotated[int, Field(ge=1, lt=2**31)]
    host: str
    id: str
    renewals: Count


_HOLDER = TypeAdapter(_Holder)


class HeldByAnother(RunAborted):
    """Another process holds the run lock."""


class RunLock:
    """A run lock that this process holds. On a disk it cannot be lost."""

    def check(self) -> None:
        """Raise HeldByAnother if another process has taken over the lock."""


@contextlib.contextmanager
def hold(run_folder: Store) -> Generator[RunLock]:
    """Hold the lock of a run folder, which is created if it does not exist.

    Raises:
        HeldByAnother: another process holds it.
        OSError: the folder cannot be written.
    """
    run_folder.make_folder()
    path = run_folder.get_local_path(_LOCK)
    if path is not None:
        with _hold_file_lock(path, str(run_folder)):
            yield RunLock()
        return
    run_lock = _ObjectRunLock(run_folder)
    try:
        yield run_lock
    finally:
        run_lock.release()


@contextlib.contextmanager
def _hold_file_lock(path: Path, run_folder: str) -> Generator[None]:
    """Hold a lock that the operating system frees when the process dies."""
    # A soft lock would outlive a killed process.
    lock = filelock.FileLock(path, blocking=False, fallback_to_soft=False)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise HeldByAnother(
            f"another process is working in {run_folder}; wait for it, or choose another --run-dir"
        ) from error
    try:
        yield
    finally:
        lock.release()


class _ObjectRunLock(RunLock):
    """A lock in an object store.

    The lock is an object that names its holder. The holder renews it every RENEW_S. Another
    driver may take it over when it is EXPIRE_S old by the server's clock, or at once if the
    holder was a process of the same machine and is dead. All writes are conditional on the
    version that was read, so of several drivers one succeeds.
    """

    def __init__(self, run_folder: Store) -> None:
        self._folder = run_folder
        self._owner = {
            "machine": identify_machine(),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "id": uuid.uuid4().hex,
        }
        self._num_renewals, self._is_lost = 0, False
        self._version = run_folder.create(_LOCK, self._make_content()) or self._take_over()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._renew, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise HeldByAnother if another process has taken over the lock."""
        if self._is_lost:
            raise HeldByAnother(
                f"another process has taken over {self._folder}: this one had not renewed its "
                f"lock for {EXPIRE_S:g} s. Finished tasks stay done"
            )

    def release(self) -> None:
        """Delete the lock, so that the next driver need not wait."""
        self._stop.set()
        self._thread.join()
        if not self._is_lost:
            with contextlib.suppress(OSError):  # then the lock expires
                self._folder.delete(_LOCK)

    def _make_content(self) -> bytes:
        return to_json({**self._owner, "renewals": self._num_renewals})

    def _renew(self) -> None:
        while not self._stop.wait(RENEW_S):
            self._num_renewals += 1
            # While the server is down, no other driver can take over the lock either.
            with contextlib.suppress(OSError):
                version = self._folder.replace(_LOCK, self._make_content(), self._version)
                if version is None:
                    self._is_lost = True
                    return
                self._version = version

    def _take_over(self) -> str:
        """Take over an expired lock and return its version; raise HeldByAnother if it is held."""
        try:
            content, version = self._folder.read_version(_LOCK)
            age_s = self._measure_age_s()
        except FileNotFoundError:  # released between our two requests
            if created := self._folder.create(_LOCK, self._make_content()):
                return created
            raise HeldByAnother(
                f"another process is starting to work in {self._folder}; wait for it, or choose "
                "another --run-dir"
            ) from None
        holder = self._parse_holder(content)
        is_same_machine = holder["machine"] == self._owner["machine"]
        is_dead = is_same_machine and not is_alive(holder["pid"])
        if is_dead or age_s >= EXPIRE_S:
            if taken := self._folder.replace(_LOCK, self._make_content(), version):
                return taken
            age_s = 0.0  # another driver was faster
        raise HeldByAnother(
            f"another process is working in {self._folder}: process {holder['pid']} of "
            f"{holder['host']}, last renewal {age_s:.0f} s ago; wait for it, or choose another "
            f"--run-dir. If it is dead, its lock expires in {max(0.0, EXPIRE_S - age_s):.0f} s"
        )

    def _parse_holder(self, content: bytes) -> Mapping[str, Any]:
        """Return what a lock says about its holder. A damaged lock is held until it expires."""
        remedy = "wait until it expires"
        try:
            return parse_json(content, _HOLDER, self._folder.locate(_LOCK), remedy)
        except DamagedFile as error:
            log.warning("%s", error)
            return {"machine": "", "pid": "?", "host": "an unknown machine"}

    def _measure_age_s(self) -> float:
        """Return the seconds since the last renewal.

        Both times are the server's: clocks of two machines may differ.
        """
        probe = f"{_LOCK}-{uuid.uuid4().hex}"
        self._folder.put(probe, b"")
        try:
            now = self._folder.get_modified_time(probe)
            return (now - self._folder.get_modified_time(_LOCK)).total_seconds()
        finally:
            self._folder.delete(probe)


def identify_machine() -> str:
    """Return an id of the scope in which process ids are unique, until the next boot.

    A container has its own process ids, so it counts as a machine.
    """
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
        return boot_id + os.readlink("/proc/self/ns/pid")
    except OSError:  # not Linux: then no holder is ever known to be dead
        return uuid.uuid4().hex
