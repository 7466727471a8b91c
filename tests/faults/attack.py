"""What an attack is, and how attacks are found."""

from __future__ import annotations

import atexit
import functools
import importlib
import pkgutil
import shutil
import tempfile
from collections.abc import Callable
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
        num_small_tries: Number of seeds in the small form, which runs in CI. All attacks
            together must take less than a minute there. 0: not in the small form.
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


def find_modules() -> list[str]:
    """Return the sorted names of the modules that can have attacks.

    Tests, and modules whose name begins with "_", are left out.
    """
    package = importlib.import_module(PACKAGE)
    found = pkgutil.walk_packages(package.__path__, f"{PACKAGE}.")
    names = [module.name for module in found if not module.ispkg]
    return sorted(
        name for name in names if not name.rpartition(".")[2].startswith(("_", "test_"))
    )


def load_attacks(module: str) -> tuple[Attack, ...]:
    """Return the attacks of a module; none if it has no constant ATTACKS."""
    return getattr(importlib.import_module(module), "ATTACKS", ())


@functools.cache
def get_shared_folder() -> Path:
    """Return a folder for what several tries share, such as the undisturbed run.

    It is removed when the process ends. Tries must not change what is in it.
    """
    folder = Path(tempfile.mkdtemp(prefix="faults-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
