"""A stage that waits until a file exists, and the command line with it in the chain.

A test kills processes while the stage waits. Then it creates the file, and runs the same config again.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import pyarrow as pa

from pipeline.phases.extract import Extract
from stages.contract import Outcome
from stages.filters.length import Length

# Environment variable: the folder in which each waiting process leaves a file of its id, and
# in which the test creates the file OPEN.
FOLDER = "WAITING_FOLDER"
OPEN = "open"


class Waiting(Length):
    """`Length`, after the file exists."""

    def apply(self, batch: pa.Table) -> Outcome:
        """Wait, then do what `Length` does."""
        folder = Path(os.environ[FOLDER])
        (folder / str(os.getpid())).touch()
        while not (folder / OPEN).exists():
            time.sleep(0.05)
        return super().apply(batch)


def main() -> None:
    """The command line, with `Waiting` in the place of `Length` before deduplication."""
    from pipeline import cli

    Extract.stages = tuple(
        Waiting if stage is Length else stage for stage in Extract.stages
    )
    cli.main()
