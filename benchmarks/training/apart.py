"""Call a function in a separate process, which starts with torch imported and ends with all its GPU memory freed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch


class Skipped(Exception):
    """There are no figures; the message is the reason."""


def call_apart(
    function: Callable[..., Any], *arguments: Any, log: Path, limit_s: float
) -> Any:
    """Call a function in a separate process, and return its result.

    Args:
        function: one of a module.
        arguments: of the function.
        log: file for what the process prints.
        limit_s: the process is killed after so many seconds.

    Raises:
        Skipped: the function raised an error, the process died, or the time was over.
    """
    processes = multiprocessing.get_context("forkserver")
    # torch is imported once, not by each of a dozen processes: that takes 6 s.
    processes.set_forkserver_preload(["benchmarks.training.entrants"])
    pipe, other_end = processes.Pipe()
    process = processes.Process(target=_answer, args=(other_end, log, function, arguments))
    process.start()
    other_end.close()
    try:
        if not pipe.poll(max(0.0, limit_s)):
            raise Skipped("the time was over")
        answer, error = pipe.recv()
    except EOFError:
        last_lines = log.read_text(errors="replace").splitlines()[-3:]
        answer, error = None, f"it died: {' / '.join(last_lines)}"
    finally:
        process.kill()
        process.join()
    if error:
        raise Skipped(error)
    return answer


def _answer(
    pipe: Connection, log: Path, function: Callable[..., Any], arguments: tuple[Any, ...]
) -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    if not torch.cuda.is_available():
        torch.set_num_threads(1)
    try:
        pipe.send((function(*arguments), ""))
    except BaseException as error:  # noqa: BLE001 - the parent reports every error
        traceback.print_exc()
        with contextlib.suppress(OSError):
            pipe.send((None, describe_error(error)))
    finally:
        os._exit(0)  # threads of compilers and process groups have nothing to say any more


def describe_error(error: BaseException) -> str:
    """Return the kind of an error and the first line of its message."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]
