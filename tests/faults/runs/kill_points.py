"""Kills a process at an exact point of a run.

The run folder of the attacked run is a store that kills when a task, or the driver, reaches a
named moment. Nothing is patched: the engine, the phases and the files are the real ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import subprocess
import time
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from pipeline.phases.run_plan import RunPlan
from pipeline.runs.phase_folder import RUN_FILE
from storage import Store
from storage.local import LocalStore
from storage.object_store import ObjectStore

# Moments of a task, in their order, then moments of the driver.
BEFORE_WRITE = "before write"  # the staging folder is made, nothing is written
MID_WRITE = "in mid-write"  # the largest output is written to the half
AFTER_RENAME = "after rename"  # all outputs have their names, there is no done-record
AFTER_RECORD = "after record"  # the done-record is written
BEFORE_SUMMARY = "before phase.json"
AFTER_SUMMARY = "after phase.json"
TASK_MOMENTS = (BEFORE_WRITE, MID_WRITE, AFTER_RENAME, AFTER_RECORD)
PHASE_MOMENTS = (*TASK_MOMENTS, BEFORE_SUMMARY, AFTER_SUMMARY)

# Moments of the run folder itself.
BEFORE_RUN_FILE = "before run.json"
AFTER_RUN_FILE = "after run.json"
BEFORE_LINK = "before link"
AFTER_LINK = "after link"
RUN_MOMENTS = (BEFORE_RUN_FILE, AFTER_RUN_FILE, BEFORE_LINK, AFTER_LINK)

# Enough for the kernel and Ray to end a process whose parent was killed.
VICTIM_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class KillPoint:
    """Where a run is killed, once per phase.

    Attributes:
        phases: The phases in which it is killed; "" is the run folder itself.
        moment: One of the moments above.
        markers: A folder. The file named after a phase shows that the kill happened there.
        half_bytes: Phase -> half the size of its largest output.
        victim: "self", the process that reaches the point; "driver"; or "raylet", the parent
            of a worker of Ray.
        driver_pid: The driver's process.
        signal_number: What the victim gets; SIGSTOP pauses it.
    """

    phases: tuple[str, ...]
    moment: str
    markers: Path
    # Stores are keys of caches, and a dict has no hash.
    half_bytes: dict[str, int] = field(hash=False)
    victim: str = "self"
    driver_pid: int = 0
    signal_number: int = signal.SIGKILL

    def reach(self, folder: str, moment: str) -> None:
        """Kill if this is the point, and was not reached before."""
        phase = self._find_phase(folder)
        if moment == self.moment and phase is not None and self._mark(phase):
            self._kill()

    @contextlib.contextmanager
    def write(self, folder: str) -> Generator[None]:
        """Let the kernel kill this process in the middle of a write, if this is the point."""
        phase = self._find_phase(folder)
        if self.moment != MID_WRITE or phase is None or not self._mark(phase):
            yield
            return
        # A process that writes beyond its limit gets SIGXFSZ. Python ignores the signal;
        # `signal.signal` is for the main thread only, and tasks may run in another one.
        ctypes.CDLL(None).signal(signal.SIGXFSZ, 0)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        self._kill_victim_after_this_process()
        resource.setrlimit(resource.RLIMIT_FSIZE, (self.half_bytes[phase], limits[1]))
        try:
            yield
        finally:
            # No output was so large: another task of the phase has the largest one.
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            (self.markers / phase).unlink()

    def _find_phase(self, folder: str) -> str | None:
        name = folder.rpartition("-")[0]  # "extract-0f3a..."; the run folder has no "-"
        return name if name in self.phases else None

    def _mark(self, phase: str) -> bool:
        try:
            (self.markers / (phase or "run")).open("x").close()
        except FileExistsError:
            return False
        return True

    def _find_victim(self) -> int:
        if self.victim == "self":
            return os.getpid()
        if self.victim == "driver":
            return self.driver_pid
        raylet = os.getppid()
        name = Path(f"/proc/{raylet}/comm").read_text(encoding="ascii").strip()
        assert name == "raylet", f"the parent of this worker is {name}"
        return raylet

    def _kill(self) -> None:
        os.kill(self._find_victim(), self.signal_number)
        if self.signal_number == signal.SIGKILL:
            time.sleep(VICTIM_TIMEOUT_S)  # until the victim's end ends this process

    def _kill_victim_after_this_process(self) -> None:
        """Start a process that kills the victim as soon as this process is dead."""
        if self.victim == "self":
            return
        wait = "while kill -0 $0 2>/dev/null; do sleep 0.01; done; kill -9 $1"
        pids = [str(os.getpid()), str(self._find_victim())]
        subprocess.Popen(["sh", "-c", wait, *pids], start_new_session=True)


@dataclass(frozen=True)
class KilledPlan(RunPlan):
    """The plan of a run that is killed at a point."""

    point: KillPoint | None = None

    @property
    def run_dir(self) -> Store:
        """The run folder as a store that kills."""
        store = super().run_dir
        if isinstance(store, LocalStore):
            return KillingLocalStore(store.path, store.settings, self.point)
        assert isinstance(store, ObjectStore)
        return KillingObjectStore(
            store.root, store.prefix, store.settings, store.counters, self.point
        )


def set_kill_point(plan: RunPlan, point: KillPoint) -> RunPlan:
    """Return a plan that kills at a point. The calling process is the driver."""
    point = replace(point, driver_pid=os.getpid())
    return KilledPlan(plan.config, plan.splits, plan.phases, plan.previous, point)


class _Killing(Store):
    """The moments of a store at which a point can be reached."""

    point: KillPoint | None

    @contextlib.contextmanager
    def staging_folder(self, name: str) -> Generator[Path]:
        """Provide a staging folder; kill before or while files are written to it."""
        assert self.point is not None
        with super().staging_folder(name) as folder:
            self.point.reach(self.name, BEFORE_WRITE)
            with self.point.write(self.name):
                yield folder

    def put(self, name: str, content: bytes) -> None:
        """Write a record; kill before or after."""
        assert self.point is not None
        before, after = _name_moments(name)
        self.point.reach(self._get_phase_folder(), before)
        super().put(name, content)
        self.point.reach(self._get_phase_folder(), after)

    def set_latest_link(self, name: str, target: str) -> None:
        """Set the link; kill before or after."""
        assert self.point is not None
        self.point.reach("", BEFORE_LINK)
        super().set_latest_link(name, target)
        self.point.reach("", AFTER_LINK)

    def _get_phase_folder(self) -> str:
        return self.name if "-" in self.name else ""


def _name_moments(name: str) -> tuple[str, str]:
    if name.startswith("done/"):
        return AFTER_RENAME, AFTER_RECORD
    if name == "phase.json":
        return BEFORE_SUMMARY, AFTER_SUMMARY
    if name == RUN_FILE:
        return BEFORE_RUN_FILE, AFTER_RUN_FILE
    return "", ""


@dataclass(frozen=True)
class KillingLocalStore(_Killing, LocalStore):
    """A folder on a disk whose writers can be killed."""

    point: KillPoint | None = None

    def __str__(self) -> str:
        return str(self.path)

    def child(self, name: str) -> Self:
        """Return the folder of that name in this one, with the same point."""
        return replace(self, path=self.path / name)


@dataclass(frozen=True)
class KillingObjectStore(_Killing, ObjectStore):
    """A folder in an object store whose writers can be killed."""

    point: KillPoint | None = None

    def __str__(self) -> str:
        return ObjectStore.__str__(self)
