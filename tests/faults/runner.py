"""Runs attacks in processes that may die or hang, and counts what held."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.faults.attack import Attack, find_modules, load_attacks

_CONTEXT = multiprocessing.get_context("spawn")

# For a process that imports torch or Ray on a busy machine.
START_TIMEOUT_S = 120.0

MAX_MESSAGE_LINES = 30


@dataclass
class Break:
    """A try in which the promise did not hold."""

    seed: int
    message: str


@dataclass
class Row:
    """The outcome of one attack: a row of the table.

    Attributes:
        num_tries: Inputs that were tried; an attempt can try many.
        breaks: The attempts in which the promise did not hold.
        obstacle: Why the attack could not run here.
        is_cut: Whether the time limit ended it before its last seed.
    """

    name: str
    promise: str
    num_tries: int = 0
    breaks: list[Break] = field(default_factory=list)
    obstacle: str | None = None
    is_cut: bool = False
    seconds: float = 0.0

    @property
    def num_held(self) -> int:
        """Tries in which the promise held."""
        return self.num_tries - len(self.breaks)


class Worker:
    """A process that runs the attacks of one module, one try at a time.

    All tries of a module share the process, and with it what the module caches. After a crash
    or a timeout the next try gets a new process.
    """

    def __init__(self, module: str, folder: Path) -> None:
        self._module, self._folder = module, folder
        self._process: Any = None
        self._connection: Connection | None = None

    def attempt(self, attack: Attack, seed: int) -> tuple[int, str | None]:
        """Run one try. Return the number of inputs, and what was broken or None."""
        if self._connection is None:
            self._start()
        assert self._connection is not None
        try:
            self._connection.send((attack.name, seed))
            return self._receive(attack.timeout_s)
        except TimeoutError as error:
            self.stop()
            return 1, str(error)
        except (EOFError, OSError):
            self._process.join()
            code = self._process.exitcode
            self.stop()
            return 1, f"the process of the attack ended with exit code {code}"

    def stop(self) -> None:
        """Kill the process."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
        if self._connection is not None:
            self._connection.close()
        self._process = self._connection = None

    def _start(self) -> None:
        self._connection, theirs = _CONTEXT.Pipe()
        arguments = (self._module, self._folder, theirs)
        self._process = _CONTEXT.Process(target=_answer, args=arguments)
        self._process.start()
        theirs.close()  # so that `recv` sees the end of the process
        self._receive(START_TIMEOUT_S)

    def _receive(self, timeout_s: float) -> Any:
        assert self._connection is not None
        if not self._connection.poll(timeout_s):
            raise TimeoutError(f"no end after {timeout_s:g} s")
        return self._connection.recv()


def _answer(module: str, folder: Path, connection: Connection) -> None:
    """Run the tries that the parent process names, until it closes the connection."""
    # The parent removes the folder, and with it what a killed process leaves.
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = str(folder)
    logging.basicConfig(
        handlers=[logging.NullHandler()]
    )  # attacks cause thousands of warnings
    attacks = {attack.name: attack for attack in load_attacks(module)}
    connection.send("ready")
    while True:
        try:
            name, seed = connection.recv()
        except EOFError:
            return
        connection.send(attempt_here(attacks[name], seed))


def attempt_here(attack: Attack, seed: int) -> tuple[int, str | None]:
    """Run one try in this process. Return the number of inputs, and what was broken or None."""
    folder = Path(tempfile.mkdtemp(prefix=f"try-{seed}-"))
    try:
        return attack.attempt(seed, folder) or 1, None
    except Exception:  # noqa: BLE001 - every error is a broken promise
        lines = traceback.format_exc().strip().splitlines()
        return 1, "\n".join(lines[-MAX_MESSAGE_LINES:])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_attacks(
    only: str = "",
    *,
    is_small: bool = False,
    seeds: Sequence[int] = (),
    budget_s: float = float("inf"),
) -> Iterator[Row]:
    """Run attacks and yield a row for each.

    Args:
        only: Run the attacks with this text in their name.
        is_small: Run the small form.
        seeds: Run these seeds instead of those of the form.
        budget_s: Time for all attacks. Each attack gets an equal share of what is left.
    """
    modules = find_modules()
    plans = [(name, attack) for name in modules for attack in load_attacks(name)]
    plans = [(name, attack) for name, attack in plans if only in attack.name]
    deadline = time.monotonic() + budget_s
    worker: Worker | None = None
    with tempfile.TemporaryDirectory(
        prefix="faults-", ignore_cleanup_errors=True
    ) as folder:
        previous_module = ""
        for index, (module, attack) in enumerate(plans):
            if module != previous_module or worker is None:
                if worker is not None:
                    worker.stop()
                worker, previous_module = Worker(module, Path(folder)), module
            share_s = (deadline - time.monotonic()) / (len(plans) - index)
            num_tries = attack.num_small_tries if is_small else attack.num_tries
            yield run_attack(worker, attack, seeds or range(num_tries), share_s)
        if worker is not None:
            worker.stop()


def run_attack(worker: Worker, attack: Attack, seeds: Sequence[int], limit_s: float) -> Row:
    row = Row(attack.name, attack.promise, obstacle=attack.find_obstacle())
    if row.obstacle is not None:
        return row
    start = time.monotonic()
    for seed in seeds:
        if time.monotonic() - start > limit_s:
            row.is_cut = True
            break
        num_inputs, message = worker.attempt(attack, seed)
        row.num_tries += num_inputs
        if message is not None:
            row.breaks.append(Break(seed, message))
    row.seconds = time.monotonic() - start
    return row
