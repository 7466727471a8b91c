"""A stage that waits until a file exists, and the command line with it in the chain.

A test kills processes while the stage waits. Then it creates the file, and runs the same config again.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline.execution.on_ray.engine import RayEngine
from pipeline.phases.extract import Extract
from stages.contract import Outcome
from stages.filters.length import Length

# Environment variable: the folder in which each waiting process leaves a file of its id, and
# in which the test creates the file OPEN.
FOLDER = "WAITING_FOLDER"
OPEN = "open"

# Environment variable: the driver fills Ray's object store before the first task, and writes
# Ray's error into the file FULL of the folder.
FILL = "FILL_OBJECT_STORE"
FULL = "full"
OBJECT_BYTES = 30 * 2**20


class Waiting(Length):
    """`Length`, after the file exists."""

    def apply(self, batch: pa.Table) -> Outcome:
        """Wait, then do what `Length` does."""
        folder = Path(os.environ[FOLDER])
        (folder / str(os.getpid())).touch()
        while not (folder / OPEN).exists():
            time.sleep(0.05)
        return super().apply(batch)


start_ray = RayEngine.start
kept: list[Any] = []


def start_with_full_object_store(engine: RayEngine) -> None:
    """Start Ray, and store objects that nothing may remove until there is no room."""
    start_ray(engine)
    import ray

    try:
        while not (Path(os.environ[FOLDER]) / FULL).exists():
            kept.append(ray.put(np.ones(OBJECT_BYTES, np.uint8)))
    except ray.exceptions.RayError as error:
        (Path(os.environ[FOLDER]) / FULL).write_text(type(error).__name__)


def main() -> None:
    """The command line, with `Waiting` in the place of `Length` before deduplication."""
    from pipeline import cli

    if FILL in os.environ:
        RayEngine.start = start_with_full_object_store
    Extract.stages = tuple(
        Waiting if stage is Length else stage for stage in Extract.stages
    )
    cli.main()
