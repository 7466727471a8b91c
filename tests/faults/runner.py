"""Runs attacks in processes that may die or hang, and counts what held."""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tests.faults.attack import Attack, find_modules, load_attacks

log = logging.getLogger(__name__)

_CONTEXT = multiprocessing.get_context("spawn")

# For a process that imports torch or Ray on a busy machine.
START_TIMEOUT_S = 600.0

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

    def describe(self) -> str:
        """Return the row as one line."""
        if self.obstacle is not None:
            return f"{self.name}: skipped, {self.obstacle}"
        rest = ", more later" if self.is_cut else ""
        return f"{self.name}: {self.num_held} of {self.num_tries} held{rest}, {self.seconds:.0f} s"


class Worker:
    """A process that runs the attacks of some modules, one try at a time.

    All tries share the process, and with it what the modules cache. After a crash or a timeout
    the next try gets a new process.
    """

    def __init__(self, modules: Sequence[str], folder: Path) -> None:
        self._modules, self._folder = tuple(modules), folder
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
        arguments = (self._modules, self._folder, theirs)
        self._process = _CONTEXT.Process(target=_answer, args=arguments)
        self._process.start()
        theirs.close()  # so that `recv` sees the end of the process
        self._receive(START_TIMEOUT_S)

    def _receive(self, timeout_s: float) -> Any:
        assert self._connection is not None
        if not self._connection.poll(timeout_s):
            raise TimeoutError(f"no end after {timeout_s:g} s")
        return self._connection.recv()


def _answer(modules: Sequence[str], folder: Path, connection: Connection) -> None:
    """Run the tries that the parent process names, until it closes the connection."""
    # The parent removes the folder, and with it what a killed process leaves.
    os.environ["TMPDIR"] = str(folder)
    tempfile.tempdir = str(folder)
    logging.basicConfig(
        handlers=[logging.NullHandler()]
    )  # attacks cause thousands of warnings
    attacks: dict[str, Attack] = {}
    for module in modules:
        attacks |= {attack.name: attack for attack in load_attacks(module)}
    connection.send("ready")
    while True:
        try:
            name, seed = connection.recv()
        except EOFError:
            return
        connection.send(attempt_here(attacks[name], seed))


def group_by_package(modules: Iterable[str]) -> dict[str, list[str]]:
    """Return package -> its modules. They run in one process, and share what they cache."""
    groups: dict[str, list[str]] = {}
    for module in modules:
        names = groups.setdefault(module.rpartition(".")[0], [])
        if module not in names:
            names.append(module)
    return groups


def attempt_here(attack: Attack, seed: int) -> tuple[int, str | None]:
    """Run one try in this process. Return the number of inputs, and what was broken or None."""
    folder = Path(tempfile.mkdtemp(prefix=f"try-{seed}-"))
    try:
        return attack.attempt(seed, folder) or 1, None
    except BaseException:  # noqa: BLE001 - those of pytest and torch are no Exception
        lines = traceback.format_exc().strip().splitlines()
        return 1, "\n".join(lines[-MAX_MESSAGE_LINES:])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@dataclass
class AttackRun:
    """An attack whose tries may be spread over several rounds."""

    attack: Attack
    module: str
    row: Row
    seeds: deque[int]
    last_try_s: float = 0.0

    def has_time(self, deadline: float) -> bool:
        """Return whether a try as long as the last one would end before the deadline."""
        return bool(self.seeds) and self.last_try_s < deadline - time.monotonic()

    def run(self, worker: Worker, limit_s: float) -> None:
        """Run tries until there is none left or the time is over, but at least one."""
        start = time.monotonic()
        while self.seeds:
            self._attempt(worker)
            if time.monotonic() - start > limit_s:
                break
        self.row.is_cut = bool(self.seeds)
        self.row.seconds += time.monotonic() - start
        log.info("%s", self.row.describe())

    def _attempt(self, worker: Worker) -> None:
        seed = self.seeds.popleft()
        start = time.monotonic()
        num_inputs, message = worker.attempt(self.attack, seed)
        self.last_try_s = time.monotonic() - start
        self.row.num_tries += num_inputs
        if message is not None:
            self.row.breaks.append(Break(seed, message))
            log.info("%s, seed %d broke: %s", self.attack.name, seed, message)


def plan_attacks(
    only: str = "", *, is_small: bool = False, seeds: Sequence[int] = ()
) -> list[AttackRun]:
    """Return the attacks with a text in their name, and their tries.

    Args:
        only: The text.
        is_small: Plan the small form.
        seeds: Try these seeds instead of those of the form.
    """
    planned: list[AttackRun] = []
    for module in find_modules():
        for attack in load_attacks(module):
            if only in attack.name:
                num_tries = attack.num_small_tries if is_small else attack.num_tries
                row = Row(attack.name, attack.promise, obstacle=attack.find_obstacle())
                tries = () if row.obstacle else seeds or range(num_tries)
                planned.append(AttackRun(attack, module, row, deque(tries)))
    return planned


def run_attacks(planned: Sequence[AttackRun], budget_s: float = float("inf")) -> None:
    """Run attacks within a time for all of them. Packages run at the same time.

    First each attack gets one try. Then the attacks of a package get equal shares of the time
    that is left. What fast attacks leave is shared by the others in further rounds.
    """
    deadline = time.monotonic() + budget_s
    groups = group_by_package(run.module for run in planned)
    with (
        tempfile.TemporaryDirectory(prefix="faults-", ignore_cleanup_errors=True) as folder,
        ThreadPoolExecutor(max(1, len(groups))) as threads,
    ):
        finished: list[Future[None]] = []
        for modules in groups.values():
            runs = [run for run in planned if run.module in modules]
            worker = Worker(modules, Path(folder))
            finished.append(threads.submit(_run_package, runs, worker, deadline))
        for future in finished:
            future.result()


def _run_package(runs: Sequence[AttackRun], worker: Worker, deadline: float) -> None:
    try:
        for run in runs:
            run.run(worker, 0.0)
        while waiting := [run for run in runs if run.has_time(deadline)]:
            for index, run in enumerate(waiting):
                if run.has_time(deadline):
                    left_s = deadline - time.monotonic()
                    run.run(worker, left_s / (len(waiting) - index))
    finally:
        worker.stop()
