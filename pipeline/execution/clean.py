"""Removing from a finished run the outputs that are not needed any more.

removals = list_removals(run, "explain")
sum(removal.num_bytes for removal in removals)
clean(run, "explain")
restore(run)                # the next run of the config makes the outputs again
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pipeline.phases import registry
from pipeline.phases.artifact import USES, Use
from pipeline.phases.phase import Phase
from pipeline.runs.phase_folder import PhaseFolder
from pipeline.runs.removed_outputs import remove_outputs
from pipeline.runs.run_folder import RunFolder, RunNotFound
from pipeline.runs.run_lock import hold

_FINGERPRINT = re.compile("-[0-9a-f]{16}")


@dataclass(frozen=True)
class Removal:
    """Outputs to remove from a folder of a phase.

    Attributes:
        folder: the folder.
        suffixes: the ends of the names of the files; empty: the whole folder, which is of an earlier config.
        files: their names.
        num_bytes: of the files.
    """

    folder: PhaseFolder
    suffixes: tuple[str, ...]
    files: tuple[str, ...]
    num_bytes: int


def list_removals(run: RunFolder, keep: Use) -> list[Removal]:
    """List what `clean` removes.

    Args:
        run: the run.
        keep: the first use for which files are kept.

    Raises:
        RunNotFound: the run has not finished.
    """
    if not run.has_finished("write_shards"):
        raise RunNotFound(
            f"{run.run_dir}: the run has not finished; run its config to the end first"
        )
    removals: list[Removal] = []
    for phase in registry.PHASES:
        removals += _list_outputs(run.folder(phase.name), phase, keep)
    earlier = set(run.run_dir.list_folders()) - set(run.folders.values())
    for name in sorted(earlier):
        found = _FINGERPRINT.search(name)
        if found and found.end() == len(name) and name[: found.start()] in run.folders:
            removals.append(_list_folder(PhaseFolder(run.run_dir.child(name))))
    return removals


def _list_outputs(folder: PhaseFolder, phase: type[Phase], keep: Use) -> Iterator[Removal]:
    unused = USES[: USES.index(keep)]
    suffixes = tuple(each.suffix for each in phase.artifacts() if each.last_use in unused)
    endings = tuple(f".{suffix}" for suffix in suffixes)
    if not any(name.endswith(endings) for name in folder.root.list_names()):
        return  # without reading the records
    sizes = _read_sizes(folder)
    files = tuple(name for name in sizes if name.endswith(endings))
    yield Removal(folder, suffixes, files, sum(sizes[name] for name in files))


def _list_folder(folder: PhaseFolder) -> Removal:
    sizes = _read_sizes(folder)
    return Removal(folder, (), tuple(sizes), sum(sizes.values()))


def _read_sizes(folder: PhaseFolder) -> dict[str, int]:
    """Return the bytes of each output that is there."""
    present = frozenset(folder.root.list_names())
    sizes: dict[str, int] = {}
    for record in folder.intact_records(folder.list_done()):
        for name in present.intersection(record["outputs"]):
            sizes[name] = record["outputs"][name]["bytes"]
    return sizes


def clean(run: RunFolder, keep: Use) -> None:
    """Remove outputs. After a crash, the next call continues.

    Raises:
        RunNotFound: the run has not finished.
        HeldByAnother: a driver is running.
    """
    with hold(run.run_dir) as run_lock:
        # The run may have been started again, with another config, before the lock was taken.
        for removal in list_removals(RunFolder.open(run.run_dir), keep):
            run_lock.check()
            if removal.suffixes:
                remove_outputs(removal.folder.root, removal.suffixes, removal.files)
            else:
                removal.folder.root.delete_all()


def restore(run: RunFolder) -> None:
    """Let the next run of the config make again what `clean` removed, but for files of `last_use` "run".

    Raises:
        HeldByAnother: a driver is running.
    """
    with hold(run.run_dir):
        for phase in registry.PHASES:
            if any(artifact.last_use in USES[1:3] for artifact in phase.artifacts()):
                run.folder(phase.name).restore()
