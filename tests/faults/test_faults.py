"""The small form of all attacks, and what runs them."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from tests.faults.attack import Attack, find_modules, load_attacks
from tests.faults.runner import Worker, run_attack

ALL_ATTACKS = [attack for name in find_modules() for attack in load_attacks(name)]
SMALL_TRIES = [
    pytest.param(attack, seed, id=f"{attack.name}-{seed}")
    for attack in ALL_ATTACKS
    for seed in range(attack.num_small_tries)
]


@pytest.mark.parametrize(("attack", "seed"), SMALL_TRIES)
def test_the_promise_holds_under_attack(attack: Attack, seed: int, tmp_path: Path) -> None:
    """One try of one attack; `python -m tests.faults` runs the full form."""
    obstacle = attack.find_obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)
    attack.attempt(seed, tmp_path)


def test_attacks_have_different_names() -> None:
    """The table has one row per attack."""
    names = [attack.name for attack in ALL_ATTACKS]
    assert sorted(set(names)) == sorted(names)


def _misbehave(seed: int, folder: Path) -> int:
    """Hold, break, die, hang and try many, by the seed."""
    if seed == 1:
        raise AssertionError("the promise is broken")
    if seed == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if seed == 3:
        time.sleep(60)
    (folder / "file").touch(exist_ok=False)
    return 1 + 10 * (seed == 4)


ATTACKS = (Attack("runner: itself", "None.", 5, 0, _misbehave, timeout_s=1.0),)


def test_broken_promises_deaths_and_hangs_are_counted(tmp_path: Path) -> None:
    """The runner survives each, and gives every try an empty folder."""
    worker = Worker(__name__, tmp_path)
    try:
        row = run_attack(worker, ATTACKS[0], range(5), 100.0)
    finally:
        worker.stop()
    messages = {found.seed: found.message.splitlines()[-1] for found in row.breaks}
    assert (row.num_tries, row.num_held) == (15, 12)
    assert messages[1] == "AssertionError: the promise is broken"
    assert messages[2] == "the process of the attack ended with exit code -9"
    assert messages[3].startswith("no end after")
