"""What an attack is, how attacks are found, and the process that makes their tries."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib
import logging
import multiprocessing
import os
import pkgutil
import shutil
import signal
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "tests.faults"


def find_nothing() -> str | None:
    """Return None: the attack can run on every machine."""
    return None


@dataclass(frozen=True)
class Attack:
    """One kind of attack. It is tried with the seeds 0, 1, 2, ...

    Attributes:
        name: The row of the table, "<module's subject>: <kind>", e.g. "rot: cut file".
        promise: What must hold, as one plain sentence. It is printed in the docs.
        num_tries: Number of seeds in full form.
        num_small_tries: Number of seeds in the small form, which `make test` runs. 0: it is not
            in the small form.
        attempt: Called with a seed and an empty folder. It must do the same for the same seed.
            It raises an error, best an AssertionError with a clear message, if the promise is
            broken. It returns the number of inputs that it tried; None means one.
        find_obstacle: Returns why the attack cannot run on this machine ("strace is not
            installed"), or None. Such an attack is shown as skipped.
        timeout_s: A try that takes longer is killed and counts as broken.
    """

    name: str
    promise: str
    num_tries: int
    num_small_tries: int
    attempt: Callable[[int, Path], int | None]
    find_obstacle: Callable[[], str | None] = find_nothing
    timeout_s: float = 600.0

    def count_tries(self, form: str) -> int:
        """Return the number of tries in a form: "small", "full", or at most a number."""
        if form == "small":
            return self.num_small_tries
        return self.num_tries if form == "full" else min(self.num_tries, int(form))


def find_attacks() -> dict[str, tuple[Attack, ...]]:
    """Return module -> its constant ATTACKS, for the modules of this folder that have one."""
    package = importlib.import_module(PACKAGE)
    names = [
        found.name
        for found in pkgutil.walk_packages(package.__path__, f"{PACKAGE}.")
        if not found.ispkg and not found.name.rpartition(".")[2].startswith(("_", "test_"))
    ]
    attacks = {name: _get_attacks(name) for name in sorted(names)}
    return {name: found for name, found in attacks.items() if found}


def _get_attacks(module: str) -> tuple[Attack, ...]:
    return getattr(importlib.import_module(module), "ATTACKS", ())


class AttackProcess:
    """A process that makes the tries of one package, which share what its modules cache.

    After a try that ended or blocked the process, the next one gets a new process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._executor: ProcessPoolExecutor | None = None
        self._pid = 0

    def attempt(self, module: str, attack: Attack, seed: int) -> tuple[int, str | None]:
        """Make one try. Return the number of inputs, and what was broken or None."""
        if self._executor is None:
            context = multiprocessing.get_context("spawn")
            self._executor = ProcessPoolExecutor(1, context, _begin, (self._folder,))
            self._pid = self._executor.submit(os.getpid).result()
        try:
            done = self._executor.submit(_attempt, module, attack.name, seed)
            return done.result(attack.timeout_s)
        except (TimeoutError, BrokenProcessPool) as error:
            self.stop()
            return 1, f"the try did not end, or ended its process: {error!r}"

    def stop(self) -> None:
        """Kill the process."""
        if self._executor is not None:
            with contextlib.suppress(ProcessLookupError):  # the try may have ended it
                os.kill(self._pid, signal.SIGKILL)
            self._executor.shutdown()
            self._executor = None


def _begin(folder: Path) -> None:
    # The session removes the folder, and with it what a killed process leaves.
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder)
    logging.basicConfig(handlers=[logging.NullHandler()])  # attacks cause many warnings


def _attempt(module: str, name: str, seed: int) -> tuple[int, str | None]:
    (attack,) = (each for each in _get_attacks(module) if each.name == name)
    folder = Path(tempfile.mkdtemp(prefix=f"try-{seed}-"))
    try:
        return attack.attempt(seed, folder) or 1, None
    except BaseException:  # noqa: BLE001 - those of pytest and torch are no Exception
        return 1, traceback.format_exc()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def get_shared_folder() -> Path:
    """Return a folder for what several tries share, such as the undisturbed run.

    It is removed when the process ends. Tries must not change what is in it.
    """
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
