"""One driver per run folder at a time.

Promises: of several that ask, one holds the folder until it lets go or dies; the others are refused at once. On a disk
the system frees the lock of a process that dies. In a bucket nobody does: there the lock is an object that its holder
renews every RENEW_S, and may be taken over once it is EXPIRE_S old by the server's clock, or at once where its holder
was a process of this machine that is gone. One that was taken over, since it slept or was cut off, is told so.
Leaves to others: that two drivers at once would do no harm to what is committed (store.py).

    with hold(place("s3://bucket/runs/ccnet")) as lease:
        lease.check()      # raises HeldByAnother once it is lost
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import uuid
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from pipeline.runs.phase_folder import Location, is_alive, to_json
from storage.object_store import S3Path

RENEW_S, EXPIRE_S = 15.0, 60.0

_LOCK = ".lock"


class HeldByAnother(Exception):
    """Another process works in the folder."""


class RunLock:
    """What a holder has. On a disk it cannot be lost."""

    def check(self) -> None:
        """Raise HeldByAnother if it is lost."""


@contextlib.contextmanager
def hold(folder: Location) -> Generator[RunLock]:
    """Hold a run folder, which is made if need be.

    Raises:
        HeldByAnother: another process does.
        OSError: the folder cannot be written.
    """
    if isinstance(folder, S3Path):
        run_lock = _ObjectRunLock(folder / _LOCK, f"{folder}")
        try:
            yield run_lock
        finally:
            run_lock.release()
        return
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / _LOCK).open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise HeldByAnother(
                f"another process is working in {folder}; wait for it, or choose another --run-dir"
            ) from error
        yield RunLock()


class _ObjectRunLock(RunLock):
    """An object that is ours as long as nobody has written another version of it."""

    def __init__(self, lock: S3Path, folder: str) -> None:
        self._lock, self._folder = lock, folder
        self._owner = {
            "machine": _machine(),
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "id": uuid.uuid4().hex,
        }
        self._num_renewals, self._is_lost = 0, False
        self._version = lock.create(self._content()) or self._take_over()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise HeldByAnother if it is lost."""
        if self._is_lost:
            raise HeldByAnother(
                f"another process has taken over {self._folder}: this one had not been heard of for {EXPIRE_S:g} s. "
                f"What is done stays done"
            )

    def release(self) -> None:
        """Let go, so that the next need not wait."""
        self._stop.set()
        self._thread.join()
        if not self._is_lost:
            with contextlib.suppress(OSError):  # then it expires
                self._lock.unlink()

    def _content(self) -> bytes:
        return to_json({**self._owner, "renewals": self._num_renewals})

    def _keep(self) -> None:
        while not self._stop.wait(RENEW_S):
            self._num_renewals += 1
            with contextlib.suppress(
                OSError
            ):  # a server that is away: others cannot take it over either
                version = self._lock.replace(self._content(), self._version)
                if version is None:
                    self._is_lost = True
                    return
                self._version = version

    def _take_over(self) -> str:
        """The version of the lock once it is ours; raises HeldByAnother."""
        try:
            content, version = self._lock.read_version()
            age_s = self._age_s()
        except FileNotFoundError:  # let go of in this moment
            if taken := self._lock.create(self._content()):
                return taken
            raise HeldByAnother(
                f"another process begins to work in {self._folder} at this moment"
            ) from None
        holder: Mapping[str, Any] = json.loads(content)
        is_gone = holder["machine"] == _machine() and not is_alive(holder["pid"])
        if is_gone or age_s >= EXPIRE_S:
            if taken := self._lock.replace(self._content(), version):
                return taken
            age_s = 0.0  # another was faster
        raise HeldByAnother(
            f"another process is working in {self._folder}: process {holder['pid']} of {holder['host']}, heard of "
            f"{age_s:.0f} s ago; wait for it, or choose another --run-dir. If it is dead, its lock lapses "
            f"{max(0.0, EXPIRE_S - age_s):.0f} s from now"
        )

    def _age_s(self) -> float:
        """How long ago the lock was renewed, all by the server's clock: those of two machines may differ."""
        probe = self._lock.parent / f"{_LOCK}-{uuid.uuid4().hex}"
        probe.write_bytes(b"")
        try:
            return (probe.modified() - self._lock.modified()).total_seconds()
        finally:
            probe.unlink()


def _machine() -> str:
    """The start of this machine, as far as process ids mean the same: a container is a machine of its own."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip() + os.readlink(
            "/proc/self/ns/pid"
        )
    except OSError:  # no Linux: then nobody is known to be gone
        return uuid.uuid4().hex
