"""A stage that raises or kills its process on certain documents."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pyarrow as pa

from pipeline.phases.extract import Extract
from stages.contract import Outcome
from stages.filters.length import Length
from tests.pipeline.execution.spinning import spin

FAULTS = {
    "raise value": ValueError("bad value"),
    "raise memory": MemoryError(),
    "raise other": KeyError("key"),
}
# The text of a page that kills its process: this word and a file, which gets a byte each time.
KILL = "kill "
# The text of a page that edits the config of its run: this word and the file.
EDIT = "edit "


class Deadly(Length):
    """`Length`, except on documents whose text contains the name of a fault."""

    def apply(self, batch: pa.Table) -> Outcome:
        """Raise or kill the process if a text asks for it; otherwise apply `Length`."""
        for text in batch.column("text").to_pylist():
            _, is_deadly, log = text.rpartition(KILL)
            if is_deadly:
                with Path(log).open("ab") as file:
                    file.write(b".")
                os.kill(os.getpid(), signal.SIGKILL)
            _, is_edited, config = text.rpartition(EDIT)
            if is_edited:
                Path(config).write_text("edited: while the run works")
            if "endless" in text:
                spin()
            for name, error in FAULTS.items():
                if name in text:
                    raise error
        return super().apply(batch)


DEADLY_STAGES = tuple(Deadly if stage is Length else stage for stage in Extract.stages)


def main() -> None:
    """Run the command line with `Deadly` in place of `Length`."""
    from pipeline import cli

    Extract.stages = DEADLY_STAGES
    cli.main()
