"""Previous runs that a run is deduplicated against: their input splits, and who owns which document.

Document ids of two runs overlap. In a run that was deduplicated against others, the i-th input split of the previous
runs, in the order in which the config names them, has the index `number of own splits + i`. The column
`representative` of the decisions uses these ids; `find_owner` translates them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pipeline.phases.artifact import Artifact
from pipeline.runs.exchange import name_places
from pipeline.runs.run_folder import RunFolder
from stages.contract import Stage, join_doc_id, split_doc_id
from storage import open_store


@dataclass(frozen=True)
class PreviousSplit:
    """An input split of a previous run."""

    run: RunFolder
    key: str
    index: int  # in that run

    def open(self, phase: str, name: str) -> pa.NativeFile:
        """Open a finished output of a phase."""
        return self.run.folder(phase).open(name)


def list_previous_splits(runs: Sequence[RunFolder]) -> Iterator[PreviousSplit]:
    """Yield the input splits of several runs, in order."""
    for run in runs:
        for split in run.splits:
            yield PreviousSplit(run, split.key, split.index)


def find_owner(
    doc_id: int, num_splits: int, runs: Sequence[RunFolder]
) -> tuple[RunFolder, int] | None:
    """Return the previous run that owns a document and the document's id in that run.

    Args:
        doc_id: an id in the numbering of the later run.
        num_splits: the number of input splits of the later run.
        runs: its previous runs.

    Returns:
        None if the document belongs to the later run itself.
    """
    index, record = split_doc_id(doc_id)
    if index < num_splits:
        return None
    split = list(list_previous_splits(runs))[index - num_splits]
    return split.run, join_doc_id(split.index, record)


def find_unfinished(run: RunFolder, phase: str) -> Iterator[str]:
    """Yield a fault if the phase is not complete in a previous run."""
    if not run.has_finished(phase):
        yield f"its {phase} is not finished; run it to its end first"


def find_unreadable(run: RunFolder, artifact: Artifact) -> Iterator[str]:
    """Yield a fault if a previous run does not have the files of an artifact, and the places of their segments."""
    name = artifact.phase
    faults = list(find_unfinished(run, name))
    if not faults and not run.folder(name).is_done(name_places(artifact)):
        faults.append(
            f"its {name} was written by an earlier version of this program; run that config again"
        )
    yield from faults


def find_other_version(
    run: RunFolder, phase: str, stage: type[Stage[Any]]
) -> Iterator[str]:
    """Yield a fault if a previous run was made with another version of the stage."""
    theirs = run.stage_versions.get(phase, {}).get(stage.name)
    if theirs == stage.version:
        return
    found = "did not record its version" if theirs is None else f"is version {theirs}"
    yield (
        f"its stage {stage.name} {found}, ours is {stage.version}; run that config again: "
        f"phases that are still valid are reused"
    )


def resolve_run_dir(run_dir: str) -> str:
    """Return one spelling for all names of a folder."""
    store = open_store(run_dir)
    path = store.get_local_path()
    return str(store if path is None else path.resolve())
