"""Start the ranks of a test as processes, forked from one that has imported torch."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from tests.fork_server import Preload
from tests.sockets import find_free_ports

# File of a world's folder: what its ranks said.
MESSAGES = "stderr"

TRAINER = Preload("training.trainer", "torch.distributed.fsdp", "torch._dynamo")


@contextmanager
def start(
    num_ranks: int, work: Callable[..., None], *arguments: Any, folder: Path
) -> Generator[list[ForkServerProcess], None, None]:
    """Start ranks with torchrun's environment; leaving the context kills those that still run."""
    folder.mkdir(parents=True, exist_ok=True)
    (port,) = find_free_ports(1)
    world = {
        **os.environ,
        "WORLD_SIZE": str(num_ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    processes: list[ForkServerProcess] = []
    try:
        for rank in range(num_ranks):
            # The whole environment: the process that forks them keeps that of its start.
            environment = {**world, "RANK": str(rank), "LOCAL_RANK": str(rank)}
            processes.append(
                TRAINER.start_process(
                    _be_rank, environment, folder / MESSAGES, work, arguments
                )
            )
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.join()


def wait_for_end(processes: Sequence[ForkServerProcess], timeout_s: float) -> None:
    """Wait until all ranks have ended, or the time for all of them is over."""
    deadline = time.monotonic() + timeout_s
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))


def run_world(
    num_ranks: int,
    work: Callable[..., None],
    *arguments: Any,
    folder: Path,
    timeout_s: float = 600,
) -> None:
    """Run a function on all ranks to its end; no rank may fail or warn."""
    with start(num_ranks, work, *arguments, folder=folder) as processes:
        wait_for_end(processes, timeout_s)
        codes = [process.exitcode for process in processes]
    assert codes == [0] * num_ranks, (folder / MESSAGES).read_text()[-4000:]


def _be_rank(
    environment: dict[str, str],
    messages: Path,
    work: Callable[..., None],
    arguments: tuple[Any, ...],
) -> None:
    import torch

    os.environ.update(environment)
    os.dup2(os.open(messages, os.O_WRONLY | os.O_CREAT | os.O_APPEND), sys.stderr.fileno())
    warnings.simplefilter("error")
    warnings.filterwarnings(
        "ignore", message=".*is deprecated", category=DeprecationWarning
    )
    torch.set_num_threads(1)
    work(*arguments)
