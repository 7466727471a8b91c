"""A stage that raises, or kills its process, on documents that say so; and the command line with it in the chain."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow as pa

from pipeline.phases.extract import Extract
from stages.contract import Outcome
from stages.filters.length import Length

FAULTS = {
    "raise value": ValueError("bad value"),
    "raise memory": MemoryError(),
    "raise other": KeyError("key"),
}
# Environment variable: a file that gets a byte for every process that is killed.
LOG = "DEADLY_LOG"


class Deadly(Length):
    """`Length`, but for documents whose text holds a fault's name."""

    def apply(self, batch: pa.Table) -> Outcome:
        """Do what the texts say, or what `Length` does."""
        for text in batch.column("text").to_pylist():
            if "kill" in text:
                with Path(os.environ[LOG]).open("ab") as log:
                    log.write(b".")
                os.kill(os.getpid(), signal.SIGKILL)
            for name, error in FAULTS.items():
                if name in text:
                    raise error
        return super().apply(batch)


DEADLY_STAGES = tuple(Deadly if stage is Length else stage for stage in Extract.stages)


def main() -> None:
    """The command line, with `Deadly` in the place of `Length` before deduplication."""
    from pipeline import cli

    Extract.stages = DEADLY_STAGES
    cli.main()
