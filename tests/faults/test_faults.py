"""All attacks: each try is a test. `make test` runs a few of each, `make test-faults` all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.faults.attack import Attack, AttackProcess, find_attacks

ATTACKS = [(module, each) for module, found in find_attacks().items() for each in found]


def get_package(module: str) -> str:
    """Return the package of a module: its attacks share a process."""
    return module.rpartition(".")[0]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test of each try; the option `--tries` says how many."""
    if "seed" not in metafunc.fixturenames:
        return
    form = str(metafunc.config.getoption("--tries", "small"))
    tries = [
        pytest.param(
            module,
            attack,
            seed,
            id=f"{attack.name}-{seed}",
            marks=[
                pytest.mark.xdist_group(get_package(module)),
                pytest.mark.timeout(attack.timeout_s + 300),
            ],
        )
        for module, attack in ATTACKS
        for seed in range(attack.count_tries(form))
    ]
    metafunc.parametrize(("module", "attack", "seed"), tries)


@pytest.fixture(scope="session")
def processes(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, AttackProcess]]:
    """Package -> its process, which starts with the first try."""
    folder = tmp_path_factory.mktemp("attacks")
    processes = {get_package(module): AttackProcess(folder) for module, _ in ATTACKS}
    yield processes
    for process in processes.values():
        process.stop()


def test_the_promise_holds_under_attack(
    module: str,
    attack: Attack,
    seed: int,
    processes: dict[str, AttackProcess],
    record_property: Any,
) -> None:
    """One try of one attack."""
    record_property("attack", attack.name)
    record_property("promise", attack.promise)
    if (obstacle := attack.find_obstacle()) is not None:
        pytest.skip(obstacle)
    num_inputs, message = processes[get_package(module)].attempt(module, attack, seed)
    record_property("num_inputs", num_inputs)
    assert message is None, message


def test_attacks_have_different_names() -> None:
    """The table has one row per attack."""
    names = [attack.name for _, attack in ATTACKS]
    assert sorted(set(names)) == sorted(names)
