"""The small form of all attacks, and what runs them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest

from tests.faults import _misbehaving
from tests.faults.attack import Attack, find_modules, load_attacks
from tests.faults.runner import AttackRun, Row, Worker, group_by_package, run_attacks

ALL_ATTACKS = [(name, attack) for name in find_modules() for attack in load_attacks(name)]
PACKAGES = group_by_package(find_modules())
SMALL_TRIES = [
    pytest.param(
        package,
        attack,
        seed,
        id=f"{attack.name}-{seed}",
        marks=pytest.mark.xdist_group(package),
    )
    for package, modules in PACKAGES.items()
    for module in modules
    for attack in load_attacks(module)
    for seed in range(attack.num_small_tries)
]


@pytest.fixture(scope="session")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Worker]]:
    """One process for the attacks of each package, as in the full form."""
    folder = tmp_path_factory.mktemp("attacks")
    workers = {package: Worker(modules, folder) for package, modules in PACKAGES.items()}
    yield workers
    for worker in workers.values():
        worker.stop()


@pytest.mark.parametrize(("package", "attack", "seed"), SMALL_TRIES)
def test_the_promise_holds_under_attack(
    package: str, attack: Attack, seed: int, workers: dict[str, Worker]
) -> None:
    """One try of one attack; `python -m tests.faults` runs the full form."""
    obstacle = attack.find_obstacle()
    if obstacle is not None:
        pytest.skip(obstacle)
    _, message = workers[package].attempt(attack, seed)
    assert message is None, message


def test_attacks_have_different_names() -> None:
    """The table has one row per attack."""
    names = [attack.name for _, attack in ALL_ATTACKS]
    assert sorted(set(names)) == sorted(names)


def plan_misbehaving() -> AttackRun:
    """Return the five tries of the attack that tests the runner."""
    (attack,) = _misbehaving.ATTACKS
    row = Row(attack.name, attack.promise)
    return AttackRun(attack, _misbehaving.__name__, row, deque(range(attack.num_tries)))


def test_broken_promises_deaths_and_hangs_are_counted() -> None:
    """The runner survives each, and gives every try an empty folder."""
    planned = plan_misbehaving()
    run_attacks([planned])
    row = planned.row
    messages = {found.seed: found.message.splitlines()[-1] for found in row.breaks}
    assert (row.num_tries, row.num_held) == (15, 12)
    assert messages[1] == "AssertionError: the promise is broken"
    assert messages[2] == "the process of the attack ended with exit code -9"
    assert messages[3].startswith("no end after")


def test_without_time_each_attack_is_tried_once() -> None:
    """The table then shows that tries are missing."""
    planned = [plan_misbehaving(), plan_misbehaving()]
    run_attacks(planned, budget_s=0.0)
    assert [(run.row.num_tries, run.row.is_cut) for run in planned] == [(1, True)] * 2
