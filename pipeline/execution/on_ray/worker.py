"""What a worker of Ray does with a group of tasks."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence

from pipeline.config import EngineConfig
from pipeline.execution import watchdog
from pipeline.execution.inline import run_group
from pipeline.execution.on_ray.failures import iterate_in_thread
from pipeline.phases.phase import Phase
from terminal_output import escape_output


def report_group(
    phase: Phase,
    settings: EngineConfig,
    umask: int,
    pause_s: float,
    task_ids: Sequence[str],
    num_deaths: int,
) -> Iterator[str]:
    """Run a group of tasks in a thread, and yield as JSON texts what the driver needs to know.

    These are the result of each task as an object, and between them `[task_id, documents]` of the
    tasks that go on.

    Args:
        phase: the phase.
        settings: the engine's section of the config.
        umask: that of the driver. Workers inherit the umask with which Ray was started.
        pause_s: between two reports of documents.
        task_ids: the group.
        num_deaths: see `RunGroup`.
    """
    os.umask(umask)
    _log_to_stderr()
    watchdog.enable()  # the task is repeated in another process
    numbers: dict[str, float] = {}

    def take_numbers() -> list[str]:
        taken = [json.dumps(each) for each in numbers.copy().items()]
        numbers.clear()
        return taken

    results = run_group(phase, task_ids, settings, numbers.__setitem__, num_deaths)
    texts = (result.to_json() for result in results)
    return iterate_in_thread(texts, take_numbers, pause_s)


def _log_to_stderr() -> None:
    """Let a worker write our log lines, such as fetched models, to its log file, escaped."""
    escape_output()
    for package in ("pipeline", "storage"):
        ours = logging.getLogger(package)
        if not ours.handlers:
            ours.addHandler(logging.StreamHandler())
            ours.setLevel(logging.INFO)
