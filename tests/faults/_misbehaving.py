"""Attacks for the tests of the runner. They are no part of the table."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.faults.attack import Attack


def misbehave(seed: int, folder: Path) -> int:
    """Hold, break, die, hang or try many, by the seed."""
    if seed == 1:
        raise AssertionError("the promise is broken")
    if seed == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if seed == 3:
        time.sleep(600)
    (folder / "file").touch(exist_ok=False)
    return 1 + 10 * (seed == 4)


ATTACKS = (Attack("runner: itself", "None.", 5, 0, misbehave, timeout_s=5.0),)
